//! A stage's actor: the thread that owns a device and executes the actions of the stage's core.
//!
//! It sleeps only on its mailbox. There are two exceptions: it waits for uploads while loading weights, and
//! it waits briefly for outstanding work at the end of a run before destroying its objects. The core makes
//! all decisions. The actor maps slots to buffers, micro-batches to programs, and points to waits.

pub(crate) mod memory;
mod owned;
mod solo;
mod weights;

pub use solo::{SoloBatch, SoloDevice, SoloLink, SoloStage};
pub use weights::{WEIGHT_STAGING_BYTES, WeightSource};

use crate::core::{StageAction, StageCore, StageEvent, StagePoints, StageShape, StageStats};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, LINGER, Mailbox, Notice};
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

/// Number of messages after which the actor reads timings from the device. It also reads them before it
/// sleeps and at the end.
const TIMINGS_PERIOD: u32 = 16;

/// Progress of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Counts of the stage's core.
    pub counts: StageStats,
    /// Micro-batches with prompt rows, timed by the device.
    pub prefill: Computed,
    /// Micro-batches of decode steps only, timed by the device.
    pub decode: Computed,
    /// Sums for all micro-batches, by size.
    pub sizes: Vec<SizeReport>,
    /// Longest time in which the actor handled one message. It should be short, because the actor does not
    /// block on devices.
    pub longest_turn_us: u64,
    /// Statistics of the device's buffer pool.
    pub pool: PoolStats,
}

/// A ring shared with a neighbour.
pub(crate) struct Edge {
    pub(crate) route: Route,
    pub(crate) ring: Arc<HostRegion>,
    /// The neighbour's mailbox.
    pub(crate) address: StageAddress,
    /// The neighbour's timeline that this stage waits for.
    pub(crate) timeline: Arc<Timeline>,
    /// Armed while the sender of the ring waits for a ring slot.
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

/// Inputs of an actor.
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
    /// Last stage only: host memory for logits, and the bytes of the part for each credit.
    pub(crate) logits: Option<(Arc<HostRegion>, u64)>,
    pub(crate) sink: TraceSink,
    pub(crate) ends: Ends,
    pub(crate) report: Arc<Mutex<StageReport>>,
}

/// A running stage.
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
    /// Bytes of one activation row in the wire type.
    row_bytes: u64,
    own: [Arc<Timeline>; 3],
    /// Last value of the download timeline that was reported to the core.
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
    /// Allocates memory and loads the weights.
    ///
    /// # Errors
    /// Fails if the device or the weight source fails, or if the shape of the stage is invalid.
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
        // Ignore a full mailbox here: the next regular message reports it. A notice is sent only once until
        // it is armed again.
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

    /// Runs until the stage is stopped or fails. Reports a failure to the coordinator. Before it returns, it
    /// fails its timelines to release waiters, and destroys its objects on the device.
    pub(crate) fn serve(mut self) {
        if let Err(error) = self.work() {
            tracing::debug!(stage = self.stage, %error, "a stage has failed");
            self.run.send_urgent(RunUrgent::Failed(error));
            // Release other devices that may wait for work that will never be submitted.
            self.device.release();
        }
        self.take_timings();
    }

    fn work(&mut self) -> Result<()> {
        // Time at which the actor began to handle the current message.
        let mut since = Timing::now_ns();
        loop {
            let mut envelope = self.mailbox.poll();
            if envelope.is_none() {
                envelope = self.before_sleep()?;
            }
            let now = Timing::now_ns();
            self.recorder.turned(since, now);
            since = now;
            if envelope.is_none() {
                envelope = self.sleep();
                since = Timing::now_ns();
            }
            let Some(envelope) = envelope else { return Ok(()) };
            match envelope {
                Envelope::Urgent(StageUrgent::Stop) => return Ok(()),
                Envelope::Urgent(StageUrgent::Failed(cause)) => return Err(self.failed(cause)),
                Envelope::Normal(StageMessage::Event(event)) => {
                    self.catch_up()?;
                    self.step(event)?;
                }
                Envelope::Normal(StageMessage::Downloaded) => self.catch_up()?,
                // The ring slot itself is in the quiet queue. This message only wakes the actor.
                Envelope::Normal(StageMessage::RingSlot) => {}
            }
            self.handled += 1;
            if self.handled.is_multiple_of(TIMINGS_PERIOD) {
                self.take_timings();
            }
        }
    }

    /// Arms the required notices and then checks their conditions again. This finds earlier changes. Later
    /// changes wake the actor.
    fn before_sleep(&mut self) -> Result<Option<Envelope<StageMessage, StageUrgent>>> {
        if self.core.wants_slot() {
            self.download_notice.arm();
            self.catch_up()?;
        }
        if let Some(next) = self.next.as_ref().filter(|_| self.core.wants_ring_slot()) {
            next.ring_notice.arm();
        }
        // Returned ring slots are in the quiet queue.
        Ok(self.mailbox.poll())
    }

    /// Waits for a message. Returns `None` if no sender is left.
    fn sleep(&mut self) -> Option<Envelope<StageMessage, StageUrgent>> {
        let mut anticipation = std::mem::take(&mut self.anticipation);
        let mut has_timings = false;
        let envelope = anticipation.wait(|turn| match turn {
            Turn::Look => self.mailbox.poll().map_or(Outcome::Nothing, Outcome::Found),
            Turn::Rest(limit) => {
                // The actor is idle, so it has time to read timings.
                if !std::mem::replace(&mut has_timings, true) {
                    self.take_timings();
                }
                self.mailbox.receive(limit)
            }
        });
        self.anticipation = anticipation;
        envelope
    }

    /// Reports the download timeline's value to the core if it has changed.
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

    /// Returns a ring slot to the previous stage. Wakes that stage only if it waits for a ring slot.
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

    /// Returns the region and byte offset of a chunk in the ring.
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

/// Returns the device on which a failure began. This is the device of the innermost point whose wait failed.
pub(crate) fn culprit(error: &ragtag_hal::Error) -> Option<DeviceId> {
    match error {
        ragtag_hal::Error::Poisoned { point, cause } => Some(culprit(cause).unwrap_or(point.timeline.device)),
        _ => None,
    }
}
