//! The destination's half of a transfer. It uploads each chunk as soon as the chunk is in the ring and the
//! transfer has a destination buffer.

use crate::error::Error;
use crate::message::{Chunk, ChunkFree, ChunkReady, TransferId};
use crate::points::Points;
use crate::route::Route;
use ragtag_hal::Point;
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
    /// Assigns a buffer to the oldest transfer without one. Until then, the chunks of that transfer stay in
    /// the ring, so the sender runs out of ring slots.
    Open,
    /// Announces a chunk. The sender has submitted its copy to the ring.
    Ready(ChunkReady),
}

/// Action that the receiver requests. The caller must execute the actions in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverAction {
    /// Submit a copy of a chunk from the ring to the destination buffer.
    Upload {
        /// Transfer to which the chunk belongs.
        transfer: TransferId,
        /// Byte range of the chunk and its source slot in the ring.
        chunk: Chunk,
        /// Points that pass once the chunk is in the ring.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Send this message to the sender.
    Free(ChunkFree),
    /// The uploads of all chunks of a transfer have been requested.
    Received {
        /// Identifier of the transfer.
        transfer: TransferId,
        /// Point that passes once all bytes have arrived. `None` for a transfer within one device, for which
        /// the order of the compute queue suffices.
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

/// The half of the state machine that runs on the destination device.
#[derive(Debug)]
pub struct Receiver {
    /// Chunk size and depth of the ring. `None` for transfers within one device, for which no bytes are
    /// copied.
    ring: Option<(u64, u32)>,
    expected: VecDeque<Incoming>,
    /// Chunks in the ring whose transfer has no buffer yet.
    held: VecDeque<ChunkReady>,
}

impl Receiver {
    /// Creates a receiver for `route`.
    ///
    /// # Errors
    /// Fails if the route is not implemented or its ring is empty.
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

    /// Returns the number of transfers whose uploads have not all been submitted.
    pub fn expected(&self) -> usize {
        self.expected.len()
    }

    /// Handles an event and appends the resulting actions. Copies signal points that are allocated from
    /// `points`, which belong to the destination's upload queue.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a chunk that is not the next one of its transfer, for more chunks than the
    /// ring holds, and for a buffer without an announced transfer. [`Error::Empty`] for a transfer of zero
    /// bytes.
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
