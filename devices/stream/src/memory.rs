//! Device memory of buffers.
//!
//! This module allocates and frees all device memory. It does not depend on commands.

use crate::driver::Driver;
use ragtag_hal::Result;
use ragtag_hal::driver::Allocation;
use std::sync::Arc;

/// Device memory that is freed on drop.
pub struct Buffer<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: u64,
}

impl<D: Driver> Buffer<D> {
    pub(crate) fn new(driver: &Arc<D>, bytes: u64) -> Result<Self> {
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Returns the device address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<D: Driver> Allocation for Buffer<D> {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<D: Driver> Drop for Buffer<D> {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `new`. Enqueued work keeps its buffers alive until it has
        // ended.
        if let Err(error) = unsafe { self.driver.free(self.address) } {
            tracing::debug!(%error, "cannot free device memory");
        }
    }
}
