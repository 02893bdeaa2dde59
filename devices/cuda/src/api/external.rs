//! Memory of other APIs, imported through opaque file descriptors.

use super::functions::{check, enter};
use super::objects::Context;
use super::partition::report;
use crate::error::allocation_failure;
use cudarc::driver::sys::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1, CUexternalMemory, CUexternalMemoryHandleType,
};
use ragtag_hal::{Error, OpaqueFd, Result};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::null_mut;
use std::sync::Arc;

/// An imported allocation, which is mapped into the device's address space.
pub(crate) struct ExternalMemory {
    context: Arc<Context>,
    raw: CUexternalMemory,
    /// Address of the mapping. It is 0 before the mapping.
    address: u64,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for ExternalMemory {}
// SAFETY: as above. Shared references give no access to the handle.
unsafe impl Sync for ExternalMemory {}

impl ExternalMemory {
    /// Imports an allocation and maps its first `bytes` bytes.
    pub(crate) fn new(context: &Arc<Context>, memory: &OpaqueFd, bytes: u64) -> Result<Self> {
        let short = |error| allocation_failure(error, bytes);
        let duplicate = memory.fd.try_clone().map_err(|error| Error::invalid(error.to_string()))?;
        let handle = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 { fd: duplicate.as_raw_fd() },
            size: memory.allocation_bytes,
            flags: CUDA_EXTERNAL_MEMORY_DEDICATED,
            reserved: [0; 16],
        };
        let mut raw = null_mut();
        // SAFETY: the file descriptor is a dedicated allocation of this size. The call writes one handle.
        unsafe { enter!(context, cuImportExternalMemory(&mut raw, &handle)) }.map_err(short)?;
        // A successful import has taken the file descriptor.
        let _ = duplicate.into_raw_fd();
        let mut imported = Self { context: Arc::clone(context), raw, address: 0 };
        let buffer = CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset: 0, size: bytes, flags: 0, reserved: [0; 16] };
        let address = &mut imported.address;
        // SAFETY: the memory was imported with at least this size. The call writes one address.
        unsafe { enter!(context, cuExternalMemoryGetMappedBuffer(address, raw, &buffer)) }.map_err(short)?;
        Ok(imported)
    }

    /// Returns the device address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for ExternalMemory {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|functions| {
            if self.address != 0 {
                // SAFETY: the driver mapped the memory at this address, and no work uses it.
                unsafe { check!(functions, cuMemFree_v2(self.address)) }?;
            }
            // SAFETY: the handle was made in `new`, and its mapping is gone.
            unsafe { check!(functions, cuDestroyExternalMemory(self.raw)) }
        });
        report(destroyed);
    }
}
