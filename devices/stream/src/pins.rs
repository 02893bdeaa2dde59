//! Memory of the host that the devices of an API reach without a copy of the driver's own.
//!
//! Pinned memory is pinned for all devices of the API, and can be pinned only once: the devices of a backend share one
//! [`Pins`]. This module must not know buffers or commands.

use crate::driver::Driver;
use ragtag_hal::HostRegion;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A region that is pinned.
pub struct Pin<D: Driver> {
    driver: Arc<D>,
    /// Kept until the driver has let go of it.
    region: Arc<HostRegion>,
}

impl<D: Driver> Drop for Pin<D> {
    fn drop(&mut self) {
        // SAFETY: pinned in `Pins::pin`. Whatever is enqueued keeps the pins of the regions that it uses until it has ended.
        if let Err(error) = unsafe { self.driver.unpin(self.region.as_ptr()) } {
            tracing::debug!(%error, "a region was not unpinned");
        }
    }
}

/// The pinned regions of a backend's devices, by the address of their first byte.
pub struct Pins<D: Driver>(Mutex<HashMap<usize, Weak<Pin<D>>>>);

impl<D: Driver> Default for Pins<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Driver> Pins<D> {
    /// Pins a region. `None` if the driver refuses: copies are slower then, and right all the same.
    pub(crate) fn pin(&self, driver: &Arc<D>, region: &Arc<HostRegion>) -> Option<Arc<Pin<D>>> {
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pins.retain(|_, pin| pin.strong_count() > 0);
        let address = region.as_ptr() as usize;
        if let Some(pin) = pins.get(&address).and_then(Weak::upgrade) {
            return Some(pin);
        }
        // SAFETY: the pin keeps the region, and lets go of it only when it has unpinned it.
        if let Err(error) = unsafe { driver.pin(region.as_ptr(), region.bytes()) } {
            tracing::debug!(%error, bytes = region.bytes(), "a region is not pinned");
            return None;
        }
        let pin = Arc::new(Pin { driver: Arc::clone(driver), region: Arc::clone(region) });
        pins.insert(address, Arc::downgrade(&pin));
        Some(pin)
    }
}
