//! Mailbox capacities. Senders never wait: credits and ring slots bound the messages in flight, so a queue of
//! this size is never full. A full queue is a defect that ends the run.

use ragtag_hal::QueueKind;

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Messages that wake the owner.
    pub waking: usize,
    /// Messages that wait until the owner is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a device's mailbox, from the depths of each of its stages' incoming and
    /// outgoing rings. Waking: for each stage a hand-off of each micro-batch in flight, a chunk for each slot
    /// of the incoming ring and one pending notice of the outgoing ring, and for the device one pending notice
    /// of progress of each queue. Quiet: a credit for each slot of the outgoing rings.
    pub fn of_device(credits: u32, stages: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut lanes = Self { waking: QueueKind::ALL.len(), quiet: 0 };
        for (incoming_depth, outgoing_depth) in stages {
            lanes.waking += credits as usize + incoming_depth as usize + 1;
            lanes.quiet += outgoing_depth as usize;
        }
        lanes
    }

    /// Returns the capacities of the coordinator's mailbox. Waking: one pending progress notice. Quiet: a
    /// return for each micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
