//! Memory of buffers.
//!
//! This module must not know commands or queues.

use memmap2::{MmapMut, MmapRaw};
use ragtag_hal::driver::Allocation;

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
