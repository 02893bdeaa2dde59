//! The core of one stage: slots, the incoming and outgoing edges, and the points between them.
//!
//! If a stage has a device of its own, it submits work before its inputs have arrived. The upload,
//! computation and download of a micro-batch wait for each other's points, so the device proceeds without the
//! host. If several stages share a device, [`DeviceCore`](super::DeviceCore) decides when each of them
//! computes.
//!
//! A micro-batch waits if its stage has no free slot. Its activations then stay in the ring or in the slot of
//! the previous stage. A micro-batch also waits, in its slot, if it cannot leave: the ring is full, or the
//! next stage has no free slot.
//!
//! With three slots, one micro-batch computes while the next one is uploaded and the previous one is
//! downloaded. A fourth slot hides the delay between the end of a download and the time when the host learns
//! of it.

use crate::core::passing::{Passed, Passing, PlaceRead};
use crate::core::stream::{FileParts, Streams};
use crate::core::{MicroBatch, MicroBatchId, Nanoseconds, Progress, QueuePoints, Return};
use crate::error::{Error, Result};
use ragtag_hal::{Point, QueueKind};
use ragtag_transfer::{
    Action, Copy, Error as TransferError, OtherEnd, Receiver, ReceiverEvent, Route, Routes, Sender,
    SenderEvent, ToReceiver, ToSender, TransferId,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Parameters of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageShape {
    /// Number of slots, at least 1. It limits the number of micro-batches on the device.
    pub slots: u32,
    /// Bytes of one row of activations in the wire type.
    pub row_bytes: u64,
    /// Routes by which activations arrive. `None` on the first stage.
    pub incoming: Option<Routes>,
    /// Routes by which activations leave. `None` on the last stage.
    pub outgoing: Option<Routes>,
    /// Number of slots of the next stage. Unused on the last stage.
    pub next_slots: u32,
    /// Whether the transfers of both edges are verified.
    pub verified: bool,
    /// Arena of each part of the stage, in order. A part without an arena has resident weights. Empty if the
    /// stage has a single part with resident weights.
    pub parts: Vec<Option<usize>>,
    /// Parts whose weights are read from the model's file. `None` if there are none.
    #[serde(default)]
    pub from_file: Option<FileParts>,
    /// On a prefill stage: for each stage to which keys and values pass, the parts that compute its segments.
    /// Empty on other stages.
    #[serde(default)]
    pub passes: Vec<Vec<usize>>,
}

/// End of a stage at which activations arrive or leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Activations arrive from the previous stage, over the upload queue.
    Incoming,
    /// Activations leave for the next stage, over the download queue.
    Outgoing,
}

impl End {
    /// Returns the queue of the end's copies.
    pub(crate) fn queue(self) -> QueueKind {
        match self {
            End::Incoming => QueueKind::Upload,
            End::Outgoing => QueueKind::Download,
        }
    }
}

/// Inputs of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageEvent {
    /// The previous stage hands over a micro-batch. On the first stage, the coordinator hands it over.
    HandOff {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// A message about activations from the previous stage.
    FromPrevious(ToReceiver),
    /// A message about activations from the next stage.
    FromNext(ToSender),
    /// The checksum that [`StageAction::Sum`] requested.
    Summed {
        /// End of the stage whose transfer was summed.
        end: End,
        /// The transfer.
        transfer: TransferId,
        /// The checksum.
        sum: u64,
    },
    /// The prefill stage has submitted the copies of keys and values to host memory.
    Passed(Passed),
    /// A receiver of keys and values has submitted their copy from host memory.
    PlaceRead(PlaceRead),
    /// The checksum that [`StageAction::SumPassed`] requested.
    SummedPassed {
        /// Receiver, as in the action.
        to: usize,
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// The checksum of keys and values on the prefill stage.
    PassedSum {
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// The device has refused a copy over the peer route, and the transfers are not verified. A submission
    /// without work signals the point of the copy. The caller has not sent [`ToReceiver::Written`].
    Refused {
        /// The refused copy.
        copy: Copy,
    },
}

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
    Stream {
        /// The part.
        part: usize,
        /// Place that holds the weights, if they are read from the model's file.
        place: Option<usize>,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals, on the upload queue.
        signal: Point,
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
    /// Prefill stage only: submit the copy of the keys and values that a part has computed, from the cache to
    /// host memory.
    Pass {
        /// Receiver of the keys and values, as an index into [`StageShape::passes`].
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
    /// Prefill stage only: send a message about keys and values.
    Passed {
        /// Receiver of the keys and values, as an index into [`StageShape::passes`].
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
    /// Send a message about keys and values to the prefill stage.
    ToPrefill(PlaceRead),
    /// Submit the computation of the checksum of a micro-batch's keys and values in the cache, and a copy of
    /// the checksum to the host. Once the copy has completed, the stage needs the event
    /// [`StageEvent::SummedPassed`].
    SumPassed {
        /// Prefill stage: receiver of the keys and values, as an index into [`StageShape::passes`]. 0 on
        /// other stages.
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
        /// Receiver of the keys and values, as an index into [`StageShape::passes`].
        to: usize,
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// End the run: keys and values from the prefill stage arrived at this stage with wrong bytes.
    WrongKeysAndValues,
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
    /// Submit the computation of the checksum of a slot's activations, and a copy of the checksum to the
    /// host. Once the copy has completed, the stage needs the event [`StageEvent::Summed`].
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
    /// Notify the coordinator of the point after which a micro-batch's results are available.
    Return(Return),
}

/// Source of a stage's micro-batches.
#[derive(Debug)]
enum Inlet {
    /// The previous stage. The receiver owns the free slots.
    Previous(Receiver),
    /// The coordinator, with the free slots.
    Coordinator(VecDeque<u32>),
}

/// Destination to which a stage sends its micro-batches.
#[derive(Debug)]
enum Outlet {
    Next(Sender),
    Coordinator,
}

/// A micro-batch that has a slot and is ready to compute. All its uploads have been submitted.
#[derive(Debug)]
struct Ready {
    micro_batch: Arc<MicroBatch>,
    slot: u32,
    /// Point after which the activations are in the slot. `None` on the first stage.
    received: Option<Point>,
    /// Number of micro-batches whose keys and values must be verified before the computation.
    passed: u64,
}

/// The state machine of one stage.
#[derive(Debug)]
pub(super) struct StageCore {
    row_bytes: u64,
    slots: u32,
    inlet: Inlet,
    outlet: Outlet,
    /// Whether the stage submits computations before their inputs have arrived.
    ahead: bool,
    /// Micro-batches that were handed over but are not ready to compute, each with the time of its hand-off.
    entering: VecDeque<(Arc<MicroBatch>, Nanoseconds)>,
    /// Micro-batches that wait for [`StageCore::compute_oldest`]. On a stage that computes ahead, they wait
    /// for the verification of keys and values.
    ready: VecDeque<Ready>,
    /// Pairs of a timeline value and a slot, in ascending order. The slot becomes free when the download
    /// timeline reaches the value.
    draining: VecDeque<(u64, u32)>,
    stats: StageStats,
    /// Latest known progress of the device.
    progress: Progress,
    /// Transfer that arrives or has arrived, and whose checksum is wanted.
    check: Option<Check>,
    /// Number of requested checksums that have not been computed.
    summing: usize,
    streams: Streams,
    passing: Passing,
    /// Point after which keys and values from the prefill stage are in the cache, until a computation waits
    /// for it.
    kept: Option<Point>,
}

/// A transfer that must be verified.
#[derive(Clone, Copy, Debug)]
struct Check {
    transfer: TransferId,
    slot: u32,
    bytes: u64,
    /// Point after which the activations are in the slot.
    after: Point,
    /// Time at which the core learned that they are in the slot.
    since: Option<Nanoseconds>,
}

/// Counters of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStats {
    /// Submitted micro-batches.
    pub micro_batches: u64,
    /// Rows of the submitted micro-batches.
    pub rows: u64,
    /// Total time that micro-batches waited for a slot.
    pub waited_for_slot_ns: Nanoseconds,
    /// Verification of the transfers to this stage.
    #[serde(default, skip_serializing_if = "Verification::is_none")]
    pub verification: Verification,
}

/// Counters of verified transfers to a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Transfers that arrived with the right bytes.
    pub transfers: u64,
    /// Arrivals with wrong bytes, after which the transfer was sent again.
    pub wrong: u64,
    /// Total time from the arrival of the activations until the comparison of their checksums.
    pub waited_ns: Nanoseconds,
}

impl Verification {
    /// Returns whether nothing was verified.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl StageCore {
    /// Creates an idle stage. If `ahead` is true, the stage submits computations before their inputs have
    /// arrived.
    ///
    /// # Errors
    /// [`Error::Spec`] if `shape` has no slots, if a row has zero bytes, or if routes are unusable.
    pub(super) fn new(shape: &StageShape, ahead: bool) -> Result<Self> {
        if shape.slots == 0 || shape.row_bytes == 0 {
            return Err(Error::Spec { what: format!("invalid stage shape: {shape:?}") });
        }
        let unusable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let outlet = match &shape.outgoing {
            Some(routes) => {
                let sender = Sender::new(routes, shape.next_slots).map_err(unusable)?;
                Outlet::Next(if shape.verified { sender.verified() } else { sender })
            }
            None => Outlet::Coordinator,
        };
        let inlet = match &shape.incoming {
            Some(routes) => {
                let receiver = Receiver::new(routes, shape.slots).map_err(unusable)?;
                Inlet::Previous(if shape.verified { receiver.verified() } else { receiver })
            }
            None => Inlet::Coordinator((0..shape.slots).collect()),
        };
        let (entering, ready, draining, stats, progress) = Default::default();
        Ok(Self {
            row_bytes: shape.row_bytes,
            slots: shape.slots,
            inlet,
            outlet,
            ahead,
            entering,
            ready,
            draining,
            stats,
            progress,
            check: None,
            summing: 0,
            streams: Streams::new(&shape.parts, shape.from_file.as_ref()),
            passing: Passing::new(&shape.passes, shape.verified),
            kept: None,
        })
    }

    /// Returns the current counters.
    pub(super) fn stats(&self) -> StageStats {
        self.stats
    }

    /// Returns whether a micro-batch waits for a slot, or the previous stage may soon do so. The core needs
    /// progress events of the download queue only while this is true.
    pub(super) fn wants_slot(&self) -> bool {
        match &self.inlet {
            Inlet::Previous(receiver) => receiver.is_short_of_slots() && !self.draining.is_empty(),
            Inlet::Coordinator(_) => !self.entering.is_empty(),
        }
    }

    /// Returns whether the stage waits for activations that it must verify. The core needs progress events of
    /// the upload queue only while this is true.
    pub(super) fn wants_arrival(&self) -> bool {
        self.check.is_some_and(|check| check.since.is_none())
    }

    /// Returns whether a checksum was requested and not computed. The caller then needs progress of the
    /// download queue.
    pub(super) fn wants_sum(&self) -> bool {
        self.summing > 0 || self.passing.wants_sum()
    }

    /// Returns whether a message from the next stage lets activations leave. Such a message is urgent only
    /// while this is true.
    pub(super) fn wants_next(&self) -> bool {
        matches!(&self.outlet, Outlet::Next(sender) if sender.is_waiting())
    }

    /// Returns whether the stage holds no micro-batch, all slots are free and no route is in use.
    pub(super) fn is_idle(&self) -> bool {
        let sent = match &self.outlet {
            Outlet::Next(sender) => sender.is_idle(),
            Outlet::Coordinator => true,
        };
        let free = match &self.inlet {
            Inlet::Previous(receiver) => receiver.free_slots(),
            Inlet::Coordinator(free) => free.len(),
        };
        sent && self.entering.is_empty() && free == self.slots as usize && self.passing.is_idle()
    }

    /// Returns whether this is a prefill stage.
    pub(super) fn is_prefill(&self) -> bool {
        self.passing.passes()
    }

    /// Handles an event and appends the resulting actions.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that is not allowed in this state.
    pub(super) fn step(
        &mut self,
        now: Nanoseconds,
        event: StageEvent,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        match event {
            StageEvent::HandOff { micro_batch } => {
                let transfer = TransferId(micro_batch.id.0);
                let bytes = u64::from(micro_batch.rows()) * self.row_bytes;
                self.entering.push_back((micro_batch, now));
                match &self.inlet {
                    Inlet::Previous(_) => {
                        self.receiver_event(now, ReceiverEvent::Expect { transfer, bytes }, points, actions)
                    }
                    Inlet::Coordinator(_) => self.admit(now, points, actions),
                }
            }
            StageEvent::FromPrevious(message) => {
                self.receiver_event(now, ReceiverEvent::Message(message), points, actions)
            }
            StageEvent::FromNext(message) => {
                self.sender_event(SenderEvent::Message(message), points, actions)?;
                // The point of a verified transfer may have passed before its confirmation.
                self.release(now, points, actions)
            }
            StageEvent::Refused { copy } => self.refused(&copy, points, actions),
            StageEvent::Summed { end, transfer, sum } => {
                self.summing = self.summing.saturating_sub(1);
                match end {
                    End::Outgoing => {
                        self.sender_event(SenderEvent::Summed { transfer, sum }, points, actions)
                    }
                    End::Incoming => {
                        self.receiver_event(now, ReceiverEvent::Summed { transfer, sum }, points, actions)
                    }
                }
            }
            StageEvent::Passed(passed) => {
                self.kept = Some(self.passing.keep(passed, points, actions));
                Ok(())
            }
            StageEvent::PlaceRead(read) => self.passing.read(read),
            StageEvent::SummedPassed { to, place, sum } => {
                self.passing.summed(to, place, sum, actions)?;
                self.compare_passed(points, actions)
            }
            StageEvent::PassedSum { place, sum } => {
                self.passing.source(place, sum)?;
                self.compare_passed(points, actions)
            }
        }
    }

    /// Handles the progress of the device. Frees the slots whose downloads have ended, and assigns them to
    /// waiting micro-batches. Requests the checksum of activations that have arrived.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the activations in a ring do not fit their micro-batch.
    pub(super) fn progressed(
        &mut self,
        now: Nanoseconds,
        progress: Progress,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        self.progress = progress;
        self.check(now, points, actions);
        self.release(now, points, actions)
    }

    /// Compares the checksums of keys and values. On a stage that computes ahead, computes the micro-batches
    /// that have waited only for them.
    fn compare_passed(&mut self, points: &mut QueuePoints, actions: &mut Vec<StageAction>) -> Result<()> {
        self.stats.verification.transfers += self.passing.compare(actions);
        while self.ahead && self.oldest().is_some() {
            self.compute_oldest(points, actions)?;
        }
        Ok(())
    }

    /// Requests the checksum of the activations that must be verified, once they are in their slot.
    fn check(&mut self, now: Nanoseconds, points: &mut QueuePoints, actions: &mut Vec<StageAction>) {
        let uploaded = self.progress.uploaded;
        let arrived = |check: &&mut Check| check.since.is_none() && check.after.value <= uploaded;
        let Some(check) = self.check.as_mut().filter(arrived) else { return };
        check.since = Some(now);
        let Check { transfer, slot, bytes, after, .. } = *check;
        self.sum(End::Incoming, (transfer, slot, bytes, after), points, actions);
    }

    /// Requests a checksum.
    fn sum(
        &mut self,
        end: End,
        (transfer, slot, bytes, after): (TransferId, u32, u64, Point),
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) {
        let (waits, computed, signal) = (vec![after], points.compute.allot(), points.download.allot());
        self.summing += 1;
        actions.push(StageAction::Sum { end, transfer, slot, bytes, waits, computed, signal });
    }

    /// Frees the slots whose downloads have ended.
    fn release(
        &mut self,
        now: Nanoseconds,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let value = self.progress.downloaded;
        while let Some((_, slot)) = self.draining.pop_front_if(|(at, _)| *at <= value) {
            match &mut self.inlet {
                Inlet::Previous(receiver) => {
                    let oldest = self.entering.len().saturating_sub(receiver.without_slot());
                    if let Some((_, since)) = self.entering.get(oldest) {
                        self.stats.waited_for_slot_ns += now.saturating_sub(*since);
                    }
                    self.receiver_event(now, ReceiverEvent::Free(slot), points, actions)?;
                }
                Inlet::Coordinator(free) => {
                    free.push_back(slot);
                    self.admit(now, points, actions)?;
                }
            }
        }
        Ok(())
    }

    /// First stage only: assigns free slots to waiting micro-batches, oldest first.
    fn admit(
        &mut self,
        now: Nanoseconds,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        while let Inlet::Coordinator(free) = &mut self.inlet
            && !self.entering.is_empty()
            && let Some(slot) = free.pop_front()
            && let Some((micro_batch, since)) = self.entering.pop_front()
        {
            self.stats.waited_for_slot_ns += now.saturating_sub(since);
            self.proceed((micro_batch, slot, None), points, actions)?;
        }
        Ok(())
    }

    fn receiver_event(
        &mut self,
        now: Nanoseconds,
        event: ReceiverEvent,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Inlet::Previous(receiver) = &mut self.inlet else {
            return Err(Error::protocol("activations for the first stage"));
        };
        let mut received = Vec::new();
        receiver.step(event, &mut points.upload, &mut received)?;
        let mut done = Vec::new();
        for action in received {
            match action {
                Action::Copy(copy) => actions.push(StageAction::Copy { end: End::Incoming, copy }),
                Action::Message(message) => {
                    self.compared(now, message);
                    actions.push(StageAction::ToPrevious(message));
                }
                Action::Sum { transfer, slot, bytes, after } => {
                    self.check = Some(Check { transfer, slot, bytes, after, since: None });
                }
                Action::Resent { .. } => {}
                Action::Done { transfer, slot, at } => {
                    let Some((micro_batch, _)) = self.entering.pop_front() else {
                        return Err(Error::protocol(format!("{transfer} without a micro-batch")));
                    };
                    done.push((micro_batch, slot, Some(at)));
                }
            }
        }
        // The points of the copies were allotted first, so the copies must be submitted first.
        done.into_iter().try_for_each(|ready| self.proceed(ready, points, actions))?;
        self.check(now, points, actions);
        Ok(())
    }

    /// Counts the result of a verification, which `message` reports to the previous stage.
    fn compared(&mut self, now: Nanoseconds, message: ToSender) {
        let counts = &mut self.stats.verification;
        match message {
            ToSender::Confirmed(_) => counts.transfers += 1,
            ToSender::Again { .. } => counts.wrong += 1,
            ToSender::Place { .. } | ToSender::Slot(_) | ToSender::Read { .. } => return,
        }
        let since = self.check.take().and_then(|check| check.since);
        counts.waited_ns += since.map_or(0, |since| now.saturating_sub(since));
    }

    /// Computes a micro-batch now, or queues it if the stage does not compute ahead.
    fn proceed(
        &mut self,
        (micro_batch, slot, received): (Arc<MicroBatch>, u32, Option<Point>),
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let ready = Ready { micro_batch, slot, received, passed: self.passing.received() };
        if self.ahead && self.passing.is_ready(ready.passed) {
            return self.compute(ready, points, actions);
        }
        self.ready.push_back(ready);
        Ok(())
    }

    /// Returns the oldest micro-batch that is ready to compute, and the point after which its activations are
    /// in its slot.
    pub(super) fn oldest(&self) -> Option<(MicroBatchId, Option<Point>)> {
        let oldest = self.ready.front().filter(|ready| self.passing.is_ready(ready.passed));
        oldest.map(|ready| (ready.micro_batch.id, ready.received))
    }

    /// Submits the computation of the oldest micro-batch that is ready.
    ///
    /// # Errors
    /// [`Error::Protocol`] if none is ready.
    pub(super) fn compute_oldest(
        &mut self,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Some(ready) = self.ready.pop_front() else {
            return Err(Error::protocol("no micro-batch is ready to compute"));
        };
        self.compute(ready, points, actions)
    }

    fn compute(
        &mut self,
        ready: Ready,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Ready { micro_batch: batch, slot, received, .. } = ready;
        let rows = u64::from(batch.rows());
        self.stats.micro_batches += 1;
        self.stats.rows += rows;
        self.passing.take()?;
        let computed = self.compute_parts(&batch, slot, received, points, actions);
        match &mut self.outlet {
            Outlet::Coordinator => {
                let ready = points.download.allot();
                self.draining.push_back((ready.value, slot));
                // Send the return before the submission, so that the coordinator knows the micro-batch before
                // its point passes.
                actions.push(StageAction::Return(Return { micro_batch: batch.id, ready }));
                let waits = vec![computed];
                actions.push(StageAction::Logits { slot, micro_batch: batch, waits, signal: ready });
                Ok(())
            }
            Outlet::Next(_) => {
                let transfer = TransferId(batch.id.0);
                let (bytes, start) = (rows * self.row_bytes, actions.len());
                let send = SenderEvent::Send { transfer, slot, bytes, after: computed };
                self.sender_event(send, points, actions)?;
                // Insert the hand-off right before the first message, so that the next stage wakes up only
                // once.
                let message = actions[start..].iter().position(|a| matches!(a, StageAction::ToNext(_)));
                let at = message.map_or(actions.len(), |message| start + message);
                actions.insert(at, StageAction::HandOff { micro_batch: batch });
                Ok(())
            }
        }
    }

    /// Submits the computation of all parts of the stage. Returns the point after which the last one has
    /// ended.
    fn compute_parts(
        &mut self,
        batch: &Arc<MicroBatch>,
        slot: u32,
        received: Option<Point>,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Point {
        let mut arrived = received;
        let mut computed = points.compute.last();
        self.streams.fill(points, actions);
        for part in 0..self.streams.parts() {
            let loaded = self.streams.before(part);
            let waits = arrived.take().into_iter().chain(loaded).chain(self.kept.take());
            let waits = waits.chain(self.passing.before(part)).collect();
            computed = points.compute.allot();
            let (micro_batch, ends) = (batch.clone(), part + 1 == self.streams.parts());
            actions.push(StageAction::Compute { slot, micro_batch, part, ends, waits, signal: computed });
            self.streams.after(part, computed, points, actions);
            self.passing.after(part, batch, computed, points, actions);
        }
        computed
    }

    /// Sends a transfer over the next route, because the device has refused its copy over the peer route.
    fn refused(
        &mut self,
        copy: &Copy,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Copy { transfer, slot, bytes, signal, .. } = *copy;
        let (OtherEnd::Slot(to), Some(&after)) = (copy.other, copy.waits.first()) else {
            return Err(Error::protocol(format!("a refused copy of {transfer} over another route")));
        };
        // The slot stays in use.
        self.draining.retain(|drain| *drain != (signal.value, slot));
        self.sender_event(SenderEvent::Refused { transfer, slot, to, bytes, after }, points, actions)
    }

    fn sender_event(
        &mut self,
        event: SenderEvent,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Outlet::Next(sender) = &mut self.outlet else {
            return Err(Error::protocol("a message from a stage after the last"));
        };
        let (mut sent, mut sum) = (Vec::new(), None);
        match sender.step(event, &mut points.download, &mut sent) {
            Err(TransferError::Corrupted { route, .. }) => {
                actions.push(StageAction::Corrupted { route });
                return Ok(());
            }
            Err(TransferError::Refused { .. }) => {
                actions.push(StageAction::Unreplaced);
                return Ok(());
            }
            stepped => stepped?,
        }
        for action in sent {
            match action {
                Action::Copy(copy) => actions.push(StageAction::Copy { end: End::Outgoing, copy }),
                Action::Message(message) => actions.push(StageAction::ToNext(message)),
                Action::Done { slot, at, .. } => self.draining.push_back((at.value, slot)),
                Action::Sum { transfer, slot, bytes, after } => sum = Some((transfer, slot, bytes, after)),
                Action::Resent { wrong, over, .. } => actions.push(StageAction::Resent { wrong, over }),
            }
        }
        // The points of the copies were allotted first, so the copies must be submitted first.
        if let Some(sum) = sum {
            self.sum(End::Outgoing, sum, points, actions);
        }
        Ok(())
    }
}
