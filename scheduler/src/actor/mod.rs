//! A device's actor: the thread that owns a device and executes the actions of its stages' cores.
//!
//! The actor sleeps only on its mailbox, with two exceptions. It waits for uploads while it loads weights,
//! and at the end of a run it waits briefly for outstanding work before it destroys its objects. The core
//! makes all decisions. The actor maps slots to buffers, micro-batches to programs, and points to waits.

mod checksum;
mod edge;
pub(crate) mod memory;
mod owned;
pub(crate) mod passing;
mod reading;
mod solo;
pub(crate) mod streaming;
mod weights;

pub use solo::{Mismatch, SoloBatch, SoloDevice, SoloLink, SoloStage};
pub use weights::{WEIGHT_CHUNK_BYTES, WEIGHT_STAGING_BYTES, WeightSource};

use crate::copies::{Copied, Copies, FileReads, Pending};
use crate::core::{
    DeviceAction, DeviceCore, DeviceEvent, End, MicroBatch, MicroBatchId, Progress, QueuePoints, StageAction,
    StageEvent, StageShape, StageStats,
};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, LINGER, Mailbox, Notice};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunAddress, RunMessage, RunUrgent};
use crate::trace::{Computed, Ends, Label, Recorder, SizeReport, SpanKind, TraceSink};
use checksum::{ChecksumIds, Checksums, place_of};
pub(crate) use edge::{Edge, Sharing};
use edge::{copy_command, to_next, to_previous};
use memory::{LOGITS, SharedBuffers, StageBuffers};
use owned::OwnedDevice;
use passing::{LoadedPassage, Passage, SummedRanges};
use ragtag_graph::CompiledStage;
use ragtag_hal::{
    Anticipation, Command, Device, DeviceId, HostPages, HostRegion, Outcome, Point, PoolStats, QueueKind,
    Submission, Timeline, Timing, Turn, Work,
};
use ragtag_planner::streaming::Arenas;
use ragtag_transfer::{Copy, OtherEnd, Route, ToReceiver, TransferId};
use reading::{ReadJob, Reader, Reading};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use streaming::Streamed;
use weights::Loading;

/// Number of messages after which the actor collects timings from the device. It also collects them before it
/// sleeps and at the end of the run.
const TIMINGS_PERIOD: u32 = 16;

/// Counts and times of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Counters of the stage's core.
    pub counts: StageStats,
    /// Sums over micro-batches with prompt rows, with times from the device.
    pub prefill: Computed,
    /// Sums over micro-batches that contain only decode steps, with times from the device.
    pub decode: Computed,
    /// Sums over all micro-batches, by size.
    pub sizes: Vec<SizeReport>,
    /// Longest time that the actor took to handle one message, in microseconds. It should be short, because
    /// the actor does not block on devices.
    pub longest_turn_us: u64,
    /// Statistics of the device's buffer pool.
    pub pool: PoolStats,
}

/// Inputs of one stage on an actor's device.
pub(crate) struct ActorStage {
    /// Index of the stage in the pipeline.
    pub(crate) stage: u32,
    pub(crate) compiled: CompiledStage,
    /// Segments whose weights are streamed.
    pub(crate) streamed: Vec<usize>,
    /// Arenas that the streamed segments share.
    pub(crate) arenas: Arenas,
    /// Streamed segments whose weights are read from the model's file.
    pub(crate) from_file: Vec<usize>,
    /// These reads, if there are any.
    pub(crate) reads: Option<FileReads>,
    pub(crate) weights: Box<dyn WeightSource>,
    /// Host memory of weights that the prefill stage streams from the memory of another device, at both.
    pub(crate) shared_weights: Vec<(usize, Arc<HostPages>)>,
    pub(crate) previous: Option<Edge>,
    pub(crate) next: Option<Edge>,
    /// Last stage only: host memory for logits, and the size in bytes of the part for each credit.
    pub(crate) logits: Option<(Arc<HostRegion>, u64)>,
    pub(crate) ends: Ends,
    /// Prefill stage: passages to the stages that decode. Other stages: the passage from the prefill stage,
    /// if any.
    pub(crate) passages: Vec<Passage>,
    pub(crate) is_prefill: bool,
    pub(crate) report: Arc<Mutex<StageReport>>,
}

impl ActorStage {
    fn streamed(&self) -> Streamed<'_> {
        let Self { streamed, arenas, from_file, .. } = self;
        Streamed { segments: streamed, arenas: *arenas, from_file }
    }
}

/// Inputs of an actor.
pub(crate) struct ActorSpec {
    pub(crate) label: String,
    pub(crate) device: Box<dyn Device>,
    /// Stages of the device in pipeline order. There is at least one.
    pub(crate) stages: Vec<ActorStage>,
    pub(crate) slots: u32,
    pub(crate) mailbox: Mailbox<DeviceMessage, DeviceUrgent>,
    pub(crate) address: DeviceAddress,
    pub(crate) run: RunAddress,
    pub(crate) sink: TraceSink,
    /// Copies and computations of the device in flight.
    pub(crate) copies: Copies,
    /// Whether the transfers of all edges are verified.
    pub(crate) verified: bool,
}

/// A stage that is loaded on the actor's device.
struct Stage {
    /// Index of the stage in the pipeline.
    stage: u32,
    memory: StageBuffers,
    /// Present if weights are read from the model's file.
    reader: Option<Reader>,
    previous: Option<Edge>,
    next: Option<Edge>,
    logits_part_bytes: u64,
    /// Bytes of one activation row in the wire type.
    row_bytes: u64,
    /// Passages of keys and values, as in [`ActorStage::passages`].
    passages: Vec<LoadedPassage>,
    is_prefill: bool,
    /// Present if transfers are verified.
    checksums: Option<Checksums>,
    recorder: Recorder,
    report: Arc<Mutex<StageReport>>,
}

impl Stage {
    /// Returns, for each passage of a prefill stage, the parts whose keys and values pass.
    fn passes(&self) -> Vec<Vec<usize>> {
        let parts = 0..self.memory.parts().len();
        let of = |passage: &LoadedPassage| {
            parts.clone().filter(|&part| passage.has(&self.memory.part_segments(part))).collect()
        };
        self.passages.iter().filter(|_| self.is_prefill).map(of).collect()
    }

    fn passage(&self, index: usize) -> Result<&LoadedPassage> {
        self.passages.get(index).ok_or_else(|| Error::protocol("keys and values without a passage"))
    }
}

/// A checksum that the device computes.
struct PendingSum {
    /// Value of the download timeline at which the checksum is on the host.
    value: u64,
    /// Index of the stage among the device's stages.
    stage: usize,
    of: Summed,
}

/// Bytes whose checksum a device computes.
enum Summed {
    /// Activations at one end of a slot.
    Activations { end: End, transfer: TransferId, slot: u32, bytes: u64 },
    /// Keys and values that pass through a place of a passage.
    KeysAndValues { to: usize, place: u32, ranges: SummedRanges },
}

/// Loads the stages of one device.
struct StageLoader<'a> {
    label: &'a str,
    slots: u32,
    verified: bool,
    uploads: &'a Arc<Timeline>,
    run: &'a RunAddress,
    sink: &'a TraceSink,
    abort: &'a AtomicBool,
    progress: &'a (dyn Fn(u32, u64) + Sync),
}

impl StageLoader<'_> {
    fn load(
        &self,
        spec: ActorStage,
        device: &mut OwnedDevice,
        shared: &mut SharedBuffers,
        points: &mut QueuePoints,
    ) -> Result<Stage> {
        let ActorStage { stage, compiled, weights, mut previous, mut next, logits, ends, .. } = spec;
        let ActorStage { streamed, arenas, from_file, reads, .. } = spec;
        let ActorStage { shared_weights, passages, is_prefill, report, .. } = spec;
        let failed = |cause| stage_error(stage, self.label, cause);
        let mut recorder = Recorder::new(stage, compiled.segments.clone(), self.sink.clone(), ends);
        let row_bytes = compiled.edge_row_bytes();
        let is_lent = [&previous, &next].into_iter().flatten().any(Edge::lends);
        let imported = shared.import_weights(device, &shared_weights, is_prefill).map_err(failed)?;
        let streamed = Streamed { segments: &streamed, arenas, from_file: &from_file };
        let memory = StageBuffers::new(device, shared, compiled, streamed, self.slots, is_lent, imported);
        let memory = memory.map_err(failed)?;
        for edge in [&mut previous, &mut next].into_iter().flatten() {
            edge.lend(device, &memory).map_err(failed)?;
        }
        let passages = passages.into_iter().map(|passage| {
            let index = shared.new_passage();
            let mut passage = LoadedPassage::new(passage, index, &memory);
            if self.verified {
                passage.verify(device, index, shared.new_id())?;
            }
            let (id, region) = passage.region();
            device.register_region(id, Arc::clone(region)).map(|()| passage)
        });
        let passages = passages.collect::<ragtag_hal::Result<Vec<_>>>().map_err(failed)?;
        let checksums = match self.verified {
            true => {
                let (module, region) = (memory.checksum_module(), memory.checksum_region());
                let ids = ChecksumIds { module, sums: shared.new_id(), region };
                let most_bytes = u64::from(memory.compiled().max_rows()) * row_bytes;
                Some(Checksums::new(device, ids, most_bytes, 2 * u64::from(self.slots)).map_err(failed)?)
            }
            false => None,
        };
        let edges = [(memory.incoming_region(), &previous), (memory.outgoing_region(), &next)];
        let rings = edges.into_iter().filter_map(|(id, edge)| Some((id, &edge.as_ref()?.ring)));
        let logits_region = logits.as_ref().filter(|_| shared.registers_logits());
        let regions = rings.chain(logits_region.map(|(region, _)| (LOGITS, region)));
        for (id, region) in regions {
            device.register_region(id, Arc::clone(region)).map_err(failed)?;
        }
        let progress = |bytes| (self.progress)(stage, bytes);
        let Self { label: device_label, uploads, abort, .. } = *self;
        let loading = Loading { stage, device_label, uploads, abort, progress: &progress };
        loading.run(device, &memory, weights.as_ref(), &mut points.upload, &mut recorder)?;
        let reader = match reads.zip(memory.reading()) {
            Some((to, region)) => {
                let parts = loading.reads(&memory, weights.as_ref())?;
                device.import_timeline(Arc::clone(&to.timeline)).map_err(failed)?;
                let (uploads, region) = (Arc::clone(uploads), Arc::clone(region));
                let (place_bytes, sink) = (memory.streaming().place_bytes(), self.sink.clone());
                let (label, run, source) = (device_label.into(), self.run.clone(), weights);
                let work =
                    Reading { stage, label, to, uploads, source, region, place_bytes, parts, sink, run };
                Some(Reader::start(work)?)
            }
            None => None,
        };
        let logits_part_bytes = logits.map_or(0, |(_, part_bytes)| part_bytes);
        Ok(Stage {
            stage,
            memory,
            reader,
            previous,
            next,
            logits_part_bytes,
            row_bytes,
            passages,
            is_prefill,
            checksums,
            recorder,
            report,
        })
    }
}

/// A running device and its loaded stages.
pub(crate) struct Actor {
    label: String,
    core: DeviceCore,
    stages: Vec<Stage>,
    mailbox: Mailbox<DeviceMessage, DeviceUrgent>,
    run: RunAddress,
    own: [Arc<Timeline>; 3],
    /// Timeline values that were last reported to the core.
    known: Progress,
    /// Progress notice of each queue.
    notices: [Notice; 3],
    actions: Vec<DeviceAction>,
    timings: Vec<Timing>,
    handled: u32,
    anticipation: Anticipation,
    copies: Copies,
    /// Whether the transfers of all edges are verified.
    verified: bool,
    /// Checksums that are not on the host yet, oldest first.
    sums: VecDeque<PendingSum>,
    /// Refused copies that the core does not know of, each with the index of its stage and the error for the
    /// case that no other route is left.
    refused: VecDeque<(usize, Copy, Error)>,
    /// Error of the refused copy that was reported to the core last.
    refusal: Option<Error>,
    device: OwnedDevice,
}

impl Actor {
    /// Allocates memory and loads the weights. Calls `progress` with the index of a stage and the number of
    /// bytes that were submitted for it.
    ///
    /// # Errors
    /// Fails if the device or the weight source fails, or if the shape of the stage is invalid.
    pub(crate) fn load(
        spec: ActorSpec,
        abort: &AtomicBool,
        progress: &(dyn Fn(u32, u64) + Sync),
    ) -> Result<Self> {
        let ActorSpec { label, device, stages, slots, mailbox, address, run, sink, copies, verified } = spec;
        let first = stages.first().map_or(0, |stage| stage.stage);
        let failed = |cause| stage_error(first, &label, cause);
        let mut device = OwnedDevice::new(device);
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        for timeline in &own {
            let address = address.clone();
            let failed = move |error: &ragtag_hal::Error| {
                address.send_urgent(DeviceUrgent::Failed(error.clone()));
            };
            Notice::default().listen(timeline, || {}, failed);
        }

        let mut points = QueuePoints::new(|queue| own[queue.index()].id());
        let compiled: Vec<_> = stages.iter().map(|stage| &stage.compiled).collect();
        let streamed: Vec<_> = stages.iter().map(|stage| (&stage.compiled, stage.streamed())).collect();
        let needed_bytes = SharedBuffers::needed_bytes(&streamed, slots);
        let uploads = &own[QueueKind::Upload.index()];
        let (run_of, sink_of) = (&run, &sink);
        let loader = StageLoader {
            label: &label,
            slots,
            verified,
            uploads,
            run: run_of,
            sink: sink_of,
            abort,
            progress,
        };
        let loaded = SharedBuffers::new(&mut device, &compiled).map_err(failed).and_then(|mut shared| {
            let load = |stage| loader.load(stage, &mut device, &mut shared, &mut points);
            let mut stages = stages.into_iter().map(load).collect::<Result<Vec<_>>>()?;
            let edges = |stages: &mut Vec<Stage>, run: &mut dyn FnMut(&mut Edge) -> Result<()>| {
                let edges = stages.iter_mut().flat_map(|stage| [&mut stage.previous, &mut stage.next]);
                edges.flatten().try_for_each(run)
            };
            let timelines = stages.iter().flat_map(|stage| [&stage.previous, &stage.next]).flatten();
            let timelines: BTreeMap<_, _> = timelines
                .flat_map(|edge| &edge.timelines)
                .chain(stages.iter().flat_map(|stage| &stage.passages).map(LoadedPassage::timeline))
                .map(|timeline| (timeline.id(), Arc::clone(timeline)))
                .collect();
            for timeline in timelines.into_values() {
                device.import_timeline(timeline).map_err(failed)?;
            }
            edges(&mut stages, &mut |edge| edge.borrow(&mut device, || shared.new_id(), failed))?;
            // All devices import slots before they wait for an answer, so no two wait for each other.
            edges(&mut stages, &mut |edge| edge.settle(&mut device))?;
            Ok(stages)
        });
        let held_bytes = device.pool_stats().in_use_bytes;
        let stages = loaded.map_err(|error| error.while_loading(held_bytes, needed_bytes))?;
        let shape = |stage: &Stage| StageShape {
            slots,
            row_bytes: stage.row_bytes,
            incoming: stage.previous.as_ref().map(|edge| edge.routes.clone()),
            outgoing: stage.next.as_ref().map(|edge| edge.routes.clone()),
            next_slots: slots,
            verified,
            parts: stage.memory.parts(),
            from_file: stage.reader.as_ref().map(Reader::parts),
            passes: stage.passes(),
        };
        for stage in &stages {
            stage.next.iter().for_each(|next| stage.recorder.uses(next.routes.clone()));
        }
        let shapes: Vec<_> = stages.iter().map(shape).collect();

        let notices: [Notice; 3] = Default::default();
        for (notice, timeline) in notices.iter().zip(&own) {
            let address = address.clone();
            // Ignore a full mailbox here: the next regular message reports it. A notice is sent only once
            // until it is armed again.
            notice.listen(timeline, move || drop(address.send(DeviceMessage::Progress)), |_| {});
        }
        let mut actor = Self {
            core: DeviceCore::new(&shapes, points)?,
            stages,
            mailbox,
            run,
            own,
            known: Progress::default(),
            notices,
            actions: Vec::new(),
            timings: Vec::new(),
            handled: 0,
            anticipation: Anticipation::lingering(LINGER),
            copies,
            verified,
            sums: VecDeque::new(),
            refused: VecDeque::new(),
            refusal: None,
            device,
            label,
        };
        actor.take_timings();
        Ok(actor)
    }

    /// Runs until the pipeline stops or the device fails. Reports a failure to the coordinator. Before it
    /// returns, it fails the device's timelines to release waiting threads, and destroys its objects on the
    /// device.
    pub(crate) fn serve(mut self) {
        if let Err(error) = self.work() {
            tracing::debug!(device = self.label, %error, "a device has failed");
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
            self.stages[0].recorder.turned(since, now);
            since = now;
            if envelope.is_none() {
                envelope = self.sleep();
                since = Timing::now_ns();
            }
            let Some(envelope) = envelope else { return Ok(()) };
            match envelope {
                Envelope::Urgent(DeviceUrgent::Stop) => return Ok(()),
                Envelope::Urgent(DeviceUrgent::Failed(cause)) => return Err(self.failed(0, cause)),
                Envelope::Normal(DeviceMessage::Event { stage, event }) => {
                    self.catch_up()?;
                    self.step(DeviceEvent::Stage { stage, event })?;
                }
                Envelope::Normal(DeviceMessage::Progress) => drop(self.catch_up()?),
                // This message only wakes the actor.
                Envelope::Normal(DeviceMessage::Quiet) => {}
            }
            self.handled += 1;
            if self.handled.is_multiple_of(TIMINGS_PERIOD) {
                self.take_timings();
            }
        }
    }

    /// Arms the required notices and then checks their conditions again. The check finds changes that
    /// occurred before arming. Later changes wake the actor.
    fn before_sleep(&mut self) -> Result<Option<Envelope<DeviceMessage, DeviceUrgent>>> {
        loop {
            let awaited = self.core.awaited();
            awaited.iter().for_each(|queue| self.notices[queue.index()].arm());
            // Progress may start work, and the core may await its end.
            if awaited.is_empty() || !self.catch_up()? {
                break;
            }
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if let Some(next) = stage.next.as_ref().filter(|_| self.core.wants_next(index)) {
                next.notice.arm();
            }
        }
        // Messages from the next stage are in the quiet queue.
        Ok(self.mailbox.poll())
    }

    /// Blocks until a message arrives. Returns `None` if no sender is left.
    fn sleep(&mut self) -> Option<Envelope<DeviceMessage, DeviceUrgent>> {
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

    /// Reports the timeline values to the core if a value that the core uses has changed. Returns whether one
    /// has changed.
    fn catch_up(&mut self) -> Result<bool> {
        let value = |queue: QueueKind| self.own[queue.index()].value();
        let mut progress = Progress { downloaded: value(QueueKind::Download), ..self.known };
        if !self.core.computes_ahead() || self.verified {
            progress.computed = value(QueueKind::Compute);
            progress.uploaded = value(QueueKind::Upload);
        }
        if progress == self.known {
            return Ok(false);
        }
        self.known = progress;
        self.step(DeviceEvent::Progress(progress))?;
        while let Some(sum) = self.sums.pop_front_if(|sum| sum.value <= progress.downloaded) {
            self.summed(&sum)?;
        }
        Ok(true)
    }

    /// Passes a checksum that is on the host to the core.
    fn summed(&mut self, sum: &PendingSum) -> Result<()> {
        let PendingSum { stage, of, .. } = sum;
        let event = match *of {
            Summed::Activations { end, transfer, slot, bytes } => {
                let Some(checksums) = &self.stages[*stage].checksums else { return Ok(()) };
                let sum = checksums.read(place_of(end, slot), bytes)?;
                StageEvent::Summed { end, transfer, sum }
            }
            Summed::KeysAndValues { to, place, ref ranges } => {
                let sum = self.stages[*stage].passage(to)?.sum(ranges)?;
                StageEvent::SummedPassed { to, place, sum }
            }
        };
        self.step(DeviceEvent::Stage { stage: *stage, event })
    }

    fn step(&mut self, event: DeviceEvent) -> Result<()> {
        let mut actions = std::mem::take(&mut self.actions);
        self.core.step(Timing::now_ns(), event, &mut actions)?;
        let done = actions.drain(..).try_for_each(|DeviceAction { stage, action }| self.act(stage, action));
        self.actions = actions;
        done?;
        // The core learns of a refused copy only now, because its later points were allotted already.
        while let Some((stage, copy, error)) = self.refused.pop_front() {
            self.refusal = Some(error);
            self.step(DeviceEvent::Stage { stage, event: StageEvent::Refused { copy } })?;
        }
        Ok(())
    }

    /// Executes an action of the stage at index `at` of this device.
    fn act(&mut self, at: usize, action: StageAction) -> Result<()> {
        if let StageAction::ToNext(ToReceiver::Written { transfer, .. }) = &action
            && self.is_refused(at, *transfer)
        {
            return Ok(());
        }
        let stage = &mut self.stages[at];
        match action {
            StageAction::Copy { end, copy } => self.copy(at, end, copy),
            StageAction::Read { part, place, after, signal } => match &stage.reader {
                Some(reader) => {
                    reader.read(ReadJob { part, place, after, signal });
                    Ok(())
                }
                None => Err(Error::protocol("a read from the model's file without a reader")),
            },
            StageAction::Stream { part, place, waits, signal } => {
                let work = Work::Commands(stage.memory.stream(part, place));
                let submission = Submission::timed(QueueKind::Upload, work, waits, signal);
                let (number, label) = (stage.stage, Label::WEIGHTS.of_part(stage.memory.part_segments(part)));
                self.watch(&submission, Some(Copied::Weights(number)));
                self.submit(at, submission, label)
            }
            StageAction::Compute { slot, micro_batch, part, ends, waits, signal } => {
                let (number, label) = (stage.stage, &self.label);
                let failed = |cause| stage_error(number, label, cause);
                let program = stage.memory.prepare(&mut self.device, (slot, part), &micro_batch, failed)?;
                let work = Work::Program(program);
                let submission = Submission::timed(QueueKind::Compute, work, waits, signal);
                tracing::trace!(
                    stage = number,
                    micro_batch = micro_batch.id.0,
                    rows = micro_batch.rows(),
                    slot,
                    "compute"
                );
                let label = Label { ends, ..Label::of(SpanKind::Compute, &micro_batch, 0) };
                let label = label.of_part(stage.memory.part_segments(part));
                self.watch(&submission, None);
                self.submit(at, submission, label)
            }
            StageAction::Logits { slot, micro_batch, waits, signal } => {
                let offset = u64::from(micro_batch.credit) * stage.logits_part_bytes;
                let from = stage.memory.logits(slot, micro_batch.logit_rows());
                let bytes = from.map_or(0, |from| from.bytes);
                let commands = from.map(|from| Command::Download { from, region: LOGITS, offset });
                let work = Work::Commands(commands.into_iter().collect());
                let submission = Submission::timed(QueueKind::Download, work, waits, signal);
                stage.recorder.leaves(&micro_batch, bytes);
                let number = stage.stage;
                self.watch(&submission, Some(Copied::Logits(number)));
                self.submit(at, submission, Label::of(SpanKind::Logits, &micro_batch, bytes))
            }
            StageAction::Pass { to, place, part, micro_batch, waits, signal } => {
                let segments = stage.memory.part_segments(part);
                let commands = stage.passage(to)?.commands(&micro_batch, place, &segments, true)?;
                let queue = QueueKind::Download;
                self.pass(at, commands, &micro_batch, (queue, waits, signal))
            }
            StageAction::Passed { to, passed } => stage.passage(to)?.send(StageEvent::Passed(passed)),
            StageAction::Keep { micro_batch, place, waits, signal } => {
                let segments = stage.memory.compiled().segments.clone();
                let commands = stage.passage(0)?.commands(&micro_batch, place, &segments, false)?;
                let queue = QueueKind::Upload;
                self.pass(at, commands, &micro_batch, (queue, waits, signal))
            }
            StageAction::ToPrefill(read) => stage.passage(0)?.send(StageEvent::PlaceRead(read)),
            StageAction::HandOff { micro_batch } => {
                stage.recorder.leaves(&micro_batch, u64::from(micro_batch.rows()) * stage.row_bytes);
                to_next(&stage.next, StageEvent::HandOff { micro_batch })
            }
            StageAction::ToNext(message) => to_next(&stage.next, StageEvent::FromPrevious(message)),
            StageAction::ToPrevious(message) => to_previous(&stage.previous, message),
            StageAction::Sum { end, transfer, slot, bytes, waits, computed, signal } => {
                let micro_batch = MicroBatchId(transfer.0);
                let rows = stage.memory.edge_rows(slot, 0, bytes);
                let Some(checksums) = &stage.checksums else {
                    return Err(Error::protocol("a checksum without verification"));
                };
                let place = (place_of(end, slot), 1);
                let commands = checksums.commands(&self.device, place, rows).map(|c| vec![c]);
                let label = Label::copy(SpanKind::Checksum, micro_batch, bytes, false);
                let of = Summed::Activations { end, transfer, slot, bytes };
                self.sum(at, (commands, label, of), waits, [computed, signal])
            }
            StageAction::SumPassed { to, place, micro_batch, waits, computed, signal } => {
                let passage = stage.passage(to)?;
                let (sums, downloads, ranges) = passage.sum_commands(&self.device, &micro_batch, place)?;
                let bytes = ranges.iter().map(|(_, bytes)| bytes).sum();
                let label = Label::copy(SpanKind::Checksum, micro_batch.id, bytes, false);
                let of = Summed::KeysAndValues { to, place, ranges };
                self.sum(at, ([sums, downloads], label, of), waits, [computed, signal])
            }
            StageAction::SendSum { to, place, sum } => {
                stage.passage(to)?.send(StageEvent::PassedSum { place, sum })
            }
            StageAction::WrongKeysAndValues => {
                let from = stage.passage(0)?.label().into();
                Err(Error::WrongKeysAndValues { from, stage: stage.stage, to: self.label.clone() })
            }
            StageAction::Resent { wrong, over } => {
                self.resent(at, wrong, over);
                Ok(())
            }
            StageAction::Unreplaced => {
                Err(self.refusal.take().unwrap_or_else(|| Error::protocol("no copy was refused")))
            }
            StageAction::Corrupted { route } => {
                let to = stage.next.as_ref().map_or_else(String::new, |next| next.label.clone());
                Err(Error::Corrupted { from: self.label.clone(), to, route })
            }
            StageAction::Return(returned) => self.run.send_quietly(RunMessage::Return(returned)),
        }
    }

    /// Submits the computation of a checksum and its copy to the host, which signal `computed` and `signal`.
    fn sum(
        &mut self,
        at: usize,
        ([sum, download], label, of): ([Vec<Command>; 2], Label, Summed),
        waits: Vec<Point>,
        [computed, signal]: [Point; 2],
    ) -> Result<()> {
        let (queue, work) = (QueueKind::Compute, Work::Commands(sum));
        self.submit(at, Submission::timed(queue, work, waits, computed), label)?;
        let (queue, work, waits) = (QueueKind::Download, Work::Commands(download), vec![computed]);
        let submission = Submission::timed(queue, work, waits, signal);
        self.watch(&submission, Some(Copied::Checksum(self.stages[at].stage)));
        self.submit(at, submission, label)?;
        self.sums.push_back(PendingSum { value: signal.value, stage: at, of });
        Ok(())
    }

    /// Warns that wrong bytes have arrived at the next stage, or that its device has refused a copy. If
    /// another route replaces the previous one, records the routes that are left.
    fn resent(&mut self, at: usize, wrong: Route, over: Route) {
        let Some(next) = &self.stages[at].next else { return };
        let (from, to, route) = (&self.label, &next.label, wrong.name());
        let by = over.name();
        if let Some(Error::Transfer { cause, .. }) = self.refusal.take() {
            tracing::warn!(from, to, route, by, %cause, "another route replaces this one");
        } else if wrong == over {
            tracing::warn!(from, to, route, "activations arrived with wrong bytes; sending them again");
            return;
        } else {
            let what = "activations arrived with wrong bytes; another route replaces this one";
            tracing::warn!(from, to, route, by, "{what}");
        }
        self.stages[at].recorder.replaced(wrong);
    }

    /// Submits a copy of activations at one end of the stage at index `at` of this device.
    fn copy(&mut self, at: usize, end: End, copy: Copy) -> Result<()> {
        let stage = &mut self.stages[at];
        let (micro_batch, bytes) = (MicroBatchId(copy.transfer.0), copy.bytes);
        let (ring, edge, kind) = match end {
            End::Incoming => (stage.memory.incoming_region(), &stage.previous, SpanKind::Upload),
            End::Outgoing => (stage.memory.outgoing_region(), &stage.next, SpanKind::Download),
        };
        if end == End::Incoming {
            stage.recorder.admitted(micro_batch, Timing::now_ns());
        }
        let reads = end == End::Incoming && matches!(copy.other, OtherEnd::Slot(_));
        let own = stage.memory.edge_rows(copy.slot, copy.offset, bytes);
        let slots = edge.as_ref().map_or(&[][..], |edge| &edge.imported);
        let command = copy_command(end, &copy, own, ring, slots)?;
        let route = edge.as_ref().and_then(|edge| edge.routes.of_copy(&copy, end == End::Outgoing));
        let number = if end == End::Outgoing { stage.stage } else { stage.stage.saturating_sub(1) };
        let work = Work::Commands(command.into_iter().collect());
        let shares_memory = route.is_some_and(|route| route.shares_memory());
        let is_timed = !shares_memory || stage.recorder.times(micro_batch);
        if !is_timed {
            stage.recorder.skips(end, micro_batch);
        }
        let (waits, signal) = (copy.waits.clone(), copy.signal);
        let submission = Submission { queue: end.queue(), work, waits, signal, is_timed };
        self.watch(&submission, route.map(|route| Copied::Activations(number, route)));
        let label = Label { route, ..Label::copy(kind, micro_batch, bytes, reads) };
        self.stages[at].recorder.submitted(submission.signal, label);
        match (self.device.submit(submission), route) {
            (Err(cause @ ragtag_hal::Error::Refused { .. }), Some(route)) => {
                self.replace(at, end, copy, route, cause)
            }
            (submitted, _) => submitted.map_err(|cause| self.failed(at, cause)),
        }
    }

    /// Replaces a copy that the device has refused by a submission without work, which signals the copy's
    /// point. The transfer is then sent over the next route: at once if the sender has refused a copy over
    /// the peer route, and after the comparison of the checksums if transfers are verified.
    ///
    /// # Errors
    /// Returns [`Error::Transfer`] in all other cases, because the other end already relies on the copy.
    fn replace(
        &mut self,
        at: usize,
        end: End,
        copy: Copy,
        route: Route,
        cause: ragtag_hal::Error,
    ) -> Result<()> {
        let stage = &self.stages[at];
        let other = if end == End::Outgoing { &stage.next } else { &stage.previous };
        let (own, other) = (self.label.clone(), other.as_ref().map(|edge| edge.label.clone()));
        let (from, to) = if end == End::Outgoing { (Some(own), other) } else { (other, Some(own)) };
        let [from, to] = [from, to].map(Option::unwrap_or_default);
        if self.verified {
            tracing::warn!(from, to, route = route.name(), %cause, "the checksum will find missing bytes");
        }
        let error = Error::Transfer { from, to, route, cause };
        if !self.verified && (end == End::Incoming || route != Route::Peer) {
            return Err(error);
        }
        let (work, waits) = (Work::Commands(Vec::new()), copy.waits.clone());
        let empty = Submission::timed(end.queue(), work, waits, copy.signal);
        self.device.submit(empty).map_err(|cause| self.failed(at, cause))?;
        if !self.verified {
            self.refused.push_back((at, copy, error));
        }
        Ok(())
    }

    /// Returns whether the core does not know yet that the device has refused the copy of a transfer.
    fn is_refused(&self, at: usize, transfer: TransferId) -> bool {
        self.refused.iter().any(|(stage, copy, _)| *stage == at && copy.transfer == transfer)
    }

    /// Submits a copy of keys and values.
    fn pass(
        &mut self,
        at: usize,
        commands: Vec<Command>,
        micro_batch: &MicroBatch,
        (queue, waits, signal): (QueueKind, Vec<Point>, Point),
    ) -> Result<()> {
        let submission = Submission::timed(queue, Work::Commands(commands), waits, signal);
        self.watch(&submission, Some(Copied::KeysAndValues(self.stages[at].stage)));
        self.submit(at, submission, Label::of(SpanKind::KeysAndValues, micro_batch, 0))
    }

    /// Lets the coordinator watch a computation or a copy.
    fn watch(&self, submission: &Submission, copy: Option<Copied>) {
        let (signal, waits) = (submission.signal, submission.waits.clone());
        self.copies.add(Pending { signal, waits, copy }, self.own[submission.queue.index()].value());
    }

    fn submit(&mut self, at: usize, submission: Submission, label: Label) -> Result<()> {
        self.stages[at].recorder.submitted(submission.signal, label);
        let submitted = self.device.submit(submission);
        submitted.map_err(|cause| self.failed(at, cause))
    }

    fn take_timings(&mut self) {
        self.device.take_timings(&mut self.timings);
        for timing in self.timings.drain(..) {
            self.stages.iter_mut().for_each(|stage| stage.recorder.timed(&timing));
        }
        let (pool, longest_turn_ns) = (self.device.pool_stats(), self.stages[0].recorder.longest_turn_ns);
        let longest_turn_us = longest_turn_ns.div_ceil(1000);
        for (at, stage) in self.stages.iter().enumerate() {
            let Recorder { prefill, decode, .. } = stage.recorder;
            let (counts, sizes) = (self.core.stats(at), stage.recorder.sizes());
            let report = StageReport { counts, prefill, decode, sizes, longest_turn_us, pool };
            *stage.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
        }
    }

    /// Returns an error that attributes a device failure to the stage at index `at` of this device.
    fn failed(&self, at: usize, cause: ragtag_hal::Error) -> Error {
        stage_error(self.stages[at].stage, &self.label, cause)
    }
}

fn stage_error(stage: u32, label: &str, cause: ragtag_hal::Error) -> Error {
    Error::Stage { stage, device: label.into(), cause }
}

/// Returns the device on which a failure began. This is the device of the point in the innermost failed wait.
pub(crate) fn culprit(error: &ragtag_hal::Error) -> Option<DeviceId> {
    match error {
        ragtag_hal::Error::Poisoned { point, cause } => Some(culprit(cause).unwrap_or(point.timeline.device)),
        _ => None,
    }
}
