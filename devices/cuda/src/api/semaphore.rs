//! Timeline semaphores of other APIs.

use super::functions::enter;
use super::objects::{Context, Stream};
use super::partition::report;
#[cfg(unix)]
use cudarc::driver::sys::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1,
    CUexternalSemaphoreHandleType,
};
use cudarc::driver::sys::{CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, CUexternalSemaphore};
use ragtag_hal::Result;
#[cfg(unix)]
use ragtag_hal::{Error, SemaphoreFd};
#[cfg(unix)]
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

/// An imported timeline semaphore.
pub(crate) struct ExternalSemaphore {
    context: Arc<Context>,
    raw: CUexternalSemaphore,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for ExternalSemaphore {}
// SAFETY: as above. Shared references give no access to the handle.
unsafe impl Sync for ExternalSemaphore {}

impl ExternalSemaphore {
    /// Imports a semaphore.
    #[cfg(unix)]
    pub(crate) fn new(context: &Arc<Context>, semaphore: &SemaphoreFd) -> Result<Self> {
        let duplicate = semaphore.fd.try_clone().map_err(|error| Error::invalid(error.to_string()))?;
        let handle = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            type_: CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
            handle: CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 { fd: duplicate.as_raw_fd() },
            flags: 0,
            reserved: [0; 16],
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the file descriptor is a timeline semaphore. The call writes one handle.
        unsafe { enter!(context, cuImportExternalSemaphore(&mut raw, &handle)) }?;
        // A successful import has taken the file descriptor.
        let _ = duplicate.into_raw_fd();
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Raises the semaphore to `value` when earlier work on the stream has ended.
    pub(crate) fn raise(&self, stream: &Stream, value: u64) -> Result<()> {
        // SAFETY: the structure consists of numbers and pointers, for which zero is valid.
        let mut to: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS = unsafe { std::mem::zeroed() };
        to.params.fence.value = value;
        // SAFETY: the semaphore and the stream are alive. The call reads one semaphore and one structure.
        unsafe { enter!(self.context, cuSignalExternalSemaphoresAsync(&self.raw, &to, 1, stream.raw())) }
    }
}

impl Drop for ExternalSemaphore {
    fn drop(&mut self) {
        // SAFETY: the handle was made in `new`, and no enqueued work uses it.
        report(unsafe { enter!(self.context, cuDestroyExternalSemaphore(self.raw)) });
    }
}
