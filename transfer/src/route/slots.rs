//! The destination's end of the routes between two slots. The source has written the whole transfer into the
//! destination's slot, or the destination reads it from the source's slot.

use super::{DestinationEnd, Incoming, Requests};
use crate::action::{Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender, TransferId};
use ragtag_hal::Point;
use std::collections::VecDeque;

/// The destination's end of the peer route or of the import route.
#[derive(Debug)]
pub(super) struct In {
    /// Whether the destination reads the source's slots.
    reads: bool,
    /// Announced transfers that have not been requested, each with the slot in its message.
    held: VecDeque<(TransferId, u32, Point)>,
}

impl In {
    /// Creates the end of a route on which the source writes into the destination's slots.
    pub(super) fn written() -> Self {
        Self { reads: false, held: VecDeque::new() }
    }

    /// Creates the end of a route on which the destination reads the source's slots.
    pub(super) fn readable() -> Self {
        Self { reads: true, held: VecDeque::new() }
    }
}

impl DestinationEnd for In {
    fn receive(&mut self, message: ToReceiver) -> Result<bool, Error> {
        match (message, self.reads) {
            (ToReceiver::Written { transfer, slot, ready }, false)
            | (ToReceiver::Readable { transfer, slot, ready }, true) => {
                self.held.push_back((transfer, slot, ready));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn held(&self) -> Option<TransferId> {
        self.held.front().map(|(transfer, ..)| *transfer)
    }

    fn advance(
        &mut self,
        incoming: &mut Incoming,
        requests: &mut Requests<'_, ToSender>,
    ) -> Result<bool, Error> {
        let Some((transfer, announced, ready)) = self.held.pop_front() else { return Ok(false) };
        let Incoming { transfer: next, slot, bytes, .. } = *incoming;
        if transfer != next || !self.reads && announced != slot {
            return Err(Error::protocol(format!(
                "{transfer} in slot {announced} where {next} comes next, in slot {slot}"
            )));
        }
        // A transfer that was written is only waited for.
        let (other, bytes) =
            if self.reads { (OtherEnd::Slot(announced), bytes) } else { (OtherEnd::None, 0) };
        let waits = vec![ready];
        let at = requests.copy(|signal| Copy { transfer, slot, other, offset: 0, bytes, waits, signal });
        if self.reads {
            requests.send(ToSender::Read { transfer, after: at });
        }
        requests.done(transfer, slot, at);
        Ok(true)
    }
}
