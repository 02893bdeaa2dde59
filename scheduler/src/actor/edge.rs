//! A stage's edges: the messages to its neighbours, and the memory that both ends share.

use super::memory::StageBuffers;
use super::owned::OwnedDevice;
use crate::core::StageEvent;
use crate::error::{Error, Result};
use crate::mailbox::Notice;
use crate::message::{DeviceAddress, DeviceMessage};
use crossbeam_channel::{Receiver, Sender, bounded};
use ragtag_hal::{
    BufferId, Device, HostRegion, QueueLayout, RegionId, SharedMemory, SharedSemaphore, Timeline, TimelineId,
};
use ragtag_transfer::{Route, Routes, ToSender};
use std::sync::Arc;

/// An edge between two stages, as one of them sees it.
pub(crate) struct Edge {
    pub(crate) routes: Routes,
    /// Host memory of the rings.
    pub(crate) ring: Arc<HostRegion>,
    /// Id of this memory, once it is registered with the device.
    pub(crate) ring_id: Option<RegionId>,
    /// Label of the neighbour's device.
    pub(crate) label: String,
    /// Address of the mailbox of the neighbour's device.
    pub(crate) address: DeviceAddress,
    /// Index of the neighbour among the stages of its device.
    pub(crate) stage: usize,
    /// Timelines of the neighbour's device that signal the points for which this stage waits.
    pub(crate) timelines: Vec<Arc<Timeline>>,
    /// Notice that the sender arms while it waits for a message from the receiver.
    pub(crate) notice: Notice,
    /// Memory that the two ends share.
    pub(crate) shared: Sharing,
    /// The neighbour's slots that this stage's device has imported.
    pub(crate) imported: Vec<BufferId>,
}

/// One end of the exchange of slots between two stages.
#[derive(Default)]
pub(crate) struct Sharing {
    /// Set if the neighbour accesses this stage's slots.
    lend: Option<Lend>,
    /// Set if this stage accesses the neighbour's slots.
    borrow: Option<Borrow>,
}

/// The end that exports its slots.
struct Lend {
    route: Route,
    /// Takes the slots, or `None` if the device cannot export them.
    lent: Sender<Option<Lent>>,
    /// Tells what the neighbour has imported.
    answer: Receiver<Answer>,
    /// Semaphore of the route, if the device can share one.
    semaphore: Option<SharedSemaphore>,
}

/// The end that imports the neighbour's slots.
struct Borrow {
    route: Route,
    lent: Receiver<Option<Lent>>,
    answer: Sender<Answer>,
}

/// The slots of a stage, and a semaphore with which the receiving device waits for transfers.
struct Lent {
    slots: Vec<SharedMemory>,
    semaphore: Option<SharedSemaphore>,
}

/// Answer of the end that imports.
#[derive(Clone, Copy)]
struct Answer {
    /// Whether it has imported the slots.
    slots: bool,
    /// Whether it uses the semaphore.
    semaphore: bool,
}

impl Sharing {
    /// Returns the sharing at the sender and at the receiver of an edge.
    pub(crate) fn of(routes: &Routes) -> (Self, Self) {
        let exchange = |route: Route| {
            let ((lend, lent), (answer, answered)) = (bounded(1), bounded(1));
            (Lend { route, lent: lend, answer: answered, semaphore: None }, Borrow { route, lent, answer })
        };
        let mut ends = (Self::default(), Self::default());
        if routes.iter().any(|route| route == Route::Peer) {
            let (lend, borrow) = exchange(Route::Peer);
            (ends.0.borrow, ends.1.lend) = (Some(borrow), Some(lend));
        }
        if routes.iter().any(|route| route == Route::Import) {
            let (lend, borrow) = exchange(Route::Import);
            (ends.0.lend, ends.1.borrow) = (Some(lend), Some(borrow));
        }
        ends
    }
}

impl Edge {
    /// Returns whether the neighbour accesses this stage's slots.
    pub(crate) fn lends(&self) -> bool {
        self.shared.lend.is_some()
    }

    /// Exports the stage's slots if the neighbour accesses them. If that fails, removes the route that needs
    /// them.
    ///
    /// # Errors
    /// Fails if the device cannot export buffers and the edge has no other route.
    pub(crate) fn lend(&mut self, device: &mut OwnedDevice, memory: &StageBuffers) -> ragtag_hal::Result<()> {
        let Some(Lend { route, lent, semaphore, .. }) = &mut self.shared.lend else { return Ok(()) };
        let slots = memory.edge_buffers().map(|buffer| device.export_buffer(buffer));
        let slots: ragtag_hal::Result<Vec<_>> = slots.collect();
        // If the neighbour has failed, its error ends the run.
        match slots {
            Ok(slots) => {
                // Without a semaphore, the host waits for transfers.
                semaphore.clone_from(&device.create_semaphore().ok());
                let _ = lent.send(Some(Lent { slots, semaphore: semaphore.clone() }));
            }
            Err(error) => {
                let _ = lent.send(None);
                let route = *route;
                self.shared.lend = None;
                self.without(route, device, error)?;
            }
        }
        Ok(())
    }

    /// Imports the neighbour's slots if this stage accesses them. Waits until the neighbour exports them. If
    /// the import fails, removes the route that needs them.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the neighbour has failed. Fails if the device cannot import the slots and the
    /// edge has no other route. `failed` converts errors of the device.
    pub(crate) fn borrow(
        &mut self,
        device: &mut OwnedDevice,
        failed: impl Fn(ragtag_hal::Error) -> Error,
    ) -> Result<()> {
        let Some(Borrow { route, lent, answer }) = self.shared.borrow.take() else { return Ok(()) };
        let Some(Lent { slots, semaphore }) = lent.recv().map_err(|_| Error::Stopped)? else {
            return self.removed_by_neighbour(route);
        };
        let import = |slot: &SharedMemory| {
            let id = device.new_buffer_id();
            device.import_buffer(id, slot)?;
            self.imported.push(id);
            Ok(())
        };
        let result = slots.iter().try_for_each(import);
        let semaphore = semaphore.filter(|_| result.is_ok());
        let semaphore = semaphore.is_some_and(|semaphore| {
            share_semaphore(device, &semaphore, route, self.sender(route).filter(|_| route == Route::Import))
        });
        // If the neighbour has failed, its error ends the run.
        let _ = answer.send(Answer { slots: result.is_ok(), semaphore });
        let Err(error) = result else { return Ok(()) };
        for id in self.imported.drain(..) {
            device.destroy_buffer(id).map_err(&failed)?;
        }
        self.without(route, device, error).map_err(failed)
    }

    /// Waits until the neighbour has imported this stage's slots, if it accesses them. If it could not,
    /// removes the route that needs them. Both ends of the edge then have the same routes.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the neighbour has failed.
    pub(crate) fn settle(&mut self, device: &mut dyn Device) -> Result<()> {
        let Some(Lend { route, answer, semaphore, .. }) = self.shared.lend.take() else { return Ok(()) };
        let answer = answer.recv().map_err(|_| Error::Stopped)?;
        if !answer.slots {
            return self.removed_by_neighbour(route);
        }
        if let Some(semaphore) = semaphore.filter(|_| answer.semaphore) {
            let sender = self.sender(route).filter(|_| route == Route::Peer);
            share_semaphore(device, &semaphore, route, sender);
        }
        Ok(())
    }

    /// Removes a route that the neighbour has removed.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the edge has no other route. The neighbour reports the cause.
    fn removed_by_neighbour(&mut self, route: Route) -> Result<()> {
        if self.routes.remove(route) { Ok(()) } else { Err(Error::Stopped) }
    }

    /// Removes a route because the device has refused to share memory.
    ///
    /// # Errors
    /// Returns `error` if the edge has no other route.
    fn without(
        &mut self,
        route: Route,
        device: &dyn Device,
        error: ragtag_hal::Error,
    ) -> ragtag_hal::Result<()> {
        if !self.routes.remove(route) {
            return Err(error);
        }
        let device = device.adapter().label();
        tracing::warn!(device, ?route, %error, "the device cannot share memory; activations take another route");
        Ok(())
    }

    /// Returns the timeline of the neighbour's points after which this stage may read.
    fn sender(&self, route: Route) -> Option<TimelineId> {
        let ids = self.timelines.iter().map(|timeline| timeline.id());
        ids.into_iter().find(|id| id.queue == route.sending_queue())
    }

    /// Wraps an event in a message for the neighbour.
    fn message(&self, event: StageEvent) -> DeviceMessage {
        DeviceMessage::Event { stage: self.stage, event }
    }
}

/// Makes a device use the semaphore of a route, so that the receiver waits for transfers on the device. The
/// receiving device waits for points of the timeline `sender`, and the sending device (`None`) raises the
/// semaphore. Returns whether the device can do so.
pub fn share_semaphore(
    device: &mut dyn Device,
    semaphore: &SharedSemaphore,
    route: Route,
    sender: Option<TimelineId>,
) -> bool {
    let shared = match sender {
        // If the queues share one hardware queue, a waiting upload would also block computations.
        Some(_) if device.adapter().caps.queues == QueueLayout::Single => return false,
        Some(sender) => device.await_semaphore(sender, semaphore),
        None => device.raise_semaphore(route.sending_queue(), semaphore),
    };
    shared.inspect_err(|error| tracing::debug!(%error, "the host waits for transfers")).is_ok()
}

/// Sends a message about activations to the previous stage. Wakes its device only if it waits for one.
pub(crate) fn to_previous(previous: &Option<Edge>, message: ToSender) -> Result<()> {
    let Some(previous) = previous else {
        return Err(Error::protocol("a message to a stage before the first"));
    };
    previous.address.send_quietly(previous.message(StageEvent::FromNext(message)))?;
    if previous.notice.take() {
        previous.address.send(DeviceMessage::Quiet)?;
    }
    Ok(())
}

/// Sends an event to the next stage.
pub(crate) fn to_next(next: &Option<Edge>, event: StageEvent) -> Result<()> {
    match next {
        Some(next) => next.address.send(next.message(event)),
        None => Err(Error::protocol("a message to a stage after the last")),
    }
}
