//! Transfer modes between host regions and buffers: a driver command, or a copy by the host if host and
//! device address the same memory.
//!
//! Decides by capabilities alone. Knows nothing about buffers or queues.

/// Properties of memory that a device shares with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCaps {
    /// Whether the device uses host memory, as the processor or an integrated GPU.
    pub host_memory: bool,
    /// OpenCL 2.0 shared virtual memory with fine-grained buffers: once a command has ended, each side sees
    /// the other's writes without a call.
    pub fine_grained_buffers: bool,
    /// Unified shared memory (`cl_intel_unified_shared_memory`) on the host that kernels can read and write.
    pub unified_host: bool,
}

/// Way to write and read a device's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// Driver copies only.
    Explicit,
    /// Buffers are shared virtual memory. The host makes small copies that need not wait.
    SharedVirtual,
    /// Like `SharedVirtual`, with unified shared memory.
    Unified,
}

/// Returns the mode for a device. Kernels would access shared memory across the bus, so only devices that use
/// host memory share it. If both mechanisms exist, the standard one is used.
pub fn transfer_mode(caps: &MemoryCaps) -> TransferMode {
    match caps {
        MemoryCaps { host_memory: false, .. } => TransferMode::Explicit,
        MemoryCaps { fine_grained_buffers: true, .. } => TransferMode::SharedVirtual,
        MemoryCaps { unified_host: true, .. } => TransferMode::Unified,
        MemoryCaps { .. } => TransferMode::Explicit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_only_with_devices_that_use_host_memory() {
        let mode = |host_memory, fine_grained_buffers, unified_host| {
            transfer_mode(&MemoryCaps { host_memory, fine_grained_buffers, unified_host })
        };
        for (fine, unified) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(mode(false, fine, unified), TransferMode::Explicit);
        }
        assert_eq!(mode(true, false, false), TransferMode::Explicit);
        assert_eq!(mode(true, true, false), TransferMode::SharedVirtual);
        assert_eq!(mode(true, true, true), TransferMode::SharedVirtual);
        assert_eq!(mode(true, false, true), TransferMode::Unified);
    }
}
