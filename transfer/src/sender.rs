//! The source's half of a transfer. It divides the transfer into chunks and downloads each chunk as soon as a
//! ring slot is free.

use crate::error::Error;
use crate::message::{Chunk, ChunkFree, ChunkReady, TransferId};
use crate::points::Points;
use crate::route::Route;
use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Event that the sender handles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SenderEvent {
    /// Starts a transfer. Its bytes can be read once `after` has passed. Transfers are sent in the order of
    /// these events.
    Send {
        /// Identifier of the transfer. It must be larger than all earlier ones.
        transfer: TransferId,
        /// Size of the transfer in bytes.
        bytes: u64,
        /// Point that passes once all bytes have been written to the source buffer.
        after: Point,
    },
    /// The receiver returns a ring slot.
    Free(ChunkFree),
}

/// Action that the sender requests. The caller must execute the actions in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SenderAction {
    /// Submit a copy of a chunk from the source buffer to the ring.
    Download {
        /// Transfer to which the chunk belongs.
        transfer: TransferId,
        /// Byte range of the chunk and its destination slot in the ring.
        chunk: Chunk,
        /// Points that pass once the bytes have been written and the ring slot is free.
        waits: Vec<Point>,
        /// Point that the copy signals.
        signal: Point,
    },
    /// Send this message to the receiver.
    Ready(ChunkReady),
    /// The downloads of all chunks of a transfer have been requested. The source buffer is free once `at` has
    /// passed.
    Sent {
        /// Identifier of the transfer.
        transfer: TransferId,
        /// Point that the last download of the transfer signals.
        at: Point,
    },
}

#[derive(Debug)]
struct Outgoing {
    transfer: TransferId,
    bytes: u64,
    sent: u64,
    after: Point,
}

/// The half of the state machine that runs on the source device.
#[derive(Debug)]
pub struct Sender {
    /// State of the ring. `None` for transfers within one device, for which no bytes are copied.
    ring: Option<Ring>,
    newest: Option<TransferId>,
}

#[derive(Debug)]
struct Ring {
    chunk_bytes: u64,
    depth: u32,
    /// Ring slots that the sender may use. A slot with a point may be written to only once the point has
    /// passed.
    credits: VecDeque<(u32, Option<Point>)>,
    queue: VecDeque<Outgoing>,
}

impl Sender {
    /// Creates a sender for `route`.
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
            Route::HostStaged { chunk_bytes, depth } => {
                let credits = (0..depth).map(|slot| (slot, None)).collect();
                Some(Ring { chunk_bytes, depth, credits, queue: VecDeque::new() })
            }
        };
        Ok(Self { ring, newest: None })
    }

    /// Returns the number of ring slots that the sender may use now.
    pub fn credits(&self) -> u32 {
        self.ring.as_ref().map_or(0, |r| r.credits.len() as u32)
    }

    /// Returns whether a chunk waits for a ring slot.
    pub fn is_waiting(&self) -> bool {
        self.ring.as_ref().is_some_and(|r| !r.queue.is_empty())
    }

    /// Returns whether all transfers have been sent and all ring slots have been returned.
    pub fn is_idle(&self) -> bool {
        self.ring.as_ref().is_none_or(|r| r.queue.is_empty() && r.credits.len() == r.depth as usize)
    }

    /// Handles an event and appends the resulting actions. Copies signal points that are allocated from
    /// `points`, which belong to the source's download queue.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a slot that is returned twice, and for identifiers that do not ascend.
    /// [`Error::Empty`] for a transfer of zero bytes.
    pub fn step(
        &mut self,
        event: SenderEvent,
        points: &mut Points,
        actions: &mut Vec<SenderAction>,
    ) -> Result<(), Error> {
        match event {
            SenderEvent::Send { transfer, bytes, after } => {
                if bytes == 0 {
                    return Err(Error::Empty(transfer));
                }
                if self.newest.is_some_and(|newest| transfer <= newest) {
                    return Err(Error::protocol(format!("{transfer} sent out of order")));
                }
                self.newest = Some(transfer);
                match &mut self.ring {
                    None => actions.push(SenderAction::Sent { transfer, at: after }),
                    Some(ring) => {
                        ring.queue.push_back(Outgoing { transfer, bytes, sent: 0, after });
                        ring.pump(points, actions);
                    }
                }
            }
            SenderEvent::Free(free) => match &mut self.ring {
                None => return Err(Error::protocol("a ring slot returned on a route without a ring")),
                Some(ring) => {
                    if free.slot >= ring.depth || ring.credits.iter().any(|(slot, _)| *slot == free.slot) {
                        return Err(Error::protocol(format!(
                            "ring slot {} returned but not in use",
                            free.slot
                        )));
                    }
                    ring.credits.push_back((free.slot, Some(free.after)));
                    ring.pump(points, actions);
                }
            },
        }
        Ok(())
    }
}

impl Ring {
    fn pump(&mut self, points: &mut Points, actions: &mut Vec<SenderAction>) {
        while let Some(outgoing) = self.queue.front_mut() {
            let Some((slot, free)) = self.credits.pop_front() else { return };
            let transfer = outgoing.transfer;
            let bytes = self.chunk_bytes.min(outgoing.bytes - outgoing.sent);
            let chunk = Chunk { slot, offset: outgoing.sent, bytes };
            let waits = std::iter::once(outgoing.after).chain(free).collect();
            let signal = points.allot();
            outgoing.sent += bytes;
            let last = outgoing.sent == outgoing.bytes;
            actions.push(SenderAction::Download { transfer, chunk, waits, signal });
            actions.push(SenderAction::Ready(ChunkReady { transfer, chunk, ready: signal }));
            if last {
                self.queue.pop_front();
                actions.push(SenderAction::Sent { transfer, at: signal });
            }
        }
    }
}
