//! The source's end of the route on which the source writes into the destination's slot. The receiver
//! announces each free slot in advance, so the source never waits for a reply.

use super::{Outgoing, Requests, SourceEnd};
use crate::action::{Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender};
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

impl SourceEnd for Out {
    fn advance(&mut self, outgoing: &mut Outgoing, requests: &mut Requests<'_, ToReceiver>) -> bool {
        let Some(to) = outgoing.again.or_else(|| self.slots.pop_front()) else { return false };
        let Outgoing { transfer, slot, bytes, after, .. } = *outgoing;
        let (other, waits) = (OtherEnd::Slot(to), vec![after]);
        let ready = requests.copy(|signal| Copy { transfer, slot, other, offset: 0, bytes, waits, signal });
        requests.send(ToReceiver::Written { transfer, slot: to, ready });
        requests.done(transfer, slot, ready);
        true
    }

    fn receive(&mut self, message: ToSender, _: &mut Requests<'_, ToReceiver>) -> Result<bool, Error> {
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
