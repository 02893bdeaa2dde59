//! Host regions as buffers: the region's own memory where the device can import it, else a shadow of it.
//!
//! A shadow is a buffer of the same size that the host sees. What is uploaded is copied into it before the device starts, what
//! was downloaded out of it when the device has ended. Leases keep those bytes to one submission meanwhile.
//!
//! This module must not know commands.

use crate::api::{Logical, Memory, Part};
use crate::error::allocation_failure;
use crate::memory::MemoryTypes;
use ragtag_hal::{Error, HostRegion, Result};
use std::ops::Range;
use std::sync::Arc;

/// What regions are aligned to, and what their memory is mapped in units of, at least.
const PAGE_BYTES: u64 = 4096;

/// A region as the device sees it.
pub(crate) struct Mapping {
    /// Before the region, whose memory it may be.
    memory: Memory,
    region: Arc<HostRegion>,
    /// Whether `memory` is a shadow.
    shadow: bool,
}

impl Mapping {
    /// Imports a region, or makes a shadow of it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes; whatever else has the driver refuse both.
    pub(crate) fn new(
        logical: &Arc<Logical>,
        types: &MemoryTypes,
        region: &Arc<HostRegion>,
        import: bool,
    ) -> Result<Self> {
        let bytes = region.bytes() as u64;
        let made = |memory, shadow| Self { memory, region: Arc::clone(region), shadow };
        let aligned = logical.facts().import_alignment_bytes.is_some_and(|bytes| bytes <= PAGE_BYTES);
        if import && aligned {
            // SAFETY: the region starts at a page and is kept; the rest of its last page is mapped with it, and no command
            // names that.
            match unsafe { Memory::over(logical, region.as_ptr(), bytes, &types.host) } {
                Ok(memory) => return Ok(made(memory, false)),
                Err(error @ Error::Lost { .. }) => return Err(error),
                Err(error) => tracing::debug!(%error, bytes, "a region is not imported"),
            }
        }
        let memory = Memory::new(logical, bytes, &types.host);
        let memory = memory.map_err(|error| allocation_failure(error, bytes))?;
        match memory.mapped() {
            Some(_) => Ok(made(memory, true)),
            None => Err(Error::Unsupported { what: "memory that host and device see".into() }),
        }
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Some of its bytes, as the device sees them.
    pub(crate) fn part(&self, range: &Range<usize>) -> Part<'_> {
        Part { memory: &self.memory, offset: range.start as u64, bytes: range.len() as u64 }
    }

    /// Copies bytes of the region into the shadow.
    pub(crate) fn cast(&self, range: &Range<usize>) {
        if let Some(shadow) = self.shadow_at(range) {
            // SAFETY: both are `range` of memory of the same size. Whoever calls has leased these bytes of the region, and so
            // nobody else uses the shadow's.
            unsafe { std::ptr::copy_nonoverlapping(self.region_at(range), shadow, range.len()) }
        }
    }

    /// Copies bytes of the shadow into the region.
    pub(crate) fn collect(&self, range: &Range<usize>) {
        if let Some(shadow) = self.shadow_at(range) {
            // SAFETY: as for `cast`.
            unsafe { std::ptr::copy_nonoverlapping(shadow, self.region_at(range), range.len()) }
        }
    }

    /// The first of some bytes of the region.
    fn region_at(&self, range: &Range<usize>) -> *mut u8 {
        self.region.as_ptr().wrapping_add(range.start)
    }

    fn shadow_at(&self, range: &Range<usize>) -> Option<*mut u8> {
        let mapped = self.memory.mapped().filter(|_| self.shadow)?;
        (range.end <= self.region.bytes()).then(|| (mapped.address as *mut u8).wrapping_add(range.start))
    }
}
