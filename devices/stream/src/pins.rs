//! Pinned host memory. The driver pins memory for all devices of an API, so the devices of a backend share one
//! [`Pins`].

use crate::driver::Driver;
use ragtag_hal::{Pin, PinCache, Pinnable, Result};
use std::sync::Arc;

/// Host memory that the driver has pinned.
pub struct Pinned<D: Driver> {
    driver: Arc<D>,
    /// Reference that keeps the memory allocated until the driver has unpinned it.
    host: Pinnable,
}

/// Pinned memory of a backend's devices.
pub type Pins<D> = PinCache<Pinned<D>>;

/// Pins host memory, unless another device has pinned it.
///
/// # Errors
/// Returns the driver's error, for example if the limit on locked memory is reached.
pub(crate) fn pin<D: Driver>(pins: &Arc<Pins<D>>, driver: &Arc<D>, host: Pinnable) -> Result<Pin<Pinned<D>>> {
    pins.pin(host, |host| {
        let (pointer, bytes) = host.memory();
        // SAFETY: the value keeps the memory allocated until it is unpinned.
        unsafe { driver.pin(pointer, bytes) }?;
        Ok(Pinned { driver: Arc::clone(driver), host })
    })
}

impl<D: Driver> Drop for Pinned<D> {
    fn drop(&mut self) {
        let (pointer, _) = self.host.memory();
        // SAFETY: `pin` pinned the memory. Enqueued work keeps the pins of its memory alive until it has ended.
        if let Err(error) = unsafe { self.driver.unpin(pointer) } {
            tracing::debug!(%error, "cannot unpin host memory");
        }
    }
}
