//! The driver of one wgpu device: memory, pipelines, and commands that are implemented as kernels.
//!
//! This module does not depend on IDs or points.

use crate::encoder::Encoder;
use crate::gpu::{Gpu, heard};
use crate::memory::Buffer;
use crate::probe::{Found, heap};
use crate::program::{Entry, Programs};
use crate::queue::Queue;
use crate::script::Launch;
use crate::stamps::Stamps;
use crate::tools::Tools;
use crate::vulkan;
use crossbeam_channel::unbounded;
use ragtag_hal::driver::{self, Driver, DriverDevice};
use ragtag_hal::queues::{Common, Thread};
use ragtag_hal::{
    DeviceId, Error, HeapKind, HostRegion, Limits, Memory, MemorySource, Module, QueueKind, Result,
};
use std::convert::Infallible;
use std::sync::Arc;
use wgpu::{BufferDescriptor, BufferUsages, DeviceLostReason};

pub(crate) type WgpuDevice = DriverDevice<Wgpu>;
pub(crate) type Script = driver::Script<Wgpu>;
pub(crate) type Step = driver::Step<Wgpu>;
pub(crate) type Span = driver::Span<Buffer>;
pub(crate) type HostSpan = driver::HostSpan<()>;

/// An opened wgpu device.
pub(crate) struct Wgpu {
    /// Encoder thread. It ends when the queues are dropped.
    _encoder: Joined,
    pub(crate) found: Found,
    /// Memory figures from the time when the device was opened. They are used if the driver does not report
    /// current figures.
    assumed: Memory,
    pub(crate) programs: Programs,
    tools: Tools,
    pub(crate) gpu: Arc<Gpu>,
}

/// A thread that is joined on drop.
struct Joined(Thread);

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Opens a device.
///
/// # Errors
/// Returns an error if the device's memory size is unknown, or if the system cannot start a thread.
pub(crate) fn open(
    id: DeviceId,
    gpu: Gpu,
    found: Found,
    programs: Programs,
    limits: &Limits,
) -> Result<WgpuDevice> {
    let gpu = Arc::new(gpu);
    let (adapter, label) = (found.adapter.clone(), found.adapter.label());
    let users = |total_bytes| Memory {
        heap: HeapKind::Device,
        total_bytes,
        free_bytes: None,
        source: MemorySource::User,
    };
    let known = adapter.memory.first().copied().or(limits.memory_bytes.map(users));
    let assumed = known.ok_or_else(|| Error::Unsupported {
        what: format!("{label}: no API reports the size of its memory; set a memory limit"),
    })?;
    let common = Common::new(id);
    report_loss(&gpu, &common);
    let (jobs, inbox) = unbounded();
    let stamps = Stamps::new(&gpu);
    let encoder = Encoder::new(Arc::clone(&gpu), stamps.clone());
    let encoder = Joined(Thread::spawn(format!("{label} encoder"), move || encoder.serve(&inbox))?);
    let queues = QueueKind::ALL.map(|kind| Queue {
        gpu: Arc::clone(&gpu),
        stamps: stamps.clone(),
        kind,
        jobs: jobs.clone(),
    });
    // The encoder thread ends when the last sender is dropped, and each queue has one.
    drop(jobs);
    let driver = Wgpu { _encoder: encoder, found, assumed, programs, tools: Tools::default(), gpu };
    DriverDevice::open(common, adapter, driver, queues, limits)
}

/// Fails all timelines when wgpu reports that the device is lost.
fn report_loss(gpu: &Arc<Gpu>, common: &Arc<Common>) {
    // wgpu's device owns the callback. The references are weak, because the callback must not keep the
    // device's owners alive.
    let (theirs, common) = (Arc::downgrade(gpu), Arc::downgrade(common));
    gpu.device.set_device_lost_callback(move |reason, message| {
        let Some(gpu) = theirs.upgrade() else { return };
        let cause = match reason {
            DeviceLostReason::Destroyed => "it was destroyed".into(),
            DeviceLostReason::Unknown => heard(&message),
        };
        gpu.lose(cause.clone());
        if let Some(common) = common.upgrade() {
            common.record(Error::Lost { cause });
        }
    });
}

impl Driver for Wgpu {
    type Buffer = Buffer;
    type Region = ();
    type Entry = Entry;
    type Launch = Launch;
    type Recording = ();
    type Semaphore = Infallible;
    type Queue = Queue;

    fn heap(&self) -> Result<Memory> {
        let now = heap(self.found.adapter.kind, vulkan::facts(&self.found.wgpu).memory);
        Ok(now.unwrap_or(self.assumed))
    }

    fn trusts_free_bytes(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let size = bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let descriptor = BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let made = self.gpu.guarded(|| self.gpu.device.create_buffer(&descriptor));
        made.map(Buffer).map_err(|failure| failure.wanting(bytes).of("a buffer"))
    }

    fn entries(&self, module: &Module) -> Result<Vec<Entry>> {
        self.programs.entries(&self.gpu, &self.found, module)
    }

    fn launch(&self, entry: &Entry, spans: &[Span], constants: Vec<u32>, grid: [u32; 3]) -> Result<Launch> {
        Launch::new(&self.gpu, entry, spans, &constants, grid)
    }

    fn register(&self, _: &Arc<HostRegion>) -> Result<()> {
        Ok(())
    }

    /// Appends a step. wgpu can copy only between different buffers and fill only with zeros. All other
    /// copies and fills become kernel launches.
    fn append(&self, step: Step, steps: &mut Vec<Step>) -> Result<()> {
        match step {
            Step::Copy { from, to } if Arc::ptr_eq(from.buffer(), to.buffer()) => {
                self.tools.copy(self, &from, &to, steps)
            }
            Step::Fill { to, word } if word != 0 => self.tools.fill(self, &to, word, steps),
            other => {
                steps.push(other);
                Ok(())
            }
        }
    }

    fn prepare(&self, _: &[Step], _: bool) -> Result<()> {
        Ok(())
    }
}
