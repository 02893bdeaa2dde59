//! Verification of the transfers of a stage: requests checksums, and counts their results. The edges compare
//! the checksums.

use crate::core::action::Requests;
use crate::core::{End, Nanoseconds, StageAction, VerifyAction};
use ragtag_hal::Point;
use ragtag_transfer::{ToSender, TransferId};
use serde::{Deserialize, Serialize};

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

/// Activations in a slot whose checksum is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsummed {
    pub(super) transfer: TransferId,
    pub(super) slot: u32,
    pub(super) bytes: u64,
    /// Point after which the activations are in the slot.
    pub(super) after: Point,
}

/// Checksums of a stage's activations.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    /// Transfer that arrives or has arrived. With the time at which the core learned of its arrival.
    arriving: Option<(Unsummed, Option<Nanoseconds>)>,
    /// Number of requested checksums that have not been computed.
    summing: usize,
    pub(super) counts: Verification,
}

impl Verifier {
    /// Returns whether a transfer that must be verified has not arrived.
    pub(super) fn wants_arrival(&self) -> bool {
        self.arriving.is_some_and(|(_, since)| since.is_none())
    }

    /// Returns whether a checksum was requested and not computed.
    pub(super) fn wants_sum(&self) -> bool {
        self.summing > 0
    }

    /// Requests the checksum of activations once they have arrived.
    pub(super) fn expect(&mut self, unsummed: Unsummed) {
        assert!(self.arriving.is_none(), "{unsummed:?} arrives beside {:?}", self.arriving);
        self.arriving = Some((unsummed, None));
    }

    /// Requests the checksum of expected activations if the upload timeline has reached their point.
    pub(super) fn arrived(&mut self, uploaded: u64, requests: &mut Requests<'_>) {
        if let Some((unsummed, since @ None)) = &mut self.arriving
            && unsummed.after.value <= uploaded
        {
            *since = Some(requests.now);
            let unsummed = *unsummed;
            self.sum(End::Incoming, unsummed, requests);
        }
    }

    /// Requests a checksum.
    pub(super) fn sum(&mut self, end: End, unsummed: Unsummed, requests: &mut Requests<'_>) {
        let Unsummed { transfer, slot, bytes, after } = unsummed;
        let (computed, signal) = (requests.points.compute.allot(), requests.points.download.allot());
        self.summing += 1;
        let waits = vec![after];
        let sum = VerifyAction::Sum { end, transfer, slot, bytes, waits, computed, signal };
        requests.push(StageAction::Verify(sum));
    }

    /// Records that a requested checksum was computed.
    pub(super) fn summed(&mut self, transfer: TransferId) {
        assert!(self.summing > 0, "the checksum of {transfer} was not requested");
        self.summing -= 1;
    }

    /// Counts the result of a verification, which `message` reports to the previous stage.
    pub(super) fn compared(&mut self, now: Nanoseconds, message: ToSender) {
        match message {
            ToSender::Confirmed(_) => self.counts.transfers += 1,
            ToSender::Again { .. } => self.counts.wrong += 1,
            ToSender::Place { .. } | ToSender::Slot(_) | ToSender::Read { .. } => return,
        }
        let since = self.arriving.take().and_then(|(_, since)| since);
        self.counts.waited_ns += since.map_or(0, |since| now.saturating_sub(since));
    }
}
