//! The driver of one CPU device, which is a share of the host's CPU cores.
//!
//! This module knows nothing about IDs or points.

use crate::memory::Buffer;
use crate::queue::Queue;
use crate::script::Launch;
use crate::team::Team;
use ragtag_hal::driver::{self, Allocation, Driver, DriverDevice};
use ragtag_hal::queues::Common;
use ragtag_hal::{
    Adapter, DeviceId, Error, HeapKind, HostFn, HostMemory, HostPages, HostRegion, Limits, Memory,
    MemorySource, Module, ModuleSource, QueueKind, Result, SharedMemory,
};
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) type CpuDevice = DriverDevice<Cpu>;
pub(crate) type Script = driver::Script<Cpu>;
pub(crate) type Step = driver::Step<Cpu>;
pub(crate) type Span = driver::Span<Buffer>;

/// An opened CPU device.
pub(crate) struct Cpu {
    /// Memory for buffers in bytes: the user's limit, or, if there is none, the device's share of the memory
    /// that was free at the time of the probe.
    total_bytes: u64,
}

/// Opens an adapter and starts its threads.
///
/// # Errors
/// Returns an error if the system cannot start another thread.
pub(crate) fn open(id: DeviceId, adapter: Adapter, limits: &Limits) -> Result<CpuDevice> {
    let share = adapter.memory.first().and_then(|memory| memory.free_bytes).unwrap_or(0);
    let total_bytes = limits.memory_bytes.unwrap_or(share);
    let label = adapter.label();
    let team = Team::new(&format!("{label} {}", QueueKind::Compute.name()), adapter.caps.parallel_units)?;
    let queues = [Some(team), None, None].map(|team| Queue { team });
    DriverDevice::open(Common::new(id), adapter, Cpu { total_bytes }, queues, limits)
}

impl Driver for Cpu {
    type Buffer = Buffer;
    type Region = ();
    type Entry = HostFn;
    type Launch = Launch;
    type Recording = ();
    type Semaphore = Infallible;
    type Queue = Queue;

    fn heap(&self) -> Result<Memory> {
        Ok(Memory {
            heap: HeapKind::Host,
            total_bytes: self.total_bytes,
            free_bytes: Some(HostMemory::now().free_bytes),
            source: MemorySource::System,
        })
    }

    fn trusts_free_bytes(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer> {
        Buffer::new(bytes).ok_or(Error::OutOfMemory { wanted: bytes, free: None })
    }

    fn export(&self, buffer: &Arc<Buffer>) -> Result<SharedMemory> {
        let pages: Arc<HostPages> = Arc::clone(&buffer.0);
        Ok(SharedMemory { bytes: buffer.bytes(), handle: pages })
    }

    fn import(&self, memory: &SharedMemory) -> Result<Buffer> {
        let unknown =
            |_| Error::Unsupported { what: "importing another API's memory on a CPU device".into() };
        Arc::clone(&memory.handle).downcast::<HostPages>().map(Buffer).map_err(unknown)
    }

    fn entries(&self, module: &Module) -> Result<Vec<HostFn>> {
        match &module.source {
            ModuleSource::Host(functions) => Ok(functions.clone()),
            _ => Err(Error::Unsupported { what: format!("module {} on a CPU device", module.name) }),
        }
    }

    fn launch(&self, entry: &HostFn, spans: &[Span], constants: Vec<u32>, grid: [u32; 3]) -> Result<Launch> {
        Ok(Launch::new(*entry, spans, constants, grid))
    }

    fn register(&self, _: &Arc<HostRegion>) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _: &[Step], _: bool) -> Result<()> {
        Ok(())
    }
}
