//! Verification of transfers. Both ends of an edge compute a checksum of the slot that holds a transfer. The
//! receiver compares the checksums before its stage may read the slot.
//!
//! One transfer at a time is on its way. The sender keeps its slot until the receiver has confirmed the
//! transfer, so it can send the transfer again at any time, and all places of the ring are then free. A
//! transfer that is sent again takes the next route. If there is none, it takes the same route once more.

use crate::action::Action;
use crate::error::Error;
use crate::message::{ToSender, TransferId};
use crate::route::{Incoming, Outgoing, RoutesInUse};
use ragtag_hal::Point;

/// The sender's side of the verification.
#[derive(Debug, Default)]
pub(crate) struct OutGuard {
    sent: Option<Sent>,
    /// Index of the route that the transfer at the front of the queue took once already, if no other is left.
    repeats: Option<usize>,
}

/// A transfer that was requested completely and is not confirmed.
#[derive(Debug)]
struct Sent {
    outgoing: Outgoing,
    /// Index of its route.
    route: usize,
    /// Slot and point of its action `Done`, once the route has requested it.
    done: Option<(u32, Point)>,
}

impl OutGuard {
    /// Returns whether a transfer is on its way, so that the next one must wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent.is_some()
    }

    /// Records that a transfer was requested completely over a route.
    pub(crate) fn sent(&mut self, outgoing: Outgoing, route: usize) {
        self.sent = Some(Sent { outgoing, route, done: None });
    }

    /// Takes the `Done` out of the actions that a route has requested, because the slot stays in use.
    pub(crate) fn keep_slot<M>(&mut self, actions: &mut Vec<Action<M>>, from: usize) {
        let Some(at) = actions[from..].iter().position(|action| matches!(action, Action::Done { .. })) else {
            return;
        };
        let Action::Done { transfer, slot, at } = actions.remove(from + at) else { unreachable!() };
        let sent = self.sent.as_mut().filter(|sent| sent.outgoing.transfer == transfer);
        sent.unwrap_or_else(|| panic!("{transfer} is done but not on its way")).done = Some((slot, at));
    }

    /// Ends a transfer that the receiver has confirmed. Returns its action.
    pub(crate) fn confirmed<M>(&mut self, transfer: TransferId) -> Result<Action<M>, Error> {
        let sent = self.sent.take().filter(|sent| sent.outgoing.transfer == transfer);
        let Some((slot, at)) = sent.and_then(|sent| sent.done) else {
            return Err(Error::protocol(format!("{transfer} confirmed but not on its way")));
        };
        self.repeats = None;
        Ok(Action::Done { transfer, slot, at })
    }

    /// Returns the transfer that must be sent again into `slot`, and the actions that report it and request a
    /// new checksum.
    pub(crate) fn again<M>(
        &mut self,
        transfer: TransferId,
        slot: u32,
        routes: &mut RoutesInUse,
    ) -> Result<(Outgoing, [Action<M>; 2]), Error> {
        let sent = self.sent.take().filter(|sent| sent.outgoing.transfer == transfer);
        let Some(Sent { outgoing, route, .. }) = sent else {
            return Err(Error::protocol(format!("{transfer} requested again but not on its way")));
        };
        let wrong = routes.at(route);
        let over = match routes.other_than(route, outgoing.bytes) {
            Some(other) => {
                routes.replace(route);
                other
            }
            None if self.repeats == Some(route) => return Err(Error::Corrupted { transfer, route: wrong }),
            None => {
                self.repeats = Some(route);
                route
            }
        };
        let over = routes.at(over);
        let Outgoing { bytes, after, slot: own, .. } = outgoing;
        let sum = Action::Sum { transfer, slot: own, bytes, after };
        let outgoing = Outgoing { sent: 0, again: Some(slot), ..outgoing };
        Ok((outgoing, [Action::Resent { transfer, wrong, over }, sum]))
    }
}

/// The receiver's side of the verification.
#[derive(Debug, Default)]
pub(crate) struct InGuard {
    /// Checksums of the sender. There is at most one per transfer.
    sums: Vec<(TransferId, u64)>,
    arrived: Option<Arrived>,
}

/// A transfer whose checksums have not been compared.
#[derive(Debug)]
struct Arrived {
    incoming: Incoming,
    at: Point,
    sum: Option<u64>,
}

/// Result of a comparison.
pub(crate) enum Verdict {
    /// The checksums agree.
    Right([Action<ToSender>; 2]),
    /// The checksums differ. The transfer must be received again.
    Wrong(Incoming, Action<ToSender>),
}

impl InGuard {
    /// Returns whether a transfer has arrived and its checksums have not been compared.
    pub(crate) fn is_waiting(&self) -> bool {
        self.arrived.is_some()
    }

    /// Replaces the `Done` at the end of `actions` by the request for a checksum of the received bytes.
    pub(crate) fn arrived(&mut self, incoming: Incoming, actions: &mut Vec<Action<ToSender>>) {
        let Incoming { transfer, bytes, slot, .. } = incoming;
        let Some(Action::Done { at, .. }) = actions.pop() else {
            panic!("{transfer} has arrived, but its last action does not say so");
        };
        self.arrived = Some(Arrived { incoming, at, sum: None });
        actions.push(Action::Sum { transfer, slot, bytes, after: at });
    }

    /// Stores the sender's checksum of a transfer.
    pub(crate) fn source(&mut self, transfer: TransferId, sum: u64) -> Result<(), Error> {
        if self.sums.iter().any(|(other, _)| *other == transfer) {
            return Err(Error::protocol(format!("two checksums of {transfer}")));
        }
        self.sums.push((transfer, sum));
        Ok(())
    }

    /// Stores the checksum of the received bytes.
    pub(crate) fn own(&mut self, transfer: TransferId, sum: u64) -> Result<(), Error> {
        match &mut self.arrived {
            Some(arrived) if arrived.incoming.transfer == transfer && arrived.sum.is_none() => {
                arrived.sum = Some(sum);
                Ok(())
            }
            _ => Err(Error::protocol(format!("a checksum of {transfer}, which has not arrived"))),
        }
    }

    /// Compares the checksums of the transfer that has arrived. Returns `None` if one of them is missing.
    pub(crate) fn verdict(&mut self) -> Option<Verdict> {
        let arrived = self.arrived.as_ref()?;
        let transfer = arrived.incoming.transfer;
        let (own, at) = (arrived.sum?, self.sums.iter().position(|(other, _)| *other == transfer)?);
        let (_, source) = self.sums.swap_remove(at);
        let Arrived { incoming, at, .. } = self.arrived.take()?;
        let slot = incoming.slot;
        Some(if own == source {
            let confirmed = Action::Message(ToSender::Confirmed(transfer));
            Verdict::Right([confirmed, Action::Done { transfer, slot, at }])
        } else {
            let again = Action::Message(ToSender::Again { transfer, slot });
            Verdict::Wrong(Incoming { received: 0, ..incoming }, again)
        })
    }
}

/// Returns the error for an event that only verified transfers have.
pub(crate) fn unverified(what: impl std::fmt::Debug) -> Error {
    Error::protocol(format!("{what:?} without verification"))
}
