//! Pinned host memory, which devices access directly.
//!
//! The driver pins memory for all devices of an API, and a range can be pinned only once. The devices of a
//! backend therefore share one [`Pins`].

use crate::driver::Driver;
use ragtag_hal::HostRegion;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A pinned region.
pub struct Pin<D: Driver> {
    driver: Arc<D>,
    /// Region to unpin on drop. The reference keeps its memory alive until then.
    region: Arc<HostRegion>,
}

impl<D: Driver> Drop for Pin<D> {
    fn drop(&mut self) {
        // SAFETY: the region was pinned in `Pins::pin`. Enqueued work keeps the pins of its regions alive
        // until it has ended.
        if let Err(error) = unsafe { self.driver.unpin(self.region.as_ptr()) } {
            tracing::debug!(%error, "cannot unpin a region");
        }
    }
}

/// Pinned regions of a backend's devices, keyed by address.
pub struct Pins<D: Driver>(Mutex<HashMap<usize, Weak<Pin<D>>>>);

impl<D: Driver> Default for Pins<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Driver> Pins<D> {
    /// Pins a region. Returns `None` if the driver cannot pin it. Copies to and from an unpinned region still
    /// work, but are slower.
    pub(crate) fn pin(&self, driver: &Arc<D>, region: &Arc<HostRegion>) -> Option<Arc<Pin<D>>> {
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pins.retain(|_, pin| pin.strong_count() > 0);
        let address = region.as_ptr() as usize;
        if let Some(pin) = pins.get(&address).and_then(Weak::upgrade) {
            return Some(pin);
        }
        // SAFETY: the pin keeps the region alive until the region is unpinned.
        if let Err(error) = unsafe { driver.pin(region.as_ptr(), region.bytes()) } {
            tracing::debug!(%error, bytes = region.bytes(), "cannot pin a region");
            return None;
        }
        let pin = Arc::new(Pin { driver: Arc::clone(driver), region: Arc::clone(region) });
        pins.insert(address, Arc::downgrade(&pin));
        Some(pin)
    }
}
