//! The source's half of an edge. It passes the transfers to their routes, one after another.

use crate::action::Action;
use crate::error::Error;
use crate::guard::{OutGuard, unverified};
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use crate::route::{Outgoing, Requests, Route, Routes, RoutesInUse, SourceEnd};
use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Event that the sender handles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SenderEvent {
    /// Starts a transfer. Transfers are sent in the order of these events.
    Send {
        /// Identifier of the transfer. It must be larger than all earlier ones.
        transfer: TransferId,
        /// Slot that holds the transfer.
        slot: u32,
        /// Size of the transfer in bytes.
        bytes: u64,
        /// Point that passes once all bytes have been written to the slot.
        after: Point,
    },
    /// A message from the receiver.
    Message(ToSender),
    /// The checksum that [`Action::Sum`] requested.
    Summed {
        /// The transfer.
        transfer: TransferId,
        /// The checksum.
        sum: u64,
    },
    /// Only if transfers are not verified: the source device has refused the copy of a transfer over the peer
    /// route. The caller has not sent the message about the transfer and still holds its slot.
    Refused {
        /// The transfer.
        transfer: TransferId,
        /// Slot that holds the transfer.
        slot: u32,
        /// Slot of the receiver's stage, the destination of the refused copy.
        to: u32,
        /// Size of the transfer in bytes.
        bytes: u64,
        /// Point that passes once all bytes have been written to the slot.
        after: Point,
    },
}

/// The half of the state machine that runs on the source device.
#[derive(Debug)]
pub struct Sender {
    routes: RoutesInUse,
    ends: Vec<Box<dyn SourceEnd>>,
    /// Transfers that have not been requested completely.
    queue: VecDeque<Outgoing>,
    newest: Option<TransferId>,
    /// The latest transfer that has a part over another route than the peer route.
    newest_other: Option<TransferId>,
    /// Present if the receiver verifies the transfers.
    guard: Option<Box<OutGuard>>,
}

impl Sender {
    /// Creates a sender to a stage with `slots` slots.
    ///
    /// # Errors
    /// The errors of [`Routes::check`].
    pub fn new(routes: &Routes, slots: u32) -> Result<Self, Error> {
        routes.check()?;
        let ends = routes.ends(slots).into_iter().map(|(source, _)| source).collect();
        let (routes, queue) = (RoutesInUse::new(routes), VecDeque::new());
        Ok(Self { routes, ends, queue, newest: None, newest_other: None, guard: None })
    }

    /// Makes the sender work with a receiver that verifies all transfers.
    #[must_use]
    pub fn verified(self) -> Self {
        Self { guard: Some(Box::default()), ..self }
    }

    /// Returns the routes that later transfers can take: all routes but those that were replaced.
    pub fn routes(&self) -> Routes {
        self.routes.left()
    }

    /// Returns whether a message from the receiver lets the sender continue or frees a slot.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || self.is_unconfirmed() || self.ends.iter().any(|end| end.is_undone())
    }

    /// Returns whether a transfer was requested completely but the receiver has not confirmed it.
    fn is_unconfirmed(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.is_waiting())
    }

    /// Returns whether all transfers are done and the receiver has returned all places of the rings.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_unconfirmed() && self.ends.iter().all(|end| end.is_idle())
    }

    /// Handles an event and appends the resulting actions. Copies signal points that are allocated from
    /// `points`, which belong to the source's download queue.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a message that the receiver must not send now, and for identifiers that do not
    /// ascend. [`Error::Empty`] for a transfer of zero bytes. [`Error::Corrupted`] if a transfer arrives with
    /// wrong bytes again and no other route is left. [`Error::Refused`] if no other route can replace a
    /// refused one.
    pub fn step(
        &mut self,
        event: SenderEvent,
        points: &mut Points,
        actions: &mut Vec<Action<ToReceiver>>,
    ) -> Result<(), Error> {
        match event {
            SenderEvent::Send { transfer, bytes: 0, .. } => return Err(Error::Empty(transfer)),
            SenderEvent::Send { transfer, slot, bytes, after } => {
                if self.newest.is_some_and(|newest| transfer <= newest) {
                    return Err(Error::protocol(format!("{transfer} sent out of order")));
                }
                self.newest = Some(transfer);
                self.queue.push_back(Outgoing { transfer, slot, bytes, sent: 0, after, again: None });
                if self.guard.is_some() {
                    actions.push(Action::Sum { transfer, slot, bytes, after });
                }
            }
            SenderEvent::Summed { transfer, sum } => {
                if self.guard.is_none() {
                    return Err(unverified(event));
                }
                actions.push(Action::Message(ToReceiver::Sum { transfer, sum }));
            }
            SenderEvent::Refused { transfer, slot, to, bytes, after } => {
                self.refused(Outgoing { transfer, slot, bytes, sent: 0, after, again: Some(to) }, actions)?;
            }
            SenderEvent::Message(message @ (ToSender::Confirmed(_) | ToSender::Again { .. })) => {
                self.verdict(message, actions)?;
            }
            SenderEvent::Message(message) => {
                let (mut known, from) = (false, actions.len());
                for end in &mut self.ends {
                    known |= end.receive(message, &mut Requests { points, actions })?;
                }
                if let Some(guard) = &mut self.guard {
                    guard.keep_slot(actions, from);
                }
                if !known {
                    return Err(Error::protocol(format!("{message:?} fits no route")));
                }
            }
        }
        self.advance(points, actions);
        Ok(())
    }

    /// Handles the receiver's result of a verification.
    fn verdict(&mut self, message: ToSender, actions: &mut Vec<Action<ToReceiver>>) -> Result<(), Error> {
        match (message, &mut self.guard) {
            (ToSender::Confirmed(transfer), Some(guard)) => actions.push(guard.confirmed(transfer)?),
            (ToSender::Again { transfer, slot }, Some(guard)) => {
                let (outgoing, requests) = guard.again(transfer, slot, &mut self.routes)?;
                self.queue.push_front(outgoing);
                actions.extend(requests);
            }
            _ => return Err(unverified(message)),
        }
        Ok(())
    }

    /// Sends a transfer whose copy over the peer route was refused over the next route. Later transfers over
    /// the peer route may already have been requested. The receiver puts them in order.
    fn refused(&mut self, outgoing: Outgoing, actions: &mut Vec<Action<ToReceiver>>) -> Result<(), Error> {
        let Outgoing { transfer, bytes, .. } = outgoing;
        let (wrong, place) = (Route::Peer, self.queue.partition_point(|other| other.transfer < transfer));
        let at = self.routes.find(wrong).filter(|_| self.guard.is_none());
        let is_sent = self.newest.is_some_and(|newest| transfer <= newest)
            && self.queue.get(place).is_none_or(|other| other.transfer != transfer);
        let Some(at) = at.filter(|_| is_sent) else {
            return Err(Error::protocol(format!("{transfer} was not sent over an unverified peer route")));
        };
        // Other routes deliver in order, so an older transfer cannot follow.
        let over = self.routes.other_than(at, bytes).filter(|_| self.newest_other < Some(transfer));
        let over = over.ok_or(Error::Refused { transfer, route: wrong })?;
        self.routes.replace(at);
        self.queue.insert(place, outgoing);
        actions.push(Action::Resent { transfer, wrong, over: self.routes.at(over) });
        Ok(())
    }

    fn advance(&mut self, points: &mut Points, actions: &mut Vec<Action<ToReceiver>>) {
        while let Some(outgoing) = self.queue.front_mut() {
            let route = self.routes.of(outgoing.bytes);
            let is_blocked = match &self.guard {
                Some(guard) => guard.is_waiting(),
                None => {
                    let mut others = self.ends.iter().enumerate().filter(|(index, _)| *index != route);
                    others.any(|(_, end)| end.is_undone())
                }
            };
            if is_blocked {
                return;
            }
            let from = actions.len();
            let is_whole = self.ends[route].advance(outgoing, &mut Requests { points, actions });
            if self.routes.at(route) != Route::Peer && actions.len() > from {
                self.newest_other = self.newest_other.max(Some(outgoing.transfer));
            }
            if !is_whole {
                return;
            }
            let outgoing = *outgoing;
            self.queue.pop_front();
            if let Some(guard) = &mut self.guard {
                guard.sent(outgoing, route);
                guard.keep_slot(actions, from);
            }
            if outgoing.again.is_none() {
                let others = self.ends.iter_mut().enumerate().filter(|(index, _)| *index != route);
                others.for_each(|(_, end)| end.skip());
            }
        }
    }
}
