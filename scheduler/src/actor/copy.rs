//! Copies of activations between a stage's slots and its edges.

use super::Actor;
use crate::copies::Copied;
use crate::core::{End, MicroBatchId};
use crate::error::{Error, Result};
use crate::trace::{Label, SpanKind};
use ragtag_hal::{Device, Submission, Timing, Work};
use ragtag_transfer::{Copy, OtherEnd, Route, TransferId};

impl Actor {
    /// Submits a copy of activations at one end of the stage at index `at` of this device.
    pub(super) fn copy(&mut self, at: usize, end: End, copy: Copy) -> Result<()> {
        let stage = &mut self.stages[at];
        let (micro_batch, bytes) = (MicroBatchId(copy.transfer.0), copy.bytes);
        let (edge, kind, number) = match end {
            End::Incoming => (&stage.previous, SpanKind::Upload, stage.stage.saturating_sub(1)),
            End::Outgoing => (&stage.next, SpanKind::Download, stage.stage),
        };
        let edge = edge.as_ref().ok_or_else(|| Error::protocol("a copy at an end without an edge"))?;
        if end == End::Incoming {
            stage.recorder.admitted(micro_batch, Timing::now_ns());
        }
        let reads = end == End::Incoming && matches!(copy.other, OtherEnd::Slot(_));
        let own = stage.memory.edge_rows(copy.slot, copy.offset, bytes);
        let command = copy.command(end == End::Outgoing, own, edge.ring_id, &edge.imported)?;
        let route = edge.routes.of_copy(&copy, end == End::Outgoing);
        let work = Work::Commands(command.into_iter().collect());
        let shares_memory = route.is_some_and(|route| route.shares_memory());
        let is_timed = !shares_memory || stage.recorder.times(micro_batch);
        if !is_timed {
            stage.recorder.skips(end, micro_batch);
        }
        let (waits, signal) = (copy.waits.clone(), copy.signal);
        let submission = Submission { queue: end.queue(), work, waits, signal, is_timed };
        let label = Label { route, ..Label::copy(kind, micro_batch, bytes, reads) };
        let copied = route.map(|route| Copied::Activations(number, route));
        match (self.enqueue(at, submission, label, copied), route) {
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
        self.copies.accept(copy.signal);
        if !self.verified {
            self.refused.push_back((at, copy, error));
        }
        Ok(())
    }

    /// Returns whether the core does not know yet that the device has refused the copy of a transfer.
    pub(super) fn is_refused(&self, at: usize, transfer: TransferId) -> bool {
        self.refused.iter().any(|(stage, copy, _)| *stage == at && copy.transfer == transfer)
    }
}
