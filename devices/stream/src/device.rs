//! An implementation of `ragtag-hal`'s driver trait on top of the calls of a stream-ordered API.
//!
//! This module does not depend on IDs or points.

use crate::clock::Clock;
use crate::driver::{Arguments, Driver, Launch, Operands};
use crate::memory::Buffer;
use crate::module::{Code, Kernel, entries};
use crate::pins::{Pinned, Pins, pin};
use crate::queue::Queue;
use crate::semaphore::Events;
use ragtag_hal::driver::{self, Allocation, DriverDevice};
use ragtag_hal::queues::Common;
use ragtag_hal::{
    Adapter, DeviceId, Error, Gemm, HeapKind, HostPages, HostRegion, Limits, Memory, MemorySource, Module,
    Pin, Pinnable, Result, SharedMemory, SharedSemaphore,
};
#[cfg(unix)]
use ragtag_hal::{DmaBuf, OpaqueFd};
use std::sync::{Arc, Mutex};

/// An opened device of a stream-ordered API.
pub type StreamDevice<D> = DriverDevice<Streams<D>>;
pub(crate) type Script<D> = driver::Script<Streams<D>>;
pub(crate) type Step<D> = driver::Step<Streams<D>>;
pub(crate) type Span<D> = driver::Span<Buffer<D>>;

/// Implementation of `ragtag-hal`'s driver trait for one device.
pub struct Streams<D: Driver> {
    adapter: Adapter,
    /// Stream on which programs are captured. No work runs on it.
    capture: D::Stream,
    pins: Arc<Pins<D>>,
    driver: Arc<D>,
}

/// Creates a device on top of `driver`, which has opened this adapter. All devices of a backend share `pins`.
///
/// # Errors
/// Returns an error if a driver call fails or the system cannot start a thread.
pub fn open<D: Driver>(
    id: DeviceId,
    adapter: Adapter,
    driver: Arc<D>,
    pins: Arc<Pins<D>>,
    limits: &Limits,
) -> Result<StreamDevice<D>> {
    let clock = Arc::new(Mutex::new(Clock::new()));
    let queue = || Queue::new(&driver, &clock);
    let queues = [queue()?, queue()?, queue()?];
    let streams = Streams { adapter: adapter.clone(), capture: driver.stream()?, pins, driver };
    DriverDevice::open(Common::new(id), adapter, streams, queues, limits)
}

/// A launch and its arguments.
pub enum Bound<D: Driver> {
    /// A kernel launch.
    Kernel {
        /// The kernel.
        kernel: Arc<Kernel<D>>,
        /// Number of work groups in each dimension.
        grid: [u32; 3],
        /// Addresses and constants.
        arguments: Arguments,
    },
    /// A product that the vendor's library computes.
    Product(Gemm, Operands),
}

impl<D: Driver> driver::Driver for Streams<D> {
    type Buffer = Buffer<D>;
    type Region = Option<Pin<Pinned<D>>>;
    type Entry = Code<D>;
    type Launch = Bound<D>;
    /// A graph of all steps, or `None` if the queue enqueues the steps one by one.
    type Recording = Option<D::Graph>;
    type Semaphore = Arc<Events<D>>;
    type Queue = Queue<D>;

    fn heap(&self) -> Result<Memory> {
        let heap = self.driver.heap()?;
        Ok(Memory {
            heap: HeapKind::Device,
            total_bytes: heap.total_bytes,
            free_bytes: Some(heap.free_bytes),
            source: MemorySource::Api,
        })
    }

    fn trusts_free_bytes(&self) -> bool {
        false
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer<D>> {
        Buffer::new(&self.driver, bytes)
    }

    fn allocate_shared(&self, bytes: u64) -> Result<Buffer<D>> {
        Buffer::shared(&self.driver, bytes)
    }

    fn export(&self, buffer: &Arc<Buffer<D>>) -> Result<SharedMemory> {
        if !buffer.is_shared() {
            return Err(unsupported("exporting a buffer that was not created as a shared buffer"));
        }
        let handle: Arc<Buffer<D>> = Arc::clone(buffer);
        Ok(SharedMemory { bytes: buffer.bytes(), handle })
    }

    fn import(&self, memory: &SharedMemory) -> Result<Buffer<D>> {
        if let Ok(memory) = Arc::clone(&memory.handle).downcast::<Buffer<D>>() {
            return Buffer::of_peer(&self.driver, memory);
        }
        if let Ok(pages) = Arc::clone(&memory.handle).downcast::<HostPages>() {
            return Buffer::over(&self.driver, &self.pins, pages);
        }
        #[cfg(unix)]
        if let Some(handle) = memory.handle.downcast_ref::<OpaqueFd>() {
            handle.check(self.uuid()?, None)?;
            let import = self.driver.import(handle, memory.bytes)?;
            return Ok(Buffer::imported(&self.driver, import, memory.bytes));
        }
        #[cfg(unix)]
        if let Some(dma_buf) = memory.handle.downcast_ref::<DmaBuf>() {
            let import = self.driver.import_dma_buf(dma_buf, memory.bytes)?;
            return Ok(Buffer::imported(&self.driver, import, memory.bytes));
        }
        Err(unsupported("importing memory of an unknown kind"))
    }

    fn create_semaphore(&self) -> Result<SharedSemaphore> {
        Ok(SharedSemaphore { handle: Arc::new(Arc::<Events<D>>::default()) })
    }

    fn import_semaphore(&self, semaphore: &SharedSemaphore) -> Result<Arc<Events<D>>> {
        let unknown = || unsupported("importing a semaphore of another API");
        semaphore.handle.downcast_ref().map(Arc::clone).ok_or_else(unknown)
    }

    fn entries(&self, module: &Module) -> Result<Vec<Code<D>>> {
        entries(self.driver.as_ref(), &self.adapter, module)
    }

    fn launch(
        &self,
        entry: &Code<D>,
        spans: &[Span<D>],
        constants: Vec<u32>,
        grid: [u32; 3],
    ) -> Result<Bound<D>> {
        Ok(match entry {
            Code::Kernel(kernel) => Bound::Kernel {
                kernel: Arc::clone(kernel),
                grid,
                arguments: Arguments::new(spans.iter().map(address), &constants),
            },
            Code::Gemm(gemm) => {
                let operand = |at: usize| spans.get(at).map(address);
                let [x, weights, y] = gemm.bindings.map(operand);
                let missing = || Error::invalid("a product lacks one of its matrices");
                let operands = x.zip(weights).zip(y).map(|((x, weights), y)| Operands { x, weights, y });
                Bound::Product((gemm.product)(&constants), operands.ok_or_else(missing)?)
            }
        })
    }

    /// Pins a region. Returns `None` if the driver cannot pin it. Copies to and from an unpinned region still
    /// work, but are slower.
    fn register(&self, region: &Arc<HostRegion>) -> Result<Option<Pin<Pinned<D>>>> {
        let pinned = pin(&self.pins, &self.driver, Pinnable::Region(Arc::clone(region)));
        let refused = |error: &Error| tracing::debug!(%error, ?region, "cannot pin a region");
        Ok(pinned.inspect_err(refused).ok())
    }

    /// Captures a program as a graph. The graph never changes. Values that differ between runs are in the
    /// parameter block, which the first step copies from a host region. Returns `None` if a graph would not
    /// be faster or the driver cannot capture the steps. In that case, the queue enqueues the steps one by
    /// one.
    fn prepare(&self, steps: &[Step<D>], program: bool) -> Result<Option<D::Graph>> {
        if !program || steps.len() < 2 {
            return Ok(None);
        }
        match self.captured(steps) {
            Ok(graph) => Ok(Some(graph)),
            Err(error @ Error::Lost { .. }) => Err(error),
            Err(error) => {
                tracing::debug!(%error, commands = steps.len(), api = self.driver.api(), "cannot capture a program");
                Ok(None)
            }
        }
    }
}

impl<D: Driver> Streams<D> {
    /// Returns the UUID of the physical device, which imports need.
    #[cfg(unix)]
    fn uuid(&self) -> Result<[u8; 16]> {
        let unsupported = || Error::Unsupported { what: "importing into a device without a UUID".into() };
        self.adapter.identity.uuid.ok_or_else(unsupported)
    }

    fn captured(&self, steps: &[Step<D>]) -> Result<D::Graph> {
        self.driver.begin_capture(&self.capture)?;
        let enqueued = steps.iter().try_for_each(|step| enqueue(self.driver.as_ref(), &self.capture, step));
        let graph = self.driver.end_capture(&self.capture);
        enqueued.and(graph)
    }
}

fn unsupported(what: &str) -> Error {
    Error::Unsupported { what: what.into() }
}

/// Returns the host address of a span, or `None` if it is not in host memory.
fn host<D: Driver>(span: &Span<D>) -> Option<*mut u8> {
    span.buffer().host().map(|start| start.wrapping_add(span.offset() as usize))
}

/// Returns the device address of a span.
fn address<D: Driver>(span: &Span<D>) -> u64 {
    span.buffer().address() + span.offset()
}

/// Enqueues a step. If a capture is active on the stream, the step is captured.
///
/// # Errors
/// Returns the driver's error.
pub(crate) fn enqueue<D: Driver>(driver: &D, stream: &D::Stream, step: &Step<D>) -> Result<()> {
    // The product's module initialised the library, and all dispatches use the compute stream.
    // SAFETY: the script keeps the buffers and regions of all spans alive until it has ended. Until then,
    // points and reservations exclude other access to these bytes. `Checked` validated launches against the
    // entry's ABI and products against their extents. It submits a program only after the program's previous
    // run has ended.
    unsafe {
        match step {
            Step::Launch(launch) => match &launch.code {
                Bound::Kernel { kernel, grid, arguments } => {
                    let Kernel { function, work_group, dynamic_local_bytes } = kernel.as_ref();
                    let (grid, work_group, dynamic_local_bytes) = (*grid, *work_group, *dynamic_local_bytes);
                    driver.launch(
                        stream,
                        &Launch { function, grid, work_group, dynamic_local_bytes, arguments },
                    )
                }
                Bound::Product(product, operands) => driver.gemm(stream, product, *operands),
            },
            Step::Copy { from, to } => {
                let bytes = to.bytes() as usize;
                match (host(from), host(to)) {
                    (Some(from), None) => driver.upload(stream, from, address(to), bytes, None),
                    (None, Some(to)) => driver.download(stream, address(from), to, bytes),
                    _ => driver.copy(stream, address(from), address(to), bytes),
                }
            }
            Step::Fill { to, word } => driver.fill(stream, address(to), *word, to.bytes() as usize / 4),
            Step::Upload { from, to, used } => {
                driver.upload(stream, from.pointer(), address(to), to.bytes() as usize, *used)
            }
            Step::Download { from, to } => {
                driver.download(stream, address(from), to.pointer(), from.bytes() as usize)
            }
        }
    }
}
