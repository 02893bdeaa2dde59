//! Buffers of a device, taken from a pool of allocations within the user's memory limit.
//!
//! This module knows nothing about commands.

use super::{Allocation, Driver};
use crate::backend::{Limits, Memory, Timing};
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolLimits, PoolStats};
use std::mem::ManuallyDrop;
use std::sync::Arc;

pub(super) struct DeviceMemory<D: Driver> {
    // The pool is declared before `driver`, so that cached allocations are dropped first.
    pool: Pool<D::Buffer>,
    driver: Arc<D>,
    /// Maximum total size of all buffers in bytes.
    limit_bytes: u64,
}

impl<D: Driver> DeviceMemory<D> {
    pub(super) fn new(driver: Arc<D>, largest_bytes: u64, limits: &Limits) -> Result<Self> {
        let limit_bytes = limits.memory_bytes.unwrap_or(u64::MAX).min(driver.heap()?.total_bytes);
        Ok(Self { pool: Pool::new(limits.pool.clone(), limit_bytes, largest_bytes), driver, limit_bytes })
    }

    /// Returns the current size and free bytes of the heap, both capped at the user's limit. Cached
    /// allocations count as free.
    pub(super) fn heap(&self) -> Result<Memory> {
        let heap = self.driver.heap()?;
        let cached = self.pool.stats().cached_bytes;
        Ok(Memory {
            total_bytes: heap.total_bytes.min(self.limit_bytes),
            free_bytes: heap.free_bytes.map(|free| free.saturating_add(cached).min(self.pool.free_bytes())),
            ..heap
        })
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Returns a buffer of at least `bytes` bytes.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Arc<D::Buffer>> {
        self.allocated(bytes, |pool, driver| {
            pool.acquire(bytes, Timing::now_ns(), |size| driver.allocate(size))
        })
    }

    /// Returns a buffer of at least `bytes` bytes that other devices can import.
    pub(super) fn allocate_shared(&mut self, bytes: u64) -> Result<Arc<D::Buffer>> {
        self.allocated(bytes, |pool, driver| pool.acquire_new(bytes, |size| driver.allocate_shared(size)))
    }

    fn allocated(
        &mut self,
        bytes: u64,
        acquire: impl FnOnce(&mut Pool<D::Buffer>, &D) -> Result<D::Buffer>,
    ) -> Result<Arc<D::Buffer>> {
        if bytes == 0 {
            return Err(Error::invalid("a buffer of zero bytes"));
        }
        if self.driver.trusts_free_bytes() {
            let free = self.heap()?.free_bytes.unwrap_or(u64::MAX).min(self.pool.free_bytes());
            if bytes > free {
                return Err(Error::OutOfMemory { wanted: bytes, free: Some(free) });
            }
        }
        acquire(&mut self.pool, &self.driver).map(Arc::new).map_err(|error| match error {
            Error::OutOfMemory { free: None, .. } => {
                // Because of fragmentation, an allocation can fail although enough bytes are free. The error
                // then omits `free`.
                let free = self.heap().ok().and_then(|heap| heap.free_bytes).filter(|&free| free < bytes);
                Error::OutOfMemory { wanted: bytes, free }
            }
            other => other,
        })
    }

    pub(super) fn trim(&mut self) -> u64 {
        self.pool.drain()
    }

    /// Releases a buffer. A buffer that a submission still uses is freed with the submission.
    pub(super) fn release(&mut self, buffer: Arc<D::Buffer>) {
        let bytes = buffer.bytes();
        match Arc::try_unwrap(buffer) {
            Ok(mut buffer) => {
                buffer.recycle();
                self.pool.put(buffer, bytes, Timing::now_ns());
            }
            Err(_) => self.pool.forget(bytes),
        }
    }

    /// Removes a buffer from the statistics. Its memory is freed with the last reference to it.
    pub(super) fn forget(&mut self, buffer: &D::Buffer) {
        self.pool.forget(buffer.bytes());
    }

    /// Leaks the cached allocations.
    pub(super) fn leak(&mut self) {
        let empty = Pool::new(PoolLimits::default(), 0, 0);
        let _leaked = ManuallyDrop::new(std::mem::replace(&mut self.pool, empty));
    }
}
