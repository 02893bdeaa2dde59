//! One stage of a pipeline: slots, the edge it receives on, the edge it sends on, and the points between them.
//!
//! Everything is submitted ahead: a micro-batch's upload, computation and download wait for each other by points, so the
//! device goes from one to the next without asking. Two things hold a micro-batch back: no slot is free (its chunks then
//! wait in the ring, and the stage before runs out of ring slots), or no ring slot is (its download waits, and with it
//! its slot). With three slots, one micro-batch computes while the next enters and the one before leaves; a fourth hides
//! the time until the host learns that a slot is free.

use crate::core::{MicroBatch, MicroBatchId, Nanoseconds, Return};
use crate::error::{Error, Result};
use ragtag_hal::{Point, TimelineId};
use ragtag_transfer::{
    Chunk, ChunkFree, ChunkReady, Points, Receiver, ReceiverAction, ReceiverEvent, Route, Sender,
    SenderAction, SenderEvent, TransferId,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a stage has to know of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageShape {
    /// Slots: micro-batches that it can hold on the device; at least 1.
    pub slots: u32,
    /// Bytes of one row of activations, as it crosses.
    pub row_bytes: u64,
    /// How activations come in; `None` for the first stage.
    pub incoming: Option<Route>,
    /// How activations go out; `None` for the last stage.
    pub outgoing: Option<Route>,
}

/// What a stage learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageEvent {
    /// The stage before (for the first stage, the coordinator) hands on a micro-batch.
    HandOff {
        /// Which.
        micro_batch: Arc<MicroBatch>,
    },
    /// The stage before has put a chunk of activations into the ring.
    Chunk(ChunkReady),
    /// The next stage gives a slot of the ring back.
    Free(ChunkFree),
    /// The stage's download timeline has come to this value.
    Progress {
        /// All points up to it have passed.
        downloaded: u64,
    },
}

/// What a stage wants done, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageAction {
    /// Submit a copy out of the incoming ring into the slot's activations.
    Upload {
        /// The slot.
        slot: u32,
        /// Whose rows.
        micro_batch: MicroBatchId,
        /// Which bytes of the activations, and where from.
        chunk: Chunk,
        /// What the copy waits for.
        waits: Vec<Point>,
        /// What it signals.
        signal: Point,
    },
    /// Submit the stage's program for a micro-batch.
    Compute {
        /// The slot; whatever was submitted for it before has passed.
        slot: u32,
        /// Which micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// What the program waits for.
        waits: Vec<Point>,
        /// What it signals.
        signal: Point,
    },
    /// Submit a copy of the slot's activations into the outgoing ring.
    Download {
        /// The slot.
        slot: u32,
        /// Whose rows.
        micro_batch: MicroBatchId,
        /// Which bytes of the activations, and where to.
        chunk: Chunk,
        /// What the copy waits for.
        waits: Vec<Point>,
        /// What it signals.
        signal: Point,
    },
    /// Last stage: submit a copy of the slot's logits into the host memory of the micro-batch's credit; if it has no
    /// logit rows, a submission that only waits and signals.
    Logits {
        /// The slot.
        slot: u32,
        /// Which micro-batch.
        micro_batch: Arc<MicroBatch>,
        /// What the copy waits for.
        waits: Vec<Point>,
        /// What it signals.
        signal: Point,
    },
    /// Tell the next stage that a micro-batch comes.
    HandOff {
        /// Which.
        micro_batch: Arc<MicroBatch>,
    },
    /// Tell the next stage that a chunk is in the ring.
    Chunk(ChunkReady),
    /// Give a ring slot back to the stage before.
    Free(ChunkFree),
    /// Tell the coordinator when a micro-batch's results are there.
    Return(Return),
}

/// Where micro-batches go from here.
#[derive(Debug)]
enum Outlet {
    Next(Sender),
    Coordinator(Points),
}

/// The stepper of one stage.
#[derive(Debug)]
pub struct StageCore {
    row_bytes: u64,
    slots: u32,
    incoming: Option<Receiver>,
    outlet: Outlet,
    compute: Points,
    free: VecDeque<u32>,
    /// Handed off, without a slot.
    waiting: VecDeque<(Arc<MicroBatch>, Nanoseconds)>,
    /// With a slot, activations not all received.
    receiving: VecDeque<(Arc<MicroBatch>, u32)>,
    /// Computed, activations not all sent.
    sending: VecDeque<(MicroBatchId, u32)>,
    /// Slots that are free once the download timeline has come so far, in that order.
    draining: VecDeque<(u64, u32)>,
    stats: StageStats,
}

/// What a stage has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStats {
    /// Micro-batches submitted.
    pub micro_batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Time that micro-batches waited for a slot, in all.
    pub waited_for_slot_ns: Nanoseconds,
}

/// The points of a stage's queues, from which its submissions go on.
#[derive(Clone, Debug)]
pub struct StagePoints {
    /// Of the compute queue.
    pub compute: Points,
    /// Of the upload queue.
    pub upload: Points,
    /// Of the download queue.
    pub download: Points,
}

impl StagePoints {
    /// The points of queues on which nothing has been submitted.
    pub fn new(timeline: impl Fn(ragtag_hal::QueueKind) -> TimelineId) -> Self {
        use ragtag_hal::QueueKind::{Compute, Download, Upload};
        let points = |queue| Points::new(timeline(queue));
        Self { compute: points(Compute), upload: points(Upload), download: points(Download) }
    }
}

impl StageCore {
    /// A stage with nothing to do.
    ///
    /// # Errors
    /// [`Error::Spec`] for no slots or rows of no bytes, and for a route that does not lead from device to device.
    pub fn new(shape: &StageShape, points: StagePoints) -> Result<Self> {
        let spec = |what: String| Err(Error::Spec { what });
        if shape.slots == 0 || shape.row_bytes == 0 {
            return spec(format!("a stage cannot have this shape: {shape:?}"));
        }
        if [shape.incoming, shape.outgoing].contains(&Some(Route::SameDevice)) {
            return spec("two stages on one device: they are one stage".into());
        }
        let unavailable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let outlet = match shape.outgoing {
            Some(route) => Outlet::Next(Sender::new(route, points.download).map_err(unavailable)?),
            None => Outlet::Coordinator(points.download),
        };
        let incoming = shape
            .incoming
            .map(|route| Receiver::new(route, points.upload))
            .transpose()
            .map_err(unavailable)?;
        Ok(Self {
            row_bytes: shape.row_bytes,
            slots: shape.slots,
            incoming,
            outlet,
            compute: points.compute,
            free: (0..shape.slots).collect(),
            waiting: VecDeque::new(),
            receiving: VecDeque::new(),
            sending: VecDeque::new(),
            draining: VecDeque::new(),
            stats: StageStats::default(),
        })
    }

    /// What it has done so far.
    pub fn stats(&self) -> StageStats {
        self.stats
    }

    /// Whether a micro-batch waits for a slot. Until one does, nobody needs to tell the core of progress.
    pub fn wants_slot(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether activations wait for a slot of the outgoing ring. Until some do, nobody needs to hurry with those that
    /// come back.
    pub fn wants_ring_slot(&self) -> bool {
        matches!(&self.outlet, Outlet::Next(sender) if sender.is_waiting())
    }

    /// Whether it holds no micro-batch and every slot and ring slot is home.
    pub fn is_idle(&self) -> bool {
        let sent = match &self.outlet {
            Outlet::Next(sender) => sender.is_idle(),
            Outlet::Coordinator(_) => true,
        };
        let received = self.incoming.as_ref().is_none_or(|r| r.expected() == 0);
        sent && received && self.waiting.is_empty() && self.free.len() == self.slots as usize
    }

    /// Takes an event and appends what is to be done.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that cannot happen now.
    pub fn step(
        &mut self,
        now: Nanoseconds,
        event: StageEvent,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        match event {
            StageEvent::HandOff { micro_batch } => {
                if let Some(receiver) = &mut self.incoming {
                    let transfer = TransferId(micro_batch.id.0);
                    let bytes = u64::from(micro_batch.rows()) * self.row_bytes;
                    let mut received = Vec::new();
                    receiver.step(ReceiverEvent::Expect { transfer, bytes }, &mut received)?;
                    self.receive(received, actions)?;
                }
                self.waiting.push_back((micro_batch, now));
            }
            StageEvent::Chunk(ready) => self.receiver_event(ReceiverEvent::Ready(ready), actions)?,
            StageEvent::Free(free) => self.sender_event(SenderEvent::Free(free), actions)?,
            StageEvent::Progress { downloaded } => {
                while let Some(&(_, slot)) = self.draining.front().filter(|(value, _)| *value <= downloaded) {
                    self.draining.pop_front();
                    self.free.push_back(slot);
                }
            }
        }
        self.admit(now, actions)
    }

    /// Gives slots to those who wait for one.
    fn admit(&mut self, now: Nanoseconds, actions: &mut Vec<StageAction>) -> Result<()> {
        while !self.free.is_empty() {
            let Some((batch, since)) = self.waiting.pop_front() else { return Ok(()) };
            let Some(slot) = self.free.pop_front() else { return Ok(()) };
            self.stats.waited_for_slot_ns += now.saturating_sub(since);
            if self.incoming.is_some() {
                self.receiving.push_back((batch, slot));
                self.receiver_event(ReceiverEvent::Open, actions)?;
            } else {
                self.compute(batch, slot, None, actions)?;
            }
        }
        Ok(())
    }

    fn receiver_event(&mut self, event: ReceiverEvent, actions: &mut Vec<StageAction>) -> Result<()> {
        let Some(receiver) = &mut self.incoming else {
            return Err(Error::protocol("a chunk for the first stage"));
        };
        let mut received = Vec::new();
        receiver.step(event, &mut received)?;
        self.receive(received, actions)
    }

    fn receive(&mut self, received: Vec<ReceiverAction>, actions: &mut Vec<StageAction>) -> Result<()> {
        for action in received {
            // Transfers come in order, so the oldest that is being received is meant.
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
                    let Some((batch, slot)) = self.receiving.pop_front() else { continue };
                    self.compute(batch, slot, at, actions)?;
                }
            }
        }
        Ok(())
    }

    fn compute(
        &mut self,
        batch: Arc<MicroBatch>,
        slot: u32,
        received: Option<Point>,
        actions: &mut Vec<StageAction>,
    ) -> Result<()> {
        let rows = u64::from(batch.rows());
        self.stats.micro_batches += 1;
        self.stats.rows += rows;
        let computed = self.compute.allot();
        let micro_batch = batch.clone();
        actions.push(StageAction::Compute {
            slot,
            micro_batch,
            waits: received.into_iter().collect(),
            signal: computed,
        });
        match &mut self.outlet {
            Outlet::Coordinator(points) => {
                let ready = points.allot();
                self.draining.push_back((ready.value, slot));
                // Told before it is submitted, so that whoever learns that the point has passed knows what it is about.
                actions.push(StageAction::Return(Return { micro_batch: batch.id, ready }));
                let waits = vec![computed];
                actions.push(StageAction::Logits { slot, micro_batch: batch, waits, signal: ready });
                Ok(())
            }
            Outlet::Next(_) => {
                let transfer = TransferId(batch.id.0);
                self.sending.push_back((batch.id, slot));
                let (bytes, start) = (rows * self.row_bytes, actions.len());
                self.sender_event(SenderEvent::Send { transfer, bytes, after: computed }, actions)?;
                // Right before the first chunk, so that the next stage wakes up once.
                let chunk = actions[start..].iter().position(|a| matches!(a, StageAction::Chunk(_)));
                let at = chunk.map_or(actions.len(), |chunk| start + chunk);
                actions.insert(at, StageAction::HandOff { micro_batch: batch });
                Ok(())
            }
        }
    }

    fn sender_event(&mut self, event: SenderEvent, actions: &mut Vec<StageAction>) -> Result<()> {
        let Outlet::Next(sender) = &mut self.outlet else {
            return Err(Error::protocol("a ring slot for the last stage"));
        };
        let mut sent = Vec::new();
        sender.step(event, &mut sent)?;
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
