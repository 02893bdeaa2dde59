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

use crate::core::action::Requests;
use crate::core::passing::Passing;
use crate::core::stream::Streams;
use crate::core::verify::{Unsummed, Verification, Verifier};
use crate::core::{
    End, MicroBatch, MicroBatchId, Nanoseconds, Progress, ResultRows, Return, StageAction, StageEvent,
    StageShape, VerifyAction,
};
use crate::error::{Error, Result};
use ragtag_hal::Point;
use ragtag_transfer::{
    Action, Copy, Error as TransferError, OtherEnd, Receiver, ReceiverEvent, Sender, SenderEvent, TransferId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Source of a stage's micro-batches.
#[derive(Debug)]
enum Inlet {
    /// The previous stage. The receiver owns the free slots.
    Previous(Receiver),
    /// The coordinator, with the free slots. The stage takes the lowest one, because its programs are
    /// recorded and its memory is in the caches.
    Coordinator(BTreeSet<u32>),
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
    verifier: Verifier,
    streams: Streams,
    passing: Passing,
    /// Point after which keys and values from the prefill stage are in the cache, until a computation waits
    /// for it.
    kept: Option<Point>,
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

impl StageCore {
    /// Creates an idle stage. If `ahead` is true, the stage submits computations before their inputs have
    /// arrived.
    ///
    /// # Errors
    /// [`Error::Spec`] if `shape` has no slots, if a row has zero bytes, or if routes are unusable.
    pub(super) fn new(shape: &StageShape, ahead: bool) -> Result<Self> {
        if shape.slots == 0 || shape.row_bytes == 0 {
            return Err(Error::spec(format!("invalid stage shape: {shape:?}")));
        }
        let unusable = |error: ragtag_transfer::Error| Error::spec(error.to_string());
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
        let (entering, ready, draining, stats, progress, verifier) = Default::default();
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
            verifier,
            streams: Streams::new(&shape.parts, shape.from_file.as_ref()),
            passing: Passing::new(&shape.passes, shape.verified),
            kept: None,
        })
    }

    /// Returns the current counters.
    pub(super) fn stats(&self) -> StageStats {
        StageStats { verification: self.verifier.counts, ..self.stats }
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
        self.verifier.wants_arrival()
    }

    /// Returns whether a checksum was requested and not computed. The caller then needs progress of the
    /// download queue.
    pub(super) fn wants_sum(&self) -> bool {
        self.verifier.wants_sum() || self.passing.wants_sum()
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

    /// Handles an event and requests the resulting actions.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that is not allowed in this state.
    pub(super) fn step(&mut self, event: StageEvent, requests: &mut Requests<'_>) -> Result<()> {
        match event {
            StageEvent::HandOff { micro_batch } => {
                let transfer = TransferId(micro_batch.id.0);
                let bytes = u64::from(micro_batch.rows()) * self.row_bytes;
                self.entering.push_back((micro_batch, requests.now));
                match &self.inlet {
                    Inlet::Previous(_) => {
                        self.receiver_event(ReceiverEvent::Expect { transfer, bytes }, requests)
                    }
                    Inlet::Coordinator(_) => self.admit(requests),
                }
            }
            StageEvent::FromPrevious(message) => {
                self.receiver_event(ReceiverEvent::Message(message), requests)
            }
            StageEvent::FromNext(message) => {
                self.sender_event(SenderEvent::Message(message), requests)?;
                // The point of a verified transfer may have passed before its confirmation.
                self.release(requests)
            }
            StageEvent::Refused { copy } => self.refused(&copy, requests),
            StageEvent::Summed { end, transfer, sum } => {
                self.verifier.summed(transfer);
                match end {
                    End::Outgoing => self.sender_event(SenderEvent::Summed { transfer, sum }, requests),
                    End::Incoming => self.receiver_event(ReceiverEvent::Summed { transfer, sum }, requests),
                }
            }
            StageEvent::Passed(passed) => {
                self.kept = Some(self.passing.keep(passed, requests));
                Ok(())
            }
            StageEvent::PlaceRead(read) => self.passing.read(read),
            StageEvent::SummedPassed { to, place, sum } => {
                self.passing.summed(to, place, sum, requests)?;
                self.compare_passed(requests)
            }
            StageEvent::PassedSum { place, sum } => {
                self.passing.source(place, sum)?;
                self.compare_passed(requests)
            }
        }
    }

    /// Handles the progress of the device. Frees the slots whose downloads have ended, and assigns them to
    /// waiting micro-batches. Requests the checksum of activations that have arrived.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the activations in a ring do not fit their micro-batch.
    pub(super) fn progressed(&mut self, progress: Progress, requests: &mut Requests<'_>) -> Result<()> {
        self.progress = progress;
        self.verifier.arrived(progress.uploaded, requests);
        self.release(requests)
    }

    /// Compares the checksums of keys and values. On a stage that computes ahead, computes the micro-batches
    /// that have waited only for them.
    fn compare_passed(&mut self, requests: &mut Requests<'_>) -> Result<()> {
        self.verifier.counts.transfers += self.passing.compare(requests);
        while self.ahead && self.oldest().is_some() {
            self.compute_oldest(requests)?;
        }
        Ok(())
    }

    /// Frees the slots whose downloads have ended.
    fn release(&mut self, requests: &mut Requests<'_>) -> Result<()> {
        let value = self.progress.downloaded;
        while let Some((_, slot)) = self.draining.pop_front_if(|(at, _)| *at <= value) {
            match &mut self.inlet {
                Inlet::Previous(receiver) => {
                    let (entering, waiting) = (self.entering.len(), receiver.without_slot());
                    assert!(waiting <= entering, "{waiting} of {entering} micro-batches wait for a slot");
                    if let Some((_, since)) = self.entering.get(entering - waiting) {
                        self.stats.waited_for_slot_ns += requests.now.saturating_sub(*since);
                    }
                    self.receiver_event(ReceiverEvent::Free(slot), requests)?;
                }
                Inlet::Coordinator(free) => {
                    assert!(free.insert(slot), "slot {slot} is free already");
                    self.admit(requests)?;
                }
            }
        }
        Ok(())
    }

    /// First stage only: assigns free slots to waiting micro-batches, oldest first.
    fn admit(&mut self, requests: &mut Requests<'_>) -> Result<()> {
        while let Inlet::Coordinator(free) = &mut self.inlet
            && !self.entering.is_empty()
            && let Some(slot) = free.pop_first()
            && let Some((micro_batch, since)) = self.entering.pop_front()
        {
            self.stats.waited_for_slot_ns += requests.now.saturating_sub(since);
            self.proceed((micro_batch, slot, None), requests)?;
        }
        Ok(())
    }

    fn receiver_event(&mut self, event: ReceiverEvent, requests: &mut Requests<'_>) -> Result<()> {
        let Inlet::Previous(receiver) = &mut self.inlet else {
            return Err(Error::protocol("activations for the first stage"));
        };
        let (mut received, mut done) = (Vec::new(), Vec::new());
        receiver.step(event, &mut requests.points.upload, &mut received)?;
        for action in received {
            match action {
                Action::Copy(copy) => requests.push(StageAction::Copy { end: End::Incoming, copy }),
                Action::Message(message) => {
                    self.verifier.compared(requests.now, message);
                    requests.push(StageAction::ToPrevious(message));
                }
                Action::Sum { transfer, slot, bytes, after } => {
                    self.verifier.expect(Unsummed { transfer, slot, bytes, after });
                }
                Action::Resent { .. } => {}
                Action::Done { transfer, slot, at } => {
                    let Some((micro_batch, _)) = self.entering.pop_front() else {
                        return Err(Error::protocol(format!("{transfer} without a micro-batch")));
                    };
                    assert_eq!(transfer.0, micro_batch.id.0, "{transfer} for {}", micro_batch.id);
                    done.push((micro_batch, slot, Some(at)));
                }
            }
        }
        // The points of the copies were allotted first, so the copies must be submitted first.
        done.into_iter().try_for_each(|ready| self.proceed(ready, requests))?;
        self.verifier.arrived(self.progress.uploaded, requests);
        Ok(())
    }

    /// Computes a micro-batch now, or queues it if the stage does not compute ahead.
    fn proceed(
        &mut self,
        (micro_batch, slot, received): (Arc<MicroBatch>, u32, Option<Point>),
        requests: &mut Requests<'_>,
    ) -> Result<()> {
        assert!(slot < self.slots, "{} in slot {slot} of {}", micro_batch.id, self.slots);
        let ready = Ready { micro_batch, slot, received, passed: self.passing.received() };
        if self.ahead && self.passing.is_ready(ready.passed) {
            return self.compute(ready, requests);
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
    pub(super) fn compute_oldest(&mut self, requests: &mut Requests<'_>) -> Result<()> {
        match self.ready.pop_front_if(|ready| self.passing.is_ready(ready.passed)) {
            Some(ready) => self.compute(ready, requests),
            None => Err(Error::protocol("no micro-batch is ready to compute")),
        }
    }

    fn compute(&mut self, ready: Ready, requests: &mut Requests<'_>) -> Result<()> {
        let Ready { micro_batch: batch, slot, received, .. } = ready;
        let rows = u64::from(batch.rows());
        self.stats.micro_batches += 1;
        self.stats.rows += rows;
        self.passing.take()?;
        let computed = self.compute_parts(&batch, slot, received, requests);
        match &mut self.outlet {
            Outlet::Coordinator => {
                let ready = requests.points.download.allot();
                self.drain(ready, slot);
                // Send the return before the submission, so that the coordinator knows the micro-batch before
                // its point passes.
                requests.push(StageAction::Return(Return {
                    micro_batch: batch.id,
                    ready,
                    rows: ResultRows::of(&batch),
                }));
                let waits = vec![computed];
                requests.push(StageAction::Logits { slot, micro_batch: batch, waits, signal: ready });
                Ok(())
            }
            Outlet::Next(_) => {
                let transfer = TransferId(batch.id.0);
                let (bytes, start) = (rows * self.row_bytes, requests.actions.len());
                let send = SenderEvent::Send { transfer, slot, bytes, after: computed };
                self.sender_event(send, requests)?;
                // Insert the hand-off right before the first message, so that the next stage wakes up only
                // once.
                let mut actions = requests.actions[start..].iter();
                let message = actions.position(|action| matches!(action, StageAction::ToNext(_)));
                let at = message.map_or(requests.actions.len(), |message| start + message);
                requests.actions.insert(at, StageAction::HandOff { micro_batch: batch });
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
        requests: &mut Requests<'_>,
    ) -> Point {
        let mut arrived = received;
        let mut computed = requests.points.compute.last();
        self.streams.fill(requests);
        for part in 0..self.streams.parts() {
            let loaded = self.streams.before(part);
            let waits = arrived.take().into_iter().chain(loaded).chain(self.kept.take());
            let waits = waits.chain(self.passing.before(part)).collect();
            computed = requests.points.compute.allot();
            let (micro_batch, ends) = (batch.clone(), part + 1 == self.streams.parts());
            requests.push(StageAction::Compute { slot, micro_batch, part, ends, waits, signal: computed });
            self.streams.after(part, computed, requests);
            self.passing.after(part, batch, computed, requests);
        }
        computed
    }

    /// Frees a slot once the download timeline reaches `at`.
    fn drain(&mut self, at: Point, slot: u32) {
        let last = self.draining.back();
        assert!(
            last.is_none_or(|(value, _)| *value < at.value),
            "slot {slot} is free at {at} after {last:?}"
        );
        self.draining.push_back((at.value, slot));
    }

    /// Sends a transfer over the next route, because the device has refused its copy over the peer route.
    fn refused(&mut self, copy: &Copy, requests: &mut Requests<'_>) -> Result<()> {
        let Copy { transfer, slot, bytes, signal, .. } = *copy;
        let (OtherEnd::Slot(to), Some(&after)) = (copy.other, copy.waits.first()) else {
            return Err(Error::protocol(format!("a refused copy of {transfer} over another route")));
        };
        // The slot stays in use.
        self.draining.retain(|drain| *drain != (signal.value, slot));
        self.sender_event(SenderEvent::Refused { transfer, slot, to, bytes, after }, requests)
    }

    fn sender_event(&mut self, event: SenderEvent, requests: &mut Requests<'_>) -> Result<()> {
        let Outlet::Next(sender) = &mut self.outlet else {
            return Err(Error::protocol("a message from a stage after the last"));
        };
        let (mut sent, mut unsummed) = (Vec::new(), None);
        let ends = match sender.step(event, &mut requests.points.download, &mut sent) {
            Err(TransferError::Corrupted { route, .. }) => Some(VerifyAction::Corrupted { route }),
            Err(TransferError::Refused { .. }) => Some(VerifyAction::Unreplaced),
            stepped => stepped.map(|()| None)?,
        };
        if let Some(ends) = ends {
            requests.push(StageAction::Verify(ends));
            return Ok(());
        }
        for action in sent {
            match action {
                Action::Copy(copy) => requests.push(StageAction::Copy { end: End::Outgoing, copy }),
                Action::Message(message) => requests.push(StageAction::ToNext(message)),
                Action::Done { slot, at, .. } => self.drain(at, slot),
                Action::Sum { transfer, slot, bytes, after } => {
                    unsummed = Some(Unsummed { transfer, slot, bytes, after });
                }
                Action::Resent { wrong, over, .. } => {
                    requests.push(StageAction::Verify(VerifyAction::Resent { wrong, over }));
                }
            }
        }
        // The points of the copies were allotted first, so the copies must be submitted first.
        if let Some(unsummed) = unsummed {
            self.verifier.sum(End::Outgoing, unsummed, requests);
        }
        Ok(())
    }
}
