//! Belts: pools of staging chunks, through which transfers read and write buffers.
//!
//! Idle upload chunks stay mapped for the host. The chunks of a belt take at most [`MAX_BYTES`] bytes in
//! total. A thread that would need a chunk beyond this limit waits until another chunk is returned. This
//! module does not depend on commands or regions.

use crate::gpu::{Failure, Gpu};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, MapMode};

/// Size of the largest chunk, in bytes. Larger transfers are split.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;
/// Size of the smallest chunk, in bytes.
const SMALLEST_BYTES: u64 = 16 << 10;
/// Maximum size of all chunks of a belt, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the host to the device.
    Up,
    /// From the device to the host.
    Down,
}

#[derive(Default)]
struct State {
    /// Total size of all chunks, in use and idle.
    bytes: u64,
    free: Vec<Buffer>,
}

impl State {
    /// Frees an idle chunk. Returns false if no chunk is idle.
    fn give_one_up(&mut self) -> bool {
        let one = self.free.pop();
        self.bytes -= one.as_ref().map_or(0, Buffer::size);
        one.is_some()
    }
}

/// Staging chunks for one direction.
pub(crate) struct Belt {
    gpu: Arc<Gpu>,
    direction: Direction,
    state: Mutex<State>,
    returned: Condvar,
}

impl Belt {
    pub(crate) fn new(gpu: &Arc<Gpu>, direction: Direction) -> Arc<Self> {
        let (state, returned) = (Mutex::default(), Condvar::new());
        Arc::new(Self { gpu: Arc::clone(gpu), direction, state, returned })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a chunk of at least `bytes` bytes, where `bytes` is at most [`CHUNK_BYTES`]. Returns `None` if
    /// the caller must wait until another chunk is returned, because the belt has reached its maximum size or
    /// the device is out of memory.
    ///
    /// # Errors
    /// Returns an error if the device has too little memory for even one chunk, or if the device is lost.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Option<Chunk>, Failure> {
        let size = bytes.next_power_of_two().max(SMALLEST_BYTES);
        let chunk = |buffer| Some(Chunk { buffer, belt: Arc::downgrade(self), kept: false });
        loop {
            let mut state = self.lock();
            let fitting = (0..state.free.len()).filter(|&at| state.free[at].size() >= size);
            if let Some(at) = fitting.min_by_key(|&at| state.free[at].size()) {
                return Ok(chunk(state.free.swap_remove(at)));
            }
            while state.bytes + size > MAX_BYTES {
                if !state.give_one_up() {
                    return Ok(None);
                }
            }
            state.bytes += size;
            drop(state);
            let failure = match self.gpu.guarded(|| self.make(size)) {
                Ok(buffer) => return Ok(chunk(buffer)),
                Err(failure) => failure,
            };
            let mut state = self.lock();
            state.bytes -= size;
            match failure {
                // Freeing an idle chunk may make enough memory available.
                Failure::OutOfMemory { .. } if state.give_one_up() => {}
                // Wait, because the chunks in use will be returned.
                Failure::OutOfMemory { .. } if state.bytes > 0 => return Ok(None),
                failure => return Err(failure.wanting(size)),
            }
        }
    }

    fn make(&self, size: u64) -> Buffer {
        let (usage, mapped_at_creation) = match self.direction {
            Direction::Up => (BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC, true),
            Direction::Down => (BufferUsages::MAP_READ | BufferUsages::COPY_DST, false),
        };
        self.gpu.device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation })
    }

    /// Waits until a chunk has been returned or the device is lost. Another thread may take the chunk first,
    /// so the caller must retry.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let state = self.lock();
        if state.free.is_empty() && state.bytes > 0 {
            // Threads that wait for submissions will return their chunks. Because of the timeout, this thread
            // also notices if the device is lost in the meantime.
            let some = std::time::Duration::from_millis(100);
            drop(self.returned.wait_timeout(state, some).unwrap_or_else(PoisonError::into_inner));
        }
        self.gpu.check()
    }
}

/// A chunk in use. [`Chunk::put_back`] returns the chunk to the belt. Dropping the chunk frees its memory.
pub(crate) struct Chunk {
    buffer: Buffer,
    /// The reference is weak to avoid a cycle: wgpu may keep the chunk until its device is dropped, and the
    /// belt keeps the device alive.
    belt: Weak<Belt>,
    kept: bool,
}

impl Chunk {
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Writes `bytes` to the start of an upload chunk and unmaps the chunk, so that the device can use it.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let span = (bytes.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let view = self.buffer.slice(..span).get_mapped_range_mut();
        let mut view = view.map_err(|error| Failure::Refused(error.to_string()))?;
        view.slice(..bytes.len()).copy_from_slice(bytes);
        drop(view);
        self.buffer.unmap();
        Ok(())
    }

    /// Returns an upload chunk to the belt once the device has finished with it and it is mapped again.
    pub(crate) fn put_back_later(self) {
        let buffer = self.buffer.clone();
        buffer.slice(..).map_async(MapMode::Write, move |mapped| {
            if mapped.is_ok() {
                self.put_back();
            }
        });
    }

    /// Maps a download chunk once the device has written it. Then calls `then`, with true if the mapping
    /// succeeded.
    pub(crate) fn map(&self, then: impl FnOnce(bool) + Send + 'static) {
        self.buffer.slice(..).map_async(MapMode::Read, move |mapped| then(mapped.is_ok()));
    }

    /// Calls `take` with the first `bytes` bytes of a mapped download chunk. Then unmaps the chunk, so that
    /// the device can use it.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn read(&self, bytes: u64, take: impl FnOnce(&[u8])) -> Result<(), Failure> {
        let span = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let view = self.buffer.slice(..span).get_mapped_range();
        let view = view.map_err(|error| Failure::Refused(error.to_string()))?;
        take(&view[..bytes as usize]);
        drop(view);
        self.buffer.unmap();
        Ok(())
    }

    /// Returns the chunk to the belt. The chunk must be in the state in which [`Belt::take`] returns chunks.
    pub(crate) fn put_back(mut self) {
        self.kept = true;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some(belt) = self.belt.upgrade() else { return };
        let mut state = belt.lock();
        if self.kept {
            state.free.push(self.buffer.clone());
        } else {
            state.bytes -= self.buffer.size();
        }
        drop(state);
        belt.returned.notify_all();
    }
}
