//! The destination's half of an edge. It assigns the free slots of its stage to the transfers, and passes the
//! transfers to their routes, one after another.

use crate::action::Action;
use crate::error::Error;
use crate::guard::{InGuard, Verdict, unverified};
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use crate::route::{DestinationEnd, Incoming, Requests, Route, Routes};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Event that the receiver handles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverEvent {
    /// Announces a transfer. Transfers must arrive in the order of their announcements.
    Expect {
        /// Identifier of the transfer.
        transfer: TransferId,
        /// Size of the transfer in bytes.
        bytes: u64,
    },
    /// A slot of the stage is free again.
    Free(u32),
    /// A message from the sender.
    Message(ToReceiver),
    /// The checksum that [`Action::Sum`] requested.
    Summed {
        /// The transfer.
        transfer: TransferId,
        /// The checksum.
        sum: u64,
    },
}

/// The half of the state machine that runs on the destination device.
#[derive(Debug)]
pub struct Receiver {
    ends: Vec<Box<dyn DestinationEnd>>,
    /// Whether the sender writes into slots, so that it must know the free ones.
    announces: bool,
    /// Transfers that have a slot but have not been requested completely.
    receiving: VecDeque<Incoming>,
    /// Transfers without a slot, with their sizes in bytes.
    waiting: VecDeque<(TransferId, u64)>,
    newest: Option<TransferId>,
    /// Free slots, in the order in which transfers take them.
    free: VecDeque<u32>,
    /// Present if the receiver verifies the transfers.
    guard: Option<Box<InGuard>>,
}

impl Receiver {
    /// Creates the receiver of a stage with `slots` free slots.
    ///
    /// # Errors
    /// The errors of [`Routes::check`].
    pub fn new(routes: &Routes, slots: u32) -> Result<Self, Error> {
        routes.check()?;
        Ok(Self {
            ends: routes.ends(slots).into_iter().map(|(_, destination)| destination).collect(),
            announces: routes.iter().any(|route| route == Route::Peer),
            receiving: VecDeque::new(),
            waiting: VecDeque::new(),
            newest: None,
            free: (0..slots).collect(),
            guard: None,
        })
    }

    /// Makes the receiver verify all transfers.
    #[must_use]
    pub fn verified(self) -> Self {
        Self { guard: Some(Box::default()), ..self }
    }

    /// Returns the number of transfers whose copies have not all been requested, or that are not verified.
    pub fn expected(&self) -> usize {
        self.receiving.len() + self.waiting.len() + usize::from(self.is_unverified())
    }

    /// Returns whether a transfer was requested completely but is not verified.
    fn is_unverified(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.is_waiting())
    }

    /// Returns the number of announced transfers that have no slot.
    pub fn without_slot(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of free slots.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Returns whether the sender or a transfer may soon wait for a slot.
    pub fn is_short_of_slots(&self) -> bool {
        !self.waiting.is_empty() || (self.announces && self.free.len() <= 1)
    }

    /// Handles an event and appends the resulting actions. Copies signal points that are allocated from
    /// `points`, which belong to the destination's upload queue.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a message that the sender must not send now, and for a slot that is already
    /// free. [`Error::Empty`] for a transfer of zero bytes.
    pub fn step(
        &mut self,
        event: ReceiverEvent,
        points: &mut Points,
        actions: &mut Vec<Action<ToSender>>,
    ) -> Result<(), Error> {
        match event {
            ReceiverEvent::Expect { transfer, bytes: 0 } => return Err(Error::Empty(transfer)),
            ReceiverEvent::Expect { transfer, bytes } => {
                if self.newest.is_some_and(|newest| transfer <= newest) {
                    return Err(Error::protocol(format!("{transfer} announced out of order")));
                }
                self.newest = Some(transfer);
                self.waiting.push_back((transfer, bytes));
            }
            ReceiverEvent::Free(slot) if self.free.contains(&slot) => {
                return Err(Error::protocol(format!("slot {slot} is free already")));
            }
            ReceiverEvent::Free(slot) if self.announces => {
                self.free.push_back(slot);
                actions.push(Action::Message(ToSender::Slot(slot)));
            }
            // The lowest slot comes first: the stage records its programs for each slot that it uses.
            ReceiverEvent::Free(slot) => {
                let lower = self.free.partition_point(|free| *free < slot);
                self.free.insert(lower, slot);
            }
            ReceiverEvent::Message(ToReceiver::Sum { transfer, sum }) => {
                self.guard.as_mut().ok_or_else(|| unverified(event))?.source(transfer, sum)?;
            }
            ReceiverEvent::Summed { transfer, sum } => {
                self.guard.as_mut().ok_or_else(|| unverified(event))?.own(transfer, sum)?;
            }
            ReceiverEvent::Message(message) => {
                let mut known = false;
                for end in &mut self.ends {
                    known |= end.receive(message)?;
                }
                if !known {
                    return Err(Error::protocol(format!("{message:?} fits no route")));
                }
            }
        }
        while let Some((transfer, bytes)) = self.waiting.pop_front_if(|_| !self.free.is_empty()) {
            let Some(slot) = self.free.pop_front() else { break };
            self.receiving.push_back(Incoming { transfer, bytes, received: 0, slot });
        }
        match self.guard.as_mut().and_then(|guard| guard.verdict()) {
            Some(Verdict::Right(done)) => actions.extend(done),
            Some(Verdict::Wrong(incoming, again)) => {
                self.receiving.push_front(incoming);
                actions.push(again);
            }
            None => {}
        }
        self.advance(points, actions)
    }

    fn advance(&mut self, points: &mut Points, actions: &mut Vec<Action<ToSender>>) -> Result<(), Error> {
        while !self.is_unverified()
            && let Some(incoming) = self.receiving.front_mut()
        {
            // The sender alone knows which routes were replaced.
            let held = self.ends.iter().enumerate().filter_map(|(at, end)| Some((end.held()?, at)));
            let Some((transfer, route)) = held.min() else { return Ok(()) };
            // If a copy over the peer route was refused, later transfers arrive first.
            if self.announces && transfer > incoming.transfer {
                return Ok(());
            }
            if !self.ends[route].advance(incoming, &mut Requests { points, actions })? {
                return Ok(());
            }
            if let (Some(incoming), Some(guard)) = (self.receiving.pop_front(), &mut self.guard) {
                guard.arrived(incoming, actions);
            }
        }
        Ok(())
    }
}
