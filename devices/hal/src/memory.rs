//! Size of the host's memory, as the operating system reports it.
//!
//! This module knows nothing about devices.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Size and free bytes of the host's memory. Both figures take the limits of a container into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes available without swapping.
    pub free_bytes: u64,
}

impl HostMemory {
    /// Returns the current figures from the operating system.
    pub fn now() -> Self {
        let ram = MemoryRefreshKind::nothing().with_ram();
        let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
        let whole = Self { total_bytes: system.total_memory(), free_bytes: system.available_memory() };
        match system.cgroup_limits() {
            Some(group) if group.total_memory > 0 => Self {
                total_bytes: whole.total_bytes.min(group.total_memory),
                free_bytes: whole.free_bytes.min(group.free_memory),
            },
            _ => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory() {
        let host = HostMemory::now();
        assert!(host.free_bytes > 0 && host.free_bytes <= host.total_bytes, "{host:?}");
    }
}
