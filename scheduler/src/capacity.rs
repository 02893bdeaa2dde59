//! How many messages a mailbox can ever hold. Senders never wait: what bounds the messages in flight are credits and ring
//! slots, so a lane of this size is never full, and a full one is a defect that ends the run.

/// Capacities of a mailbox's two bounded lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Messages that wake their owner.
    pub waking: usize,
    /// Messages that lie there until the owner is awake.
    pub quiet: usize,
}

impl Lanes {
    /// A stage's mailbox. Waking: a hand-off for each micro-batch in flight, a chunk for each slot of the incoming ring,
    /// and one pending notice each of its own progress and of the outgoing ring. Quiet: a credit for each slot of the
    /// outgoing ring.
    pub fn of_stage(credits: u32, incoming_depth: u32, outgoing_depth: u32) -> Self {
        Self { waking: credits as usize + incoming_depth as usize + 2, quiet: outgoing_depth as usize }
    }

    /// The coordinator's mailbox. Waking: one pending notice of progress. Quiet: a return for each micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: 1, quiet: credits as usize }
    }
}
