//! Host memory as buffers. If the device supports it, a host region is imported. Otherwise the region gets a
//! staging buffer. Pages of other devices are always imported.
//!
//! A staging buffer is host-visible and as large as its region. The host copies bytes to upload into the
//! staging buffer before the device starts a submission, and copies downloaded bytes out of it after the
//! device has finished. Leases reserve these bytes for one submission at a time.
//!
//! This module does not depend on commands.

use crate::api::{BufferPart, Logical, Memory};
use crate::error::allocation_failure;
use crate::memory::{Buffer, MemoryTypes};
use ragtag_hal::{Error, HostPages, HostRegion, Result};
use std::ops::Range;
use std::sync::Arc;

/// Imports pages of the host as a buffer.
///
/// # Errors
/// Returns [`Error::Unsupported`] if the device cannot import these pages, or the driver's error.
pub(crate) fn import_pages(
    logical: &Arc<Logical>,
    types: &MemoryTypes,
    pages: Arc<HostPages>,
) -> Result<Buffer> {
    if !logical.facts().imports_pages() {
        return Err(Error::Unsupported { what: "importing pages of the host into this device".into() });
    }
    // SAFETY: the buffer keeps the pages mapped. They are a mapping of their own.
    let memory = unsafe { Memory::over(logical, pages.pointer(), pages.bytes(), &types.host) }?;
    Ok(Buffer::over(memory, pages))
}

/// A buffer that uses the memory of a host region, or the region's staging buffer.
pub(crate) struct Mapping {
    /// Imported memory or staging buffer. The field is declared before the region, whose memory it may use,
    /// so that it is dropped first.
    memory: Memory,
    region: Arc<HostRegion>,
    /// Whether `memory` is a staging buffer.
    staging: bool,
}

impl Mapping {
    /// Imports a region or creates a staging buffer for it.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] with the size, or another error, if both the import and the staging
    /// buffer fail.
    pub(crate) fn new(
        logical: &Arc<Logical>,
        types: &MemoryTypes,
        region: &Arc<HostRegion>,
        import: bool,
    ) -> Result<Self> {
        let bytes = region.bytes() as u64;
        let made = |memory, staging| Self { memory, region: Arc::clone(region), staging };
        if import && logical.facts().imports_pages() {
            // SAFETY: the region starts at a page boundary and stays alive. The rest of its last page is
            // mapped as well, and no command accesses that rest.
            match unsafe { Memory::over(logical, region.as_ptr(), bytes, &types.host) } {
                Ok(memory) => return Ok(made(memory, false)),
                Err(error @ Error::Lost { .. }) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, bytes, "cannot import a region; using a staging buffer")
                }
            }
        }
        let memory = Memory::new(logical, bytes, &types.host);
        let memory = memory.map_err(|error| allocation_failure(error, bytes))?;
        match memory.mapped() {
            Some(_) => Ok(made(memory, true)),
            None => Err(Error::Unsupported { what: "host-visible device memory".into() }),
        }
    }

    pub(crate) fn is_staging(&self) -> bool {
        self.staging
    }

    /// Returns the part of the buffer for a byte range of the region.
    pub(crate) fn part(&self, range: &Range<usize>) -> BufferPart<'_> {
        BufferPart { memory: &self.memory, offset: range.start as u64, bytes: range.len() as u64 }
    }

    /// Copies bytes of the region into the staging buffer. Does nothing for an imported region.
    pub(crate) fn copy_in(&self, range: &Range<usize>) {
        if let Some(staging) = self.staging_at(range) {
            // SAFETY: source and destination are `range` in memory of the same size. The caller has leased
            // these bytes of the region, which also excludes other users of the same bytes of the staging
            // buffer.
            unsafe { std::ptr::copy_nonoverlapping(self.region_at(range), staging, range.len()) }
        }
    }

    /// Copies bytes of the staging buffer into the region. Does nothing for an imported region.
    pub(crate) fn copy_out(&self, range: &Range<usize>) {
        if let Some(staging) = self.staging_at(range) {
            // SAFETY: as for `copy_in`.
            unsafe { std::ptr::copy_nonoverlapping(staging, self.region_at(range), range.len()) }
        }
    }

    /// Returns a pointer to the first byte of a range of the region.
    fn region_at(&self, range: &Range<usize>) -> *mut u8 {
        self.region.as_ptr().wrapping_add(range.start)
    }

    fn staging_at(&self, range: &Range<usize>) -> Option<*mut u8> {
        let mapped = self.memory.mapped().filter(|_| self.staging)?;
        (range.end <= self.region.bytes()).then(|| (mapped.address as *mut u8).wrapping_add(range.start))
    }
}
