//! The device: it turns ids into memory, kernels and scripts, points into events, and hands scripts to its queues.
//!
//! Calls are expected to come through [`Checked`](ragtag_hal::Checked). What is looked at again here (that an id is known
//! and that a range lies in its buffer or region) is what keeps a wrong call from touching foreign memory.
//!
//! This module must not know how a queue or the driver works.

use crate::api;
use crate::clock::Clock;
use crate::context::Context;
use crate::memory::{Buffer, DeviceMemory};
use crate::probe::Found;
use crate::program::{Entry, entries};
use crate::queue::Queue;
use crate::recording::recorded;
use crate::script::{HostSpan, Launch, Registered, Script, Span, Step};
use crate::transfer::TransferMode;
use ragtag_hal::lanes::{Common, Feeder, Lane, Task, Wait};
use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, DeviceId, Dispatch, Error, HostRegion, Limits, Memory,
    Module, ModuleId, Point, PoolStats, ProgramId, QueueKind, RegionId, Result, Submission, Timeline,
    TimelineId, Timing, Waiter, Work,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// An opened OpenCL device.
pub(crate) struct OpenClDevice {
    id: DeviceId,
    found: Found,
    programs: HashMap<ProgramId, Arc<Script>>,
    modules: HashMap<ModuleId, Vec<Entry>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    common: Arc<Common>,
    /// Its drop waits for the driver, so it goes before what the driver uses.
    feeder: Feeder<Queue>,
    buffers: HashMap<BufferId, Arc<Buffer>>,
    regions: HashMap<RegionId, Arc<Registered>>,
    memory: DeviceMemory,
    /// For pinning: never holds anything that waits.
    pinning: Arc<api::Queue>,
    context: Arc<Context>,
}

impl OpenClDevice {
    /// Opens a device in a context that has it.
    ///
    /// # Errors
    /// If the driver refuses, or the system gives no more threads.
    pub(crate) fn open(
        id: DeviceId,
        found: Found,
        context: Arc<Context>,
        mode: TransferMode,
        limits: &Limits,
    ) -> Result<Self> {
        let common = Common::new(id, &found.adapter.label(), limits);
        let clock = Arc::new(Mutex::new(Clock::new(found.device)));
        let api_queue = || api::Queue::new(context.api(), found.device, found.modern).map(Arc::new);
        let lane = |kind: QueueKind| {
            let name = format!("{} {}", found.adapter.label(), kind.name());
            let timeline = Arc::clone(&common.timelines()[kind.index()]);
            Lane::new(name, Arc::new(Queue::new(api_queue()?, &clock)), timeline, Arc::clone(&common))
        };
        let [compute, upload, download] = QueueKind::ALL;
        let lanes = [lane(compute)?, lane(upload)?, lane(download)?];
        Ok(Self {
            id,
            programs: HashMap::new(),
            modules: HashMap::new(),
            imported: HashMap::new(),
            feeder: Feeder::new(format!("{} feeder", found.adapter.label()), lanes)?,
            buffers: HashMap::new(),
            regions: HashMap::new(),
            memory: DeviceMemory::new(Arc::clone(&context), found.clone(), mode, limits),
            pinning: api_queue()?,
            common,
            context,
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
        let steps = commands.into_iter().map(|command| self.step(command));
        steps.filter_map(Result::transpose).collect()
    }

    /// `None` for a command that does nothing.
    fn step(&self, command: Command) -> Result<Option<Step>> {
        Ok(Some(match command {
            Command::Dispatch(dispatch) if dispatch.grid.contains(&0) => return Ok(None),
            Command::Dispatch(dispatch) => Step::Launch(self.launch(&dispatch)?),
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

    fn launch(&self, dispatch: &Dispatch) -> Result<Launch> {
        let entries = self.modules.get(&dispatch.module).ok_or_else(|| unknown(dispatch.module))?;
        let entry = entries.get(dispatch.entry as usize);
        let entry = entry.ok_or_else(|| unknown(format!("entry {}", dispatch.entry)))?;
        let spans =
            dispatch.bindings.iter().map(|binding| self.span(&binding.range)).collect::<Result<_>>()?;
        let launch = Launch::new(entry, spans, &dispatch.constants, dispatch.grid);
        launch.map_err(|error| match error {
            Error::Api { call, code } => Error::Api { call: format!("{}: {call}", entry.abi.name), code },
            other => other,
        })
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

    #[cfg(test)]
    pub(crate) fn lose(&self, error: Error) {
        self.common.told(error);
    }

    /// Forgets programs, after the driver has.
    ///
    /// An event says that a command has ended, not that the driver is done with what it used. Nothing of these programs is
    /// outstanding, so that this waits no longer than for what else is in the queue.
    fn forget_programs(&mut self, forgotten: impl Fn(&ProgramId, &Arc<Script>) -> bool) {
        let mut programs = self.programs.extract_if(|id, script| forgotten(id, script)).peekable();
        if programs.peek().is_some()
            && let Err(error) = self.feeder.lane(QueueKind::Compute).queue().api().finish()
        {
            tracing::debug!(%error, "the queue was not finished");
        }
        programs.for_each(drop);
    }
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        self.forget_programs(|_, _| true);
    }
}

impl Device for OpenClDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.found.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        Ok(vec![self.memory.heap()?])
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
        self.forget_programs(|_, script| script.uses_buffer(&buffer));
        self.memory.release(buffer);
        Ok(())
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.common.check()?;
        let entries = entries(&self.context, &self.found, module);
        self.modules.insert(id, self.common.noted(entries)?);
        Ok(())
    }

    /// Programs keep the kernels that they launch.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.common.check()?;
        // A device in the host's memory copies as the host does.
        let apart = !self.found.memory.host_memory;
        let pin = apart.then(|| self.context.pin(&self.pinning, &region)).flatten();
        self.regions.insert(id, Arc::new(Registered { region, _pin: pin }));
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let registered = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.forget_programs(|_, script| script.uses_region(&registered.region));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.common.check()?;
        self.forget_programs(|known, _| *known == id);
        let steps = self.steps(commands);
        let mut steps = self.common.noted(steps)?;
        if let Some(functions) = self.found.command_buffers {
            steps = recorded(functions, self.feeder.lane(QueueKind::Compute).queue().api(), steps);
        }
        self.programs.insert(id, Arc::new(Script::new(steps)));
        Ok(())
    }

    /// A program that went away with a buffer or region of its own is forgotten already.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.forget_programs(|known, _| *known == id);
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
