//! Host memory of buffers.
//!
//! This module knows nothing about commands or queues.

use memmap2::{MmapMut, MmapRaw};
use ragtag_hal::driver::Allocation;
use std::sync::Arc;

/// Minimum size in bytes of a buffer that uses huge pages. Huge pages reduce TLB misses when a kernel streams
/// through a large matrix.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Page-aligned memory of a buffer. Threads access it only through raw pointers, because only the points of
/// submissions order the accesses.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// Several CPU devices share the mapping if one of them has imported it.
    map: Arc<MmapRaw>,
}

impl Buffer {
    /// Allocates a buffer of `bytes` bytes. Returns `None` if the host cannot provide the memory. Pages are
    /// committed on first access.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let map = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
        #[cfg(target_os = "linux")]
        if map.len() >= HUGE_PAGE_BYTES {
            // A failure is ignored: without huge pages, accesses are only somewhat slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Some(Self { map: Arc::new(MmapRaw::from(map)) })
    }

    /// Returns a pointer to the first byte.
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
}
