//! Device memory of buffers.
//!
//! This module allocates, imports and frees all device memory. It does not depend on commands.

use crate::driver::Driver;
#[cfg(unix)]
use crate::driver::Import;
#[cfg(unix)]
use ragtag_hal::OpaqueFd;
use ragtag_hal::Result;
use ragtag_hal::driver::Allocation;
use std::any::Any;
use std::sync::Arc;

/// Device memory that is freed on drop.
pub struct Buffer<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: u64,
    /// Object that ends an import on drop. `None` if the memory was allocated in `new`.
    import: Option<Box<dyn Any + Send + Sync>>,
}

impl<D: Driver> Buffer<D> {
    pub(crate) fn new(driver: &Arc<D>, bytes: u64) -> Result<Self> {
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, import: None })
    }

    /// Imports memory that another API has exported.
    #[cfg(unix)]
    pub(crate) fn import(driver: &Arc<D>, memory: &OpaqueFd, bytes: u64) -> Result<Self> {
        let Import { address, owner } = driver.import(memory, bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, import: Some(owner) })
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
        if self.import.is_some() {
            return;
        }
        // SAFETY: the memory was allocated in `new`. Enqueued work keeps its buffers alive until it has
        // ended.
        if let Err(error) = unsafe { self.driver.free(self.address) } {
            tracing::debug!(%error, "cannot free device memory");
        }
    }
}
