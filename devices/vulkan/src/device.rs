//! The device: it turns ids into memory, pipelines and scripts, points into events, and hands scripts to its queues.
//!
//! Calls are expected to come through [`Checked`](ragtag_hal::Checked). What is looked at again here (that an id is known
//! and that a range lies in its buffer or region) is what keeps a wrong call from touching foreign memory.
//!
//! This module must not know how a queue or the driver works.

use crate::api::{Instance, Logical, SharedQueue};
use crate::clock::Clock;
use crate::memory::{Buffer, DeviceMemory};
use crate::probe::Found;
use crate::program::{Entry, Programs};
use crate::queue::Queue;
use crate::recording::Recorders;
use crate::region::Registered;
use crate::script::{HostSpan, Script, Span, Step};
use ragtag_hal::cache::Shelf;
use ragtag_hal::lanes::{Common, Feeder, Lane, Task, Wait};
use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, DeviceId, Dispatch, Error, HostRegion, Limits, Memory,
    Module, ModuleId, Point, PoolStats, ProgramId, QueueKind, RegionId, Result, Submission, Timeline,
    TimelineId, Timing, Waiter, Work,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// An opened Vulkan device.
pub(crate) struct VulkanDevice {
    id: DeviceId,
    found: Found,
    programs: HashMap<ProgramId, Arc<Script>>,
    modules: HashMap<ModuleId, Vec<Arc<Entry>>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    common: Arc<Common>,
    /// Its drop waits for the driver, so it goes before what the driver uses.
    feeder: Feeder<Queue>,
    buffers: HashMap<BufferId, Arc<Buffer>>,
    regions: HashMap<RegionId, Arc<Registered>>,
    import_regions: bool,
    memory: DeviceMemory,
    compiled: Programs,
    logical: Arc<Logical>,
}

/// What a device is opened with.
pub(crate) struct Opening<'a> {
    pub(crate) instance: &'a Arc<Instance>,
    pub(crate) found: Found,
    pub(crate) shelf: &'a Arc<Shelf>,
    /// Whether host regions are imported, if the device can.
    pub(crate) import_regions: bool,
}

impl VulkanDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// If the driver refuses, or the system gives no more threads.
    pub(crate) fn open(id: DeviceId, opening: Opening<'_>, limits: &Limits) -> Result<Self> {
        let Opening { instance, found, shelf, import_regions } = opening;
        let logical = Arc::new(Logical::new(instance, &found.facts, &counts(&found.queues))?);
        let memory = DeviceMemory::new(Arc::clone(&logical), &found.adapter, found.types.clone(), limits);
        let label = found.adapter.label();
        let common = Common::new(id, &label, limits);
        let mut lanes = Lanes::new(&logical, memory.host_reads());
        let mut lane = |kind: QueueKind| {
            let queue = lanes.queue(found.queues[kind.index()])?;
            let timeline = Arc::clone(&common.timelines()[kind.index()]);
            Lane::new(format!("{label} {}", kind.name()), Arc::new(queue), timeline, Arc::clone(&common))
        };
        let [compute, upload, download] = QueueKind::ALL;
        let lanes = [lane(compute)?, lane(upload)?, lane(download)?];
        Ok(Self {
            id,
            programs: HashMap::new(),
            modules: HashMap::new(),
            imported: HashMap::new(),
            feeder: Feeder::new(format!("{label} feeder"), lanes)?,
            buffers: HashMap::new(),
            regions: HashMap::new(),
            import_regions,
            memory,
            compiled: Programs::new(&logical, found.target.clone(), Arc::clone(shelf), label),
            common,
            logical,
            found,
        })
    }

    fn span(&self, range: &BufferRange) -> Result<Span> {
        let buffer = self.buffers.get(&range.buffer).ok_or_else(|| unknown(range.buffer))?;
        Span::new(buffer, range.offset, range.bytes)
            .ok_or_else(|| Error::invalid(format!("{range:?} of {} bytes", buffer.bytes())))
    }

    fn host_span(&self, id: RegionId, offset: u64, span: &Span) -> Result<HostSpan> {
        let registered = self.regions.get(&id).ok_or_else(|| unknown(id))?;
        HostSpan::new(registered, offset, span)
            .ok_or_else(|| Error::invalid(format!("a range from {offset} on that is not in {id}")))
    }

    fn steps(&self, commands: Vec<Command>) -> Result<Vec<Step>> {
        commands.into_iter().map(|command| self.step(command)).filter_map(Result::transpose).collect()
    }

    /// `None` for a command that does nothing.
    fn step(&self, command: Command) -> Result<Option<Step>> {
        Ok(Some(match command {
            Command::Dispatch(dispatch) if dispatch.grid.contains(&0) => return Ok(None),
            Command::Dispatch(dispatch) => self.launch(dispatch)?,
            Command::Copy { from, to } => Step::Copy { from: self.span(&from)?, to: self.span(&to)? },
            Command::Fill { to, word } => Step::Fill { to: self.span(&to)?, word },
            Command::Upload { region, offset, to } => {
                let to = self.span(&to)?;
                Step::Upload { from: self.host_span(region, offset, &to)?, to }
            }
            Command::Download { from, region, offset } => {
                let from = self.span(&from)?;
                Step::Download { to: self.host_span(region, offset, &from)?, from }
            }
        }))
    }

    fn launch(&self, dispatch: Dispatch) -> Result<Step> {
        let Dispatch { module, entry, bindings, constants, grid } = dispatch;
        let entries = self.modules.get(&module).ok_or_else(|| unknown(module))?;
        let entry = entries.get(entry as usize).ok_or_else(|| unknown(format!("entry {entry}")))?;
        // The driver reads as many arguments as the pipeline has.
        if (bindings.len(), constants.len()) != (entry.abi.bindings.len(), entry.abi.constants) {
            return Err(Error::invalid(format!("arguments that {} does not take", entry.abi.name)));
        }
        let spans = bindings.iter().map(|binding| self.span(&binding.range)).collect::<Result<_>>()?;
        Ok(Step::Launch { entry: Arc::clone(entry), spans, constants, grid })
    }

    /// A point that a submission to a queue waits for. Of the same queue it need not wait for anything.
    fn wait(&self, queue: QueueKind, point: Point) -> Result<Option<Wait>> {
        let Point { timeline: TimelineId { device, queue: other }, value } = point;
        let timeline = match device == self.id {
            true if other == queue => return Ok(None),
            true => self.feeder.lane(other).timeline(),
            false => self.imported.get(&point.timeline).ok_or_else(|| unknown(point))?,
        };
        let own = (device == self.id).then_some(other);
        Ok(Some(Wait { timeline: Arc::clone(timeline), value, own }))
    }

    fn enqueue(&mut self, submission: Submission) -> Result<()> {
        let Submission { queue, work, waits, signal } = submission;
        self.check()?;
        let script = match work {
            Work::Commands(commands) => Arc::new(Script::new(self.steps(commands)?)),
            Work::Program(id) => self.programs.get(&id).cloned().ok_or_else(|| unknown(id))?,
        };
        let waits = waits.into_iter().filter_map(|point| self.wait(queue, point).transpose());
        self.feeder.submit(queue, Task { script, waits: waits.collect::<Result<_>>()?, signal })
    }

    /// # Errors
    /// If the device is lost, or the validation layer has objected to something.
    fn check(&self) -> Result<()> {
        self.common.check()?;
        self.logical.instance().unobjected()
    }

    #[cfg(test)]
    pub(crate) fn lose(&self, error: Error) {
        self.common.told(error);
    }
}

/// The queues of a device as they are made: lanes may share one of the driver's.
struct Lanes<'a> {
    logical: &'a Arc<Logical>,
    host_reads: bool,
    clock: Arc<Mutex<Clock>>,
    made: BTreeMap<(u32, u32), (Arc<SharedQueue>, Arc<Recorders>)>,
}

impl<'a> Lanes<'a> {
    fn new(logical: &'a Arc<Logical>, host_reads: bool) -> Self {
        Self { logical, host_reads, clock: Arc::default(), made: BTreeMap::new() }
    }

    fn queue(&mut self, place: (u32, u32)) -> Result<Queue> {
        if !self.made.contains_key(&place) {
            let shared = Arc::new(SharedQueue::new(self.logical, place.0, place.1)?);
            let recorders = Recorders::new(&shared, self.host_reads);
            self.made.insert(place, (shared, recorders));
        }
        let (shared, recorders) = &self.made[&place];
        Queue::new(shared, recorders, &self.clock)
    }
}

/// How many queues of which families.
fn counts(queues: &[(u32, u32); 3]) -> Vec<(u32, u32)> {
    let mut counts = BTreeMap::new();
    for &(family, queue) in queues {
        let count = counts.entry(family).or_insert(0);
        *count = (queue + 1).max(*count);
    }
    counts.into_iter().collect()
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl Device for VulkanDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.found.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.check()?;
        Ok(vec![self.memory.heap()])
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(self.feeder.lane(queue).timeline())
    }

    fn waiter(&mut self) -> Option<Box<dyn Waiter>> {
        None
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.feeder.listen(&timeline);
        self.imported.insert(timeline.id(), timeline);
        Ok(())
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.check()?;
        if bytes == 0 {
            return Err(Error::invalid(format!("{id} of zero bytes")));
        }
        let buffer = self.memory.allocate(bytes);
        self.buffers.insert(id, self.common.noted(buffer)?);
        Ok(())
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        let buffer = self.buffers.remove(&id).ok_or_else(|| unknown(id))?;
        // A program that names it is not submitted again, and would keep the memory.
        self.programs.retain(|_, script| !script.uses_buffer(&buffer));
        self.memory.release(buffer);
        Ok(())
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.check()?;
        let entries = self.compiled.entries(module);
        self.modules.insert(id, self.common.noted(entries)?);
        Ok(())
    }

    /// Programs keep the pipelines that they launch.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.check()?;
        let registered = Registered::new(&self.logical, &self.found.types, region, self.import_regions);
        self.regions.insert(id, Arc::new(self.common.noted(registered)?));
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let registered = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.programs.retain(|_, script| !script.uses_region(registered.region()));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.check()?;
        self.programs.remove(&id);
        let script = Script::new(self.steps(commands)?);
        let recording = script.recording(self.feeder.lane(QueueKind::Compute).queue().recorders());
        self.common.noted(recording)?;
        self.programs.insert(id, Arc::new(script));
        Ok(())
    }

    /// A program that went away with a buffer or region of its own is forgotten already.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let queue = submission.queue;
        self.enqueue(submission).map_err(|error| self.feeder.lane(queue).fail(error))
    }

    fn pool_stats(&self) -> PoolStats {
        self.memory.stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.memory.trim()
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.common.take_timings(timings);
    }
}
