//! How long micro-batches take from one stage to the next, and from the last stage back to the coordinator: each end of an
//! edge says what it has seen, and what both have seen counts.
//!
//! An edge is busy with a micro-batch from when its first byte leaves until its last one has arrived, but not before it was
//! done with the one before, and not while the receiving stage had no slot: that is the stage's doing. This module must not
//! know devices or mailboxes, and reads no clock.

use crate::core::{MicroBatchId, Nanoseconds};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Crossings that may wait for what one of their ends saw; older ones are forgotten, since some devices time nothing.
const OPEN: usize = 1024;

/// Crossings of one kind of micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossed {
    /// How many.
    pub crossings: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the edge was busy with them.
    pub busy_ns: Nanoseconds,
}

/// What has crossed an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Micro-batches with prompt rows.
    pub prefill: Crossed,
    /// Micro-batches of decode steps alone.
    pub decode: Crossed,
}

impl Crossed {
    fn since(&self, before: &Self) -> Self {
        Self {
            crossings: self.crossings.saturating_sub(before.crossings),
            bytes: self.bytes.saturating_sub(before.bytes),
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
        }
    }
}

impl EdgeReport {
    /// What has crossed since an earlier look.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { prefill: self.prefill.since(&before.prefill), decode: self.decode.since(&before.decode) }
    }
}

/// The crossings of one edge, shared by its two ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crossings(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    open: VecDeque<OpenCrossing>,
    /// When the last micro-batch that is known of had arrived.
    arrived_ns: Nanoseconds,
    report: EdgeReport,
}

/// A micro-batch on its way, as far as both ends know of it.
#[derive(Debug)]
struct OpenCrossing {
    micro_batch: MicroBatchId,
    decode: bool,
    bytes: u64,
    left: Leg,
    arrived: Leg,
    /// When the receiver had a slot for it.
    admitted_ns: Nanoseconds,
}

/// Pieces that one end has seen.
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

impl Crossings {
    /// A micro-batch is about to cross. This comes before anything else about it.
    pub(crate) fn begin(&self, micro_batch: MicroBatchId, decode: bool, bytes: u64) {
        let mut state = self.lock();
        if state.open.len() == OPEN {
            state.open.pop_front();
        }
        let (left, arrived) = (Leg::default(), Leg::default());
        state.open.push_back(OpenCrossing { micro_batch, decode, bytes, left, arrived, admitted_ns: 0 });
    }

    /// A piece of it was copied out of its device.
    pub(crate) fn left(&self, id: MicroBatchId, bytes: u64, start_ns: Nanoseconds, end_ns: Nanoseconds) {
        self.lock().update(id, |crossing| crossing.left.add(bytes, start_ns, end_ns));
    }

    /// The receiver has a slot for it, and asks for its first piece.
    pub(crate) fn admitted(&self, id: MicroBatchId, now_ns: Nanoseconds) {
        self.lock().update(id, |crossing| {
            if crossing.admitted_ns == 0 {
                crossing.admitted_ns = now_ns;
            }
        });
    }

    /// A piece of it is where it belongs.
    pub(crate) fn arrived(&self, id: MicroBatchId, bytes: u64, end_ns: Nanoseconds) {
        self.lock().update(id, |crossing| crossing.arrived.add(bytes, end_ns, end_ns));
    }

    /// The whole of it is where it belongs.
    pub(crate) fn arrived_whole(&self, id: MicroBatchId, end_ns: Nanoseconds) {
        self.lock().update(id, |crossing| crossing.arrived.add(crossing.bytes, end_ns, end_ns));
    }

    /// What has crossed so far.
    pub(crate) fn report(&self) -> EdgeReport {
        self.lock().report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn update(&mut self, id: MicroBatchId, change: impl FnOnce(&mut OpenCrossing)) {
        let Some(at) = self.open.iter().position(|crossing| crossing.micro_batch == id) else { return };
        let crossing = &mut self.open[at];
        change(crossing);
        if crossing.left.bytes < crossing.bytes || crossing.arrived.bytes < crossing.bytes {
            return;
        }
        let Some(crossing) = self.open.remove(at) else { return };
        let begun_ns = crossing.left.start_ns.max(self.arrived_ns);
        let without_slot_ns = crossing.admitted_ns.saturating_sub(crossing.left.end_ns.max(self.arrived_ns));
        self.arrived_ns = self.arrived_ns.max(crossing.arrived.end_ns);
        let crossed = if crossing.decode { &mut self.report.decode } else { &mut self.report.prefill };
        crossed.crossings += 1;
        crossed.bytes += crossing.bytes;
        crossed.busy_ns += crossing.arrived.end_ns.saturating_sub(begun_ns).saturating_sub(without_slot_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(id: u64) -> MicroBatchId {
        MicroBatchId(id)
    }

    #[test]
    fn an_edge_is_busy_from_the_first_byte_until_the_last_whoever_tells_first() {
        let edge = Crossings::default();
        edge.begin(id(1), true, 30);
        edge.admitted(id(1), 90);
        edge.arrived(id(1), 20, 150);
        edge.left(id(1), 20, 100, 120);
        assert_eq!(edge.report(), EdgeReport::default(), "ten bytes are missing at both ends");
        edge.left(id(1), 10, 120, 130);
        edge.arrived(id(1), 10, 160);
        let decode = Crossed { crossings: 1, bytes: 30, busy_ns: 60 };
        assert_eq!(edge.report(), EdgeReport { decode, ..EdgeReport::default() });
        // Nobody asked about these.
        edge.arrived(id(1), 10, 170);
        edge.left(id(7), 10, 170, 180);
        assert_eq!(edge.report().decode, decode);
    }

    #[test]
    fn neither_the_one_before_nor_the_wait_for_a_slot_counts() {
        let edge = Crossings::default();
        for (number, left_ns, end_ns) in [(1, 0, 100), (2, 10, 200)] {
            edge.begin(id(number), false, 8);
            edge.left(id(number), 8, left_ns, left_ns + 10);
            edge.arrived(id(number), 8, end_ns);
        }
        // The second left while the first was on its way.
        assert_eq!(edge.report().prefill, Crossed { crossings: 2, bytes: 16, busy_ns: 200 });
        // The third lies ready at 310 and finds a slot at 900.
        edge.begin(id(3), false, 8);
        edge.left(id(3), 8, 300, 310);
        edge.admitted(id(3), 900);
        edge.arrived_whole(id(3), 905);
        assert_eq!(edge.report().prefill, Crossed { crossings: 3, bytes: 24, busy_ns: 200 + 10 + 5 });
    }

    #[test]
    fn what_is_never_timed_is_forgotten() {
        let edge = Crossings::default();
        for number in 0..2 * OPEN as u64 {
            edge.begin(id(number), false, 8);
        }
        assert_eq!(edge.lock().open.len(), OPEN);
    }
}
