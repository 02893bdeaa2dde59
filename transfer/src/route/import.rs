//! The route on which the destination reads the source's slot.

use super::{Destination, Incoming, Outgoing, Source};
use crate::action::{Action, Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use ragtag_hal::Point;
use std::collections::VecDeque;

/// The source's end. It holds the transfers that the destination has not read, with their slots.
#[derive(Debug, Default)]
pub(super) struct Out(VecDeque<(TransferId, u32)>);

impl Source for Out {
    fn advance(
        &mut self,
        outgoing: &mut Outgoing,
        _: &mut Points,
        actions: &mut Vec<Action<ToReceiver>>,
    ) -> bool {
        let Outgoing { transfer, slot, after: ready, .. } = *outgoing;
        self.0.push_back((transfer, slot));
        actions.push(Action::Message(ToReceiver::Readable { transfer, slot, ready }));
        true
    }

    fn receive(
        &mut self,
        message: ToSender,
        points: &mut Points,
        actions: &mut Vec<Action<ToReceiver>>,
    ) -> Result<bool, Error> {
        let ToSender::Read { transfer, after } = message else { return Ok(false) };
        let Some((_, slot)) = self.0.pop_front().filter(|(oldest, _)| *oldest == transfer) else {
            return Err(Error::protocol(format!("{transfer} was read out of order")));
        };
        // The host reuses the slot's parameters, so it must know when the copy has ended.
        let (other, waits, signal) = (OtherEnd::None, vec![after], points.allot());
        actions.push(Action::Copy(Copy { transfer, slot, other, offset: 0, bytes: 0, waits, signal }));
        actions.push(Action::Done { transfer, slot, at: signal });
        Ok(true)
    }

    fn is_undone(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The destination's end. It holds the transfers that are readable but not yet requested.
#[derive(Debug, Default)]
pub(super) struct In(VecDeque<(TransferId, u32, Point)>);

impl Destination for In {
    fn receive(&mut self, message: ToReceiver) -> Result<bool, Error> {
        let ToReceiver::Readable { transfer, slot, ready } = message else { return Ok(false) };
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
        let Some((transfer, from, ready)) = self.0.pop_front() else { return Ok(false) };
        if transfer != incoming.transfer {
            return Err(Error::protocol(format!("{transfer} where {} comes next", incoming.transfer)));
        }
        let Incoming { slot, bytes, .. } = *incoming;
        let (other, waits, signal) = (OtherEnd::Slot(from), vec![ready], points.allot());
        actions.push(Action::Copy(Copy { transfer, slot, other, offset: 0, bytes, waits, signal }));
        actions.push(Action::Message(ToSender::Read { transfer, after: signal }));
        actions.push(Action::Done { transfer, slot, at: signal });
        Ok(true)
    }
}
