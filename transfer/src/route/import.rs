//! The source's end of the route on which the destination reads the source's slot.

use super::{Outgoing, Requests, SourceEnd};
use crate::action::{Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender, TransferId};
use std::collections::VecDeque;

/// The source's end. It holds the transfers that the destination has not read, with their slots.
#[derive(Debug, Default)]
pub(super) struct Out(VecDeque<(TransferId, u32)>);

impl SourceEnd for Out {
    fn advance(&mut self, outgoing: &mut Outgoing, requests: &mut Requests<'_, ToReceiver>) -> bool {
        let Outgoing { transfer, slot, after: ready, .. } = *outgoing;
        self.0.push_back((transfer, slot));
        requests.send(ToReceiver::Readable { transfer, slot, ready });
        true
    }

    fn receive(&mut self, message: ToSender, requests: &mut Requests<'_, ToReceiver>) -> Result<bool, Error> {
        let ToSender::Read { transfer, after } = message else { return Ok(false) };
        let Some((_, slot)) = self.0.pop_front().filter(|(oldest, _)| *oldest == transfer) else {
            return Err(Error::protocol(format!("{transfer} was read out of order")));
        };
        // The host reuses the slot's parameters, so it must know when the copy has ended.
        let (other, waits) = (OtherEnd::None, vec![after]);
        let at = requests.copy(|signal| Copy { transfer, slot, other, offset: 0, bytes: 0, waits, signal });
        requests.done(transfer, slot, at);
        Ok(true)
    }

    fn is_undone(&self) -> bool {
        !self.0.is_empty()
    }
}
