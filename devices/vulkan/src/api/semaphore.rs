//! Timeline semaphores.

use super::{Logical, said};
use ash::vk;
use ragtag_hal::Result;
use std::sync::Arc;

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
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        // SAFETY: the device is alive and supports timeline semaphores.
        let raw = said("vkCreateSemaphore", unsafe { logical.raw.create_semaphore(&info, None) })?;
        Ok(Self { logical: Arc::clone(logical), raw })
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
