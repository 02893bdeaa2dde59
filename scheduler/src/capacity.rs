//! How many messages a mailbox can ever hold. Senders never wait: what bounds the messages in flight are credits and ring
//! slots, so a mailbox of this size is never full, and a full one is a defect that ends the run.

/// Capacity of a stage's mailbox: a hand-off for each micro-batch in flight, a message for each slot of the ring on
/// either side, and one pending notice of progress for each timeline that the actor listens to.
pub fn stage_mailbox(credits: u32, incoming_depth: u32, outgoing_depth: u32, timelines: u32) -> usize {
    [credits, incoming_depth, outgoing_depth, timelines].iter().map(|&n| n as usize).sum()
}

/// Capacity of the coordinator's mailbox: a return for each micro-batch in flight, and one pending notice of progress.
pub fn run_mailbox(credits: u32) -> usize {
    credits as usize + 1
}
