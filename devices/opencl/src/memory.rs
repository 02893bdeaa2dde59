//! Buffers of a device: where their memory comes from, how much of it is taken, and what the host has left.
//!
//! All allocation and release of device memory is here. This module must not know commands.

use crate::api::{self, Mem, SharedBlock};
use crate::context::Context;
use crate::error::allocation_failure;
use crate::probe::{Found, heap};
use crate::transfer::TransferMode;
use ragtag_hal::{Error, Limits, Memory, Pool, PoolStats, Result, Timing};
use std::sync::{Arc, Mutex, PoisonError};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// The host's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMemory {
    /// What can be had without swapping.
    pub(crate) free_bytes: u64,
}

impl HostMemory {
    /// Asks the operating system; a container's own limits count.
    pub(crate) fn now() -> Self {
        let ram = MemoryRefreshKind::nothing().with_ram();
        let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
        let available = system.available_memory();
        let group = system.cgroup_limits().filter(|group| group.total_memory > 0);
        Self { free_bytes: group.map_or(available, |group| available.min(group.free_memory)) }
    }
}

/// A buffer.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Dropped before `memory`.
    parts: Mutex<Parts>,
    memory: Mem,
    bytes: usize,
    /// Dropped after `memory`, which lies in it.
    block: Option<SharedBlock>,
}

impl Buffer {
    pub(crate) fn memory(&self) -> &Mem {
        &self.memory
    }

    /// The memory object that starts at an offset and reaches to the end. A kernel's pointer starts where its memory object
    /// does, so that a binding further on needs an object of its own. `None` for the buffer's own.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn part(&self, offset: usize) -> Result<Option<Arc<Mem>>> {
        if offset == 0 {
            return Ok(None);
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.at(offset, || self.memory.part(offset, self.bytes - offset)).map(Some)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte as the host addresses it, where it does.
    pub(crate) fn host_pointer(&self) -> Option<*mut u8> {
        self.block.as_ref().map(SharedBlock::pointer)
    }
}

/// What kernels are bound to further on than a buffer's start, in the order in which it was made: one object for each offset,
/// since NVIDIA's driver crashes when objects that begin at the same place are released.
///
/// It has crashed with objects released in that order, too: the last goes first, all of them before the buffer's own memory.
#[derive(Debug, Default)]
struct Parts(Vec<(usize, Arc<Mem>)>);

impl Parts {
    fn at(&mut self, offset: usize, make: impl FnOnce() -> Result<Mem>) -> Result<Arc<Mem>> {
        if let Some((_, part)) = self.0.iter().find(|(at, _)| *at == offset) {
            return Ok(Arc::clone(part));
        }
        let part = Arc::new(make()?);
        self.0.push((offset, Arc::clone(&part)));
        Ok(part)
    }

    fn clear(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Where a device's buffers come from.
pub(crate) struct DeviceMemory {
    // Before the driver's part: what it keeps goes first.
    pool: Pool<Buffer>,
    driver: Driver,
    /// Most bytes that the buffers may take together.
    limit_bytes: u64,
}

impl DeviceMemory {
    pub(crate) fn new(context: Arc<Context>, found: Found, mode: TransferMode, limits: &Limits) -> Self {
        let total_bytes = found.adapter.memory.first().map_or(0, |memory| memory.total_bytes);
        let limit_bytes = limits.memory_bytes.unwrap_or(u64::MAX).min(total_bytes);
        let largest_bytes = found.adapter.caps.max_allocation_bytes;
        Self {
            pool: Pool::new(limits.pool.clone(), limit_bytes, largest_bytes),
            driver: Driver { context, found, mode, queue: None },
            limit_bytes,
        }
    }

    /// The heap as it is now.
    ///
    /// # Errors
    /// If the driver does not say how large it is.
    pub(crate) fn heap(&self) -> Result<Memory> {
        let heap = heap(&self.driver.found.device, self.driver.found.free);
        let heap =
            heap.ok_or_else(|| Error::invalid("a device that does not tell the size of its memory"))?;
        let cached = self.pool.stats().cached_bytes;
        Ok(Memory {
            total_bytes: heap.total_bytes.min(self.limit_bytes),
            free_bytes: heap.free_bytes.map(|free| free.saturating_add(cached).min(self.pool.free_bytes())),
            ..heap
        })
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// A buffer of at least `bytes` bytes whose memory is there. Waits for the driver where the pool has none.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Arc<Buffer>> {
        let left = self.pool.free_bytes();
        let free = self.heap()?.free_bytes;
        let known = free.unwrap_or(left).min(left);
        if bytes > known {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(known) });
        }
        let driver = &mut self.driver;
        let new = |size| driver.buffer(size).map_err(|error| allocation_failure(error, bytes, free));
        self.pool.acquire(bytes, Timing::now_ns(), new).map(Arc::new)
    }

    /// Gives up what the pool holds and no buffer uses.
    pub(crate) fn trim(&mut self) -> u64 {
        self.pool.drain()
    }

    /// Takes a buffer back. One that a submission still holds on to goes with it.
    pub(crate) fn release(&mut self, buffer: Arc<Buffer>) {
        let bytes = buffer.bytes() as u64;
        match Arc::try_unwrap(buffer) {
            Ok(mut buffer) => {
                // Whoever has it next binds other parts.
                buffer.parts.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
                self.pool.put(buffer, bytes, Timing::now_ns());
            }
            Err(_) => self.pool.forget(bytes),
        }
    }
}

/// What the driver gives.
struct Driver {
    context: Arc<Context>,
    found: Found,
    mode: TransferMode,
    /// The queue on which new buffers are touched; renewed after a failure. It never holds anything that waits.
    queue: Option<api::Queue>,
}

impl Driver {
    fn buffer(&mut self, bytes: u64) -> Result<Buffer> {
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        let (memory, block) = self.memory(size)?;
        if block.is_none() {
            self.commit(&memory)?;
        }
        Ok(Buffer { parts: Mutex::default(), memory, bytes: size, block })
    }

    fn memory(&self, bytes: usize) -> Result<(Mem, Option<SharedBlock>)> {
        let context = self.context.api();
        let shortage = || Error::OutOfMemory { wanted: bytes as u64, free: None };
        let block = match (self.mode, self.found.unified) {
            (TransferMode::SharedVirtual, _) => {
                Some(SharedBlock::fine_grained(context, bytes)?.ok_or_else(shortage)?)
            }
            (TransferMode::Unified, Some(unified)) => Some(SharedBlock::unified(context, unified, bytes)?),
            (TransferMode::Unified, None) | (TransferMode::Explicit, _) => None,
        };
        let memory = match &block {
            // SAFETY: the block has these bytes and stays with the memory; what touches it when is ordered by points, as
            // for every buffer.
            Some(block) => unsafe { Mem::over(context, block.pointer(), bytes) }?,
            None => Mem::new(context, bytes)?,
        };
        Ok((memory, block))
    }

    /// Uses memory once. Some drivers take it only then, and say only then that there is too little: long after they gave
    /// the buffer away.
    fn commit(&mut self, memory: &Mem) -> Result<()> {
        let queue = match self.queue.take() {
            Some(queue) => queue,
            None => api::Queue::new(self.context.api(), self.found.device, self.found.modern)?,
        };
        let event = queue.touch(memory)?;
        queue.flush()?;
        event.wait()?;
        // Kept only if nothing went wrong on it.
        self.queue = Some(queue);
        Ok(())
    }
}
