//! Capacities of mailboxes. Credits and ring slots limit the messages in flight, so a queue with these
//! capacities never becomes full and senders never wait. If a queue is full nevertheless, this is a bug and
//! ends the run.

use crate::core::Path;
use ragtag_graph::execution::PREFILLS;
use ragtag_hal::QueueKind;
use ragtag_transfer::{Route, Routes};

/// Capacities of a mailbox's two bounded queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Maximum number of messages in the queue that wakes the owner.
    pub waking: usize,
    /// Maximum number of messages in the queue that the owner reads only when it is awake.
    pub quiet: usize,
}

impl Lanes {
    /// Returns the capacities of a device's mailbox. `stages` gives the incoming and the outgoing routes of
    /// each stage. `slots` is the maximum number of slots of a stage.
    ///
    /// For each stage, the waking queue holds one hand-off and one message about a whole transfer per
    /// micro-batch in flight, one message per place of the incoming rings, and one notice of a quiet message.
    /// A micro-batch in flight returns its credit only after its stage has handled these messages. The queue
    /// also holds one pending progress notice for each queue of the device. If transfers are `verified`, it
    /// also holds one checksum per micro-batch in flight. The quiet queue holds what `of_next` returns.
    pub fn of_device<'a>(
        credits: u32,
        slots: u32,
        verified: bool,
        stages: impl IntoIterator<Item = (Option<&'a Routes>, Option<&'a Routes>)>,
    ) -> Self {
        let mut lanes = Self { waking: QueueKind::ALL.len(), quiet: 0 };
        for (incoming, outgoing) in stages {
            let checksums = if verified { credits as usize } else { 0 };
            let places = incoming.map_or(0, Routes::places) as usize;
            lanes.waking += 2 * credits as usize + checksums + places + 1;
            lanes.quiet += outgoing.map_or(0, |routes| of_next(routes, slots as usize, verified));
        }
        lanes
    }

    /// Returns the additional capacity of a device's mailbox for `passages` passages of keys and values. The
    /// waking queue holds one message and one checksum per place. If the device has the prefill `stage`, it
    /// also holds one hand-off per micro-batch at this stage.
    #[must_use]
    pub fn with_passages(self, passages: usize, has_prefill_stage: bool) -> Self {
        let hand_offs = if has_prefill_stage { PREFILLS } else { 0 };
        Self { waking: self.waking + 2 * passages * PREFILLS + hand_offs, ..self }
    }

    /// Returns the capacities of the coordinator's mailbox. The waking queue holds one pending progress
    /// notice for each path. The quiet queue holds one return per micro-batch in flight.
    pub fn of_run(credits: u32) -> Self {
        Self { waking: Path::ALL.len(), quiet: credits as usize }
    }
}

/// Returns the maximum number of messages from a next stage that the stage before it has not handled.
///
/// A micro-batch returns its credit at the end of the pipeline, so its messages to an earlier stage may still be on
/// their way when another micro-batch uses the credit. Therefore credits are no bound. A returned place and a slot
/// that was read are bounds: the stage uses neither again before it has handled the message. Let `returned` be the
/// number of both.
///
/// Messages about free slots are sent only with the peer route. Let *h* be the number of them that the stage has handled.
/// The stage knows free slots for the first *h* + `slots` transfers, so at most `slots` later messages are about slots
/// of these. A later transfer cannot take the peer route, and takes its slot only after message *h* + 1. So the stage has
/// not handled the message that returns its place or its slot here, either, and there are at most `returned` of them.
///
/// If transfers are `verified`, there is one result, because one transfer of an edge is verified at a time.
fn of_next(routes: &Routes, slots: usize, verified: bool) -> usize {
    let has = |wanted| routes.iter().any(|route| route == wanted);
    let returned = routes.places() as usize + if has(Route::Import) { slots } else { 0 };
    let free = if has(Route::Peer) { slots + returned } else { 0 };
    returned + free + usize::from(verified)
}

/// For each stage of a device, returns its incoming and its outgoing routes. `routes` lists the routes of
/// each edge, and `hosts` the device of each stage of the pipeline.
pub(crate) fn routes_of<'a>(
    routes: &'a [Routes],
    hosts: &'a [usize],
    device: usize,
) -> impl Iterator<Item = (Option<&'a Routes>, Option<&'a Routes>)> {
    let stages = hosts.iter().enumerate().filter(move |(_, host)| **host == device);
    stages.map(|(index, _)| (index.checked_sub(1).and_then(|i| routes.get(i)), routes.get(index)))
}
