//! The driver of one Vulkan device: memory, pipelines and recorded programs.
//!
//! This module does not depend on IDs or points.

use crate::api::{Instance, Logical, Pipeline, SharedQueue};
use crate::clock::Clock;
use crate::error::allocation_failure;
use crate::memory::{Buffer, MemoryTypes, heap, host_reads};
use crate::probe::{Found, Native};
use crate::program::Programs;
use crate::queue::Queue;
use crate::recording::{Prepared, Recorders};
use crate::region::{Mapping, import_pages};
use ragtag_hal::cache::Shelf;
use ragtag_hal::driver::{self, Driver, DriverDevice};
use ragtag_hal::queues::Common;
use ragtag_hal::{
    AdapterKind, DeviceId, Error, HostPages, HostRegion, Limits, Memory, Module, Result, SharedMemory,
};
#[cfg(unix)]
use ragtag_hal::{DmaBuf, OpaqueFd};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

pub(crate) type VulkanDevice = DriverDevice<Vulkan>;
pub(crate) type Script = driver::Script<Vulkan>;
pub(crate) type Step = driver::Step<Vulkan>;
pub(crate) type Span = driver::Span<Buffer>;
pub(crate) type HostSpan = driver::HostSpan<Mapping>;

/// An opened Vulkan device.
pub(crate) struct Vulkan {
    kind: AdapterKind,
    types: MemoryTypes,
    import_regions: bool,
    /// Command buffers of the compute queue's family.
    recorders: Arc<Recorders>,
    programs: Programs,
    logical: Arc<Logical>,
}

/// Arguments for opening a device.
pub(crate) struct Opening<'a> {
    pub(crate) instance: &'a Arc<Instance>,
    pub(crate) found: Found,
    pub(crate) shelf: &'a Arc<Shelf>,
    /// Whether to import host regions if the device supports it.
    pub(crate) import_regions: bool,
}

/// Opens a device.
///
/// # Errors
/// Returns an error if a driver call fails or the system cannot start a thread.
pub(crate) fn open(id: DeviceId, opening: Opening<'_>, limits: &Limits) -> Result<VulkanDevice> {
    let Opening { instance, found, shelf, import_regions } = opening;
    let Found { adapter, native: Native { facts, queues: [compute, upload, download], types, target } } =
        found;
    let logical = Arc::new(Logical::new(instance, &facts, &counts(&[compute, upload, download]))?);
    let label = adapter.label();
    // Several of Ragtag's queues may share one Vulkan queue.
    let mut made: BTreeMap<(u32, u32), (Arc<SharedQueue>, Arc<Recorders>)> = BTreeMap::new();
    let clock = Arc::<Mutex<Clock>>::default();
    let mut queue = |place: (u32, u32)| {
        let (shared, recorders) = match made.entry(place) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let shared = Arc::new(SharedQueue::new(&logical, place.0, place.1)?);
                let recorders = Recorders::new(&shared, host_reads(&logical, &types));
                new.insert((shared, recorders))
            }
        };
        Queue::new(shared, recorders, &clock)
    };
    let queues = [queue(compute)?, queue(upload)?, queue(download)?];
    let driver = Vulkan {
        kind: adapter.kind,
        types,
        import_regions,
        recorders: Arc::clone(queues[0].recorders()),
        programs: Programs::new(&logical, target, Arc::clone(shelf), label.clone()),
        logical,
    };
    DriverDevice::open(Common::new(id), adapter, driver, queues, limits)
}

/// Returns the number of queues to request from each family.
fn counts(queues: &[(u32, u32); 3]) -> Vec<(u32, u32)> {
    let mut counts = BTreeMap::new();
    for &(family, queue) in queues {
        let count = counts.entry(family).or_insert(0);
        *count = (queue + 1).max(*count);
    }
    counts.into_iter().collect()
}

/// A dispatch of a pipeline: its constants and its grid.
pub(crate) struct Launch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) constants: Vec<u32>,
    pub(crate) grid: [u32; 3],
}

impl Driver for Vulkan {
    type Buffer = Buffer;
    type Region = Mapping;
    type Entry = Arc<Pipeline>;
    type Launch = Launch;
    type Recording = Prepared;
    type Semaphore = Infallible;
    type Queue = Queue;

    fn check(&self) -> Result<()> {
        self.logical.instance().unobjected()
    }

    fn heap(&self) -> Result<Memory> {
        Ok(heap(self.kind, self.logical.heap(self.types.heap)))
    }

    /// Returns false for discrete GPUs, whose drivers only estimate the free bytes. Returns true for other
    /// devices, because they use host memory: if host memory runs out, the system swaps or kills the process.
    fn trusts_free_bytes(&self) -> bool {
        self.kind != AdapterKind::Discrete
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let memory = crate::api::Memory::new(&self.logical, bytes, &self.types.device);
        memory.map(Buffer::new).map_err(|error| allocation_failure(error, bytes))
    }

    #[cfg(unix)]
    fn allocate_shared(&self, bytes: u64) -> Result<Buffer> {
        let memory = crate::api::Memory::shared(&self.logical, bytes, &self.types.device);
        memory.map(Buffer::new).map_err(|error| allocation_failure(error, bytes))
    }

    #[cfg(unix)]
    fn export(&self, buffer: &Arc<Buffer>) -> Result<SharedMemory> {
        Ok(SharedMemory { bytes: buffer.memory.bytes(), handle: Arc::new(buffer.memory.export()?) })
    }

    fn import(&self, memory: &SharedMemory) -> Result<Buffer> {
        let short = |error| allocation_failure(error, memory.bytes);
        if let Ok(pages) = Arc::clone(&memory.handle).downcast::<HostPages>() {
            return import_pages(&self.logical, &self.types, pages).map_err(short);
        }
        #[cfg(unix)]
        if let Some(handle) = memory.handle.downcast_ref::<OpaqueFd>() {
            let imported = crate::api::Memory::import(&self.logical, memory.bytes, handle);
            return imported.map(Buffer::new).map_err(short);
        }
        #[cfg(unix)]
        if let Some(dma_buf) = memory.handle.downcast_ref::<DmaBuf>() {
            let imported = crate::api::Memory::import_dma_buf(&self.logical, memory.bytes, dma_buf);
            return imported.map(Buffer::new).map_err(short);
        }
        Err(Error::Unsupported { what: "importing memory of an unknown kind".into() })
    }

    fn entries(&self, module: &Module) -> Result<Vec<Arc<Pipeline>>> {
        self.programs.entries(module)
    }

    fn launch(
        &self,
        pipeline: &Arc<Pipeline>,
        _: &[Span],
        constants: Vec<u32>,
        grid: [u32; 3],
    ) -> Result<Launch> {
        Ok(Launch { pipeline: Arc::clone(pipeline), constants, grid })
    }

    fn register(&self, region: &Arc<HostRegion>) -> Result<Mapping> {
        Mapping::new(&self.logical, &self.types, region, self.import_regions)
    }

    /// Prepares the steps of a script. This method records only programs. Other scripts are recorded when
    /// they are enqueued, because the host may perform small copies itself, without the driver.
    fn prepare(&self, steps: &[Step], program: bool) -> Result<Prepared> {
        let prepared = Prepared::new(steps);
        if program {
            prepared.recording(&self.recorders, steps)?;
        }
        Ok(prepared)
    }
}
