//! Capacities of mailboxes. Credits and ring slots limit the messages in flight, so a queue with these
//! capacities never becomes full and senders never wait. If a queue is full nevertheless, this is a bug and
//! ends the run.

use ragtag_hal::QueueKind;

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Maximum number of messages in the queue that wakes the owner.
    pub waking: usize,
    /// Maximum number of messages in the queue that the owner reads only when it is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a device's mailbox. `stages` gives the depths of the incoming and outgoing
    /// ring of each stage. For each stage, the waking queue holds one hand-off per micro-batch in flight, one
    /// chunk per slot of the incoming ring, and one pending notice from the outgoing ring. It also holds one
    /// pending progress notice for each queue of the device. The quiet queue holds one returned slot per slot
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
    /// notice. The quiet queue holds one return per micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
