//! Pages of host memory that the devices of this process share.
//!
//! The buffers of a CPU device consist of such pages. Other drivers pin or import the pages, so that their
//! copy engines access the buffers directly.
//!
//! This module knows no API.

use memmap2::{MmapMut, MmapRaw};

/// Granularity of the pages, in bytes.
const PAGE_BYTES: usize = 4096;

/// Minimum size in bytes of a mapping that uses huge pages. Huge pages reduce TLB misses when a kernel
/// streams through a large matrix.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Host memory in a mapping of its own, which contains no other memory. The pages are unmapped when the value
/// is dropped, so each user holds an [`Arc`](std::sync::Arc) until its driver has released the pages. Users
/// access the pages only through raw pointers, because only the points of submissions order the accesses.
#[derive(Debug)]
pub struct HostPages {
    map: MmapRaw,
    bytes: u64,
}

impl HostPages {
    /// Maps zeroed pages for `bytes` bytes. Returns `None` if the host cannot provide the memory. The system
    /// commits pages on first access.
    pub fn new(bytes: u64) -> Option<Self> {
        let mapped = usize::try_from(bytes).ok()?.checked_next_multiple_of(PAGE_BYTES)?;
        let map = MmapMut::map_anon(mapped).ok()?;
        #[cfg(target_os = "linux")]
        if mapped >= HUGE_PAGE_BYTES {
            // A failure is ignored: without huge pages, accesses are only somewhat slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Some(Self { map: MmapRaw::from(map), bytes })
    }

    /// Returns a pointer to the first byte, which is the start of a page.
    pub fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns the requested size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the size of the mapping in bytes, a whole number of pages.
    pub fn mapped_bytes(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_consist_of_whole_pages() {
        for (bytes, mapped) in [(1, 4096), (4096, 4096), (4097, 8192), (5 << 20, 5 << 20)] {
            let pages = HostPages::new(bytes).unwrap();
            assert_eq!((pages.bytes(), pages.mapped_bytes()), (bytes, mapped));
            assert_eq!(pages.pointer() as usize % 4096, 0);
        }
        for bytes in [1 << 60, u64::MAX] {
            assert!(HostPages::new(bytes).is_none(), "no host has that");
        }
    }
}
