//! Buffers of a device: where their memory comes from, how much of it is taken, and what the host has left.
//!
//! All allocation and release of device memory is here. This module must not know commands.

use crate::api::{self, Mem, SharedBlock};
use crate::context::Context;
use crate::error::allocation_failure;
use crate::probe::{Found, heap};
use crate::transfer::TransferMode;
use ragtag_hal::{Error, Memory, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    memory: Mem,
    bytes: usize,
    /// Dropped after `memory`, which lies in it.
    block: Option<SharedBlock>,
    used_bytes: Arc<AtomicU64>,
}

impl Buffer {
    pub(crate) fn memory(&self) -> &Mem {
        &self.memory
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

impl Drop for Buffer {
    fn drop(&mut self) {
        self.used_bytes.fetch_sub(self.bytes as u64, Ordering::AcqRel);
    }
}

/// Where a device's buffers come from.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    found: Found,
    mode: TransferMode,
    /// Most bytes that the buffers may take together.
    limit_bytes: u64,
    used_bytes: Arc<AtomicU64>,
    /// The queue on which new buffers are touched; renewed after a failure. It never holds anything that waits.
    queue: Option<api::Queue>,
}

impl DeviceMemory {
    pub(crate) fn new(
        context: Arc<Context>,
        found: Found,
        mode: TransferMode,
        limit_bytes: Option<u64>,
    ) -> Self {
        let total_bytes = found.adapter.memory.first().map_or(0, |memory| memory.total_bytes);
        Self {
            context,
            found,
            mode,
            limit_bytes: limit_bytes.unwrap_or(u64::MAX).min(total_bytes),
            used_bytes: Arc::default(),
            queue: None,
        }
    }

    /// The heap as it is now.
    ///
    /// # Errors
    /// If the driver does not say how large it is.
    pub(crate) fn heap(&self) -> Result<Memory> {
        let heap = heap(&self.found.device, self.found.free);
        let heap =
            heap.ok_or_else(|| Error::invalid("a device that does not tell the size of its memory"))?;
        Ok(Memory {
            total_bytes: heap.total_bytes.min(self.limit_bytes),
            free_bytes: heap.free_bytes.map(|free| free.min(self.left_bytes())),
            ..heap
        })
    }

    /// What is left of the limit.
    fn left_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes.load(Ordering::Acquire))
    }

    /// Allocates, and makes sure that the memory is there. Waits for the driver.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with sizes.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Arc<Buffer>> {
        let left = self.left_bytes();
        let free = self.heap()?.free_bytes;
        let known = free.unwrap_or(left).min(left);
        if bytes > known {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(known) });
        }
        let out_of_memory = |error| allocation_failure(error, bytes, free);
        let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free })?;
        let (memory, block) = self.memory(size).map_err(out_of_memory)?;
        if block.is_none() {
            self.commit(&memory).map_err(out_of_memory)?;
        }
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        Ok(Arc::new(Buffer { memory, bytes: size, block, used_bytes: Arc::clone(&self.used_bytes) }))
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
