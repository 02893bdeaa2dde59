//! Device memory of buffers.
//!
//! This module allocates, imports and frees all device memory. It does not depend on commands.

use crate::driver::Driver;
#[cfg(unix)]
use crate::driver::Import;
use crate::pins::{Pinned, Pins, pin};
use ragtag_hal::driver::Allocation;
use ragtag_hal::{HostPages, Pin, Pinnable, Result};
use std::any::Any;
use std::sync::Arc;

/// Device memory that is freed on drop.
pub struct Buffer<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: u64,
    origin: Origin<D>,
}

/// Origin of a buffer's memory.
enum Origin<D: Driver> {
    /// The driver allocated it.
    Allocated,
    /// The driver allocated it for use by peers.
    Shared,
    /// A peer shares it.
    Peer { _memory: Arc<Buffer<D>> },
    /// Another API exported it. The object ends the import on drop.
    #[cfg(unix)]
    Imported { _owner: Box<dyn Any + Send + Sync> },
    /// Pinned memory of the host. Field order: the pages are unpinned before they are unmapped.
    Host { _pin: Pin<Pinned<D>>, pages: Arc<HostPages> },
}

impl<D: Driver> Buffer<D> {
    pub(crate) fn new(driver: &Arc<D>, bytes: u64) -> Result<Self> {
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, origin: Origin::Allocated })
    }

    /// Allocates memory that peers can import.
    pub(crate) fn shared(driver: &Arc<D>, bytes: u64) -> Result<Self> {
        let address = driver.allocate_shared(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, origin: Origin::Shared })
    }

    /// Imports memory that a peer has allocated in [`shared`](Self::shared).
    pub(crate) fn of_peer(driver: &Arc<D>, memory: Arc<Self>) -> Result<Self> {
        driver.reach(&memory.driver)?;
        let (address, bytes) = (memory.address, memory.bytes);
        Ok(Self { driver: Arc::clone(driver), address, bytes, origin: Origin::Peer { _memory: memory } })
    }

    /// Returns true if peers can import the memory.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.origin, Origin::Shared)
    }

    /// Returns a buffer over memory that the driver has imported from another API.
    #[cfg(unix)]
    pub(crate) fn imported(driver: &Arc<D>, import: Import, bytes: u64) -> Self {
        let Import { address, owner } = import;
        Self { driver: Arc::clone(driver), address, bytes, origin: Origin::Imported { _owner: owner } }
    }

    /// Pins pages of host memory.
    pub(crate) fn over(driver: &Arc<D>, pins: &Arc<Pins<D>>, pages: Arc<HostPages>) -> Result<Self> {
        let (bytes, pin) = (pages.bytes(), pin(pins, driver, Pinnable::Pages(Arc::clone(&pages)))?);
        // SAFETY: the memory was just pinned.
        let address = unsafe { driver.pinned_address(pages.pointer()) }?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, origin: Origin::Host { _pin: pin, pages } })
    }

    /// Returns the device address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the host address, or `None` if the memory is not in host memory.
    pub(crate) fn host(&self) -> Option<*mut u8> {
        match &self.origin {
            Origin::Host { pages, .. } => Some(pages.pointer()),
            _ => None,
        }
    }
}

impl<D: Driver> Allocation for Buffer<D> {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<D: Driver> Drop for Buffer<D> {
    fn drop(&mut self) {
        let freed = match self.origin {
            // SAFETY: the memory was allocated in `new`. Enqueued work keeps its buffers alive until it has
            // ended.
            Origin::Allocated => unsafe { self.driver.free(self.address) },
            // SAFETY: the memory was allocated in `shared`. Imports keep it alive until their work has ended.
            Origin::Shared => unsafe { self.driver.free_shared(self.address) },
            _ => Ok(()),
        };
        if let Err(error) = freed {
            tracing::debug!(%error, "cannot free device memory");
        }
    }
}
