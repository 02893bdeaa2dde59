//! Pinned host memory, which devices access directly.
//!
//! The driver pins memory for all devices of an API, and a range can be pinned only once. The devices of a
//! backend therefore share one [`Pins`].

use crate::driver::Driver;
use ragtag_hal::Result;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that the driver has pinned.
struct Pinned<D: Driver> {
    /// Driver that pinned the memory and unpins it.
    driver: Arc<D>,
    /// Number of [`Pin`]s.
    users: usize,
    /// Owner of the memory. It is dropped after the memory is unpinned.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// Pinned memory of a backend's devices, keyed by address.
pub struct Pins<D: Driver>(Mutex<HashMap<usize, Pinned<D>>>);

impl<D: Driver> Default for Pins<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A use of pinned memory. The last use unpins the memory on drop.
pub struct Pin<D: Driver> {
    pins: Arc<Pins<D>>,
    address: usize,
}

impl<D: Driver> Pins<D> {
    /// Pins `bytes` bytes of memory that `owner` keeps allocated.
    ///
    /// # Errors
    /// Returns the driver's error, for example if the limit on locked memory is reached.
    ///
    /// # Safety
    /// The memory stays allocated as long as `owner` lives. A pointer always comes with the same size.
    pub(crate) unsafe fn pin(
        self: &Arc<Self>,
        driver: &Arc<D>,
        pointer: *mut u8,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Pin<D>> {
        let address = pointer as usize;
        match self.lock().entry(address) {
            Entry::Occupied(mut known) => known.get_mut().users += 1,
            Entry::Vacant(new) => {
                // SAFETY: the entry keeps the owner alive until the memory is unpinned.
                unsafe { driver.pin(pointer, bytes) }?;
                new.insert(Pinned { driver: Arc::clone(driver), users: 1, _owner: owner });
            }
        }
        Ok(Pin { pins: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Pinned<D>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Driver> Drop for Pin<D> {
    fn drop(&mut self) {
        // The lock is held until the memory is unpinned, because another device may pin the same memory now.
        let mut all = self.pins.lock();
        let Entry::Occupied(mut pinned) = all.entry(self.address) else { return };
        pinned.get_mut().users -= 1;
        if pinned.get().users > 0 {
            return;
        }
        let pinned = pinned.remove();
        // SAFETY: `Pins::pin` pinned the memory. Enqueued work keeps the pins of its memory alive until it
        // has ended.
        if let Err(error) = unsafe { pinned.driver.unpin(self.address as *mut u8) } {
            tracing::debug!(%error, "cannot unpin host memory");
        }
    }
}
