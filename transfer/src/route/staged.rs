//! The route through a ring of host memory. The source downloads each piece as soon as a place is free. The
//! destination uploads each piece as soon as the piece is in the ring and the transfer has a slot.

use super::{DestinationEnd, Incoming, Outgoing, Requests, RingStart, SourceEnd};
use crate::action::{Copy, OtherEnd};
use crate::error::Error;
use crate::message::{Piece, ToReceiver, ToSender, TransferId};
use ragtag_hal::Point;
use std::collections::VecDeque;

/// Location and size of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) start: RingStart,
    pub(super) chunk_bytes: u64,
    pub(super) depth: u32,
}

impl Ring {
    fn holds(&self, place: u32) -> bool {
        (self.start.place..self.start.place + self.depth).contains(&place)
    }

    fn at(&self, place: u32) -> OtherEnd {
        assert!(self.holds(place), "place {place} of {self:?}");
        let start = self.start.byte + u64::from(place - self.start.place) * self.chunk_bytes;
        OtherEnd::Ring { start }
    }
}

/// The source's end.
#[derive(Debug)]
pub(super) struct Out {
    ring: Ring,
    /// Places that the source may use. A place with a point may be written to only once the point has passed.
    free: VecDeque<(u32, Option<Point>)>,
}

impl Out {
    pub(super) fn new(ring: Ring) -> Self {
        let places = ring.start.place..ring.start.place + ring.depth;
        Self { ring, free: places.map(|place| (place, None)).collect() }
    }
}

impl SourceEnd for Out {
    fn advance(&mut self, outgoing: &mut Outgoing, requests: &mut Requests<'_, ToReceiver>) -> bool {
        let Outgoing { transfer, slot, bytes: total, after, .. } = *outgoing;
        while let Some((place, free)) = self.free.pop_front() {
            let (offset, other) = (outgoing.sent, self.ring.at(place));
            let bytes = self.ring.chunk_bytes.min(total - offset);
            let waits = std::iter::once(after).chain(free).collect();
            let ready = requests.copy(|signal| Copy { transfer, slot, other, offset, bytes, waits, signal });
            outgoing.sent += bytes;
            let piece = Piece { place, offset, bytes };
            requests.send(ToReceiver::Piece { transfer, piece, ready });
            if outgoing.sent == total {
                requests.done(transfer, slot, ready);
                return true;
            }
        }
        false
    }

    fn receive(&mut self, message: ToSender, _: &mut Requests<'_, ToReceiver>) -> Result<bool, Error> {
        let ToSender::Place { place, after } = message else { return Ok(false) };
        if !self.ring.holds(place) {
            return Ok(false);
        }
        if self.free.iter().any(|(free, _)| *free == place) {
            return Err(Error::protocol(format!("place {place} of the ring returned but not in use")));
        }
        self.free.push_back((place, Some(after)));
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.ring.depth as usize
    }
}

/// The destination's end.
#[derive(Debug)]
pub(super) struct In {
    ring: Ring,
    /// Pieces in the ring that have not been requested.
    held: VecDeque<(TransferId, Piece, Point)>,
}

impl In {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, held: VecDeque::new() }
    }
}

impl DestinationEnd for In {
    fn receive(&mut self, message: ToReceiver) -> Result<bool, Error> {
        let ToReceiver::Piece { transfer, piece, ready } = message else { return Ok(false) };
        if !self.ring.holds(piece.place) {
            return Ok(false);
        }
        let depth = self.ring.depth;
        if self.held.len() >= depth as usize {
            return Err(Error::protocol(format!("more pieces in flight than the ring's {depth}")));
        }
        self.held.push_back((transfer, piece, ready));
        Ok(true)
    }

    fn held(&self) -> Option<TransferId> {
        self.held.front().map(|(transfer, ..)| *transfer)
    }

    fn advance(
        &mut self,
        incoming: &mut Incoming,
        requests: &mut Requests<'_, ToSender>,
    ) -> Result<bool, Error> {
        while let Some((transfer, piece, ready)) = self.held.pop_front() {
            let Piece { place, offset, bytes } = piece;
            let next = transfer == incoming.transfer && offset == incoming.received;
            let most = self.ring.chunk_bytes.min(incoming.bytes - incoming.received);
            if !next || bytes == 0 || bytes > most {
                return Err(Error::protocol(format!(
                    "{piece:?} of {transfer} where byte {} of {} of {} comes next",
                    incoming.received, incoming.bytes, incoming.transfer
                )));
            }
            let (slot, other, waits) = (incoming.slot, self.ring.at(place), vec![ready]);
            incoming.received += bytes;
            let at = requests.copy(|signal| Copy { transfer, slot, other, offset, bytes, waits, signal });
            requests.send(ToSender::Place { place, after: at });
            if incoming.received == incoming.bytes {
                requests.done(transfer, slot, at);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
