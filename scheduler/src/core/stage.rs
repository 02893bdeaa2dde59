//! The core of one stage: slots, the incoming and outgoing edges, and the points between them.
//!
//! If a stage has a device of its own, it submits work before its inputs have arrived. The upload,
//! computation and download of a micro-batch wait for each other's points, so the device proceeds without the
//! host. If several stages share a device, [`DeviceCore`](super::DeviceCore) decides when each of them
//! computes.
//!
//! A micro-batch waits if no device slot or no ring slot is free. If no device slot is free, the chunks of
//! the micro-batch stay in the incoming ring, and the previous stage runs out of ring slots. If no slot of
//! the outgoing ring is free, the download of the micro-batch waits and its device slot stays occupied.
//!
//! With three slots, one micro-batch computes while the next one is uploaded and the previous one is
//! downloaded. A fourth slot hides the delay between the end of a download and the time when the host learns
//! of it.

use crate::core::{MicroBatch, MicroBatchId, Nanoseconds, QueuePoints, Return};
use crate::error::{Error, Result};
use ragtag_hal::Point;
use ragtag_transfer::{
    Chunk, ChunkFree, ChunkReady, Receiver, ReceiverAction, ReceiverEvent, Route, Sender, SenderAction,
    SenderEvent, TransferId,
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
    /// Route by which activations arrive. `None` on the first stage.
    pub incoming: Option<Route>,
    /// Route by which activations leave. `None` on the last stage.
    pub outgoing: Option<Route>,
}

/// Inputs of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageEvent {
    /// The previous stage hands over a micro-batch. On the first stage, the coordinator hands it over.
    HandOff {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// The previous stage has put a chunk of activations into the ring.
    Chunk(ChunkReady),
    /// The next stage returns a ring slot.
    Free(ChunkFree),
}

/// Actions of a stage, to be executed in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageAction {
    /// Submit a copy of a chunk from the incoming ring to the slot's activations.
    Upload {
        /// The slot.
        slot: u32,
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Byte range of the activations, and its location in the ring.
        chunk: Chunk,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Submit the stage's program for a micro-batch.
    Compute {
        /// The slot. All earlier submissions for it have completed.
        slot: u32,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// Points that the program waits for.
        waits: Vec<Point>,
        /// Point that the program signals.
        signal: Point,
    },
    /// Submit a copy of a chunk of the slot's activations to the outgoing ring.
    Download {
        /// The slot.
        slot: u32,
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Byte range of the activations, and its location in the ring.
        chunk: Chunk,
        /// Points that the copy waits for.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Last stage only: submit a copy of the slot's logits to the host memory that belongs to the
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
    /// Notify the next stage of a chunk in the ring.
    Chunk(ChunkReady),
    /// Return a ring slot to the previous stage.
    Free(ChunkFree),
    /// Notify the coordinator of the point after which a micro-batch's results are available.
    Return(Return),
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
    /// Point of the last upload. `None` on the first stage.
    received: Option<Point>,
}

/// The state machine of one stage.
#[derive(Debug)]
pub(super) struct StageCore {
    row_bytes: u64,
    slots: u32,
    incoming: Option<Receiver>,
    outlet: Outlet,
    /// Whether the stage submits computations before their inputs have arrived.
    ahead: bool,
    free: VecDeque<u32>,
    /// Micro-batches that were handed over but have no slot yet, each with the time of its hand-off.
    waiting: VecDeque<(Arc<MicroBatch>, Nanoseconds)>,
    /// Micro-batches that have a slot but whose uploads have not all been submitted.
    receiving: VecDeque<(Arc<MicroBatch>, u32)>,
    /// Micro-batches that wait for [`StageCore::compute_oldest`]. Empty on a stage that computes ahead.
    ready: VecDeque<Ready>,
    /// Micro-batches that were computed and whose downloads have not all been submitted.
    sending: VecDeque<(MicroBatchId, u32)>,
    /// Pairs of a timeline value and a slot, in ascending order. The slot becomes free when the download
    /// timeline reaches the value.
    draining: VecDeque<(u64, u32)>,
    stats: StageStats,
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
}

impl StageCore {
    /// Creates an idle stage. If `ahead` is true, the stage submits computations before their inputs have
    /// arrived.
    ///
    /// # Errors
    /// [`Error::Spec`] if `shape` has no slots, if a row has zero bytes, or if a route does not lead to
    /// another device.
    pub(super) fn new(shape: &StageShape, ahead: bool) -> Result<Self> {
        let spec = |what: String| Err(Error::Spec { what });
        if shape.slots == 0 || shape.row_bytes == 0 {
            return spec(format!("invalid stage shape: {shape:?}"));
        }
        if [shape.incoming, shape.outgoing].contains(&Some(Route::SameDevice)) {
            return spec("two neighbouring stages on one device; merge them".into());
        }
        let unavailable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let outlet = match shape.outgoing {
            Some(route) => Outlet::Next(Sender::new(route).map_err(unavailable)?),
            None => Outlet::Coordinator,
        };
        let incoming = shape.incoming.map(Receiver::new).transpose().map_err(unavailable)?;
        Ok(Self {
            row_bytes: shape.row_bytes,
            slots: shape.slots,
            incoming,
            outlet,
            ahead,
            free: (0..shape.slots).collect(),
            waiting: VecDeque::new(),
            receiving: VecDeque::new(),
            ready: VecDeque::new(),
            sending: VecDeque::new(),
            draining: VecDeque::new(),
            stats: StageStats::default(),
        })
    }

    /// Returns the current counters.
    pub(super) fn stats(&self) -> StageStats {
        self.stats
    }

    /// Returns whether a micro-batch waits for a slot. The core needs progress events of the download queue
    /// only while this is true.
    pub(super) fn wants_slot(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether activations wait for a slot of the outgoing ring. The return of a ring slot is urgent
    /// only while this is true.
    pub(super) fn wants_ring_slot(&self) -> bool {
        matches!(&self.outlet, Outlet::Next(sender) if sender.is_waiting())
    }

    /// Returns whether the stage holds no micro-batch and all slots and ring slots are free.
    pub(super) fn is_idle(&self) -> bool {
        let sent = match &self.outlet {
            Outlet::Next(sender) => sender.is_idle(),
            Outlet::Coordinator => true,
        };
        let received = self.incoming.as_ref().is_none_or(|r| r.expected() == 0);
        sent && received && self.waiting.is_empty() && self.free.len() == self.slots as usize
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
                if let Some(receiver) = &mut self.incoming {
                    let transfer = TransferId(micro_batch.id.0);
                    let bytes = u64::from(micro_batch.rows()) * self.row_bytes;
                    let mut received = Vec::new();
                    let expect = ReceiverEvent::Expect { transfer, bytes };
                    receiver.step(expect, &mut points.upload, &mut received)?;
                    self.receive(received, points, actions)?;
                }
                self.waiting.push_back((micro_batch, now));
            }
            StageEvent::Chunk(ready) => {
                self.receiver_event(ReceiverEvent::Ready(ready), points, actions)?;
            }
            StageEvent::Free(free) => self.sender_event(SenderEvent::Free(free), points, actions)?,
        }
        self.admit(now, points, actions)
    }

    /// Handles the progress of the download timeline to `value`. Frees the slots whose downloads have ended,
    /// and assigns them to waiting micro-batches.
    ///
    /// # Errors
    /// [`Error::Protocol`] if chunks in the ring do not fit their micro-batch.
    pub(super) fn downloaded(
        &mut self,
        now: Nanoseconds,
        value: u64,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        while let Some((_, slot)) = self.draining.pop_front_if(|(at, _)| *at <= value) {
            self.free.push_back(slot);
        }
        self.admit(now, points, actions)
    }

    /// Assigns free slots to waiting micro-batches, oldest first.
    fn admit(
        &mut self,
        now: Nanoseconds,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        while !self.free.is_empty() {
            let Some((micro_batch, since)) = self.waiting.pop_front() else { return Ok(()) };
            let Some(slot) = self.free.pop_front() else { return Ok(()) };
            self.stats.waited_for_slot_ns += now.saturating_sub(since);
            if self.incoming.is_some() {
                self.receiving.push_back((micro_batch, slot));
                self.receiver_event(ReceiverEvent::Open, points, actions)?;
            } else {
                self.proceed(Ready { micro_batch, slot, received: None }, points, actions)?;
            }
        }
        Ok(())
    }

    fn receiver_event(
        &mut self,
        event: ReceiverEvent,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Some(receiver) = &mut self.incoming else {
            return Err(Error::protocol("a chunk for the first stage"));
        };
        let mut received = Vec::new();
        receiver.step(event, &mut points.upload, &mut received)?;
        self.receive(received, points, actions)
    }

    fn receive(
        &mut self,
        received: Vec<ReceiverAction>,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        for action in received {
            // Transfers arrive in order, so this action belongs to the oldest entry in `receiving`.
            let Some((batch, slot)) = self.receiving.front() else {
                return Err(Error::protocol("activations for a micro-batch without a slot"));
            };
            let (micro_batch, slot) = (batch.id, *slot);
            match action {
                ReceiverAction::Upload { chunk, waits, signal, .. } => {
                    actions.push(StageAction::Upload { slot, micro_batch, chunk, waits, signal });
                }
                ReceiverAction::Free(free) => actions.push(StageAction::Free(free)),
                ReceiverAction::Received { at, .. } => {
                    let Some((micro_batch, slot)) = self.receiving.pop_front() else { continue };
                    self.proceed(Ready { micro_batch, slot, received: at }, points, actions)?;
                }
            }
        }
        Ok(())
    }

    /// Computes a micro-batch now, or queues it if the stage does not compute ahead.
    fn proceed(
        &mut self,
        ready: Ready,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        if self.ahead {
            return self.compute(ready, points, actions);
        }
        self.ready.push_back(ready);
        Ok(())
    }

    /// Returns the oldest micro-batch that is ready to compute, and the point of its last upload.
    pub(super) fn oldest(&self) -> Option<(MicroBatchId, Option<Point>)> {
        self.ready.front().map(|ready| (ready.micro_batch.id, ready.received))
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
        let Ready { micro_batch: batch, slot, received } = ready;
        let rows = u64::from(batch.rows());
        self.stats.micro_batches += 1;
        self.stats.rows += rows;
        let computed = points.compute.allot();
        let micro_batch = batch.clone();
        actions.push(StageAction::Compute {
            slot,
            micro_batch,
            waits: received.into_iter().collect(),
            signal: computed,
        });
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
                self.sending.push_back((batch.id, slot));
                let (bytes, start) = (rows * self.row_bytes, actions.len());
                self.sender_event(SenderEvent::Send { transfer, bytes, after: computed }, points, actions)?;
                // Insert the hand-off right before the first chunk, so that the next stage wakes up only
                // once.
                let chunk = actions[start..].iter().position(|a| matches!(a, StageAction::Chunk(_)));
                let at = chunk.map_or(actions.len(), |chunk| start + chunk);
                actions.insert(at, StageAction::HandOff { micro_batch: batch });
                Ok(())
            }
        }
    }

    fn sender_event(
        &mut self,
        event: SenderEvent,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let Outlet::Next(sender) = &mut self.outlet else {
            return Err(Error::protocol("a ring slot for the last stage"));
        };
        let mut sent = Vec::new();
        sender.step(event, &mut points.download, &mut sent)?;
        for action in sent {
            let Some(&(micro_batch, slot)) = self.sending.front() else {
                return Err(Error::protocol("activations of a micro-batch without a slot"));
            };
            match action {
                SenderAction::Download { chunk, waits, signal, .. } => {
                    actions.push(StageAction::Download { slot, micro_batch, chunk, waits, signal });
                }
                SenderAction::Ready(ready) => actions.push(StageAction::Chunk(ready)),
                SenderAction::Sent { at, .. } => {
                    self.sending.pop_front();
                    self.draining.push_back((at.value, slot));
                }
            }
        }
        Ok(())
    }
}
