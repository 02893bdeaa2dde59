//! Buffers of a device: where their memory comes from, how much of it is taken, and what is left.
//!
//! All allocation and release of device memory is here. This module must not know commands.

use crate::gpu::{Failure, Gpu};
use crate::probe::{Found, heap};
use crate::vulkan;
use ragtag_hal::{Error, Limits, Memory, MemorySource, Pool, PoolStats, Result, Timing};
use std::sync::Arc;
use wgpu::{BufferDescriptor, BufferUsages};

/// A buffer.
#[derive(Debug)]
pub(crate) struct Buffer {
    wgpu: wgpu::Buffer,
}

impl Buffer {
    pub(crate) fn wgpu(&self) -> &wgpu::Buffer {
        &self.wgpu
    }

    /// Size in bytes: that of its class, a multiple of four.
    pub(crate) fn bytes(&self) -> u64 {
        self.wgpu.size()
    }
}

/// Where a device's buffers come from.
pub(crate) struct DeviceMemory {
    // Before the device: what it keeps goes first.
    pool: Pool<Buffer>,
    gpu: Arc<Gpu>,
    found: Found,
    /// What was known of the heap when the device was opened, for one that its driver does not tell.
    assumed: Memory,
    /// Most bytes that the buffers may take together.
    limit_bytes: u64,
}

impl DeviceMemory {
    /// # Errors
    /// If nobody says how much memory there is.
    pub(crate) fn new(gpu: Arc<Gpu>, found: Found, limits: &Limits) -> Result<Self> {
        let users = |total_bytes| Memory {
            heap: ragtag_hal::HeapKind::Device,
            total_bytes,
            free_bytes: None,
            source: MemorySource::User,
        };
        let known = found.adapter.memory.first().copied();
        let assumed = known.or(limits.memory_bytes.map(users)).ok_or_else(|| Error::Unsupported {
            what: format!("{}, whose memory no API tells: it takes a limit", found.adapter.label()),
        })?;
        let limit_bytes = limits.memory_bytes.unwrap_or(u64::MAX).min(assumed.total_bytes);
        let pool = Pool::new(limits.pool.clone(), limit_bytes, found.adapter.caps.max_allocation_bytes);
        Ok(Self { pool, gpu, found, assumed, limit_bytes })
    }

    /// The heap as it is now.
    pub(crate) fn heap(&self) -> Memory {
        let now = heap(self.found.adapter.kind, vulkan::facts(&self.found.wgpu).memory);
        let heap = now.unwrap_or(self.assumed);
        let cached = self.pool.stats().cached_bytes;
        Memory {
            total_bytes: heap.total_bytes.min(self.limit_bytes),
            free_bytes: heap.free_bytes.map(|free| free.saturating_add(cached).min(self.pool.free_bytes())),
            ..heap
        }
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// A buffer of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Arc<Buffer>> {
        let free = self.heap().free_bytes;
        let known = free.unwrap_or(u64::MAX).min(self.pool.free_bytes());
        if bytes > known {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(known) });
        }
        let gpu = &self.gpu;
        let new = |size: u64| {
            let size = size.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            let descriptor = BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
            let made = gpu.guarded(|| gpu.device.create_buffer(&descriptor));
            made.map(|wgpu| Buffer { wgpu }).map_err(|failure| match failure {
                // Whatever was said to be free was not enough.
                Failure::OutOfMemory { .. } => {
                    Error::OutOfMemory { wanted: bytes, free: free.filter(|&free| free < bytes) }
                }
                other => other.of("a buffer"),
            })
        };
        self.pool.acquire(bytes, Timing::now_ns(), new).map(Arc::new)
    }

    /// Gives up what the pool holds and no buffer uses.
    pub(crate) fn trim(&mut self) -> u64 {
        self.pool.drain()
    }

    /// Takes a buffer back. One that a submission still holds on to goes with it.
    pub(crate) fn release(&mut self, buffer: Arc<Buffer>) {
        let bytes = buffer.bytes();
        match Arc::try_unwrap(buffer) {
            Ok(buffer) => self.pool.put(buffer, bytes, Timing::now_ns()),
            Err(_) => self.pool.forget(bytes),
        }
    }
}
