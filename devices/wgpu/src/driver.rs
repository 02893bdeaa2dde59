//! The device: it turns ids into memory, pipelines and scripts, points into events, and hands scripts to its lanes.
//!
//! Calls are expected to come through [`Checked`](ragtag_hal::Checked). What is looked at again here (that an id is known
//! and that a range lies in its buffer or region) is what keeps a wrong call from touching foreign memory.
//!
//! This module must not know how a queue or wgpu works.

use crate::encoder::Encoder;
use crate::gpu::{Gpu, heard};
use crate::memory::{Buffer, DeviceMemory};
use crate::probe::Found;
use crate::program::{Entry, Programs};
use crate::queue::Queue;
use crate::script::{HostSpan, Launch, Script, Span, Step};
use crate::stamps::Stamps;
use crate::tools::Tools;
use crossbeam_channel::unbounded;
use ragtag_hal::lanes::{Common, Feeder, Lane, Task, Wait, spawn};
use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, DeviceId, Dispatch, Error, HostRegion, Limits, Memory,
    Module, ModuleId, Point, PoolStats, ProgramId, QueueKind, RegionId, Result, Submission, Timeline,
    TimelineId, Timing, Waiter, Work,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use wgpu::DeviceLostReason;

/// An opened device of wgpu's.
pub(crate) struct WgpuDevice {
    id: DeviceId,
    found: Found,
    programs: HashMap<ProgramId, Arc<Script>>,
    modules: HashMap<ModuleId, Vec<Entry>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    common: Arc<Common>,
    /// Its drop waits for the device, so it goes before what the device uses.
    feeder: Feeder<Queue>,
    /// Ends when the lanes have gone.
    _encoder: Joined,
    buffers: HashMap<BufferId, Arc<Buffer>>,
    regions: HashMap<RegionId, Arc<HostRegion>>,
    memory: DeviceMemory,
    compiled: Programs,
    tools: Tools,
    gpu: Arc<Gpu>,
}

/// A thread that is waited for.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        // What went wrong is on the timelines.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

impl WgpuDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// If nobody says how much memory it has, or the system gives no more threads.
    pub(crate) fn open(
        id: DeviceId,
        gpu: Gpu,
        found: Found,
        compiled: Programs,
        limits: &Limits,
    ) -> Result<Self> {
        let gpu = Arc::new(gpu);
        let label = found.adapter.label();
        let memory = DeviceMemory::new(Arc::clone(&gpu), found.clone(), limits)?;
        let common = Common::new(id, &label, limits);
        tell_loss(&gpu, &common);
        let (jobs, inbox) = unbounded();
        let stamps = Stamps::new(&gpu);
        let encoder = Encoder::new(Arc::clone(&gpu), stamps.clone());
        let encoder = Joined(Some(spawn(format!("{label} encoder"), move || encoder.serve(&inbox))?));
        let lane = |lane: QueueKind| {
            let queue = Queue { gpu: Arc::clone(&gpu), stamps: stamps.clone(), lane, jobs: jobs.clone() };
            let timeline = Arc::clone(&common.timelines()[lane.index()]);
            Lane::new(format!("{label} {}", lane.name()), Arc::new(queue), timeline, Arc::clone(&common))
        };
        let [compute, upload, download] = QueueKind::ALL;
        let lanes = [lane(compute)?, lane(upload)?, lane(download)?];
        Ok(Self {
            id,
            programs: HashMap::new(),
            modules: HashMap::new(),
            imported: HashMap::new(),
            feeder: Feeder::new(format!("{label} feeder"), lanes)?,
            _encoder: encoder,
            buffers: HashMap::new(),
            regions: HashMap::new(),
            memory,
            compiled,
            tools: Tools::default(),
            common,
            gpu,
            found,
        })
    }

    #[cfg(test)]
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn span(&self, range: &BufferRange) -> Result<Span> {
        let buffer = self.buffers.get(&range.buffer).ok_or_else(|| unknown(range.buffer))?;
        Span::new(buffer, range.offset, range.bytes)
            .ok_or_else(|| Error::invalid(format!("{range:?} of {} bytes", buffer.bytes())))
    }

    fn host_span(&self, id: RegionId, offset: u64, span: &Span) -> Result<HostSpan> {
        let region = self.regions.get(&id).ok_or_else(|| unknown(id))?;
        HostSpan::new(region, offset, span)
            .ok_or_else(|| Error::invalid(format!("a range from {offset} on that is not in {id}")))
    }

    fn steps(&self, commands: Vec<Command>) -> Result<Vec<Step>> {
        let mut steps = Vec::with_capacity(commands.len());
        commands.into_iter().try_for_each(|command| self.step(command, &mut steps))?;
        Ok(steps)
    }

    /// Appends the steps of a command.
    fn step(&self, command: Command, steps: &mut Vec<Step>) -> Result<()> {
        match command {
            Command::Dispatch(dispatch) if dispatch.grid.contains(&0) => {}
            Command::Dispatch(dispatch) => steps.push(Step::Launch(self.launch(&dispatch)?)),
            Command::Copy { from, to } => {
                let (from, to) = (self.span(&from)?, self.span(&to)?);
                // wgpu copies from one buffer to another only.
                if Arc::ptr_eq(&from.buffer, &to.buffer) {
                    let copies = self.tools.copy(&self.gpu, &self.found, &self.compiled, &from, &to)?;
                    steps.extend(copies.into_iter().map(Step::Launch));
                } else {
                    steps.push(Step::Copy { from, to });
                }
            }
            Command::Fill { to, word: 0 } => steps.push(Step::Clear { to: self.span(&to)? }),
            Command::Fill { to, word } => {
                let fills =
                    self.tools.fill(&self.gpu, &self.found, &self.compiled, &self.span(&to)?, word)?;
                steps.extend(fills.into_iter().map(Step::Launch));
            }
            Command::Upload { region, offset, to } => {
                let to = self.span(&to)?;
                steps.push(Step::Upload { from: self.host_span(region, offset, &to)?, to });
            }
            Command::Download { from, region, offset } => {
                let from = self.span(&from)?;
                steps.push(Step::Download { to: self.host_span(region, offset, &from)?, from });
            }
        }
        Ok(())
    }

    fn launch(&self, dispatch: &Dispatch) -> Result<Launch> {
        let entries = self.modules.get(&dispatch.module).ok_or_else(|| unknown(dispatch.module))?;
        let entry = entries.get(dispatch.entry as usize);
        let entry = entry.ok_or_else(|| unknown(format!("entry {}", dispatch.entry)))?;
        let spans =
            dispatch.bindings.iter().map(|binding| self.span(&binding.range)).collect::<Result<_>>()?;
        Launch::new(&self.gpu, entry, spans, &dispatch.constants, dispatch.grid)
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
        self.common.check()?;
        let script = match work {
            Work::Commands(commands) => Arc::new(Script::new(self.steps(commands)?)),
            Work::Program(id) => self.programs.get(&id).cloned().ok_or_else(|| unknown(id))?,
        };
        let waits = waits.into_iter().filter_map(|point| self.wait(queue, point).transpose());
        self.feeder.submit(queue, Task { script, waits: waits.collect::<Result<_>>()?, signal })
    }
}

/// Ends all timelines when wgpu says that the device is lost.
fn tell_loss(gpu: &Arc<Gpu>, common: &Arc<Common>) {
    // The callback stays with wgpu's device, which must not keep what is above it.
    let (theirs, common) = (Arc::downgrade(gpu), Arc::downgrade(common));
    gpu.device.set_device_lost_callback(move |reason, message| {
        let Some(gpu) = theirs.upgrade() else { return };
        let cause = match reason {
            DeviceLostReason::Destroyed => "it was destroyed".into(),
            DeviceLostReason::Unknown => heard(&message),
        };
        gpu.lose(cause.clone());
        if let Some(common) = common.upgrade() {
            common.told(Error::Lost { cause });
        }
    });
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl Device for WgpuDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.found.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.common.check()?;
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
        self.common.check()?;
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
        self.common.check()?;
        let entries = self.compiled.entries(&self.gpu, &self.found, module);
        self.modules.insert(id, self.common.noted(entries)?);
        Ok(())
    }

    /// Programs keep the pipelines that they launch.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.common.check()?;
        self.regions.insert(id, region);
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let region = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.programs.retain(|_, script| !script.uses_region(&region));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.common.check()?;
        self.programs.remove(&id);
        let steps = self.steps(commands);
        let steps = self.common.noted(steps)?;
        self.programs.insert(id, Arc::new(Script::new(steps)));
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
