//! Buffers of a device: where their memory comes from, and how much of it is taken.
//!
//! All allocation and release of device memory is here. This module must not know commands.

use crate::driver::Driver;
use ragtag_hal::{Error, HeapKind, Limits, Memory, MemorySource, Pool, PoolStats, Result, Timing};
use std::sync::Arc;

/// A buffer.
pub(crate) struct Buffer<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: usize,
}

impl<D: Driver> Buffer<D> {
    fn new(driver: &Arc<D>, bytes: u64) -> Result<Self> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes: size })
    }

    /// Where it lies on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<D: Driver> Drop for Buffer<D> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. Whatever is enqueued keeps the buffers that it uses until it has ended.
        if let Err(error) = unsafe { self.driver.free(self.address) } {
            tracing::debug!(%error, "memory of a device was not freed");
        }
    }
}

/// Where a device's buffers come from.
pub(crate) struct DeviceMemory<D: Driver> {
    // Before the driver: what it keeps goes first.
    pool: Pool<Buffer<D>>,
    driver: Arc<D>,
    /// Most bytes that the buffers may take together.
    limit_bytes: u64,
}

impl<D: Driver> DeviceMemory<D> {
    pub(crate) fn new(driver: Arc<D>, total_bytes: u64, largest_bytes: u64, limits: &Limits) -> Self {
        let limit_bytes = limits.memory_bytes.unwrap_or(u64::MAX).min(total_bytes);
        Self { pool: Pool::new(limits.pool.clone(), limit_bytes, largest_bytes), driver, limit_bytes }
    }

    /// The heap as it is now.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn heap(&self) -> Result<Memory> {
        let heap = self.driver.heap()?;
        let free = heap.free_bytes.saturating_add(self.pool.stats().cached_bytes);
        Ok(Memory {
            heap: HeapKind::Device,
            total_bytes: heap.total_bytes.min(self.limit_bytes),
            free_bytes: Some(free.min(heap.total_bytes).min(self.pool.free_bytes())),
            source: MemorySource::Api,
        })
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// A buffer of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Arc<Buffer<D>>> {
        let driver = &self.driver;
        let allocated = self.pool.acquire(bytes, Timing::now_ns(), |size| Buffer::new(driver, size));
        allocated.map(Arc::new).map_err(|error| match error {
            Error::OutOfMemory { free: None, .. } => {
                // Whatever is said to be free was not enough: it may lie in pieces.
                let free = self.heap().ok().and_then(|heap| heap.free_bytes).filter(|&free| free < bytes);
                Error::OutOfMemory { wanted: bytes, free }
            }
            other => other,
        })
    }

    /// Gives up what the pool holds and no buffer uses.
    pub(crate) fn trim(&mut self) -> u64 {
        self.pool.drain()
    }

    /// Takes a buffer back. One that a submission still holds on to goes with it.
    pub(crate) fn release(&mut self, buffer: Arc<Buffer<D>>) {
        let bytes = buffer.bytes() as u64;
        match Arc::try_unwrap(buffer) {
            Ok(buffer) => self.pool.put(buffer, bytes, Timing::now_ns()),
            Err(_) => self.pool.forget(bytes),
        }
    }
}
