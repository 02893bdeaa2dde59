//! The route on which the source writes into the destination's slot. The receiver announces each free slot
//! in advance, so the source never waits for a reply.

use super::{Destination, Incoming, Outgoing, Source};
use crate::action::{Action, Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use ragtag_hal::Point;
use std::collections::VecDeque;

/// The source's end.
#[derive(Debug)]
pub(super) struct Out {
    /// Free slots of the receiving stage, in the order of their announcement.
    slots: VecDeque<u32>,
    /// Number of transfers over other routes whose slots have not been announced.
    ahead: u64,
}

impl Out {
    /// Creates an end to a stage whose `slots` slots are free.
    pub(super) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).collect(), ahead: 0 }
    }
}

impl Source for Out {
    fn advance(
        &mut self,
        outgoing: &mut Outgoing,
        points: &mut Points,
        actions: &mut Vec<Action<ToReceiver>>,
    ) -> bool {
        let Some(to) = outgoing.again.or_else(|| self.slots.pop_front()) else { return false };
        let Outgoing { transfer, slot, bytes, after, .. } = *outgoing;
        let (other, signal) = (OtherEnd::Slot(to), points.allot());
        let copy = Copy { transfer, slot, other, offset: 0, bytes, waits: vec![after], signal };
        actions.push(Action::Copy(copy));
        actions.push(Action::Message(ToReceiver::Written { transfer, slot: to, ready: signal }));
        actions.push(Action::Done { transfer, slot, at: signal });
        true
    }

    fn receive(
        &mut self,
        message: ToSender,
        _: &mut Points,
        _: &mut Vec<Action<ToReceiver>>,
    ) -> Result<bool, Error> {
        let ToSender::Slot(slot) = message else { return Ok(false) };
        if self.slots.contains(&slot) {
            return Err(Error::protocol(format!("slot {slot} announced twice")));
        }
        match self.ahead.checked_sub(1) {
            Some(ahead) => self.ahead = ahead,
            None => self.slots.push_back(slot),
        }
        Ok(true)
    }

    fn skip(&mut self) {
        if self.slots.pop_front().is_none() {
            self.ahead += 1;
        }
    }
}

/// The destination's end. It holds the transfers that were written but not yet requested.
#[derive(Debug, Default)]
pub(super) struct In(VecDeque<(TransferId, u32, Point)>);

impl Destination for In {
    fn receive(&mut self, message: ToReceiver) -> Result<bool, Error> {
        let ToReceiver::Written { transfer, slot, ready } = message else { return Ok(false) };
        self.0.push_back((transfer, slot, ready));
        Ok(true)
    }

    fn held(&self) -> Option<TransferId> {
        self.0.front().map(|(transfer, ..)| *transfer)
    }

    fn advance(
        &mut self,
        incoming: &mut Incoming,
        points: &mut Points,
        actions: &mut Vec<Action<ToSender>>,
    ) -> Result<bool, Error> {
        let Some((transfer, slot, ready)) = self.0.pop_front() else { return Ok(false) };
        if (transfer, slot) != (incoming.transfer, incoming.slot) {
            return Err(Error::protocol(format!(
                "{transfer} in slot {slot} where {} comes next, in slot {}",
                incoming.transfer, incoming.slot
            )));
        }
        let (other, waits, signal) = (OtherEnd::None, vec![ready], points.allot());
        actions.push(Action::Copy(Copy { transfer, slot, other, offset: 0, bytes: 0, waits, signal }));
        actions.push(Action::Done { transfer, slot, at: signal });
        Ok(true)
    }
}
