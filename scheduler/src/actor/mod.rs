//! A device's actor: the one thread that owns the device and makes it do what the stage's core wants.
//!
//! It sleeps on its mailbox alone. While it loads weights it also waits for uploads; nothing is in flight then. When the run
//! ends it waits a moment for what is, and destroys what it made. It must not decide anything that the core could: it turns
//! slots into buffers, micro-batches into programs, points into waits.

pub(crate) mod memory;
mod owned;
mod solo;
mod weights;

pub use solo::{SoloBatch, SoloDevice, SoloLink, SoloStage};
pub use weights::{WEIGHT_STAGING_BYTES, WeightSource};

use crate::core::{StageAction, StageCore, StageEvent, StagePoints, StageShape, StageStats};
use crate::error::{Error, Result};
use crate::mailbox::{LINGER, Letter, Mailbox, Notice};
use crate::message::{RunAddress, RunMessage, RunUrgent, StageAddress, StageMessage, StageUrgent};
use crate::trace::{Computed, Ends, Label, Recorder, SizeReport, SpanKind, TraceSink};
use memory::{INCOMING, LOGITS, OUTGOING, StageBuffers};
use owned::OwnedDevice;
use ragtag_graph::CompiledStage;
use ragtag_hal::{
    Anticipation, Command, Device, DeviceId, HostRegion, Outcome, PoolStats, QueueKind, RegionId, Submission,
    Timeline, Timing, Turn, Work,
};
use ragtag_transfer::{Chunk, ChunkFree, Route};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use weights::Loading;

/// Timings are taken from the device once for so many messages, before the actor sleeps, and at the end.
const TIMINGS_PERIOD: u32 = 16;

/// What a stage has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// As its core counts.
    pub counts: StageStats,
    /// Micro-batches with prompt rows, as the device timed them.
    pub prefill: Computed,
    /// Micro-batches of decode steps alone, as the device timed them.
    pub decode: Computed,
    /// The same by size.
    pub sizes: Vec<SizeReport>,
    /// The longest that its actor took to handle one message: it blocks on no device, so this is short whatever devices do.
    pub longest_turn_us: u64,
    /// The pool that its buffers come from.
    pub pool: PoolStats,
}

/// A ring that a stage shares with a neighbour.
pub(crate) struct Edge {
    pub(crate) route: Route,
    pub(crate) ring: Arc<HostRegion>,
    /// The neighbour's mailbox.
    pub(crate) address: StageAddress,
    /// The neighbour's timeline that this stage waits for.
    pub(crate) timeline: Arc<Timeline>,
    /// Armed while the ring's sender waits for a slot of it.
    pub(crate) ring_notice: Notice,
}

impl Edge {
    fn chunk_bytes(&self) -> u64 {
        match self.route {
            Route::HostStaged { chunk_bytes, .. } => chunk_bytes,
            Route::SameDevice | Route::Peer | Route::Import => 0,
        }
    }
}

/// All that an actor starts from.
pub(crate) struct ActorSpec {
    pub(crate) stage: u32,
    pub(crate) label: String,
    pub(crate) device: Box<dyn Device>,
    pub(crate) compiled: CompiledStage,
    pub(crate) weights: Box<dyn WeightSource>,
    pub(crate) slots: u32,
    pub(crate) mailbox: Mailbox<StageMessage, StageUrgent>,
    pub(crate) address: StageAddress,
    pub(crate) run: RunAddress,
    pub(crate) previous: Option<Edge>,
    pub(crate) next: Option<Edge>,
    /// Last stage: host memory for logits, and the bytes of each credit's part.
    pub(crate) logits: Option<(Arc<HostRegion>, u64)>,
    pub(crate) sink: TraceSink,
    pub(crate) ends: Ends,
    pub(crate) report: Arc<Mutex<StageReport>>,
}

/// A loaded stage at work.
pub(crate) struct Actor {
    stage: u32,
    label: String,
    core: StageCore,
    memory: StageBuffers,
    mailbox: Mailbox<StageMessage, StageUrgent>,
    run: RunAddress,
    previous: Option<Edge>,
    next: Option<Edge>,
    logits_part_bytes: u64,
    /// Of a row that crosses.
    row_bytes: u64,
    own: [Arc<Timeline>; 3],
    /// How far the core knows the download timeline to be.
    downloaded: u64,
    download_notice: Notice,
    recorder: Recorder,
    report: Arc<Mutex<StageReport>>,
    actions: Vec<StageAction>,
    timings: Vec<Timing>,
    handled: u32,
    anticipation: Anticipation,
    device: OwnedDevice,
}

impl Actor {
    /// Allocates, loads the weights and gets ready.
    ///
    /// # Errors
    /// What the device, the source of the weights or the shape of the stage is to blame for.
    pub(crate) fn load(spec: ActorSpec, abort: &AtomicBool, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let ActorSpec { stage, label, device, compiled, weights, slots, mailbox, address, run, .. } = spec;
        let (previous, next, logits) = (spec.previous, spec.next, spec.logits);
        let failed = |cause| stage_error(stage, &label, cause);
        let mut device = OwnedDevice::new(device);
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        for timeline in &own {
            let address = address.clone();
            let failed = move |error: &ragtag_hal::Error| {
                address.send_urgent(StageUrgent::Failed(error.clone()));
            };
            Notice::default().listen(timeline, || {}, failed);
        }

        let mut points = StagePoints::new(|queue| own[queue.index()].id());
        let mut recorder = Recorder::new(stage, compiled.segments.clone(), spec.sink, spec.ends);
        let row_bytes = compiled.edge_row_bytes();
        let needed_bytes = StageBuffers::needed_bytes(&compiled, slots);
        let edges =
            [(INCOMING, &previous), (OUTGOING, &next)].map(|(id, edge)| Some((id, &edge.as_ref()?.ring)));
        let logits_region = logits.as_ref().map(|(region, _)| (LOGITS, region));
        let regions = edges.into_iter().chain([logits_region]).flatten();
        let uploads = &own[QueueKind::Upload.index()];
        let loading = Loading { stage, device_label: &label, uploads, abort, progress };
        let loaded = StageBuffers::new(&mut device, compiled, slots).map_err(failed).and_then(|memory| {
            for (id, region) in regions {
                device.register_region(id, Arc::clone(region)).map_err(failed)?;
            }
            loading.run(&mut device, &memory, weights.as_ref(), &mut points.upload, &mut recorder)?;
            Ok(memory)
        });
        let held_bytes = device.pool_stats().in_use_bytes;
        let memory = loaded.map_err(|error| error.while_loading(held_bytes, needed_bytes))?;

        let shape = StageShape {
            slots,
            row_bytes,
            incoming: previous.as_ref().map(|e| e.route),
            outgoing: next.as_ref().map(|e| e.route),
        };
        for edge in [&previous, &next].into_iter().flatten() {
            device.import_timeline(Arc::clone(&edge.timeline)).map_err(failed)?;
        }
        let download_notice = Notice::default();
        let downloads = address.clone();
        // A full mailbox shows at the next message that is not a notice; a notice is sent once until it is armed again.
        let moved = move || drop(downloads.send(StageMessage::Downloaded));
        download_notice.listen(&own[QueueKind::Download.index()], moved, |_| {});
        let mut actor = Self {
            core: StageCore::new(&shape, points)?,
            stage,
            memory,
            mailbox,
            run,
            previous,
            next,
            logits_part_bytes: logits.map_or(0, |(_, part_bytes)| part_bytes),
            row_bytes,
            own,
            downloaded: 0,
            download_notice,
            recorder,
            report: spec.report,
            actions: Vec::new(),
            timings: Vec::new(),
            handled: 0,
            anticipation: Anticipation::lingering(LINGER),
            device,
            label,
        };
        actor.take_timings();
        Ok(actor)
    }

    /// Works until told to stop, or until something fails; tells the coordinator of that. Whoever waits for this
    /// device's points is released, and what is on the device destroyed, before this returns.
    pub(crate) fn serve(mut self) {
        if let Err(error) = self.work() {
            tracing::debug!(stage = self.stage, %error, "a stage has failed");
            self.run.send_urgent(RunUrgent::Failed(error));
            // Others may wait for what will never be submitted: nobody is to wait for them in turn.
            self.device.release();
        }
        self.take_timings();
    }

    fn work(&mut self) -> Result<()> {
        // When the message at hand was taken up.
        let mut since = Timing::now_ns();
        loop {
            let mut letter = self.mailbox.poll();
            if letter.is_none() {
                letter = self.before_sleep()?;
            }
            let now = Timing::now_ns();
            self.recorder.turned(since, now);
            since = now;
            if letter.is_none() {
                letter = self.sleep();
                since = Timing::now_ns();
            }
            let Some(letter) = letter else { return Ok(()) };
            match letter {
                Letter::Urgent(StageUrgent::Stop) => return Ok(()),
                Letter::Urgent(StageUrgent::Failed(cause)) => return Err(self.failed(cause)),
                Letter::Normal(StageMessage::Event(event)) => {
                    self.catch_up()?;
                    self.step(event)?;
                }
                Letter::Normal(StageMessage::Downloaded) => self.catch_up()?,
                // The slot itself lies on the quiet lane.
                Letter::Normal(StageMessage::RingSlot) => {}
            }
            self.handled += 1;
            if self.handled.is_multiple_of(TIMINGS_PERIOD) {
                self.take_timings();
            }
        }
    }

    /// Asks for the notices that are needed, and looks once more at what they are about: whatever happened before the
    /// asking is found here, whatever happens after it wakes us.
    fn before_sleep(&mut self) -> Result<Option<Letter<StageMessage, StageUrgent>>> {
        if self.core.wants_slot() {
            self.download_notice.arm();
            self.catch_up()?;
        }
        if let Some(next) = self.next.as_ref().filter(|_| self.core.wants_ring_slot()) {
            next.ring_notice.arm();
        }
        // Ring slots come on the quiet lane.
        Ok(self.mailbox.poll())
    }

    /// Waits for a letter; `None` when nobody can write any more.
    fn sleep(&mut self) -> Option<Letter<StageMessage, StageUrgent>> {
        let mut anticipation = std::mem::take(&mut self.anticipation);
        let mut told = false;
        let letter = anticipation.wait(|turn| match turn {
            Turn::Look => self.mailbox.poll().map_or(Outcome::Nothing, Outcome::Found),
            Turn::Rest(limit) => {
                // Nothing is urgent now: time to say how far it is.
                if !std::mem::replace(&mut told, true) {
                    self.take_timings();
                }
                self.mailbox.receive(limit)
            }
        });
        self.anticipation = anticipation;
        letter
    }

    /// Tells the core how far the download timeline has come, if it does not know.
    fn catch_up(&mut self) -> Result<()> {
        let downloaded = self.own[QueueKind::Download.index()].value();
        if downloaded > self.downloaded {
            self.downloaded = downloaded;
            self.step(StageEvent::Progress { downloaded })?;
        }
        Ok(())
    }

    fn step(&mut self, event: StageEvent) -> Result<()> {
        let mut actions = std::mem::take(&mut self.actions);
        self.core.step(Timing::now_ns(), event, &mut actions)?;
        let done = actions.drain(..).try_for_each(|action| self.act(action));
        self.actions = actions;
        done
    }

    fn act(&mut self, action: StageAction) -> Result<()> {
        match action {
            StageAction::Upload { slot, micro_batch, chunk, waits, signal } => {
                let to = self.memory.edge_rows(slot, chunk.offset, chunk.bytes);
                let (region, offset) = self.staged(INCOMING, &chunk);
                let work = Work::Commands(vec![Command::Upload { region, offset, to }]);
                let submission = Submission { queue: QueueKind::Upload, work, waits, signal };
                self.recorder.admitted(micro_batch, Timing::now_ns());
                self.submit(submission, Label::copy(SpanKind::Upload, micro_batch, chunk.bytes))
            }
            StageAction::Compute { slot, micro_batch, waits, signal } => {
                let (stage, label) = (self.stage, &self.label);
                let failed = |cause| stage_error(stage, label, cause);
                let program = self.memory.prepare(&mut self.device, slot, &micro_batch, failed)?;
                let work = Work::Program(program);
                let submission = Submission { queue: QueueKind::Compute, work, waits, signal };
                tracing::trace!(
                    stage,
                    micro_batch = micro_batch.id.0,
                    rows = micro_batch.rows(),
                    slot,
                    "compute"
                );
                self.submit(submission, Label::of(SpanKind::Compute, &micro_batch, 0))
            }
            StageAction::Download { slot, micro_batch, chunk, waits, signal } => {
                let from = self.memory.edge_rows(slot, chunk.offset, chunk.bytes);
                let (region, offset) = self.staged(OUTGOING, &chunk);
                let work = Work::Commands(vec![Command::Download { from, region, offset }]);
                let submission = Submission { queue: QueueKind::Download, work, waits, signal };
                self.submit(submission, Label::copy(SpanKind::Download, micro_batch, chunk.bytes))
            }
            StageAction::Logits { slot, micro_batch, waits, signal } => {
                let offset = u64::from(micro_batch.credit) * self.logits_part_bytes;
                let from = self.memory.logits(slot, micro_batch.logit_rows());
                let bytes = from.map_or(0, |from| from.bytes);
                let commands = from.map(|from| Command::Download { from, region: LOGITS, offset });
                let work = Work::Commands(commands.into_iter().collect());
                let submission = Submission { queue: QueueKind::Download, work, waits, signal };
                self.recorder.leaves(&micro_batch, bytes);
                self.submit(submission, Label::of(SpanKind::Logits, &micro_batch, bytes))
            }
            StageAction::HandOff { micro_batch } => {
                self.recorder.leaves(&micro_batch, u64::from(micro_batch.rows()) * self.row_bytes);
                send(&self.next, StageMessage::Event(StageEvent::HandOff { micro_batch }))
            }
            StageAction::Chunk(ready) => send(&self.next, StageMessage::Event(StageEvent::Chunk(ready))),
            StageAction::Free(free) => self.free(free),
            StageAction::Return(returned) => self.run.send_quietly(RunMessage::Return(returned)),
        }
    }

    /// Gives a ring slot back; its sender is woken only if it waits for one.
    fn free(&self, free: ChunkFree) -> Result<()> {
        let Some(previous) = &self.previous else {
            return Err(Error::protocol("a ring slot of a stage that does not exist"));
        };
        previous.address.send_quietly(StageMessage::Event(StageEvent::Free(free)))?;
        if previous.ring_notice.take() {
            previous.address.send(StageMessage::RingSlot)?;
        }
        Ok(())
    }

    /// Where a chunk lies in the ring.
    fn staged(&self, region: RegionId, chunk: &Chunk) -> (RegionId, u64) {
        let edge = if region == INCOMING { &self.previous } else { &self.next };
        let chunk_bytes = edge.as_ref().map_or(0, Edge::chunk_bytes);
        (region, u64::from(chunk.slot) * chunk_bytes)
    }

    fn submit(&mut self, submission: Submission, label: Label) -> Result<()> {
        self.recorder.submitted(submission.signal, label);
        let submitted = self.device.submit(submission);
        submitted.map_err(|cause| self.failed(cause))
    }

    fn take_timings(&mut self) {
        self.device.take_timings(&mut self.timings);
        for timing in self.timings.drain(..) {
            self.recorder.timed(&timing);
        }
        let Recorder { prefill, decode, longest_turn_ns, .. } = self.recorder;
        let (counts, pool) = (self.core.stats(), self.device.pool_stats());
        let longest_turn_us = longest_turn_ns.div_ceil(1000);
        let sizes = self.recorder.sizes();
        let report = StageReport { counts, prefill, decode, sizes, longest_turn_us, pool };
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn failed(&self, cause: ragtag_hal::Error) -> Error {
        stage_error(self.stage, &self.label, cause)
    }
}

fn send(edge: &Option<Edge>, message: StageMessage) -> Result<()> {
    match edge {
        Some(edge) => edge.address.send(message),
        None => Err(Error::protocol("a message to a stage that does not exist")),
    }
}

fn stage_error(stage: u32, label: &str, cause: ragtag_hal::Error) -> Error {
    Error::Stage { stage, device: label.into(), cause }
}

/// The device on which a failure began: that of the innermost point that was waited for in vain.
pub(crate) fn culprit(error: &ragtag_hal::Error) -> Option<DeviceId> {
    match error {
        ragtag_hal::Error::Poisoned { point, cause } => Some(culprit(cause).unwrap_or(point.timeline.device)),
        _ => None,
    }
}
