//! Timeline semaphores.

use super::{Logical, said};
use ash::vk;
use ragtag_hal::Result;
#[cfg(unix)]
use ragtag_hal::{Error, SemaphoreFd};
#[cfg(unix)]
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

#[cfg(unix)]
const OPAQUE_FD: vk::ExternalSemaphoreHandleTypeFlags = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;

#[cfg(unix)]
fn unshared() -> Error {
    Error::Unsupported { what: "sharing this device's semaphores".into() }
}

/// A timeline semaphore. Both submissions and the host can advance it, and wait until it reaches a value.
pub(crate) struct Semaphore {
    logical: Arc<Logical>,
    pub(super) raw: vk::Semaphore,
}

impl Semaphore {
    /// Creates a semaphore with the value 0.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(logical: &Arc<Logical>) -> Result<Self> {
        Self::with(logical, vk::ExternalSemaphoreHandleTypeFlags::empty())
    }

    /// Creates a semaphore with the value 0 that can be exported with these handle types.
    fn with(logical: &Arc<Logical>, exported: vk::ExternalSemaphoreHandleTypeFlags) -> Result<Self> {
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(exported);
        let mut info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        if !exported.is_empty() {
            info = info.push_next(&mut export);
        }
        // SAFETY: the device is alive and supports timeline semaphores.
        let raw = said("vkCreateSemaphore", unsafe { logical.raw.create_semaphore(&info, None) })?;
        Ok(Self { logical: Arc::clone(logical), raw })
    }

    /// Creates a semaphore and returns it as a file descriptor.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the device cannot share semaphores, or the driver's error.
    #[cfg(unix)]
    pub(crate) fn exported(logical: &Arc<Logical>) -> Result<SemaphoreFd> {
        let functions = logical.semaphore_fd.as_ref().ok_or_else(unshared)?;
        let semaphore = Self::with(logical, OPAQUE_FD)?;
        let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(semaphore.raw).handle_type(OPAQUE_FD);
        // SAFETY: the semaphore is alive and was created for this export.
        let fd = said("vkGetSemaphoreFdKHR", unsafe { functions.get_semaphore_fd(&info) })?;
        let facts = logical.facts();
        Ok(SemaphoreFd {
            // SAFETY: the driver returns a new file descriptor, which belongs to the caller.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            device_uuid: facts.uuid,
            driver_uuid: facts.driver_uuid,
        })
    }

    /// Imports an exported semaphore.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the semaphore belongs to another physical device or driver, or the
    /// driver's error.
    #[cfg(unix)]
    pub(crate) fn import(logical: &Arc<Logical>, exported: &SemaphoreFd) -> Result<Self> {
        let functions = logical.semaphore_fd.as_ref().ok_or_else(unshared)?;
        let facts = logical.facts();
        exported.check(facts.uuid, Some(facts.driver_uuid))?;
        let semaphore = Self::new(logical)?;
        let duplicate = exported.fd.try_clone().map_err(|error| Error::invalid(error.to_string()))?;
        let info = vk::ImportSemaphoreFdInfoKHR::default()
            .semaphore(semaphore.raw)
            .handle_type(OPAQUE_FD)
            .fd(duplicate.as_raw_fd());
        // SAFETY: the semaphore is alive and unused. The file descriptor is a timeline semaphore of this
        // driver.
        said("vkImportSemaphoreFdKHR", unsafe { functions.import_semaphore_fd(&info) })?;
        // A successful import has taken the file descriptor.
        let _ = duplicate.into_raw_fd();
        Ok(semaphore)
    }

    /// Blocks until the semaphore has reached `value`.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn wait(&self, value: u64) -> Result<()> {
        let (semaphores, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is alive.
        said("vkWaitSemaphores", unsafe { self.logical.raw.wait_semaphores(&info, u64::MAX) })
    }

    /// Returns true if the semaphore has reached `value` or the device is lost. After a loss,
    /// [`Semaphore::wait`] reports it.
    pub(crate) fn has_passed(&self, value: u64) -> bool {
        // SAFETY: the semaphore is alive.
        let counter = unsafe { self.logical.raw.get_semaphore_counter_value(self.raw) };
        counter.map_or(true, |counter| counter >= value)
    }

    /// Advances the semaphore to a larger value.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn signal(&self, value: u64) -> Result<()> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.raw).value(value);
        // SAFETY: the semaphore is alive, and no submission signals it.
        said("vkSignalSemaphore", unsafe { self.logical.raw.signal_semaphore(&info) })
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: enqueued work keeps its semaphores alive until it has ended.
        unsafe { self.logical.raw.destroy_semaphore(self.raw, None) }
    }
}
