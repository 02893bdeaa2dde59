//! The device that all backends share. It resolves IDs to memory, kernels and scripts, resolves points to
//! waits, and passes scripts to its queues.
//!
//! Callers use the device through [`Checked`](crate::Checked). The device checks again that an ID is known
//! and that a range lies inside its buffer or region. An invalid call therefore cannot access other memory.
//!
//! This module does not know how a queue or a driver works.

use super::memory::DeviceMemory;
use super::{Driver, HostSpan, Launch, Registered, Script, Span, Step};
use crate::backend::{Adapter, Device, Limits, Memory, SharedMemory, SharedSemaphore, Timing};
use crate::command::{BufferRange, Command, Dispatch, EntryAbi, Module, Submission, Work};
use crate::error::{Error, Result};
use crate::ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
use crate::pool::PoolStats;
use crate::queues::{Common, Submitter, Task, TrackedQueue, Wait};
use crate::region::HostRegion;
use crate::timeline::Timeline;
use std::any::Any;
use std::collections::HashMap;
use std::mem::{ManuallyDrop, take};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time limit for outstanding work when a device closes. No submission takes that long.
const CLOSING_LIMIT: Duration = Duration::from_secs(60);

/// Origin of memory that several devices use.
enum Sharing {
    /// This device has allocated it.
    Own,
    /// Another device has exported it through this handle.
    Imported(Weak<dyn Any + Send + Sync>),
}

/// An opened device that runs its work through a backend's driver.
pub struct DriverDevice<D: Driver> {
    id: DeviceId,
    adapter: Adapter,
    programs: HashMap<ProgramId, Arc<Script<D>>>,
    modules: HashMap<ModuleId, Vec<(&'static EntryAbi, D::Entry)>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    /// Semaphores that the queues of imported timelines raise.
    awaited: HashMap<TimelineId, Arc<D::Semaphore>>,
    common: Arc<Common>,
    /// Submitter, which owns the queues. It is declared before the resources that the queues use, so that it
    /// is dropped first.
    submitter: Submitter<D::Queue>,
    pub(super) buffers: HashMap<BufferId, Arc<D::Buffer>>,
    /// Buffers in `buffers` whose memory other devices may use.
    shared: HashMap<BufferId, Sharing>,
    regions: HashMap<RegionId, Arc<Registered<D::Region>>>,
    memory: DeviceMemory<D>,
    driver: Arc<D>,
    closed: bool,
}

impl<D: Driver> DriverDevice<D> {
    /// Creates a device on top of a driver that has opened this adapter. `queues` are in the order of
    /// [`QueueKind::ALL`].
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
    pub fn open(
        common: Arc<Common>,
        adapter: Adapter,
        driver: D,
        queues: [D::Queue; 3],
        limits: &Limits,
    ) -> Result<Self> {
        let label = adapter.label();
        let [compute, upload, download] = queues;
        let tracked = |kind: QueueKind, queue| {
            let timeline = Arc::clone(&common.timelines()[kind.index()]);
            TrackedQueue::new(
                format!("{label} {}", kind.name()),
                Arc::new(queue),
                timeline,
                Arc::clone(&common),
            )
        };
        let queues = [
            tracked(QueueKind::Compute, compute)?,
            tracked(QueueKind::Upload, upload)?,
            tracked(QueueKind::Download, download)?,
        ];
        let driver = Arc::new(driver);
        let largest_bytes = adapter.caps.max_allocation_bytes;
        let memory = DeviceMemory::new(Arc::clone(&driver), largest_bytes, limits)?;
        Ok(Self {
            id: common.device(),
            programs: HashMap::new(),
            modules: HashMap::new(),
            imported: HashMap::new(),
            awaited: HashMap::new(),
            submitter: Submitter::new(format!("{label} submit"), queues)?,
            buffers: HashMap::new(),
            shared: HashMap::new(),
            regions: HashMap::new(),
            memory,
            common,
            driver,
            adapter,
            closed: false,
        })
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }

    /// Returns the state that the queues share.
    pub fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// Fails if the device is unusable.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver has raised an error.
    fn check(&self) -> Result<()> {
        self.common.check()?;
        self.driver.check()
    }

    fn span(&self, range: &BufferRange) -> Result<Span<D::Buffer>> {
        let buffer = self.buffers.get(&range.buffer).ok_or_else(|| unknown(range.buffer))?;
        Span::new(buffer, range.offset, range.bytes)
            .ok_or_else(|| Error::invalid(format!("{range:?} is not inside of the buffer")))
    }

    /// Returns the buffer of an earlier import of this handle. Drivers may refuse to import memory twice. A
    /// stage lends the same slots to both of its neighbours, which may be stages of one device.
    fn import_of(&self, handle: &Weak<dyn Any + Send + Sync>) -> Option<&Arc<D::Buffer>> {
        let is_same = |sharing: &Sharing| matches!(sharing, Sharing::Imported(known) if known.ptr_eq(handle));
        let (id, _) = self.shared.iter().find(|(_, sharing)| is_same(sharing))?;
        self.buffers.get(id)
    }

    fn host_span(&self, id: RegionId, offset: u64, bytes: u64) -> Result<HostSpan<D::Region>> {
        let registered = self.regions.get(&id).ok_or_else(|| unknown(id))?;
        HostSpan::new(registered, offset, bytes)
            .ok_or_else(|| Error::invalid(format!("{bytes} bytes from {offset} on are not in {id}")))
    }

    fn script(&self, commands: Vec<Command>, program: bool) -> Result<Arc<Script<D>>> {
        let mut steps = Vec::with_capacity(commands.len());
        for command in commands {
            if let Some(step) = self.step(command)? {
                self.driver.append(step, &mut steps)?;
            }
        }
        Script::new(self.driver.as_ref(), steps, program).map(Arc::new)
    }

    /// Resolves a command to a step. Returns `None` for a dispatch with an empty grid.
    fn step(&self, command: Command) -> Result<Option<Step<D>>> {
        Ok(Some(match command {
            Command::Dispatch(dispatch) if dispatch.grid.contains(&0) => return Ok(None),
            Command::Dispatch(dispatch) => Step::Launch(self.launch(dispatch)?),
            Command::Copy { from, to } => Step::Copy { from: self.span(&from)?, to: self.span(&to)? },
            Command::Fill { to, word } => Step::Fill { to: self.span(&to)?, word },
            Command::Upload { region, offset, to } => {
                let to = self.span(&to)?;
                Step::Upload { from: self.host_span(region, offset, to.bytes())?, to, used: None }
            }
            Command::UploadUsed { region, offset, to, used } => {
                let to = self.span(&to)?;
                Step::Upload { from: self.host_span(region, offset, to.bytes())?, to, used: Some(used) }
            }
            Command::Download { from, region, offset } => {
                let from = self.span(&from)?;
                Step::Download { to: self.host_span(region, offset, from.bytes())?, from }
            }
        }))
    }

    fn launch(&self, dispatch: Dispatch) -> Result<Launch<D>> {
        let Dispatch { module, entry, bindings, constants, grid } = dispatch;
        let entries = self.modules.get(&module).ok_or_else(|| unknown(module))?;
        let (abi, entry) = entries.get(entry as usize).ok_or_else(|| unknown(format!("entry {entry}")))?;
        // Drivers read as many arguments as the function has parameters.
        if (bindings.len(), constants.len()) != (abi.bindings.len(), abi.constants) {
            return Err(Error::invalid(format!("arguments do not match the parameters of {}", abi.name)));
        }
        let spans: Vec<_> =
            bindings.iter().map(|binding| self.span(&binding.range)).collect::<Result<_>>()?;
        let code = self.driver.launch(entry, &spans, constants, grid).map_err(|error| match error {
            Error::Api { call, code } => Error::Api { call: format!("{}: {call}", abi.name), code },
            other => other,
        })?;
        Ok(Launch { code, spans, abi })
    }

    /// Returns the wait that a submission to `queue` needs in order to start after `point`. Returns `None`
    /// for a point of the same queue, because a queue executes in order.
    fn wait(&self, queue: QueueKind, point: Point) -> Result<Option<Wait<D>>> {
        let Point { timeline: TimelineId { device, queue: other }, value } = point;
        let timeline = match device == self.id {
            true if other == queue => return Ok(None),
            true => self.submitter.tracked(other).timeline(),
            false => self.imported.get(&point.timeline).ok_or_else(|| unknown(point))?,
        };
        let own = (device == self.id).then_some(other);
        let semaphore = self.awaited.get(&point.timeline).cloned();
        Ok(Some(Wait { timeline: Arc::clone(timeline), value, own, semaphore }))
    }

    fn enqueue(&mut self, submission: Submission) -> Result<()> {
        let Submission { queue, work, waits, signal, is_timed } = submission;
        self.check()?;
        let script = match work {
            Work::Commands(commands) => self.script(commands, false)?,
            Work::Program(id) => self.programs.get(&id).cloned().ok_or_else(|| unknown(id))?,
        };
        let waits = waits.into_iter().filter_map(|point| self.wait(queue, point).transpose());
        let waits = waits.collect::<Result<_>>()?;
        self.submitter.submit(queue, Task { script, waits, signal, is_timed })
    }

    /// Waits until outstanding work has ended. If it has not ended by the deadline, leaks the driver and the
    /// resources that its threads may still use.
    pub(super) fn close(&mut self, deadline: Instant) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if self.submitter.close(deadline) {
            self.forget_programs(|_, _| true);
            return;
        }
        let label = self.adapter.label();
        tracing::warn!(
            "{label} does not finish its work; its memory and threads remain until the process exits"
        );
        self.memory.leak();
        let _leaked = ManuallyDrop::new((take(&mut self.programs), take(&mut self.modules)));
        let _leaked = ManuallyDrop::new((take(&mut self.buffers), take(&mut self.regions)));
        let _leaked = ManuallyDrop::new(Arc::clone(&self.driver));
    }

    fn forget_programs(&mut self, forgotten: impl Fn(&ProgramId, &Script<D>) -> bool) {
        let programs: Vec<_> = self.programs.extract_if(|id, script| forgotten(id, script)).collect();
        if !programs.is_empty() {
            let scripts = programs.into_iter().map(|(_, script)| script).collect();
            self.submitter.tracked(QueueKind::Compute).retire(scripts);
        }
    }
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl<D: Driver> Drop for DriverDevice<D> {
    fn drop(&mut self) {
        self.close(Instant::now() + CLOSING_LIMIT);
    }
}

impl<D: Driver> Device for DriverDevice<D> {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.check()?;
        self.common.recorded(self.memory.heap()).map(|heap| vec![heap])
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(self.submitter.tracked(queue).timeline())
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.submitter.listen(&timeline);
        self.imported.insert(timeline.id(), timeline);
        Ok(())
    }

    fn pool_stats(&self) -> PoolStats {
        self.memory.stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.memory.trim()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.check()?;
        let buffer = self.memory.allocate(bytes);
        self.buffers.insert(id, self.common.recorded(buffer)?);
        Ok(())
    }

    fn create_shared_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.check()?;
        let buffer = self.memory.allocate_shared(bytes);
        self.buffers.insert(id, self.common.recorded(buffer)?);
        self.shared.insert(id, Sharing::Own);
        Ok(())
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        let buffer = self.buffers.remove(&id).ok_or_else(|| unknown(id))?;
        let sharing = self.shared.remove(&id);
        if matches!(&sharing, Some(Sharing::Imported(handle)) if self.import_of(handle).is_some()) {
            return Ok(());
        }
        // Programs that use the buffer may not be submitted again, but would keep its memory alive.
        self.forget_programs(|_, script| script.uses_buffer(&buffer));
        match sharing {
            None => self.memory.release(buffer),
            Some(Sharing::Own) => self.memory.forget(&buffer),
            Some(Sharing::Imported(_)) => {}
        }
        Ok(())
    }

    fn export_buffer(&self, id: BufferId) -> Result<SharedMemory> {
        let buffer = self.buffers.get(&id).ok_or_else(|| unknown(id))?;
        self.common.recorded(self.driver.export(buffer))
    }

    fn import_buffer(&mut self, id: BufferId, memory: &SharedMemory) -> Result<()> {
        self.check()?;
        let handle = Arc::downgrade(&memory.handle);
        let buffer = match self.import_of(&handle) {
            Some(buffer) => Arc::clone(buffer),
            None => Arc::new(self.common.recorded(self.driver.import(memory))?),
        };
        self.buffers.insert(id, buffer);
        self.shared.insert(id, Sharing::Imported(handle));
        Ok(())
    }

    fn create_semaphore(&mut self) -> Result<SharedSemaphore> {
        self.check()?;
        self.common.recorded(self.driver.create_semaphore())
    }

    fn raise_semaphore(&mut self, queue: QueueKind, semaphore: &SharedSemaphore) -> Result<()> {
        self.check()?;
        let semaphore = self.common.recorded(self.driver.import_semaphore(semaphore))?;
        self.submitter.tracked(queue).raise(Arc::new(semaphore));
        Ok(())
    }

    fn await_semaphore(&mut self, timeline: TimelineId, semaphore: &SharedSemaphore) -> Result<()> {
        self.check()?;
        if !self.imported.contains_key(&timeline) {
            return Err(unknown(timeline));
        }
        let semaphore = self.common.recorded(self.driver.import_semaphore(semaphore))?;
        self.awaited.insert(timeline, Arc::new(semaphore));
        Ok(())
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.check()?;
        let entries = self.common.recorded(self.driver.entries(module))?;
        self.modules.insert(id, module.entries.iter().copied().zip(entries).collect());
        Ok(())
    }

    /// Unloads a module. Recorded programs keep the kernels that they launch alive.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.check()?;
        let hold = self.common.recorded(self.driver.register(&region))?;
        self.regions.insert(id, Arc::new(Registered { hold, region }));
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let registered = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.forget_programs(|_, script| script.uses_region(&registered.region));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.check()?;
        self.forget_programs(|known, _| *known == id);
        let script = self.common.recorded(self.script(commands, true))?;
        self.programs.insert(id, script);
        Ok(())
    }

    /// Destroys a program. Succeeds even if the program was already dropped with one of its buffers or
    /// regions.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.forget_programs(|known, _| *known == id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let queue = submission.queue;
        self.enqueue(submission).map_err(|error| match error {
            refused @ Error::Refused { .. } => refused,
            error => self.submitter.tracked(queue).fail(error),
        })
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.common.take_timings(timings);
    }
}
