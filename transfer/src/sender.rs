//! The source's half of an edge. It passes the transfers to their routes, one after another.

use crate::action::Action;
use crate::error::Error;
use crate::guard::{OutGuard, unverified};
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use crate::route::{Outgoing, Routes, Source};
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
}

/// The half of the state machine that runs on the source device.
#[derive(Debug)]
pub struct Sender {
    routes: Routes,
    ends: Vec<Box<dyn Source>>,
    /// Transfers that have not been requested completely.
    queue: VecDeque<Outgoing>,
    newest: Option<TransferId>,
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
        Ok(Self { routes: routes.clone(), ends, queue: VecDeque::new(), newest: None, guard: None })
    }

    /// Makes the sender work with a receiver that verifies all transfers.
    #[must_use]
    pub fn verified(self) -> Self {
        Self { guard: Some(Box::new(OutGuard::new(&self.routes))), ..self }
    }

    /// Returns the routes that later transfers can take: all routes but those that were replaced.
    pub fn routes(&self) -> Routes {
        self.guard.as_ref().map_or_else(|| self.routes.clone(), |guard| guard.in_use(&self.routes))
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
    /// wrong bytes again and no other route is left.
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
            SenderEvent::Message(message @ (ToSender::Confirmed(_) | ToSender::Again { .. })) => {
                self.verdict(message, actions)?;
            }
            SenderEvent::Message(message) => {
                let (mut known, from) = (false, actions.len());
                for end in &mut self.ends {
                    known |= end.receive(message, points, actions)?;
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
                let (outgoing, requests) = guard.again(transfer, slot, &self.routes)?;
                self.queue.push_front(outgoing);
                actions.extend(requests);
            }
            _ => return Err(unverified(message)),
        }
        Ok(())
    }

    fn advance(&mut self, points: &mut Points, actions: &mut Vec<Action<ToReceiver>>) {
        while let Some(outgoing) = self.queue.front_mut() {
            let (route, is_blocked) = match &self.guard {
                Some(guard) => (guard.route(&self.routes, outgoing.bytes), guard.is_waiting()),
                None => {
                    let route = self.routes.of(outgoing.bytes);
                    let mut others = self.ends.iter().enumerate().filter(|(index, _)| *index != route);
                    (route, others.any(|(_, end)| end.is_undone()))
                }
            };
            let from = actions.len();
            if is_blocked || !self.ends[route].advance(outgoing, points, actions) {
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
