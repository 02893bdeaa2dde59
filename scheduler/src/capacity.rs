//! Capacities of mailboxes. Credits and ring slots bound the messages in flight, so a queue of this size is
//! never full and senders never wait. A full queue is a defect that ends the run.

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Messages that wake the owner.
    pub waking: usize,
    /// Messages that are read only when the owner is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a stage's mailbox. The waking queue holds a hand-off for each micro-batch in
    /// flight and a chunk for each slot of the incoming ring. It also holds two pending notices: download
    /// progress and a slot of the outgoing ring. The quiet queue holds a credit for each slot of the outgoing
    /// ring.
    pub fn of_stage(credits: u32, incoming_depth: u32, outgoing_depth: u32) -> Self {
        Self { waking: credits as usize + incoming_depth as usize + 2, quiet: outgoing_depth as usize }
    }

    /// Returns the capacities of the coordinator's mailbox. The waking queue holds one pending progress
    /// notice. The quiet queue holds a return for each micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
