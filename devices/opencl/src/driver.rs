//! The driver of one OpenCL device: memory, kernels and recorded programs.
//!
//! This module does not depend on IDs or points.

use crate::api;
use crate::clock::Clock;
use crate::context::{Context, Pinned};
use crate::error::allocation_failure;
use crate::memory::Buffer;
use crate::probe::{Found, heap};
use crate::program::{Entry, entries};
use crate::queue::Queue;
use crate::recording::{Recorded, recorded};
use crate::transfer::TransferMode;
use ragtag_hal::driver::{self, Allocation, Driver, DriverDevice};
use ragtag_hal::queues::Common;
use ragtag_hal::{
    DeviceId, Error, HostPages, HostRegion, Limits, Memory, Module, Pin, Pinnable, Result, SharedMemory,
};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) type OpenClDevice = DriverDevice<OpenCl>;
pub(crate) type Script = driver::Script<OpenCl>;
pub(crate) type Step = driver::Step<OpenCl>;
pub(crate) type Span = driver::Span<Buffer>;

/// An opened OpenCL device.
pub(crate) struct OpenCl {
    found: Found,
    mode: TransferMode,
    compute: Arc<api::Queue>,
    /// Queue for the first write to a new buffer, or `None` before the first use and after a failure. Its
    /// commands never wait for other commands.
    touching: Mutex<Option<api::Queue>>,
    /// Queue for mapping pinned regions. Its commands never wait for other commands.
    pinning: Arc<api::Queue>,
    context: Arc<Context>,
}

/// Opens a device. `context` must contain the device.
///
/// # Errors
/// Returns an error if a driver call fails or the system cannot start a thread.
pub(crate) fn open(
    id: DeviceId,
    found: Found,
    context: Arc<Context>,
    mode: TransferMode,
    limits: &Limits,
) -> Result<OpenClDevice> {
    let adapter = found.adapter.clone();
    let clock = Arc::new(Mutex::new(Clock::new(found.device)));
    let new = || api::Queue::new(context.api(), found.device, found.modern).map(Arc::new);
    let compute = new()?;
    let queues = [Arc::clone(&compute), new()?, new()?].map(|queue| Queue::new(queue, &clock));
    let pinning = new()?;
    let driver = OpenCl { found, mode, compute, touching: Mutex::default(), pinning, context };
    DriverDevice::open(Common::new(id), adapter, driver, queues, limits)
}

/// A buffer that devices of the same context can import.
struct Exported {
    /// Field order: the buffer is released before its context.
    buffer: Buffer,
    context: Arc<Context>,
}

/// A kernel whose arguments are all set, and the size of its launch.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: api::Kernel,
    pub(crate) size: api::Range3,
}

impl OpenCl {
    /// Writes to a buffer once, so that the driver commits its memory. Some drivers commit memory only on
    /// first use. Without this write, they would report that they are out of memory long after the
    /// allocation.
    fn commit(&self, memory: &api::Mem) -> Result<()> {
        let mut touching = self.touching.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = match touching.take() {
            Some(queue) => queue,
            None => api::Queue::new(self.context.api(), self.found.device, self.found.modern)?,
        };
        let event = queue.touch(memory)?;
        queue.flush()?;
        event.wait()?;
        // Keep the queue only if no command on it has failed.
        *touching = Some(queue);
        Ok(())
    }

    /// Pins host memory, unless the device uses host memory. Such a device copies no faster than the host, so
    /// pinning would not help.
    fn pin(&self, host: Pinnable) -> Option<Pin<Pinned>> {
        let apart = !self.found.memory.host_memory;
        apart.then(|| self.context.pin(&self.pinning, host)).flatten()
    }
}

impl Driver for OpenCl {
    type Buffer = Buffer;
    type Region = Option<Pin<Pinned>>;
    type Entry = Entry;
    type Launch = Launch;
    type Recording = Vec<Recorded>;
    type Semaphore = Infallible;
    type Queue = Queue;

    fn heap(&self) -> Result<Memory> {
        heap(&self.found.device, self.found.free)
            .ok_or_else(|| Error::invalid("the device does not report the size of its memory"))
    }

    fn trusts_free_bytes(&self) -> bool {
        true
    }

    /// Allocates a buffer and waits until its memory is committed.
    fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let made = Buffer::new(self.context.api(), bytes, self.mode, self.found.unified).and_then(|buffer| {
            match buffer.is_shared() {
                true => Ok(buffer),
                false => buffer.memory().and_then(|memory| self.commit(memory)).map(|()| buffer.clone()),
            }
        });
        made.map_err(|error| allocation_failure(error, bytes))
    }

    fn export(&self, buffer: &Arc<Buffer>) -> Result<SharedMemory> {
        let exported = Exported { buffer: Buffer::clone(buffer), context: Arc::clone(&self.context) };
        Ok(SharedMemory { bytes: buffer.bytes(), handle: Arc::new(exported) })
    }

    fn import(&self, memory: &SharedMemory) -> Result<Buffer> {
        if let Ok(pages) = Arc::clone(&memory.handle).downcast::<HostPages>() {
            let pin = self.pin(Pinnable::Pages(Arc::clone(&pages)));
            return Ok(Buffer::over(pages, pin));
        }
        let unsupported = |what: &str| Error::Unsupported { what: what.into() };
        let exported = memory.handle.downcast_ref::<Exported>();
        let exported =
            exported.ok_or_else(|| unsupported("importing another API's memory on an OpenCL device"))?;
        match Arc::ptr_eq(&exported.context, &self.context) {
            true => Ok(exported.buffer.clone()),
            false => Err(unsupported("importing memory of another OpenCL context")),
        }
    }

    fn entries(&self, module: &Module) -> Result<Vec<Entry>> {
        entries(&self.context, &self.found, module)
    }

    fn launch(&self, entry: &Entry, spans: &[Span], constants: Vec<u32>, grid: [u32; 3]) -> Result<Launch> {
        let mut kernel = entry.kernel()?;
        for (at, span) in spans.iter().enumerate() {
            let part = span.buffer().part(span.offset() as usize)?;
            kernel.set_memory(at, part.as_deref().map_or_else(|| span.buffer().memory(), Ok)?)?;
        }
        for (at, word) in (spans.len()..).zip(constants) {
            kernel.set_word(at, word)?;
        }
        let local = entry.work_group;
        let global = [0, 1, 2].map(|axis| grid[axis] as usize * local[axis]);
        Ok(Launch { kernel, size: api::Range3 { global, local } })
    }

    fn register(&self, region: &Arc<HostRegion>) -> Result<Option<Pin<Pinned>>> {
        Ok(self.pin(Pinnable::Region(Arc::clone(region))))
    }

    fn prepare(&self, steps: &[Step], program: bool) -> Result<Vec<Recorded>> {
        let functions = self.found.command_buffers.filter(|_| program);
        Ok(functions.map_or_else(Vec::new, |functions| recorded(functions, &self.compute, steps)))
    }
}
