//! A device with all that was made on it: what its actor made it destroys, however the run ends. Where memory runs short,
//! what lies unused on the device goes first, and the call is made once more.
//!
//! Loading that fails half-way, a run that stops, an actor that panics: in each case the device is dropped, and takes along
//! what is on it. This module must not know what any of it is for.

use ragtag_hal::{
    Adapter, BufferId, Command, Device, DeviceId, Error, HostRegion, Memory, Module, ModuleId, PoolStats,
    ProgramId, QueueKind, RegionId, Result, Submission, Timeline, Timing,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of a run waits for what its device still does. Only work that waits for a neighbour, or a device that
/// is very slow, takes longer; then nobody waits for it any more.
const PATIENCE: Duration = Duration::from_millis(500);

/// A device, and the things on it.
pub(crate) struct OwnedDevice {
    device: Box<dyn Device>,
    own: [Arc<Timeline>; 3],
    /// For each queue the value of its last submission.
    submitted: [u64; 3],
    buffers: BTreeSet<BufferId>,
    regions: BTreeSet<RegionId>,
    programs: BTreeSet<ProgramId>,
    modules: BTreeSet<ModuleId>,
}

impl OwnedDevice {
    pub(crate) fn new(device: Box<dyn Device>) -> Self {
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        let submitted = own.each_ref().map(|timeline| timeline.value());
        let (buffers, regions, programs, modules) = Default::default();
        Self { device, own, submitted, buffers, regions, programs, modules }
    }

    /// Ends all use of the device: nobody waits for its points after this.
    pub(crate) fn release(&self) {
        let closed = Error::Closed { cause: "its stage has ended".into() };
        self.own.iter().for_each(|timeline| timeline.fail(closed.clone()));
    }

    /// Destroys what was made on the device, which is as good as new then.
    pub(crate) fn clear(&mut self) {
        self.settle();
        self.destroy_all();
    }

    /// Waits a while until what was submitted is done.
    fn settle(&self) {
        let deadline = Instant::now() + PATIENCE;
        for (timeline, &value) in self.own.iter().zip(&self.submitted) {
            // A timeline that failed has nothing more to come.
            let _ = timeline.wait(value, Some(deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// Makes a call, and once more with an empty pool if the device has too little memory for it.
    fn sparing(&mut self, mut call: impl FnMut(&mut dyn Device) -> Result<()>) -> Result<()> {
        match call(self.device.as_mut()) {
            Err(error) if error.is_out_of_memory() => {
                let bytes = self.device.trim_pool();
                tracing::debug!(device = self.device.adapter().label(), %error, bytes, "the pool is emptied");
                call(self.device.as_mut())
            }
            other => other,
        }
    }

    fn destroy_all(&mut self) {
        let device = self.device.as_mut();
        // What a lost device says to this does not matter to anyone.
        let told = |what: &dyn std::fmt::Display, result: Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%what, %error, "cannot be destroyed");
            }
        };
        std::mem::take(&mut self.programs).iter().for_each(|id| told(id, device.destroy_program(*id)));
        std::mem::take(&mut self.buffers).iter().for_each(|id| told(id, device.destroy_buffer(*id)));
        std::mem::take(&mut self.regions).iter().for_each(|id| told(id, device.unregister_region(*id)));
        std::mem::take(&mut self.modules).iter().for_each(|id| told(id, device.destroy_module(*id)));
    }
}

impl Drop for OwnedDevice {
    fn drop(&mut self) {
        self.settle();
        self.release();
        self.destroy_all();
    }
}

/// Notes the id of a thing that was made.
fn note<T: Ord>(made: &mut BTreeSet<T>, id: T, result: Result<()>) -> Result<()> {
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

    fn pool_stats(&self) -> PoolStats {
        self.device.pool_stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.device.trim_pool()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        let made = self.sparing(|device| device.create_buffer(id, bytes));
        note(&mut self.buffers, id, made)
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        self.device.destroy_buffer(id)?;
        self.buffers.remove(&id);
        Ok(())
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        let made = self.sparing(|device| device.create_module(id, module));
        note(&mut self.modules, id, made)
    }

    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.device.destroy_module(id)?;
        self.modules.remove(&id);
        Ok(())
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        let made = self.sparing(|device| device.register_region(id, Arc::clone(&region)));
        note(&mut self.regions, id, made)
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        self.device.unregister_region(id)?;
        self.regions.remove(&id);
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        let made = self.sparing(|device| device.record(id, commands.clone()));
        note(&mut self.programs, id, made)
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
