//! The destination's half of a transfer: uploads each chunk once it is ready and its buffer is open.

use crate::error::Error;
use crate::message::{Chunk, ChunkFree, ChunkReady, TransferId};
use crate::points::Points;
use crate::route::Route;
use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What the receiver learns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverEvent {
    /// A transfer will come, in the order of these events.
    Expect {
        /// Which.
        transfer: TransferId,
        /// How many bytes.
        bytes: u64,
    },
    /// The oldest transfer that is not open yet has a buffer now. Until then its chunks wait in the ring, which is what
    /// holds the sender back.
    Open,
    /// A chunk is in the ring.
    Ready(ChunkReady),
}

/// What the receiver wants done, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReceiverAction {
    /// Submit a copy out of the ring into the destination.
    Upload {
        /// Whose bytes.
        transfer: TransferId,
        /// Which bytes, and where from.
        chunk: Chunk,
        /// The chunk is in the ring.
        waits: Vec<Point>,
        /// Signalled by the copy.
        signal: Point,
    },
    /// Tell the sender.
    Free(ChunkFree),
    /// Every chunk has been submitted.
    Received {
        /// Which transfer.
        transfer: TransferId,
        /// When the bytes are all there. `None` within a device, where the order of its compute queue says it.
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

/// The stepper on the destination device.
#[derive(Debug)]
pub struct Receiver {
    /// Chunk size and depth of the ring; `None` on one device, where nothing moves.
    ring: Option<(u64, u32)>,
    points: Points,
    expected: VecDeque<Incoming>,
    /// Chunks in the ring whose transfer is not open.
    held: VecDeque<ChunkReady>,
}

impl Receiver {
    /// A receiver over `route` that signals `points` of the destination's upload queue.
    ///
    /// # Errors
    /// If the route is not available or its ring is empty.
    pub fn new(route: Route, points: Points) -> Result<Self, Error> {
        let ring = match route {
            Route::SameDevice => None,
            Route::Peer | Route::Import => return Err(Error::Unavailable(route)),
            Route::HostStaged { chunk_bytes, depth } if chunk_bytes == 0 || depth == 0 => {
                return Err(Error::EmptyRing { chunk_bytes, depth });
            }
            Route::HostStaged { chunk_bytes, depth } => Some((chunk_bytes, depth)),
        };
        Ok(Self { ring, points, expected: VecDeque::new(), held: VecDeque::new() })
    }

    /// Transfers that have not been received in full.
    pub fn expected(&self) -> usize {
        self.expected.len()
    }

    /// Takes an event and appends what is to be done.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a chunk that is not the next of its transfer, more chunks than the ring has, or a buffer
    /// for a transfer that nobody announced; [`Error::Empty`] for a transfer of no bytes.
    pub fn step(&mut self, event: ReceiverEvent, actions: &mut Vec<ReceiverAction>) -> Result<(), Error> {
        match event {
            ReceiverEvent::Expect { transfer, bytes: 0 } => return Err(Error::Empty(transfer)),
            ReceiverEvent::Expect { transfer, bytes } => {
                if self.expected.back().is_some_and(|newest| transfer <= newest.transfer) {
                    return Err(Error::protocol(format!("{transfer} announced out of order")));
                }
                self.expected.push_back(Incoming { transfer, bytes, received: 0, open: false });
            }
            ReceiverEvent::Open => match self.expected.iter_mut().find(|i| !i.open) {
                None => return Err(Error::protocol("a buffer for a transfer that nobody announced")),
                Some(incoming) => incoming.open = true,
            },
            ReceiverEvent::Ready(ready) => match self.ring {
                None => return Err(Error::protocol("a chunk on a route without a ring")),
                Some((_, depth)) if self.held.len() >= depth as usize => {
                    return Err(Error::protocol(format!("more than the ring's {depth} chunks")));
                }
                Some(_) => self.held.push_back(ready),
            },
        }
        self.pump(actions)
    }

    fn pump(&mut self, actions: &mut Vec<ReceiverAction>) -> Result<(), Error> {
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
            let signal = self.points.allot();
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
