//! One direction of a link, and its transfers. Moves bytes as an edge of a pipeline does.

use super::{SoloDevice, protocol};
use ragtag_hal::{
    BufferId, BufferRange, Device, HostRegion, Point, QueueKind, RegionId, Submission, Timeline, Work,
};
use ragtag_scheduler::direct::share_semaphore;
use ragtag_scheduler::{Error, Result};
use ragtag_transfer::{
    Action, Copy, Receiver, ReceiverEvent, Route, Routes, Sender, SenderEvent, TransferId,
};
use std::ops::Range;
use std::sync::Arc;

/// One direction of a link.
pub(super) struct Direction {
    /// Index of the sending end.
    from: usize,
    /// The slot of each end.
    pub(super) slots: [BufferId; 2],
    /// The ring, as each end has registered it.
    rings: [RegionId; 2],
    /// The slot of the other end, at the end that has imported it.
    imported: Option<BufferId>,
    sender: Sender,
    receiver: Receiver,
    transfers: u64,
}

/// A transfer that was requested completely.
pub(super) struct Moved {
    /// Point after which the sender may reuse its slot.
    pub(super) sent: Point,
    /// Point after which the receiver may read its slot.
    pub(super) arrived: Point,
}

/// A transfer that is being requested.
pub(super) struct Moving {
    transfer: TransferId,
    to_sender: Vec<SenderEvent>,
    to_receiver: Vec<ReceiverEvent>,
    sent: Option<Point>,
    arrived: Option<Point>,
    /// Copies at both ends. `None` if they are not timed.
    pub(super) copies: Option<Vec<TimedCopy>>,
}

/// A timed copy at one end of a transfer. Its submission signals `signal`.
#[derive(Clone, Copy)]
pub(super) struct TimedCopy {
    /// Whether the sending device makes the copy.
    pub(super) is_outgoing: bool,
    pub(super) bytes: u64,
    pub(super) signal: Point,
}

impl Moving {
    pub(super) fn is_over(&self) -> bool {
        self.to_sender.is_empty() && self.to_receiver.is_empty()
    }

    pub(super) fn end(self) -> Result<Moved> {
        match (self.sent, self.arrived) {
            (Some(sent), Some(arrived)) => Ok(Moved { sent, arrived }),
            _ => Err(protocol(format!("{} did not arrive", self.transfer))),
        }
    }
}

impl Direction {
    /// Creates the slots and the ring, and shares them as the route requires.
    pub(super) fn new(
        from: usize,
        route: Route,
        ends: &mut [&mut SoloDevice; 2],
        bytes: u64,
    ) -> Result<Self> {
        let routes = Routes::from(route);
        let unusable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let sender = Sender::new(&routes, 1).map_err(unusable)?;
        let receiver = Receiver::new(&routes, 1).map_err(unusable)?;
        let ring = HostRegion::new(route.staging_bytes().max(1) as usize);
        let ring = Arc::new(ring.map_err(|cause| ends[from].failed(cause))?);
        let to = 1 - from;
        let owner = match route {
            Route::Peer => Some(to),
            Route::Import => Some(from),
            Route::HostStaged { .. } => None,
        };
        let mut open = |at: usize, queues: &[QueueKind]| {
            let timelines = queues.iter().map(|queue| Arc::clone(&ends[1 - at].own[queue.index()])).collect();
            ends[at].open(bytes, owner == Some(at), &ring, timelines)
        };
        let mut opened =
            [open(from, &[QueueKind::Upload])?, open(to, &[QueueKind::Compute, QueueKind::Download])?];
        if from == 1 {
            opened.reverse();
        }
        let (slots, rings) = (opened.map(|(slot, _)| slot), opened.map(|(_, ring)| ring));
        let direction = Self { from, slots, rings, imported: None, sender, receiver, transfers: 0 };
        let imported = owner.map(|owner| direction.share(ends, route, owner)).transpose()?;
        Ok(Self { imported, ..direction })
    }

    /// Makes the slot of one end accessible to the other end, which returns its id of the slot.
    fn share(&self, ends: &mut [&mut SoloDevice; 2], route: Route, owner: usize) -> Result<BufferId> {
        let (from, to, user) = (self.from, 1 - self.from, 1 - owner);
        let memory = ends[owner].device.export_buffer(self.slots[owner]);
        let memory = memory.map_err(|cause| ends[owner].failed(cause))?;
        let id = ends[user].device.new_buffer_id();
        ends[user].device.import_buffer(id, &memory).map_err(|cause| ends[user].failed(cause))?;
        let sender = ends[from].own[route.sending_queue().index()].id();
        if let Ok(semaphore) = ends[owner].device.create_semaphore()
            && share_semaphore(&mut ends[from].device, &semaphore, route, None)
        {
            share_semaphore(&mut ends[to].device, &semaphore, route, Some(sender));
        }
        Ok(id)
    }

    pub(super) fn start(&mut self, part: &Range<u64>, after: Point) -> Moving {
        let (transfer, bytes) = (TransferId(self.transfers), part.end - part.start);
        self.transfers += 1;
        Moving {
            transfer,
            to_sender: vec![SenderEvent::Send { transfer, slot: 0, bytes, after }],
            to_receiver: vec![ReceiverEvent::Expect { transfer, bytes }],
            sent: None,
            arrived: None,
            copies: None,
        }
    }

    /// Handles the events of a transfer once at each end.
    pub(super) fn step(
        &mut self,
        ends: &mut [&mut SoloDevice; 2],
        start: u64,
        moving: &mut Moving,
    ) -> Result<()> {
        for event in std::mem::take(&mut moving.to_sender) {
            let mut actions = Vec::new();
            self.sender.step(event, &mut ends[self.from].points.download, &mut actions)?;
            for action in actions {
                match action {
                    Action::Copy(copy) => self.copy(ends, true, start, copy, &mut moving.copies)?,
                    Action::Message(message) => moving.to_receiver.push(ReceiverEvent::Message(message)),
                    Action::Done { at, .. } => moving.sent = Some(at),
                    // The transfers of a link are not verified.
                    Action::Sum { .. } | Action::Resent { .. } => {}
                }
            }
        }
        for event in std::mem::take(&mut moving.to_receiver) {
            let mut actions = Vec::new();
            self.receiver.step(event, &mut ends[1 - self.from].points.upload, &mut actions)?;
            for action in actions {
                match action {
                    Action::Copy(copy) => self.copy(ends, false, start, copy, &mut moving.copies)?,
                    Action::Message(message) => moving.to_sender.push(SenderEvent::Message(message)),
                    Action::Done { at, .. } => moving.arrived = Some(at),
                    Action::Sum { .. } | Action::Resent { .. } => {}
                }
            }
        }
        Ok(())
    }

    /// Submits a copy to the sending or to the receiving device, and adds it to `timed` if that is not `None`.
    /// `start` is the offset of the transfer in the slots.
    fn copy(
        &self,
        ends: &mut [&mut SoloDevice; 2],
        is_outgoing: bool,
        start: u64,
        copy: Copy,
        timed: &mut Option<Vec<TimedCopy>>,
    ) -> Result<()> {
        let at = if is_outgoing { self.from } else { 1 - self.from };
        let queue = if is_outgoing { QueueKind::Download } else { QueueKind::Upload };
        let own = BufferRange { buffer: self.slots[at], offset: start + copy.offset, bytes: copy.bytes };
        let command = copy.command(is_outgoing, own, Some(self.rings[at]), self.imported.as_slice())?;
        let work = Work::Commands(command.into_iter().collect());
        let Copy { waits, signal, bytes, .. } = copy;
        let is_timed = timed.is_some();
        timed.iter_mut().for_each(|timed| timed.push(TimedCopy { is_outgoing, bytes, signal }));
        let submission = Submission { queue, work, waits, signal, is_timed };
        ends[at].device.submit(submission).map_err(|cause| ends[at].failed(cause))
    }

    /// Frees the slot of the destination.
    pub(super) fn free(&mut self, ends: &mut [&mut SoloDevice; 2]) -> Result<()> {
        let mut announced = Vec::new();
        let uploads = &mut ends[1 - self.from].points.upload;
        self.receiver.step(ReceiverEvent::Free(0), uploads, &mut announced)?;
        for action in announced {
            if let Action::Message(message) = action {
                let event = SenderEvent::Message(message);
                self.sender.step(event, &mut ends[self.from].points.download, &mut Vec::new())?;
            }
        }
        Ok(())
    }
}

impl SoloDevice {
    /// Creates a slot, which the other device imports if `is_lent` is set. Registers the ring and imports
    /// timelines of the other device. Returns the ids of the slot and of the ring.
    fn open(
        &mut self,
        bytes: u64,
        is_lent: bool,
        ring: &Arc<HostRegion>,
        timelines: Vec<Arc<Timeline>>,
    ) -> Result<(BufferId, RegionId)> {
        let (slot, device) = (self.device.new_buffer_id(), &mut self.device);
        let made = match is_lent {
            true => device.create_shared_buffer(slot, bytes),
            false => device.create_buffer(slot, bytes),
        };
        let made = made.and_then(|()| device.new_region(ring));
        let made = made.and_then(|ring| {
            timelines.into_iter().try_for_each(|other| device.import_timeline(other)).map(|()| ring)
        });
        made.map(|ring| (slot, ring)).map_err(|cause| self.failed(cause))
    }
}
