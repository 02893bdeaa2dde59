//! Measures the transfers of micro-batches between stages, and from the last stage to the coordinator. Each
//! end of an edge records its own observations.
//!
//! An edge is busy with a micro-batch from the time its first byte leaves until its last byte arrives. Two
//! periods do not count as busy: the time before the previous micro-batch has arrived, and the time in which
//! the micro-batch has no slot on the receiving stage.
//!
//! This module does not depend on devices or mailboxes, and reads no clock.

use crate::core::{MicroBatchId, Nanoseconds};
use ragtag_transfer::{Route, Routes};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of transfers with incomplete records. If there are more, the oldest are dropped, because
/// some devices report no timings.
const OPEN: usize = 1024;

/// Sums over transfers of micro-batches of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossed {
    /// Number of timed transfers.
    pub crossings: u64,
    /// Total bytes of the timed transfers.
    pub bytes: u64,
    /// Time in which the edge was busy with them.
    pub busy_ns: Nanoseconds,
    /// Number of transfers whose copies were not timed.
    #[serde(default)]
    pub untimed: u64,
}

/// Sums over the transfers of one edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Transfers of micro-batches with prompt rows.
    pub prefill: Crossed,
    /// Transfers of micro-batches that contain only decode steps.
    pub decode: Crossed,
}

impl Crossed {
    fn since(&self, before: &Self) -> Self {
        Self {
            crossings: self.crossings.saturating_sub(before.crossings),
            bytes: self.bytes.saturating_sub(before.bytes),
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            untimed: self.untimed.saturating_sub(before.untimed),
        }
    }
}

impl EdgeReport {
    fn of(&mut self, decode: bool) -> &mut Crossed {
        if decode { &mut self.decode } else { &mut self.prefill }
    }

    /// Returns the difference between this report and an earlier one.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { prefill: self.prefill.since(&before.prefill), decode: self.decode.since(&before.decode) }
    }
}

/// Record of the transfers over one edge. Both ends of the edge share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    open: VecDeque<OpenTransfer>,
    /// Arrival time of the latest micro-batch whose record is complete.
    arrived_ns: Nanoseconds,
    report: EdgeReport,
    /// Routes in use. `None` until the stages are loaded, and for the token return.
    routes: Option<Routes>,
}

/// A transfer whose record is not complete yet.
#[derive(Debug)]
struct OpenTransfer {
    micro_batch: MicroBatchId,
    decode: bool,
    bytes: u64,
    left: Leg,
    arrived: Leg,
    /// Time at which the receiving stage assigned a slot to the micro-batch.
    admitted_ns: Nanoseconds,
}

/// Copies of one transfer that one end of the edge has recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Leg {
    bytes: u64,
    start_ns: Nanoseconds,
    end_ns: Nanoseconds,
}

impl Leg {
    fn add(&mut self, bytes: u64, start_ns: Nanoseconds, end_ns: Nanoseconds) {
        self.start_ns = if self.bytes == 0 { start_ns } else { self.start_ns.min(start_ns) };
        self.end_ns = self.end_ns.max(end_ns);
        self.bytes += bytes;
    }
}

impl Transfers {
    /// Starts the record of a transfer. This call must precede all other records of the micro-batch.
    pub(crate) fn begin(&self, micro_batch: MicroBatchId, decode: bool, bytes: u64) {
        let mut state = self.lock();
        if state.open.len() == OPEN {
            state.open.pop_front();
        }
        let (left, arrived) = (Leg::default(), Leg::default());
        state.open.push_back(OpenTransfer { micro_batch, decode, bytes, left, arrived, admitted_ns: 0 });
    }

    /// Counts a transfer whose copies are not timed, and drops its record. Both ends may call this.
    pub(crate) fn skip(&self, id: MicroBatchId) {
        let state = &mut *self.lock();
        let Some(at) = state.open.iter().position(|transfer| transfer.micro_batch == id) else { return };
        let Some(transfer) = state.open.remove(at) else { return };
        state.report.of(transfer.decode).untimed += 1;
    }

    /// Records that a chunk was copied from the sending device.
    pub(crate) fn left(&self, id: MicroBatchId, bytes: u64, start_ns: Nanoseconds, end_ns: Nanoseconds) {
        self.lock().update(id, |transfer| transfer.left.add(bytes, start_ns, end_ns));
    }

    /// Records that the receiving stage has a slot for the micro-batch and requests its first chunk.
    pub(crate) fn admitted(&self, id: MicroBatchId, now_ns: Nanoseconds) {
        self.lock().update(id, |transfer| {
            if transfer.admitted_ns == 0 {
                transfer.admitted_ns = now_ns;
            }
        });
    }

    /// Records that a chunk has arrived on the receiving device.
    pub(crate) fn arrived(&self, id: MicroBatchId, bytes: u64, end_ns: Nanoseconds) {
        self.lock().update(id, |transfer| transfer.arrived.add(bytes, end_ns, end_ns));
    }

    /// Records that the whole micro-batch has arrived.
    pub(crate) fn arrived_whole(&self, id: MicroBatchId, end_ns: Nanoseconds) {
        self.lock().update(id, |transfer| transfer.arrived.add(transfer.bytes, end_ns, end_ns));
    }

    /// Records the routes that the edge uses from now on.
    pub(crate) fn uses(&self, routes: Routes) {
        self.lock().routes = Some(routes);
    }

    /// Records that another route of the edge replaces `route`.
    pub(crate) fn replaced(&self, route: Route) {
        if let Some(routes) = &mut self.lock().routes {
            routes.0.retain(|sized| sized.route != route);
        }
    }

    /// Returns the routes that the edge uses.
    pub(crate) fn routes(&self) -> Option<Routes> {
        self.lock().routes.clone()
    }

    /// Returns the sums over all complete transfers so far.
    pub(crate) fn report(&self) -> EdgeReport {
        self.lock().report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn update(&mut self, id: MicroBatchId, change: impl FnOnce(&mut OpenTransfer)) {
        let Some(at) = self.open.iter().position(|transfer| transfer.micro_batch == id) else { return };
        let transfer = &mut self.open[at];
        change(transfer);
        if transfer.left.bytes < transfer.bytes || transfer.arrived.bytes < transfer.bytes {
            return;
        }
        let Some(transfer) = self.open.remove(at) else { return };
        let begun_ns = transfer.left.start_ns.max(self.arrived_ns);
        let without_slot_ns = transfer.admitted_ns.saturating_sub(transfer.left.end_ns.max(self.arrived_ns));
        self.arrived_ns = self.arrived_ns.max(transfer.arrived.end_ns);
        let crossed = self.report.of(transfer.decode);
        crossed.crossings += 1;
        crossed.bytes += transfer.bytes;
        crossed.busy_ns += transfer.arrived.end_ns.saturating_sub(begun_ns).saturating_sub(without_slot_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(id: u64) -> MicroBatchId {
        MicroBatchId(id)
    }

    #[test]
    fn an_edge_is_busy_from_first_to_last_byte_in_any_record_order() {
        let edge = Transfers::default();
        edge.begin(id(1), true, 30);
        edge.admitted(id(1), 90);
        edge.arrived(id(1), 20, 150);
        edge.left(id(1), 20, 100, 120);
        assert_eq!(edge.report(), EdgeReport::default(), "ten bytes are missing at both ends");
        edge.left(id(1), 10, 120, 130);
        edge.arrived(id(1), 10, 160);
        let decode = Crossed { crossings: 1, bytes: 30, busy_ns: 60, untimed: 0 };
        assert_eq!(edge.report(), EdgeReport { decode, ..EdgeReport::default() });
        // Records of unknown transfers are ignored.
        edge.arrived(id(1), 10, 170);
        edge.left(id(7), 10, 170, 180);
        assert_eq!(edge.report().decode, decode);
    }

    #[test]
    fn earlier_transfers_and_waits_for_a_slot_do_not_count() {
        let edge = Transfers::default();
        for (number, left_ns, end_ns) in [(1, 0, 100), (2, 10, 200)] {
            edge.begin(id(number), false, 8);
            edge.left(id(number), 8, left_ns, left_ns + 10);
            edge.arrived(id(number), 8, end_ns);
        }
        // The second micro-batch left while the first was in transit.
        assert_eq!(edge.report().prefill, Crossed { crossings: 2, bytes: 16, busy_ns: 200, untimed: 0 });
        // The third micro-batch is ready at 310 and gets a slot at 900.
        edge.begin(id(3), false, 8);
        edge.left(id(3), 8, 300, 310);
        edge.admitted(id(3), 900);
        edge.arrived_whole(id(3), 905);
        assert_eq!(
            edge.report().prefill,
            Crossed { crossings: 3, bytes: 24, busy_ns: 200 + 10 + 5, untimed: 0 }
        );
    }

    #[test]
    fn transfers_without_timings_are_dropped() {
        let edge = Transfers::default();
        for number in 0..2 * OPEN as u64 {
            edge.begin(id(number), false, 8);
        }
        assert_eq!(edge.lock().open.len(), OPEN);
    }
}
