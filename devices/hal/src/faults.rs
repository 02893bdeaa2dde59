//! Fault injection: on request, a device runs out of memory, rejects calls, copies wrong bytes, is lost or
//! slows down.
//!
//! Tests of the layers above a device use fault injection. [`Faulty`] sits between a backend and
//! [`Checked`](crate::Checked), so `Checked` still enforces the caller's contract. The backend executes all
//! work that reaches it, but `Faulty` delays or suppresses the reports of completion, and changes or drops
//! copies.
//! [`Faulty`] also implements a [`Throttle`]. This module is independent of any API.

mod copies;
mod mirror;

use crate::backend::{Adapter, Device, Memory, SharedMemory, SharedSemaphore, Timing};
use crate::command::{Command, Module, Submission, Work};
use crate::error::{Error, Result};
use crate::ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
use crate::pool::PoolStats;
use crate::region::HostRegion;
use crate::throttle::Throttle;
use crate::timeline::Timeline;
pub use copies::{CopyFault, CopyFaultKind, FaultyCopies, ShortCopies};
use mirror::{Due, Mirror, News};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Faults to inject on a device. The default injects none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// The allocation that fails, counted from 1. Its error reports half of the requested bytes as free.
    pub failing_allocation: Option<u64>,
    /// Maximum size of an allocation in bytes. Larger allocations fail.
    pub largest_allocation_bytes: Option<u64>,
    /// Maximum total size of all buffers in bytes, regardless of the free bytes that the device reports.
    /// Allocations beyond it fail, and their errors do not contain the free bytes.
    pub most_bytes: Option<u64>,
    /// Maximum size of a host region in bytes. Registering a larger region fails with an out-of-memory error.
    pub largest_region_bytes: Option<u64>,
    /// Whether the device refuses to export buffers.
    pub refuses_exports: bool,
    /// Number of the import that the device refuses, counted from 1.
    pub failing_import: Option<u64>,
    /// Maximum number of recorded programs. Recording another program fails with an out-of-memory error.
    pub most_programs: Option<usize>,
    /// The submission that the device rejects, counted from 1.
    pub failing_submission: Option<u64>,
    /// The submission at which the driver reports a device loss, counted from 1. This call and all later
    /// calls fail.
    pub losing_submission: Option<u64>,
    /// The command at which the device is lost, counted from 1 across all submissions. The commands of a
    /// program count once per submission of the program. The submission that contains this command does not
    /// start.
    pub lost_at_command: Option<u64>,
    /// Delay per queue in microseconds, in the order of [`QueueKind::ALL`]. The delay of a point starts when
    /// its work is done and the previous point has passed. It affects all waits for the point, including
    /// those of the device's own submissions.
    pub delay_us: [u64; 3],
    /// Maximum random delay in microseconds, which is added to `delay_us`. With random delays, queues
    /// overtake each other.
    pub random_delay_us: u64,
    /// Seed of the random delays. With the same seed, a submission has the same delay in every run.
    pub seed: u64,
    /// Copies that leave out their last bytes, so that the destination keeps wrong bytes. Recorded programs
    /// are not affected.
    pub short_copies: Option<ShortCopies>,
    /// A fault of some copies. Recorded programs are not affected.
    pub copy_fault: Option<CopyFault>,
    /// The computation that is never reported as completed, counted from 1.
    pub endless_computation: Option<u64>,
}

impl Faults {
    /// Returns true if these faults delay or suppress reports of completion.
    fn touch_timelines(&self) -> bool {
        self.lost_at_command.is_some()
            || self.endless_computation.is_some()
            || self.random_delay_us > 0
            || self.delay_us.iter().any(|&us| us > 0)
            || self.copy_fault.is_some_and(|fault| fault.touches_timelines())
    }

    fn delay(&self, queue: QueueKind, value: u64) -> Duration {
        let salt = self.seed ^ value << 2 ^ queue.index() as u64;
        let random_us = self.random_delay_us.checked_add(1).map_or(0, |choices| scramble(salt) % choices);
        Duration::from_micros(self.delay_us[queue.index()].saturating_add(random_us))
    }
}

/// Hashes a number with the finaliser of SplitMix64.
fn scramble(seed: u64) -> u64 {
    let x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Size in bytes of one command of a program in the out-of-memory error of [`Faults::most_programs`].
const PROGRAM_BYTES: u64 = 1 << 10;

/// A device with injected faults.
pub(crate) struct Faulty {
    /// Mirrored timelines. The field is declared before `inner`, so that the mirror's thread ends before the
    /// device closes.
    mirror: Option<Mirror>,
    inner: Box<dyn Device>,
    faults: Faults,
    throttle: Throttle,
    /// Imported timelines of other devices. The map is empty if the throttle sets no duty cycle.
    imported: HashMap<TimelineId, Arc<Timeline>>,
    /// Point of the latest submission to the compute queue.
    computes: Option<Point>,
    allocations: u64,
    imports: u64,
    submissions: u64,
    commands: u64,
    computations: u64,
    /// Number of copies to which [`Faults::copy_fault`] can apply.
    copies: u64,
    /// Number of commands in each program.
    programs: HashMap<ProgramId, u64>,
    /// Error of the submission at which the device was lost.
    loss: Option<Error>,
}

impl Faulty {
    /// Wraps a device, and injects the faults and the throttle.
    ///
    /// # Errors
    /// Returns an error if the device cannot import mirrored timelines, or the system cannot start the
    /// mirror's thread.
    pub(crate) fn new(mut inner: Box<dyn Device>, faults: Faults, throttle: Throttle) -> Result<Self> {
        let queues = faults.touch_timelines() || throttle.duty_percent.is_some();
        let mirrors = queues || throttle.link_bytes_per_s.is_some();
        let mirror = mirrors.then(|| Mirror::new(inner.as_mut(), queues, throttle)).transpose()?;
        Ok(Self {
            mirror,
            inner,
            faults,
            throttle,
            imported: HashMap::new(),
            computes: None,
            allocations: 0,
            imports: 0,
            submissions: 0,
            commands: 0,
            computations: 0,
            copies: 0,
            programs: HashMap::new(),
            loss: None,
        })
    }

    /// Returns the mirror if it replaces the timelines of the device's queues.
    fn queues(&self) -> Option<&Mirror> {
        self.mirror.as_ref().filter(|mirror| mirror.has_queues())
    }

    /// Returns the time at which to report a submission as completed. With a duty cycle, also makes a compute
    /// submission wait until the previous compute submission and its rest period have ended.
    fn due(&mut self, submission: &mut Submission, fault: Option<CopyFaultKind>) -> Due {
        let (queue, signal) = (submission.queue, submission.signal);
        self.computations += u64::from(queue == QueueKind::Compute);
        if queue == QueueKind::Compute && self.faults.endless_computation == Some(self.computations) {
            return Due::After(Duration::MAX);
        }
        let late = fault.map_or(Duration::ZERO, CopyFaultKind::delay);
        if queue != QueueKind::Compute || self.throttle.duty_percent.is_none() {
            return Due::After(self.faults.delay(queue, signal.value).saturating_add(late));
        }
        submission.waits.extend(self.computes.replace(signal));
        let timeline = |point: &Point| match point.timeline.device == self.inner.id() {
            true => Some(self.timeline(point.timeline.queue)),
            false => self.imported.get(&point.timeline).cloned(),
        };
        let waits = submission.waits.iter().filter_map(|point| Some((timeline(point)?, point.value)));
        let waits: Vec<_> = waits.filter(|(timeline, value)| timeline.value() < *value).collect();
        Due::Rested(waits.is_empty().then(Instant::now), waits)
    }

    /// Fails if the device is lost.
    fn check_there(&self) -> Result<()> {
        match self.loss.clone().or_else(|| self.mirror.as_ref().and_then(Mirror::loss)) {
            Some(loss) => Err(loss),
            None => Ok(()),
        }
    }

    fn poison(&self, queue: QueueKind, error: &Error) {
        match self.queues() {
            Some(mirror) => mirror.fail(queue, error),
            None => self.inner.timeline(queue).fail(error.clone()),
        }
    }

    /// Fails if points pass later than the work ends, because a semaphore would not have this delay.
    fn check_semaphores(&self) -> Result<()> {
        self.check_there()?;
        match self.mirror {
            Some(_) => Err(Error::Unsupported { what: "sharing semaphores with delayed points".into() }),
            None => Ok(()),
        }
    }

    /// Counts an allocation. Fails if the faults refuse it.
    fn count_allocation(&mut self, bytes: u64) -> Result<()> {
        self.check_there()?;
        self.allocations += 1;
        if self.faults.failing_allocation == Some(self.allocations) {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(bytes / 2) });
        }
        let taken = self.inner.pool_stats().in_use_bytes.saturating_add(bytes);
        if self.faults.most_bytes.is_some_and(|most| taken > most) {
            return Err(Error::OutOfMemory { wanted: bytes, free: None });
        }
        match self.faults.largest_allocation_bytes {
            Some(most) if bytes > most => Err(Error::OutOfMemory { wanted: bytes, free: Some(most) }),
            _ => Ok(()),
        }
    }

    /// Adds the commands of a submission to the count. Returns true if the count has reached the command at
    /// which the device is lost.
    fn loses_device(&mut self, work: &Work) -> bool {
        self.commands += match work {
            Work::Commands(commands) => commands.len() as u64,
            Work::Program(id) => self.programs.get(id).copied().unwrap_or(0),
        };
        self.faults.lost_at_command.is_some_and(|at| self.commands >= at)
    }
}

impl Device for Faulty {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn adapter(&self) -> &Adapter {
        self.inner.adapter()
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.check_there()?;
        self.inner.memory()
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        self.queues().map_or_else(|| self.inner.timeline(queue), |mirror| mirror.timeline(queue))
    }

    fn timeline_for_others(&self, queue: QueueKind) -> Arc<Timeline> {
        match &self.mirror {
            Some(mirror) if queue == QueueKind::Download && self.throttle.link_bytes_per_s.is_some() => {
                mirror.link()
            }
            _ if self.queues().is_none() => self.inner.timeline_for_others(queue),
            _ => self.timeline(queue),
        }
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.check_there()?;
        if let Some(mirror) = self.mirror.as_ref().filter(|_| self.throttle.duty_percent.is_some()) {
            mirror.listen(&timeline);
            self.imported.insert(timeline.id(), Arc::clone(&timeline));
        }
        self.inner.import_timeline(timeline)
    }

    fn pool_stats(&self) -> PoolStats {
        self.inner.pool_stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.inner.trim_pool()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.count_allocation(bytes)?;
        self.inner.create_buffer(id, bytes)
    }

    fn create_shared_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.count_allocation(bytes)?;
        self.inner.create_shared_buffer(id, bytes)
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        self.check_there()?;
        self.inner.destroy_buffer(id)
    }

    fn export_buffer(&self, id: BufferId) -> Result<SharedMemory> {
        match self.faults.refuses_exports {
            true => Err(Error::Unsupported { what: "exports".into() }),
            false => self.inner.export_buffer(id),
        }
    }

    fn import_buffer(&mut self, id: BufferId, memory: &SharedMemory) -> Result<()> {
        self.check_there()?;
        self.imports += 1;
        match self.faults.failing_import == Some(self.imports) {
            true => Err(Error::Unsupported { what: "imports".into() }),
            false => self.inner.import_buffer(id, memory),
        }
    }

    fn create_semaphore(&mut self) -> Result<SharedSemaphore> {
        self.check_semaphores()?;
        self.inner.create_semaphore()
    }

    fn raise_semaphore(&mut self, queue: QueueKind, semaphore: &SharedSemaphore) -> Result<()> {
        self.check_semaphores()?;
        self.inner.raise_semaphore(queue, semaphore)
    }

    fn await_semaphore(&mut self, timeline: TimelineId, semaphore: &SharedSemaphore) -> Result<()> {
        self.check_semaphores()?;
        self.inner.await_semaphore(timeline, semaphore)
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.check_there()?;
        self.inner.create_module(id, module)
    }

    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.check_there()?;
        self.inner.destroy_module(id)
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.check_there()?;
        let wanted = region.bytes() as u64;
        match self.faults.largest_region_bytes {
            Some(most) if wanted > most => Err(Error::OutOfMemory { wanted, free: None }),
            _ => self.inner.register_region(id, region),
        }
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        self.check_there()?;
        self.inner.unregister_region(id)
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.check_there()?;
        let count = commands.len() as u64;
        let others = self.programs.keys().filter(|other| **other != id).count();
        if self.faults.most_programs.is_some_and(|most| others >= most) {
            return Err(Error::OutOfMemory { wanted: count * PROGRAM_BYTES, free: Some(0) });
        }
        self.inner.record(id, commands)?;
        self.programs.insert(id, count);
        Ok(())
    }

    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.check_there()?;
        self.programs.remove(&id);
        self.inner.destroy_program(id)
    }

    fn submit(&mut self, mut submission: Submission) -> Result<()> {
        self.check_there()?;
        let (queue, value) = (submission.queue, submission.signal.value);
        self.submissions += 1;
        if self.faults.failing_submission == Some(self.submissions) {
            let error = Error::Api { call: "submit (injected fault)".into(), code: -1 };
            self.poison(queue, &error);
            return Err(error);
        }
        if self.faults.losing_submission == Some(self.submissions) {
            let cause = format!("submission {} failed (injected fault)", self.submissions);
            let error = Error::Lost { cause };
            self.loss = Some(error.clone());
            QueueKind::ALL.iter().for_each(|&queue| self.poison(queue, &error));
            return Err(error);
        }
        let lost = self.loses_device(&submission.work);
        if let (Some(short), Work::Commands(commands)) = (self.faults.short_copies, &mut submission.work) {
            short.apply(commands, self.inner.adapter().caps.copy_alignment_bytes.max(1));
        }
        let fault = match (self.faults.copy_fault, &mut submission.work) {
            (Some(fault), Work::Commands(commands)) => {
                let alignment = self.inner.adapter().caps.copy_alignment_bytes;
                fault.apply(commands, alignment, &mut self.copies)
            }
            _ => None,
        };
        if fault == Some(CopyFaultKind::Refused) {
            let error = Error::Api { call: "copy (injected fault)".into(), code: -1 };
            return Err(error.refusing_copy());
        }
        if self.mirror.is_none() {
            return self.inner.submit(submission);
        }
        let due = self.due(&mut submission, fault);
        if let Some(mirror) = self.queues() {
            if lost {
                // Neither this submission nor a later one runs. The mirror's thread reports the loss.
                mirror.expect(queue, News::Loss);
                return Ok(());
            }
            if fault == Some(CopyFaultKind::Failing) {
                let error = Error::Api { call: "copy (injected fault)".into(), code: -1 };
                mirror.expect(queue, News::Failure(error));
                return Ok(());
            }
            mirror.expect(queue, News::Done { value, due });
            mirror.redirect(&mut submission.waits);
        }
        if let (Some(mirror), QueueKind::Download, Work::Commands(commands)) =
            (&self.mirror, queue, &submission.work)
            && self.throttle.link_bytes_per_s.is_some()
        {
            mirror.expect_on_link(News::Done { value, due: Due::Carried(downloaded(commands)) });
        }
        self.inner.submit(submission)
    }

    /// Appends timings. The time of a throttled compute submission includes the rest period after it.
    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        let start = timings.len();
        self.inner.take_timings(timings);
        if let Some(percent) = self.throttle.duty_percent {
            let computed = |timing: &&mut Timing| timing.point.timeline.queue == QueueKind::Compute;
            for timing in timings[start..].iter_mut().filter(computed) {
                let worked_ns = timing.end_ns - timing.start_ns;
                timing.end_ns = timing.start_ns + worked_ns * 100 / u64::from(percent.clamp(1, 100));
            }
        }
    }
}

/// Returns the number of bytes that `commands` download to the host.
fn downloaded(commands: &[Command]) -> u64 {
    let bytes = |command: &Command| match command {
        Command::Download { from, .. } | Command::Copy { from, .. } => from.bytes,
        _ => 0,
    };
    commands.iter().map(bytes).sum()
}
