//! A device's actor: the thread that owns a device and executes the actions of its stages' cores.
//!
//! The actor sleeps only on its mailbox, with two exceptions. It waits for uploads while it loads weights,
//! and at the end of a run it waits briefly for outstanding work before it destroys its objects. The core
//! makes all decisions. The actor maps slots to buffers, micro-batches to programs, and points to waits.

mod act;
mod checksum;
mod copy;
mod edge;
pub(crate) mod kept;
mod load;
mod lone;
pub(crate) mod memory;
mod owned;
pub(crate) mod passing;
mod reading;
pub(crate) mod shared;
mod spec;
pub(crate) mod streaming;
mod verify;
mod weights;

pub use checksum::Checksums;
pub use edge::share_semaphore;
pub use lone::LoneStage;
pub use owned::OwnedDevice;
pub use spec::StageSpec;
pub use weights::{WEIGHT_CHUNK_BYTES, WeightSource, weight_staging_bytes};

use crate::copies::{Copies, FileReads};
use crate::core::{DeviceAction, DeviceCore, DeviceEvent, Progress, StageEvent, StageShape, StageStats};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, Mailbox, Notice};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunAddress, RunUrgent};
use crate::results::ResultPlaces;
use crate::trace::{Computed, Ends, Recorder, SizeReport, TraceSink};
pub(crate) use edge::{Edge, Sharing, to_next, to_previous};
use kept::KeptWeights;
use memory::StageBuffers;
use passing::{LoadedPassage, Passage};
use ragtag_hal::{
    Anticipation, Awaited, Device, HostPages, HostRegion, PoolStats, QueueKind, RegionId, Timeline, Timing,
    Turn,
};
use ragtag_transfer::Copy;
use reading::Reader;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use verify::PendingSum;

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
    pub(crate) spec: StageSpec,
    /// Reads of streamed weights from the model's file, if there are any.
    pub(crate) reads: Option<FileReads>,
    /// Host memory of weights that the prefill stage streams from the memory of another device, at both.
    pub(crate) shared_weights: Vec<(usize, Arc<HostPages>)>,
    pub(crate) previous: Option<Edge>,
    pub(crate) next: Option<Edge>,
    /// Last stage only: host memory for logits, and its layout.
    pub(crate) logits: Option<(Arc<HostRegion>, ResultPlaces)>,
    pub(crate) ends: Ends,
    /// Prefill stage: passages to the stages that decode. Other stages: the passage from the prefill stage,
    /// if any.
    pub(crate) passages: Vec<Passage>,
    pub(crate) is_prefill: bool,
    pub(crate) report: Arc<Mutex<StageReport>>,
}

/// Inputs of an actor.
pub(crate) struct ActorSpec {
    pub(crate) label: String,
    pub(crate) device: Box<dyn Device>,
    /// Stages of the device in pipeline order. There is at least one.
    pub(crate) stages: Vec<ActorStage>,
    pub(crate) slots: u32,
    /// Maximum number of decode rows in a micro-batch without other rows.
    pub(crate) decode_rows: u32,
    pub(crate) mailbox: Mailbox<DeviceMessage, DeviceUrgent>,
    pub(crate) address: DeviceAddress,
    pub(crate) run: RunAddress,
    pub(crate) sink: TraceSink,
    /// Copies and computations of the device in flight.
    pub(crate) copies: Copies,
    /// Whether the transfers of all edges are verified.
    pub(crate) verified: bool,
    /// Weights that stay in memory when other stages replace these. `None` if the pipeline does not recover.
    pub(crate) kept: Option<KeptWeights>,
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
    /// Last stage of a path only: host memory for logits, and its layout.
    logits: Option<(RegionId, ResultPlaces)>,
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
    /// Returns the parameters of the stage's core.
    fn shape(&self, slots: u32, verified: bool) -> StageShape {
        StageShape {
            slots,
            row_bytes: self.row_bytes,
            incoming: self.previous.as_ref().map(|edge| edge.routes.clone()),
            outgoing: self.next.as_ref().map(|edge| edge.routes.clone()),
            next_slots: slots,
            verified,
            parts: self.memory.parts(),
            from_file: self.reader.as_ref().map(Reader::parts),
            passes: self.passes(),
        }
    }

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
                Envelope::Urgent(DeviceUrgent::Failed(cause)) => {
                    let stages = self.stages.iter().map(|stage| stage.stage).collect();
                    return Err(Error::of_device(stages, self.label.clone(), cause));
                }
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
            Turn::Look => self.mailbox.poll().map_or(Awaited::Nothing, Awaited::Found),
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
}

fn stage_error(stage: u32, label: &str, cause: ragtag_hal::Error) -> Error {
    Error::Stage { stage, device: label.into(), cause }
}
