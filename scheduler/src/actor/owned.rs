//! A device that destroys all of its owner's objects when it is dropped. An actor drops the device if loading
//! fails half-way, when the run stops, or if it panics.
//!
//! If an allocation fails, this module frees unused objects and retries once. It does not depend on the
//! purpose of the objects.

use ragtag_hal::{
    Adapter, BufferId, Command, Device, DeviceId, Error, HostRegion, Memory, Module, ModuleId, PoolStats,
    ProgramId, QueueKind, RegionId, Result, SharedMemory, SharedSemaphore, Submission, Timeline, TimelineId,
    Timing,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum wait for outstanding work at the end of a run. Only work that waits for a neighbour, or that runs
/// on a very slow device, takes longer. Such work is abandoned.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// A device and all objects that were created on it.
pub struct OwnedDevice {
    device: Box<dyn Device>,
    own: [Arc<Timeline>; 3],
    /// Timeline value that the last submission on each queue signals.
    submitted: [u64; 3],
    buffers: BTreeSet<BufferId>,
    regions: BTreeSet<RegionId>,
    programs: BTreeSet<ProgramId>,
    modules: BTreeSet<ModuleId>,
    next: NextIds,
}

/// Ids that [`OwnedDevice`] gives out next.
#[derive(Debug, Default)]
struct NextIds {
    buffer: u32,
    region: u32,
    module: u32,
    program: u32,
}

/// Takes `count` consecutive ids. Returns the first.
fn take(next: &mut u32, count: u32) -> u32 {
    let first = *next;
    *next = first.checked_add(count).expect("a device has fewer than 2^32 objects");
    first
}

impl OwnedDevice {
    /// Takes a device that has no objects.
    pub fn new(device: Box<dyn Device>) -> Self {
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        let submitted = own.each_ref().map(|timeline| timeline.value());
        let (buffers, regions, programs, modules, next) = Default::default();
        Self { device, own, submitted, buffers, regions, programs, modules, next }
    }

    /// Returns an unused buffer id, if all other buffers of the device have ids from this function.
    pub fn new_buffer_id(&mut self) -> BufferId {
        BufferId(take(&mut self.next.buffer, 1))
    }

    /// Returns an unused region id, if all other regions of the device have ids from this function.
    pub(crate) fn new_region_id(&mut self) -> RegionId {
        RegionId(take(&mut self.next.region, 1))
    }

    /// Returns an unused module id, if all other modules of the device have ids from this function.
    pub(crate) fn new_module_id(&mut self) -> ModuleId {
        ModuleId(take(&mut self.next.module, 1))
    }

    /// Returns the first of `count` unused program ids.
    pub(crate) fn new_program_ids(&mut self, count: u32) -> ProgramId {
        ProgramId(take(&mut self.next.program, count))
    }

    /// Creates a buffer with an unused id.
    ///
    /// # Errors
    /// Fails if the device runs out of memory.
    pub fn new_buffer(&mut self, bytes: u64) -> Result<BufferId> {
        let id = self.new_buffer_id();
        self.create_buffer(id, bytes).map(|()| id)
    }

    /// Registers host memory with an unused id.
    ///
    /// # Errors
    /// Fails if the device cannot access the memory.
    pub fn new_region(&mut self, region: &Arc<HostRegion>) -> Result<RegionId> {
        let id = self.new_region_id();
        self.register_region(id, Arc::clone(region)).map(|()| id)
    }

    /// Fails the device's timelines, so that no thread keeps waiting for their points.
    pub(crate) fn release(&self) {
        let closed = Error::Closed { cause: "its stage has ended".into() };
        self.own.iter().for_each(|timeline| timeline.fail(closed.clone()));
    }

    /// Destroys all objects on the device, after which it can be used like a new one.
    pub fn clear(&mut self) {
        self.settle();
        self.destroy_all();
    }

    /// Waits briefly for outstanding submissions to end.
    fn settle(&self) {
        let deadline = Instant::now() + SETTLE_LIMIT;
        for (timeline, &value) in self.own.iter().zip(&self.submitted) {
            // Ignore the result: a failed timeline no longer advances.
            let _ = timeline.wait(value, Some(deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// Runs `call`. If the device is out of memory, empties its buffer pool and runs `call` once more.
    fn sparing(&mut self, mut call: impl FnMut(&mut dyn Device) -> Result<()>) -> Result<()> {
        match call(self.device.as_mut()) {
            Err(error) if error.is_out_of_memory() => {
                let bytes = self.device.trim_pool();
                tracing::debug!(device = self.device.adapter().label(), %error, bytes, "emptying the buffer pool, out of memory");
                call(self.device.as_mut())
            }
            other => other,
        }
    }

    fn destroy_all(&mut self) {
        let device = self.device.as_mut();
        // A lost device may report errors here. They are only logged.
        let log = |what: &dyn std::fmt::Display, result: Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%what, %error, "cannot destroy an object");
            }
        };
        std::mem::take(&mut self.programs).iter().for_each(|id| log(id, device.destroy_program(*id)));
        std::mem::take(&mut self.buffers).iter().for_each(|id| log(id, device.destroy_buffer(*id)));
        std::mem::take(&mut self.regions).iter().for_each(|id| log(id, device.unregister_region(*id)));
        std::mem::take(&mut self.modules).iter().for_each(|id| log(id, device.destroy_module(*id)));
    }
}

impl std::fmt::Debug for OwnedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedDevice").field("device", &self.adapter().label()).finish_non_exhaustive()
    }
}

impl Drop for OwnedDevice {
    fn drop(&mut self) {
        self.settle();
        self.release();
        self.destroy_all();
    }
}

/// Adds `id` to `made` if the object's creation succeeded. Returns `result`.
fn remember<T: Ord>(made: &mut BTreeSet<T>, id: T, result: Result<()>) -> Result<()> {
    result?;
    made.insert(id);
    Ok(())
}

impl Device for OwnedDevice {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn adapter(&self) -> &Adapter {
        self.device.adapter()
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.device.memory()
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.own[queue.index()])
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.device.import_timeline(timeline)
    }

    fn create_semaphore(&mut self) -> Result<SharedSemaphore> {
        self.device.create_semaphore()
    }

    fn raise_semaphore(&mut self, queue: QueueKind, semaphore: &SharedSemaphore) -> Result<()> {
        self.device.raise_semaphore(queue, semaphore)
    }

    fn await_semaphore(&mut self, timeline: TimelineId, semaphore: &SharedSemaphore) -> Result<()> {
        self.device.await_semaphore(timeline, semaphore)
    }

    fn pool_stats(&self) -> PoolStats {
        self.device.pool_stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.device.trim_pool()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        let made = self.sparing(|device| device.create_buffer(id, bytes));
        remember(&mut self.buffers, id, made)
    }

    fn create_shared_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        let made = self.sparing(|device| device.create_shared_buffer(id, bytes));
        remember(&mut self.buffers, id, made)
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        self.device.destroy_buffer(id)?;
        self.buffers.remove(&id);
        Ok(())
    }

    fn export_buffer(&self, id: BufferId) -> Result<SharedMemory> {
        self.device.export_buffer(id)
    }

    fn import_buffer(&mut self, id: BufferId, memory: &SharedMemory) -> Result<()> {
        let made = self.device.import_buffer(id, memory);
        remember(&mut self.buffers, id, made)
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        let made = self.sparing(|device| device.create_module(id, module));
        remember(&mut self.modules, id, made)
    }

    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.device.destroy_module(id)?;
        self.modules.remove(&id);
        Ok(())
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        let made = self.sparing(|device| device.register_region(id, Arc::clone(&region)));
        remember(&mut self.regions, id, made)
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        self.device.unregister_region(id)?;
        self.regions.remove(&id);
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        let made = self.sparing(|device| device.record(id, commands.clone()));
        remember(&mut self.programs, id, made)
    }

    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.device.destroy_program(id)?;
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        self.submitted[submission.queue.index()] = submission.signal.value;
        self.device.submit(submission)
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.device.take_timings(timings);
    }
}
