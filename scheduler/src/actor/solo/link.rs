//! An edge between two devices, for timing. It transfers bytes as an edge of a pipeline does.

use super::SoloDevice;
use crate::actor::edge::{copy_command, copy_queue};
use crate::core::End;
use crate::error::{Error, Result};
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, HostRegion, QueueKind, RegionId, Submission, Timeline, Work,
};
use ragtag_transfer::{
    Action, Copy, Receiver, ReceiverEvent, Route, Routes, Sender, SenderEvent, TransferId,
};
use std::sync::Arc;
use std::time::Instant;

/// The only slot of each device.
const SLOT: BufferId = BufferId(0);
/// The slot of the other device.
const OTHER: BufferId = BufferId(1);
const RING: RegionId = RegionId(0);

/// An edge from one device to another whose transfers can be timed outside a pipeline.
pub struct SoloLink<'a> {
    from: &'a mut SoloDevice,
    to: &'a mut SoloDevice,
    sender: Sender,
    receiver: Receiver,
    transfers: u64,
    bytes: u64,
}

impl std::fmt::Debug for SoloLink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoloLink").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl Drop for SoloLink<'_> {
    fn drop(&mut self) {
        self.from.device.clear();
        self.to.device.clear();
    }
}

impl<'a> SoloLink<'a> {
    /// Creates a link for transfers of at most `bytes` bytes. The two devices must have different ids.
    ///
    /// # Errors
    /// [`Error::Spec`] if `route` is unusable, or the error of a device. A device that cannot share memory
    /// refuses the routes that need it.
    pub fn new(from: &'a mut SoloDevice, to: &'a mut SoloDevice, route: Route, bytes: u64) -> Result<Self> {
        let routes = Routes::from(route);
        let unusable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let sender = Sender::new(&routes, 1).map_err(unusable)?;
        let receiver = Receiver::new(&routes, 1).map_err(unusable)?;
        let link = Self { from, to, sender, receiver, transfers: 0, bytes };
        link.prepare(route)
    }

    fn prepare(self, route: Route) -> Result<Self> {
        let ring = HostRegion::new(route.staging_bytes().max(1) as usize);
        let ring = Arc::new(ring.map_err(|cause| self.from.failed(cause))?);
        let timeline = |of: &SoloDevice, queue: QueueKind| Arc::clone(&of.own[queue.index()]);
        let from_next = vec![timeline(self.to, QueueKind::Upload)];
        let from_previous = [QueueKind::Compute, QueueKind::Download].map(|queue| timeline(self.from, queue));
        let open = |of: &mut SoloDevice, timelines: Vec<Arc<Timeline>>, is_lent: bool| {
            let made = match is_lent {
                true => of.device.create_shared_buffer(SLOT, self.bytes),
                false => of.device.create_buffer(SLOT, self.bytes),
            };
            let made = made.and_then(|()| of.device.register_region(RING, Arc::clone(&ring)));
            let mut timelines = timelines.into_iter();
            let made = made.and_then(|()| timelines.try_for_each(|other| of.device.import_timeline(other)));
            made.map_err(|cause| of.failed(cause))
        };
        open(self.from, from_next, route == Route::Import)?;
        open(self.to, from_previous.into(), route == Route::Peer)?;
        let share = |owner: &SoloDevice, user: &mut SoloDevice| {
            let memory = owner.device.export_buffer(SLOT).map_err(|cause| owner.failed(cause))?;
            user.device.import_buffer(OTHER, &memory).map_err(|cause| user.failed(cause))
        };
        match route {
            Route::Peer => share(self.to, self.from)?,
            Route::Import => share(self.from, self.to)?,
            Route::HostStaged { .. } => {}
        }
        Ok(self)
    }

    /// Returns the time from an empty submission on the first device until the host knows of its completion,
    /// in microseconds. [`SoloLink::time_us`] includes this time in addition to the transfer.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn hand_over_us(&mut self) -> Result<f64> {
        let start = Instant::now();
        let idle = self.from.submit(QueueKind::Compute, Work::Commands(Vec::new()), &[])?;
        self.from.wait(idle)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    /// Returns the time of a transfer of `bytes` bytes, in microseconds. The time starts with an empty
    /// submission on the first device. An empty submission on the second device waits for the bytes. The time
    /// ends when the host learns that this submission has completed. `bytes` is clamped to the range from 1
    /// to the maximum of the link.
    ///
    /// # Errors
    /// Fails if a device fails.
    pub fn time_us(&mut self, bytes: u64) -> Result<f64> {
        let bytes = bytes.clamp(1, self.bytes);
        let nothing = || Work::Commands(Vec::new());
        let start = Instant::now();
        let after = self.from.submit(QueueKind::Compute, nothing(), &[])?;
        let transfer = TransferId(self.transfers);
        self.transfers += 1;
        let mut to_sender = vec![SenderEvent::Send { transfer, slot: 0, bytes, after }];
        let mut to_receiver = vec![ReceiverEvent::Expect { transfer, bytes }];
        let (mut sent, mut arrived) = (None, None);
        while !to_sender.is_empty() || !to_receiver.is_empty() {
            for event in std::mem::take(&mut to_sender) {
                let mut actions = Vec::new();
                self.sender.step(event, &mut self.from.points.download, &mut actions)?;
                for action in actions {
                    match action {
                        Action::Copy(copy) => copy_on(self.from, End::Outgoing, copy)?,
                        Action::Message(message) => to_receiver.push(ReceiverEvent::Message(message)),
                        Action::Done { at, .. } => sent = Some(at),
                    }
                }
            }
            for event in std::mem::take(&mut to_receiver) {
                let mut actions = Vec::new();
                self.receiver.step(event, &mut self.to.points.upload, &mut actions)?;
                for action in actions {
                    match action {
                        Action::Copy(copy) => copy_on(self.to, End::Incoming, copy)?,
                        Action::Message(message) => to_sender.push(SenderEvent::Message(message)),
                        Action::Done { at, .. } => arrived = Some(at),
                    }
                }
            }
        }
        let (Some(sent), Some(arrived)) = (sent, arrived) else {
            return Err(Error::protocol(format!("{transfer} did not arrive")));
        };
        let ready = self.to.submit(QueueKind::Compute, nothing(), &[arrived])?;
        self.to.wait(ready)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        self.from.wait(sent)?;
        let mut announced = Vec::new();
        self.receiver.step(ReceiverEvent::Free(0), &mut self.to.points.upload, &mut announced)?;
        for action in announced {
            if let Action::Message(message) = action {
                let event = SenderEvent::Message(message);
                self.sender.step(event, &mut self.from.points.download, &mut Vec::new())?;
            }
        }
        Ok(us)
    }
}

/// Submits a copy to one of the two devices.
fn copy_on(device: &mut SoloDevice, end: End, copy: Copy) -> Result<()> {
    let own = BufferRange { buffer: SLOT, offset: copy.offset, bytes: copy.bytes };
    let command = copy_command(end, &copy, own, RING, &[OTHER])?;
    let work = Work::Commands(command.into_iter().collect::<Vec<Command>>());
    let submission = Submission { queue: copy_queue(end), work, waits: copy.waits, signal: copy.signal };
    device.device.submit(submission).map_err(|cause| device.failed(cause))
}
