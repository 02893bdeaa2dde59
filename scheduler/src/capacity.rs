//! Mailbox capacities. Senders never wait: credits and ring slots bound the messages in flight, so a queue of
//! this size is never full. A full queue is a defect that ends the run.

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Messages that wake the owner.
    pub waking: usize,
    /// Messages that wait until the owner is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a stage's mailbox. Waking: a hand-off for each micro-batch in flight, a
    /// chunk for each slot of the incoming ring, and one pending notice each of download progress and of the
    /// outgoing ring. Quiet: a credit for each slot of the outgoing ring.
    pub fn of_stage(credits: u32, incoming_depth: u32, outgoing_depth: u32) -> Self {
        Self { waking: credits as usize + incoming_depth as usize + 2, quiet: outgoing_depth as usize }
    }

    /// Returns the capacities of the coordinator's mailbox. Waking: one pending progress notice. Quiet: a
    /// return for each micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
