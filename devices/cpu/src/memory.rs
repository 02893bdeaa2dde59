//! Buffers of a CPU device, where they come from, and what memory the host has left.
//!
//! This module must not know commands or queues.

use memmap2::{MmapMut, MmapRaw};
use ragtag_hal::{Error, Limits, Pool, PoolStats, Result, Timing};
use std::sync::Arc;
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

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

/// Where a device's buffers come from.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pool: Pool<Buffer>,
    /// Most bytes that the buffers may take together.
    limit_bytes: u64,
}

impl DeviceMemory {
    /// Memory for buffers within the limits: of the whole, or of the device's share of the host.
    pub(crate) fn new(limits: &Limits, share_bytes: u64, largest_bytes: u64) -> Self {
        let limit_bytes = limits.memory_bytes.unwrap_or(share_bytes);
        Self { pool: Pool::new(limits.pool.clone(), limit_bytes, largest_bytes), limit_bytes }
    }

    /// Most bytes that the buffers may take together.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What the device may still allocate: within its limit, and within what the host has or the pool would give back.
    pub(crate) fn free_bytes(&self) -> u64 {
        let host = HostMemory::now().free_bytes.saturating_add(self.pool.stats().cached_bytes);
        self.pool.free_bytes().min(host)
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// A buffer of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Arc<Buffer>> {
        let free = self.free_bytes();
        let out_of_memory = || Error::OutOfMemory { wanted: bytes, free: Some(free) };
        if bytes > free {
            return Err(out_of_memory());
        }
        let new = |size| Buffer::new(size).ok_or_else(out_of_memory);
        self.pool.acquire(bytes, Timing::now_ns(), new).map(Arc::new)
    }

    /// Gives up what the pool holds and no buffer uses.
    pub(crate) fn trim(&mut self) -> u64 {
        self.pool.drain()
    }

    /// Takes a buffer back. One that a submission still holds on to goes with it.
    pub(crate) fn release(&mut self, buffer: Arc<Buffer>) {
        let bytes = buffer.bytes() as u64;
        match Arc::try_unwrap(buffer) {
            Ok(buffer) => self.pool.put(buffer, bytes, Timing::now_ns()),
            Err(_) => self.pool.forget(bytes),
        }
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
            assert_eq!((buffer.bytes() as u64, buffer.pointer() as usize % 4096), (bytes, 0));
        }
        assert!(Buffer::new(1 << 60).is_none(), "no host has that");
    }

    #[test]
    fn a_buffer_in_use_is_never_handed_out_again() {
        let mut memory = DeviceMemory::new(&Limits::default(), 1 << 20, 1 << 20);
        let (idle, busy) = (memory.allocate(5000).unwrap(), memory.allocate(5000).unwrap());
        let held = Arc::clone(&busy);
        let first = idle.pointer();
        memory.release(busy);
        assert_eq!((memory.stats().in_use_buffers, memory.stats().cached_buffers), (1, 0));
        memory.release(idle);
        let again = memory.allocate(4700).unwrap();
        assert_eq!((again.pointer(), again.bytes(), memory.stats().hits), (first, 5120, 1));
        let other = memory.allocate(5000).unwrap();
        assert_ne!(other.pointer(), held.pointer());
        assert_eq!(memory.free_bytes(), (1 << 20) - 2 * 5120);
    }

    #[test]
    fn the_host_has_memory_and_shares_add_up() {
        let host = HostMemory::now();
        assert!(host.free_bytes > 0 && host.free_bytes <= host.total_bytes, "{host:?}");
        let share = host.share(3);
        assert!(share.total_bytes * 3 <= host.total_bytes && share.total_bytes * 3 + 3 > host.total_bytes);
    }
}
