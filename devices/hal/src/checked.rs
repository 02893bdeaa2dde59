//! Validates every call to a device, once for all backends.
//!
//! [`Checked`] enforces the contract in the crate's documentation, so a backend may trust its arguments. An
//! invalid call fails with [`Error::Invalid`] before it reaches the backend, and changes nothing. `Checked`
//! validates a program's commands when the program is recorded. When the program is submitted, `Checked` only
//! validates the points of the submission and checks that the program's previous run has ended.
//!
//! This module is independent of any API. It reads only commands, capabilities and timelines.

mod commands;
mod leaks;
#[cfg(test)]
mod tests;

use crate::backend::{Adapter, Device, Memory, SharedMemory, SharedSemaphore, Timing};
use crate::command::{Command, Module, Submission, Work};
use crate::error::{Error, Result};
use crate::faults::{Faults, Faulty};
use crate::ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
use crate::pool::PoolStats;
use crate::region::HostRegion;
use crate::throttle::Throttle;
use crate::timeline::Timeline;
use commands::{Name, Resources, names};
pub use leaks::{LeakWatch, Leaks};
use std::collections::HashMap;
use std::sync::Arc;

/// A device whose calls are validated before they reach the backend.
///
/// `Checked` enforces the documented rules of the commands and the following rules:
/// - an ID names one resource at a time;
/// - a wait on the device's own timeline names a point that an earlier submission signals. Any other wait
///   names a point of an imported timeline;
/// - a resource is destroyed only when no submission that uses it is outstanding. A program that uses a
///   destroyed buffer, region or module can no longer be submitted.
///
/// Submissions on a failed timeline do not count as outstanding.
///
/// When `Checked` is dropped, it warns about resources that were not destroyed: see [`Checked::leaks`].
pub struct Checked {
    inner: Box<dyn Device>,
    own: [Own; 3],
    imported: HashMap<TimelineId, Arc<Timeline>>,
    resources: Resources,
    programs: HashMap<ProgramId, Program>,
    watch: LeakWatch,
}

/// One of the device's own queues.
struct Own {
    timeline: Arc<Timeline>,
    /// Value that the last submission to the queue signals.
    signalled: u64,
}

impl Own {
    fn outstanding(&self, value: u64) -> bool {
        self.timeline.value() < value && self.timeline.failure().is_none()
    }
}

/// For each queue, the value that the last submission that uses a resource signals.
#[derive(Clone, Copy, Default)]
struct LastUse([u64; 3]);

impl LastUse {
    fn mark(&mut self, queue: QueueKind, value: u64) {
        self.0[queue.index()] = value;
    }

    /// Returns a point that must pass before the resource may be destroyed, if any.
    fn outstanding(&self, own: &[Own; 3]) -> Option<Point> {
        let late = |queue: &QueueKind| own[queue.index()].outstanding(self.0[queue.index()]);
        let queue = QueueKind::ALL.into_iter().find(late)?;
        Some(own[queue.index()].timeline.id().at(self.0[queue.index()]))
    }
}

struct Program {
    names: Vec<Name>,
    last_use: LastUse,
    /// Name of a destroyed resource that the program uses.
    missing: Option<String>,
}

impl Checked {
    /// Wraps a device in validation.
    pub fn new(inner: Box<dyn Device>) -> Self {
        let own = QueueKind::ALL.map(|queue| {
            let timeline = inner.timeline(queue);
            let signalled = timeline.value();
            Own { timeline, signalled }
        });
        let resources = Resources::new(inner.adapter().caps.clone());
        let (imported, programs) = (HashMap::new(), HashMap::new());
        Self { inner, own, imported, resources, programs, watch: LeakWatch::default() }
    }

    /// Wraps a device in validation and fault injection. An empty set of faults adds no overhead. If the
    /// faults include delays or losses, starts a thread that advances mirrored timelines.
    ///
    /// # Errors
    /// Returns an error if the system cannot start the thread.
    pub fn with_faults(inner: Box<dyn Device>, faults: Faults) -> Result<Self> {
        if faults == Faults::default() {
            return Ok(Self::new(inner));
        }
        Ok(Self::new(Box::new(Faulty::new(inner, faults, Throttle::default())?)))
    }

    fn check_signal(&self, submission: &Submission) -> Result<()> {
        let own = &self.own[submission.queue.index()];
        let signal = submission.signal;
        if signal.timeline != own.timeline.id() {
            return Err(Error::invalid(format!(
                "a submission to the {} queue signals {signal}, which is not its timeline",
                submission.queue.name()
            )));
        }
        if signal.value <= own.signalled {
            return Err(Error::invalid(format!(
                "a submission signals {signal} after {} was signalled",
                own.timeline.id().at(own.signalled)
            )));
        }
        Ok(())
    }

    fn check_wait(&self, wait: Point) -> Result<()> {
        if wait.timeline.device != self.inner.id() {
            return if self.imported.contains_key(&wait.timeline) {
                Ok(())
            } else {
                Err(Error::invalid(format!("a wait for {wait}, whose timeline was not imported")))
            };
        }
        if wait.value > self.own[wait.timeline.queue.index()].signalled {
            return Err(Error::invalid(format!("a wait for {wait}, which no earlier submission signals")));
        }
        Ok(())
    }

    fn check_commands(&self, queue: QueueKind, commands: &[Command]) -> Result<()> {
        commands.iter().enumerate().try_for_each(|(at, command)| {
            let rule = self.resources.check(queue, command);
            rule.map_err(|what| Error::invalid(format!("command {at}: {what}")))
        })
    }

    fn check_program(&self, queue: QueueKind, id: ProgramId) -> Result<()> {
        if queue != QueueKind::Compute {
            return Err(Error::invalid(format!("{id} is submitted to the {} queue", queue.name())));
        }
        let program = self.program(id)?;
        if let Some(missing) = &program.missing {
            return Err(Error::invalid(format!(
                "{id} names {missing}, which was destroyed after it was recorded"
            )));
        }
        self.check_idle(&program.last_use, format_args!("{id} is submitted again"))
    }

    fn program(&self, id: ProgramId) -> Result<&Program> {
        self.programs.get(&id).ok_or_else(|| Error::invalid(format!("{id} is not recorded")))
    }

    /// Fails if a submission that uses the resource is outstanding.
    fn check_idle(&self, last_use: &LastUse, deed: std::fmt::Arguments<'_>) -> Result<()> {
        match last_use.outstanding(&self.own) {
            Some(point) => Err(Error::invalid(format!("{deed} before {point} has passed"))),
            None => Ok(()),
        }
    }

    /// Fails if an outstanding submission uses the resource or runs a program that names it.
    fn check_unused(&self, last_use: &LastUse, name: Name, deed: std::fmt::Arguments<'_>) -> Result<()> {
        self.check_idle(last_use, deed)?;
        let mut users = self.programs.values().filter(|program| program.names.contains(&name));
        users.try_for_each(|program| self.check_idle(&program.last_use, deed))
    }

    /// Invalidates the programs that name a destroyed resource.
    fn invalidate(&mut self, name: Name) {
        for program in self.programs.values_mut().filter(|program| program.names.contains(&name)) {
            program.missing.get_or_insert_with(|| name.to_string());
        }
    }
}

impl Device for Checked {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn adapter(&self) -> &Adapter {
        self.inner.adapter()
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.inner.memory()
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.own[queue.index()].timeline)
    }

    fn timeline_for_others(&self, queue: QueueKind) -> Arc<Timeline> {
        self.inner.timeline_for_others(queue)
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        let id = timeline.id();
        if id.device == self.inner.id() {
            return Err(Error::invalid(format!("{id} is imported by its own device")));
        }
        match self.imported.get(&id) {
            Some(known) if Arc::ptr_eq(known, &timeline) => return Ok(()),
            Some(_) => return Err(Error::invalid(format!("another timeline was imported as {id}"))),
            None => {}
        }
        self.inner.import_timeline(Arc::clone(&timeline))?;
        self.imported.insert(id, timeline);
        Ok(())
    }

    fn pool_stats(&self) -> PoolStats {
        self.inner.pool_stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.inner.trim_pool()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.resources.check_new_buffer(id, bytes)?;
        self.inner.create_buffer(id, bytes)?;
        self.resources.add_buffer(id, bytes);
        Ok(())
    }

    fn create_shared_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.resources.check_new_buffer(id, bytes)?;
        self.inner.create_shared_buffer(id, bytes)?;
        self.resources.add_buffer(id, bytes);
        Ok(())
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        let held = self.resources.buffer(id).map_err(Error::invalid)?;
        self.check_unused(&held.last_use, Name::Buffer(id), format_args!("{id} is destroyed"))?;
        self.inner.destroy_buffer(id)?;
        self.resources.buffers.remove(&id);
        self.invalidate(Name::Buffer(id));
        Ok(())
    }

    fn export_buffer(&self, id: BufferId) -> Result<SharedMemory> {
        self.resources.buffer(id).map_err(Error::invalid)?;
        self.inner.export_buffer(id)
    }

    fn import_buffer(&mut self, id: BufferId, memory: &SharedMemory) -> Result<()> {
        self.resources.check_new_buffer(id, memory.bytes)?;
        self.inner.import_buffer(id, memory)?;
        self.resources.add_buffer(id, memory.bytes);
        Ok(())
    }

    fn create_semaphore(&mut self) -> Result<SharedSemaphore> {
        self.inner.create_semaphore()
    }

    fn raise_semaphore(&mut self, queue: QueueKind, semaphore: &SharedSemaphore) -> Result<()> {
        self.inner.raise_semaphore(queue, semaphore)
    }

    fn await_semaphore(&mut self, timeline: TimelineId, semaphore: &SharedSemaphore) -> Result<()> {
        self.inner.await_semaphore(timeline, semaphore)
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.resources.check_new_module(id, module)?;
        self.inner.create_module(id, module)?;
        self.resources.add_module(id, module);
        Ok(())
    }

    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        let loaded = self.resources.module(id).map_err(Error::invalid)?;
        self.check_unused(&loaded.last_use, Name::Module(id), format_args!("{id} is destroyed"))?;
        self.inner.destroy_module(id)?;
        self.resources.modules.remove(&id);
        self.invalidate(Name::Module(id));
        Ok(())
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        if self.resources.regions.contains_key(&id) {
            return Err(Error::invalid(format!("{id} is registered already")));
        }
        let bytes = region.bytes() as u64;
        self.inner.register_region(id, region)?;
        self.resources.add_region(id, bytes);
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let held = self.resources.region(id).map_err(Error::invalid)?;
        self.check_unused(&held.last_use, Name::Region(id), format_args!("{id} is unregistered"))?;
        self.inner.unregister_region(id)?;
        self.resources.regions.remove(&id);
        self.invalidate(Name::Region(id));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        let last_use = self.programs.get(&id).map(|program| program.last_use).unwrap_or_default();
        self.check_idle(&last_use, format_args!("{id} is recorded anew"))?;
        self.check_commands(QueueKind::Compute, &commands)?;
        let names = names(&commands);
        // The old program is removed even if the backend rejects the new one.
        self.programs.remove(&id);
        self.inner.record(id, commands)?;
        self.programs.insert(id, Program { names, last_use, missing: None });
        Ok(())
    }

    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.check_idle(&self.program(id)?.last_use, format_args!("{id} is destroyed"))?;
        self.inner.destroy_program(id)?;
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let (queue, signal) = (submission.queue, submission.signal);
        self.check_signal(&submission)?;
        submission.waits.iter().try_for_each(|&wait| self.check_wait(wait))?;
        // Resources are marked before the backend call. If the backend rejects the submission, the timeline
        // fails, and work on a failed timeline does not count as outstanding.
        match &submission.work {
            Work::Commands(commands) => {
                self.check_commands(queue, commands)?;
                self.resources.mark(queue, signal.value, commands);
            }
            Work::Program(id) => {
                self.check_program(queue, *id)?;
                if let Some(program) = self.programs.get_mut(id) {
                    program.last_use.mark(queue, signal.value);
                }
            }
        }
        let before = std::mem::replace(&mut self.own[queue.index()].signalled, signal.value);
        let submitted = self.inner.submit(submission);
        if matches!(submitted, Err(Error::Refused { .. })) {
            self.own[queue.index()].signalled = before;
        }
        submitted
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.inner.take_timings(timings);
    }
}
