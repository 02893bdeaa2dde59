//! Capacities of mailboxes. Credits and ring slots bound the messages in flight, so a queue of this size is
//! never full and senders never wait. A full queue is a defect that ends the run.

use ragtag_hal::QueueKind;

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Messages that wake the owner.
    pub waking: usize,
    /// Messages that are read only when the owner is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a device's mailbox. `stages` gives the depths of each stage's incoming and
    /// outgoing rings. For each stage, the waking queue holds a hand-off for each micro-batch in flight, a
    /// chunk for each slot of the incoming ring, and a pending notice of the outgoing ring. It also holds a
    /// pending notice of progress for each queue of the device. The quiet queue holds a credit for each slot
    /// of the outgoing rings.
    pub fn of_device(credits: u32, stages: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut lanes = Self { waking: QueueKind::ALL.len(), quiet: 0 };
        for (incoming_depth, outgoing_depth) in stages {
            lanes.waking += credits as usize + incoming_depth as usize + 1;
            lanes.quiet += outgoing_depth as usize;
        }
        lanes
    }

    /// Returns the capacities of the coordinator's mailbox. The waking queue holds one pending progress
    /// notice. The quiet queue holds a return for each micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
