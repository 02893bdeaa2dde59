//! The driver of one Level Zero device: memory, kernels and recorded programs.
//!
//! This module does not depend on IDs or points.

use crate::api::{Argument, CommandList, CommandQueue};
use crate::clock::Clock;
use crate::context::{Context, Registered};
use crate::error::allocation_failure;
use crate::events::Events;
use crate::memory::{Buffer, Kind};
use crate::probe::{Engine, Found, heap};
use crate::program::{Entry, Launch, entries};
use crate::queue::Queue;
use crate::recording::Recording;
use crate::semaphore::Semaphore;
#[cfg(unix)]
use ragtag_hal::DmaBuf;
use ragtag_hal::driver::{self, Allocation, Driver, DriverDevice};
use ragtag_hal::queues::Common;
use ragtag_hal::{
    DeviceId, Error, HostPages, HostRegion, Limits, Memory, Module, Pin, Pinnable, Result, SharedMemory,
    SharedSemaphore,
};
use std::sync::{Arc, Mutex};

pub(crate) type LevelZeroDevice = DriverDevice<LevelZero>;
pub(crate) type Script = driver::Script<LevelZero>;
pub(crate) type Step = driver::Step<LevelZero>;
pub(crate) type Span = driver::Span<Buffer>;

/// An opened Level Zero device.
pub(crate) struct LevelZero {
    found: Found,
    /// Size in bytes below which host and device share a buffer.
    shared_below_bytes: u64,
    events: Arc<Events>,
    context: Arc<Context>,
}

/// Opens a device. `context` belongs to its driver.
///
/// # Errors
/// Returns an error if a driver call fails or the system cannot start a thread.
pub(crate) fn open(
    id: DeviceId,
    found: &Found,
    context: Arc<Context>,
    shared_below_bytes: u64,
    limits: &Limits,
) -> Result<LevelZeroDevice> {
    let adapter = found.adapter.clone();
    let (device, api) = (found.device, context.api());
    let clock = Arc::new(Mutex::new(Clock::new(device, found.timer)));
    let events = Events::new(api);
    let queue = |Engine { ordinal, index }: Engine, programs: Option<CommandQueue>| -> Result<Queue> {
        let list = CommandList::immediate(api, device, ordinal, index)?;
        Ok(Queue::new(list, programs, device, &events, &clock))
    };
    let [compute, upload, download] = found.engines;
    let programs = CommandQueue::new(api, device, compute.ordinal, compute.index)?;
    let queues = [queue(compute, Some(programs))?, queue(upload, None)?, queue(download, None)?];
    let driver = LevelZero { found: found.clone(), shared_below_bytes, events, context };
    DriverDevice::open(Common::new(id), adapter, driver, queues, limits)
}

/// A buffer that devices of the same context can import.
struct Exported {
    /// Field order: the memory is freed before its context is destroyed.
    buffer: Buffer,
    owner: crate::api::Device,
    context: Arc<Context>,
}

fn unsupported(what: &str) -> Error {
    Error::Unsupported { what: what.into() }
}

impl LevelZero {
    fn kind(&self, bytes: u64) -> Kind {
        let small = bytes < self.shared_below_bytes || self.found.host_memory;
        match self.found.shares && small {
            true => Kind::Shared,
            false => Kind::Device,
        }
    }

    fn buffer(&self, bytes: u64, kind: Kind) -> Result<Buffer> {
        Buffer::new(self.context.api(), self.found.device, bytes, kind, self.found.relaxed)
            .map_err(|error| allocation_failure(error, bytes))
    }
}

#[cfg(unix)]
impl LevelZero {
    fn import_dma_buf(&self, dma_buf: &DmaBuf, bytes: u64) -> Result<Buffer> {
        let (api, device, fd) = (self.context.api(), self.found.device, dma_buf.duplicate(bytes)?);
        let imported = Buffer::import(api, device, bytes, self.found.relaxed, fd);
        imported.map_err(|error| allocation_failure(error, bytes))
    }
}

impl Driver for LevelZero {
    type Buffer = Buffer;
    type Region = Option<Pin<Registered>>;
    type Entry = Entry;
    type Launch = Launch;
    /// A list of all steps, or `None` if the queue enqueues the steps one by one.
    type Recording = Option<Recording>;
    type Semaphore = Arc<Semaphore>;
    type Queue = Queue;

    fn heap(&self) -> Result<Memory> {
        heap(self.found.device, self.found.host_memory)
            .ok_or_else(|| Error::invalid("the device does not report the size of its memory"))
    }

    fn trusts_free_bytes(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer> {
        self.buffer(bytes, self.kind(bytes))
    }

    /// Allocates device memory, because other devices cannot access memory that this device shares with the
    /// host.
    fn allocate_shared(&self, bytes: u64) -> Result<Buffer> {
        #[cfg(unix)]
        if self.found.exports_dma_buf {
            let (api, device) = (self.context.api(), self.found.device);
            match Buffer::exportable(api, device, bytes, self.found.relaxed) {
                Ok(buffer) => return Ok(buffer),
                Err(error) => tracing::debug!(%error, "cannot allocate memory for export as a dma-buf"),
            }
        }
        self.buffer(bytes, Kind::Device)
    }

    /// Exports a buffer for devices of this context, and as a dma-buf for other devices if the driver can.
    fn export(&self, buffer: &Arc<Buffer>) -> Result<SharedMemory> {
        let (owner, context) = (self.found.device, Arc::clone(&self.context));
        let exported = Arc::new(Exported { buffer: Buffer::clone(buffer), owner, context });
        let bytes = buffer.bytes();
        #[cfg(unix)]
        if self.found.exports_dma_buf {
            let own: Arc<Exported> = Arc::clone(&exported);
            match buffer.export().and_then(|fd| DmaBuf::new(fd, own)) {
                Ok(dma_buf) => return Ok(SharedMemory { bytes, handle: Arc::new(dma_buf) }),
                Err(error) => tracing::debug!(%error, "cannot export a buffer as a dma-buf"),
            }
        }
        Ok(SharedMemory { bytes, handle: exported })
    }

    fn import(&self, memory: &SharedMemory) -> Result<Buffer> {
        #[cfg(unix)]
        if let Some(dma_buf) = memory.handle.downcast_ref::<DmaBuf>() {
            let own = SharedMemory { bytes: memory.bytes, handle: Arc::clone(&dma_buf.own) };
            return self.import(&own).or_else(|refused| match self.found.imports_dma_buf {
                true => self.import_dma_buf(dma_buf, memory.bytes),
                false => Err(refused),
            });
        }
        if let Ok(pages) = Arc::clone(&memory.handle).downcast::<HostPages>() {
            let pin = self.context.pin(Pinnable::Pages(Arc::clone(&pages)));
            return Ok(Buffer::over(pages, pin));
        }
        let exported = memory.handle.downcast_ref::<Exported>();
        let exported =
            exported.ok_or_else(|| unsupported("importing another API's memory on a Level Zero device"))?;
        let own = exported.owner.handle == self.found.device.handle;
        match Arc::ptr_eq(&exported.context, &self.context) {
            true if own || self.found.device.reaches(exported.owner) => Ok(exported.buffer.clone()),
            true => Err(unsupported("importing memory of a Level Zero device that is no peer")),
            false => Err(unsupported("importing memory of another Level Zero driver")),
        }
    }

    fn create_semaphore(&self) -> Result<SharedSemaphore> {
        Ok(SharedSemaphore { handle: Arc::new(Arc::new(Semaphore::new(&self.context))) })
    }

    fn import_semaphore(&self, semaphore: &SharedSemaphore) -> Result<Arc<Semaphore>> {
        let known = semaphore.handle.downcast_ref::<Arc<Semaphore>>();
        known
            .filter(|semaphore| semaphore.belongs_to(&self.context))
            .map(Arc::clone)
            .ok_or_else(|| unsupported("importing a semaphore of another API or driver"))
    }

    fn entries(&self, module: &Module) -> Result<Vec<Entry>> {
        entries(&self.context, &self.found, module)
    }

    fn launch(&self, entry: &Entry, spans: &[Span], constants: Vec<u32>, grid: [u32; 3]) -> Result<Launch> {
        let address = |span: &Span| -> Result<Argument> {
            Ok(Argument::Address(span.buffer().on_device()? as u64 + span.offset()))
        };
        let spans = spans.iter().map(address);
        let arguments = spans.chain(constants.into_iter().map(|word| Ok(Argument::Word(word))));
        Ok(Launch { kernel: Arc::clone(entry), arguments: arguments.collect::<Result<_>>()?, groups: grid })
    }

    fn register(&self, region: &Arc<HostRegion>) -> Result<Option<Pin<Registered>>> {
        Ok(self.context.pin(Pinnable::Region(Arc::clone(region))))
    }

    /// Records a program as a regular command list. Returns `None` if a list would not be faster or the driver
    /// cannot record the steps. In that case, the queue enqueues the steps one by one.
    fn prepare(&self, steps: &[Step], program: bool) -> Result<Option<Recording>> {
        if !program || steps.len() < 2 {
            return Ok(None);
        }
        let (api, device, ordinal) = (self.context.api(), self.found.device, self.found.engines[0].ordinal);
        match Recording::new(api, device, ordinal, &self.events, steps) {
            Ok(recording) => Ok(Some(recording)),
            Err(error @ Error::Lost { .. }) => Err(error),
            Err(error) => {
                tracing::debug!(%error, commands = steps.len(), "cannot record a program");
                Ok(None)
            }
        }
    }
}
