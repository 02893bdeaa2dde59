//! The destination's half of a transfer. Uploads each chunk once it is ready and its destination buffer is
//! open.

use crate::error::Error;
use crate::message::{Chunk, ChunkFree, ChunkReady, TransferId};
use crate::points::Points;
use crate::route::Route;
use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Input of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverEvent {
    /// Announces a transfer. Transfers arrive in the order of these events.
    Expect {
        /// Id of the transfer.
        transfer: TransferId,
        /// Size of the transfer.
        bytes: u64,
    },
    /// The oldest transfer that is not open yet now has a buffer. Until then its chunks stay in the ring,
    /// which holds the sender back.
    Open,
    /// A chunk is on its way into the ring.
    Ready(ChunkReady),
}

/// Output of the receiver, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverAction {
    /// Submit a copy from the ring to the destination.
    Upload {
        /// Transfer that the bytes belong to.
        transfer: TransferId,
        /// Byte range and source slot.
        chunk: Chunk,
        /// Points after which the chunk is in the ring.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Send this message to the sender.
    Free(ChunkFree),
    /// Every chunk of the transfer has been submitted.
    Received {
        /// Id of the transfer.
        transfer: TransferId,
        /// Point after which all bytes have arrived. `None` within one device, where the order of its compute
        /// queue suffices.
        at: Option<Point>,
    },
}

#[derive(Debug)]
struct Incoming {
    transfer: TransferId,
    bytes: u64,
    received: u64,
    open: bool,
}

/// Stepper on the destination device.
#[derive(Debug)]
pub struct Receiver {
    /// Chunk size and depth of the ring. `None` within one device, where nothing moves.
    ring: Option<(u64, u32)>,
    expected: VecDeque<Incoming>,
    /// Chunks in the ring whose transfer is not open yet.
    held: VecDeque<ChunkReady>,
}

impl Receiver {
    /// Creates a receiver for `route`.
    ///
    /// # Errors
    /// If the route is not available or its ring is empty.
    pub fn new(route: Route) -> Result<Self, Error> {
        let ring = match route {
            Route::SameDevice => None,
            Route::Peer | Route::Import => return Err(Error::Unavailable(route)),
            Route::HostStaged { chunk_bytes, depth } if chunk_bytes == 0 || depth == 0 => {
                return Err(Error::EmptyRing { chunk_bytes, depth });
            }
            Route::HostStaged { chunk_bytes, depth } => Some((chunk_bytes, depth)),
        };
        Ok(Self { ring, expected: VecDeque::new(), held: VecDeque::new() })
    }

    /// Returns the number of transfers that have not been received in full.
    pub fn expected(&self) -> usize {
        self.expected.len()
    }

    /// Handles an event and appends the resulting actions. They signal `points` of the destination's upload
    /// queue.
    ///
    /// # Errors
    /// Returns [`Error::Protocol`] for a chunk that is not the next of its transfer, for more chunks
    /// than the ring holds, and for a buffer without an announced transfer. Returns [`Error::Empty`] for a
    /// transfer of zero bytes.
    pub fn step(
        &mut self,
        event: ReceiverEvent,
        points: &mut Points,
        actions: &mut Vec<ReceiverAction>,
    ) -> Result<(), Error> {
        match event {
            ReceiverEvent::Expect { transfer, bytes: 0 } => return Err(Error::Empty(transfer)),
            ReceiverEvent::Expect { transfer, bytes } => {
                if self.expected.back().is_some_and(|newest| transfer <= newest.transfer) {
                    return Err(Error::protocol(format!("{transfer} announced out of order")));
                }
                self.expected.push_back(Incoming { transfer, bytes, received: 0, open: false });
            }
            ReceiverEvent::Open => match self.expected.iter_mut().find(|i| !i.open) {
                None => return Err(Error::protocol("a buffer for a transfer that was not announced")),
                Some(incoming) => incoming.open = true,
            },
            ReceiverEvent::Ready(ready) => match self.ring {
                None => return Err(Error::protocol("a chunk on a route without a ring")),
                Some((_, depth)) if self.held.len() >= depth as usize => {
                    return Err(Error::protocol(format!("more chunks in flight than the ring's {depth}")));
                }
                Some(_) => self.held.push_back(ready),
            },
        }
        self.pump(points, actions)
    }

    fn pump(&mut self, points: &mut Points, actions: &mut Vec<ReceiverAction>) -> Result<(), Error> {
        let Some((chunk_bytes, depth)) = self.ring else {
            while self.expected.front().is_some_and(|i| i.open) {
                let Some(Incoming { transfer, .. }) = self.expected.pop_front() else { break };
                actions.push(ReceiverAction::Received { transfer, at: None });
            }
            return Ok(());
        };
        while let Some(incoming) = self.expected.front_mut().filter(|i| i.open) {
            let Some(ready) = self.held.pop_front() else { return Ok(()) };
            let (transfer, chunk) = (ready.transfer, ready.chunk);
            let next = transfer == incoming.transfer && chunk.offset == incoming.received;
            let fits = chunk.bytes > 0
                && chunk.bytes <= chunk_bytes
                && chunk.bytes <= incoming.bytes - incoming.received
                && chunk.slot < depth;
            if !next || !fits {
                return Err(Error::protocol(format!(
                    "{chunk:?} of {transfer} where byte {} of {} of {} comes next",
                    incoming.received, incoming.bytes, incoming.transfer
                )));
            }
            let signal = points.allot();
            incoming.received += chunk.bytes;
            let last = incoming.received == incoming.bytes;
            actions.push(ReceiverAction::Upload { transfer, chunk, waits: vec![ready.ready], signal });
            actions.push(ReceiverAction::Free(ChunkFree { slot: chunk.slot, after: signal }));
            if last {
                self.expected.pop_front();
                actions.push(ReceiverAction::Received { transfer, at: Some(signal) });
            }
        }
        Ok(())
    }
}
