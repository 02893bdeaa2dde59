//! The source's half of an edge. It passes the transfers to their routes, one after another.

use crate::action::Action;
use crate::error::Error;
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
}

/// The half of the state machine that runs on the source device.
#[derive(Debug)]
pub struct Sender {
    routes: Routes,
    ends: Vec<Box<dyn Source>>,
    /// Transfers that have not been requested completely.
    queue: VecDeque<Outgoing>,
    newest: Option<TransferId>,
}

impl Sender {
    /// Creates a sender to a stage with `slots` slots.
    ///
    /// # Errors
    /// The errors of [`Routes::check`].
    pub fn new(routes: &Routes, slots: u32) -> Result<Self, Error> {
        routes.check()?;
        let ends = routes.ends(slots).into_iter().map(|(source, _)| source).collect();
        Ok(Self { routes: routes.clone(), ends, queue: VecDeque::new(), newest: None })
    }

    /// Returns whether a message from the receiver lets the sender continue or frees a slot.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || self.ends.iter().any(|end| end.is_undone())
    }

    /// Returns whether all transfers are done and the receiver has returned all places of the rings.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.ends.iter().all(|end| end.is_idle())
    }

    /// Handles an event and appends the resulting actions. Copies signal points that are allocated from
    /// `points`, which belong to the source's download queue.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a message that the receiver must not send now, and for identifiers that do not
    /// ascend. [`Error::Empty`] for a transfer of zero bytes.
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
                self.queue.push_back(Outgoing { transfer, slot, bytes, sent: 0, after });
            }
            SenderEvent::Message(message) => {
                let mut known = false;
                for end in &mut self.ends {
                    known |= end.receive(message, points, actions)?;
                }
                if !known {
                    return Err(Error::protocol(format!("{message:?} fits no route")));
                }
            }
        }
        self.advance(points, actions);
        Ok(())
    }

    fn advance(&mut self, points: &mut Points, actions: &mut Vec<Action<ToReceiver>>) {
        while let Some(outgoing) = self.queue.front_mut() {
            let route = self.routes.of(outgoing.bytes);
            let mut others = self.ends.iter().enumerate().filter(|(index, _)| *index != route);
            if others.any(|(_, end)| end.is_undone()) || !self.ends[route].advance(outgoing, points, actions)
            {
                return;
            }
            self.queue.pop_front();
            let others = self.ends.iter_mut().enumerate().filter(|(index, _)| *index != route);
            others.for_each(|(_, end)| end.skip());
        }
    }
}
