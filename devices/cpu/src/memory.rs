//! Memory of buffers, and what the host has left.
//!
//! This module must not know commands or queues.

use memmap2::{MmapMut, MmapRaw};
use ragtag_hal::driver::Allocation;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// From this size on a buffer asks for huge pages: a matrix that is streamed through costs fewer misses of the
/// translation buffers.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of a buffer: page-aligned and of fixed size. It is reached through pointers alone, since several threads work
/// on it at times that only the submissions' points order.
#[derive(Debug)]
pub(crate) struct Buffer {
    map: MmapRaw,
}

impl Buffer {
    /// A buffer of `bytes` bytes, or `None` if the host does not give them. Pages are taken as they are first touched.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let map = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
        #[cfg(target_os = "linux")]
        if map.len() >= HUGE_PAGE_BYTES {
            // Only advice: without huge pages everything works, somewhat slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Some(Self { map: MmapRaw::from(map) })
    }

    /// The first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

impl Allocation for Buffer {
    fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn writable(&self) -> Option<*mut u8> {
        Some(self.pointer())
    }

    fn readable(&self) -> Option<*const u8> {
        Some(self.pointer().cast_const())
    }
}

/// The host's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMemory {
    /// All of it.
    pub(crate) total_bytes: u64,
    /// What can be had without swapping.
    pub(crate) free_bytes: u64,
}

impl HostMemory {
    /// Asks the operating system; a container's own limits count.
    pub(crate) fn now() -> Self {
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

    /// One of `parts` equal shares.
    pub(crate) fn share(self, parts: u32) -> Self {
        let parts = u64::from(parts.max(1));
        Self { total_bytes: self.total_bytes / parts, free_bytes: self.free_bytes / parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned() {
        for bytes in [1, 4096, 5 << 20] {
            let buffer = Buffer::new(bytes).unwrap();
            assert_eq!((buffer.bytes(), buffer.pointer() as usize % 4096), (bytes, 0));
        }
        assert!(Buffer::new(1 << 60).is_none(), "no host has that");
    }

    #[test]
    fn the_host_has_memory_and_shares_add_up() {
        let host = HostMemory::now();
        assert!(host.free_bytes > 0 && host.free_bytes <= host.total_bytes, "{host:?}");
        let share = host.share(3);
        assert!(share.total_bytes * 3 <= host.total_bytes && share.total_bytes * 3 + 3 > host.total_bytes);
    }
}
