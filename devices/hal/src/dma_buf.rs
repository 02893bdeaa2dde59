//! Memory that a driver exports as a dma-buf, which Linux's drivers of all GPUs can interpret.
//!
//! This module knows no API.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An allocation as a dma-buf. The allocation starts with one buffer.
pub struct DmaBuf {
    /// The file descriptor. An import needs its own duplicate.
    pub fd: OwnedFd,
    /// Size of the allocation in bytes. It is at least the size of the buffer.
    pub allocation_bytes: u64,
    /// Handle with which devices of the exporting backend import the same memory. It keeps the memory alive.
    pub own: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fd, allocation_bytes, .. } = self;
        f.debug_struct("DmaBuf")
            .field("fd", fd)
            .field("allocation_bytes", allocation_bytes)
            .finish_non_exhaustive()
    }
}

impl DmaBuf {
    /// Wraps a file descriptor that a driver has exported. `own` is the handle for the exporting backend.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the size of the allocation cannot be determined.
    pub fn new(fd: OwnedFd, own: Arc<dyn Any + Send + Sync>) -> Result<Self> {
        let mut file = File::from(fd);
        let unknown = |error| Error::invalid(format!("cannot determine the size of a dma-buf: {error}"));
        let allocation_bytes = file.seek(SeekFrom::End(0)).map_err(unknown)?;
        Ok(Self { fd: file.into(), allocation_bytes, own })
    }

    /// Returns a duplicate of the file descriptor, for an import of the first `bytes` bytes.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the allocation is smaller, and [`Error::Invalid`] if the process has
    /// too many open files.
    pub fn duplicate(&self, bytes: u64) -> Result<OwnedFd> {
        if self.allocation_bytes < bytes {
            let what = format!("importing {bytes} bytes of a dma-buf of {} bytes", self.allocation_bytes);
            return Err(Error::Unsupported { what });
        }
        self.fd.try_clone().map_err(|error| Error::invalid(format!("cannot duplicate a dma-buf: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_size_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let refused = DmaBuf::new(reader.into(), Arc::new(())).unwrap_err();
        assert!(refused.to_string().contains("the size of a dma-buf"), "{refused}");
    }

    #[test]
    fn small_allocations_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = DmaBuf::new(file.into(), Arc::new(())).unwrap();
        assert!(memory.duplicate(4096).is_ok());
        let refused = memory.duplicate(4097).unwrap_err();
        assert!(refused.to_string().contains("4097 bytes of a dma-buf of 4096 bytes"), "{refused}");
    }
}
