//! Actions of a stage.

use crate::core::passing::{Passed, PlaceRead};
use crate::core::{End, MicroBatch, Nanoseconds, QueuePoints, Return};
use ragtag_hal::Point;
use ragtag_transfer::{Copy, Route, ToReceiver, ToSender, TransferId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Actions of a stage, to be executed in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageAction {
    /// Submit a copy of activations. Its transfer has the number of the micro-batch.
    Copy {
        /// End of the stage, which determines the queue and the direction of the copy.
        end: End,
        /// The copy.
        copy: Copy,
    },
    /// Submit the program of a part of the stage for a micro-batch. The parts follow each other in order.
    Compute {
        /// The slot. All earlier submissions for it have completed, except those of earlier parts.
        slot: u32,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// The part.
        part: usize,
        /// Whether this is the last part.
        ends: bool,
        /// Points that the program waits for.
        waits: Vec<Point>,
        /// Point that the program signals.
        signal: Point,
    },
    /// Last stage of a path only: submit a copy of the slot's logits to the host memory that belongs to the
    /// micro-batch's credit. If the micro-batch has no logit rows, the submission only waits for `waits` and
    /// signals `signal`.
    Logits {
        /// The slot.
        slot: u32,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Announce a micro-batch to the next stage.
    HandOff {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// Send a message about activations to the next stage.
    ToNext(ToReceiver),
    /// Send a message about activations to the previous stage.
    ToPrevious(ToSender),
    /// Notify the coordinator of the point after which a micro-batch's results are available.
    Return(Return),
    /// Stream weights.
    Stream(StreamAction),
    /// Pass keys and values from the prefill stage to a stage that decodes.
    Passing(PassingAction),
    /// Verify a transfer, or send it again.
    Verify(VerifyAction),
}

/// Actions that stream weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StreamAction {
    /// Read a part's weights from the model's file into a place of pinned host memory. Reads are executed in
    /// order, without blocking the caller.
    Read {
        /// The part.
        part: usize,
        /// The place.
        place: usize,
        /// Point after which the place is free, on the upload queue. `None` if it was never used.
        after: Option<Point>,
        /// Point that the read signals, on the timeline of the reads.
        signal: Point,
    },
    /// Submit the copy of a part's weights to their arena.
    Copy {
        /// The part.
        part: usize,
        /// Place that holds the weights, if they are read from the model's file.
        place: Option<usize>,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals, on the upload queue.
        signal: Point,
    },
}

/// Actions that pass keys and values from the prefill stage to a stage that decodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PassingAction {
    /// Prefill stage only: submit the copy of the keys and values that a part has computed, from the cache to
    /// host memory.
    Pass {
        /// Receiver of the keys and values, as an index into [`StageShape::passes`](super::StageShape::passes).
        to: usize,
        /// Place in the receiver's region.
        place: u32,
        /// The part.
        part: usize,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals, on the download queue.
        signal: Point,
    },
    /// Prefill stage only: announce keys and values.
    Announce {
        /// Receiver of the keys and values, as in [`PassingAction::Pass`].
        to: usize,
        /// The message.
        passed: Passed,
    },
    /// Submit the copy of a micro-batch's keys and values from host memory to the cache.
    Keep {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// Place in the stage's region.
        place: u32,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals, on the upload queue.
        signal: Point,
    },
    /// Answer the prefill stage.
    Answer(PlaceRead),
    /// Submit the computation of the checksum of a micro-batch's keys and values in the cache, and a copy of
    /// the checksum to the host. Once the copy has completed, the stage needs the event
    /// [`StageEvent::SummedPassed`](super::StageEvent::SummedPassed).
    Sum {
        /// Prefill stage: receiver of the keys and values, as in [`PassingAction::Pass`]. 0 on other stages.
        to: usize,
        /// Place through which they pass.
        place: u32,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// Points that the computation waits for.
        waits: Vec<Point>,
        /// Point that the computation signals, on the compute queue.
        computed: Point,
        /// Point that the copy signals, on the download queue.
        signal: Point,
    },
    /// Prefill stage only: send the checksum of keys and values.
    SendSum {
        /// Receiver of the keys and values, as in [`PassingAction::Pass`].
        to: usize,
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// End the run: keys and values from the prefill stage arrived at this stage with wrong bytes.
    Wrong,
}

/// Actions that verify transfers, and actions for transfers that must be sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum VerifyAction {
    /// Submit the computation of the checksum of a slot's activations, and a copy of the checksum to the
    /// host. Once the copy has completed, the stage needs the event
    /// [`StageEvent::Summed`](super::StageEvent::Summed).
    Sum {
        /// End of the stage that sends or has received the activations.
        end: End,
        /// The transfer, which has the number of the micro-batch.
        transfer: TransferId,
        /// The slot.
        slot: u32,
        /// Number of bytes from the start of the slot's activations.
        bytes: u64,
        /// Points that the computation waits for.
        waits: Vec<Point>,
        /// Point that the computation signals, on the compute queue.
        computed: Point,
        /// Point that the copy signals, on the download queue.
        signal: Point,
    },
    /// Report that wrong bytes arrived at the next stage or that a copy was refused, and that the stage sends
    /// the transfer again.
    Resent {
        /// Route of the previous attempt.
        wrong: Route,
        /// Route that the transfer takes now. If it differs from `wrong`, it replaces that route.
        over: Route,
    },
    /// End the run: wrong bytes arrived at the next stage again, and no other route is left.
    Corrupted {
        /// The last route.
        route: Route,
    },
    /// End the run: the device refused a copy over the peer route, and no other route is left.
    Unreplaced,
}

/// The requests of one step of a stage.
pub(super) struct Requests<'a> {
    pub(super) now: Nanoseconds,
    /// Points of the device's queues.
    pub(super) points: &'a mut QueuePoints,
    pub(super) actions: &'a mut Vec<StageAction>,
}

impl Requests<'_> {
    pub(super) fn push(&mut self, action: StageAction) {
        self.actions.push(action);
    }
}
