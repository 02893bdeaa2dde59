//! Messages between the sender and the receiver of a transfer.

use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identifier of a transfer on its edge. Identifiers ascend along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfer {}", self.0)
    }
}

/// A piece of a transfer, and the ring slot that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Ring slot that holds the chunk. Its bytes start at `slot × chunk_bytes` in the ring.
    pub slot: u32,
    /// Offset of the chunk's first byte from the start of the transfer.
    pub offset: u64,
    /// Number of bytes in the chunk, at most the ring's chunk size.
    pub bytes: u64,
}

/// Message from the sender: the receiver may read the chunk once `ready` has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkReady {
    /// Transfer to which the chunk belongs.
    pub transfer: TransferId,
    /// Byte range of the chunk, and its ring slot.
    pub chunk: Chunk,
    /// Point that passes once the sender has downloaded the chunk to the ring. It is on a timeline of the
    /// sender's device.
    pub ready: Point,
}

/// Message from the receiver: the sender may write to the slot again once `after` has passed. The message
/// returns a credit to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFree {
    /// Ring slot that becomes free.
    pub slot: u32,
    /// Point that passes once the receiver has uploaded the chunk from the slot. It is on a timeline of the
    /// receiver's device.
    pub after: Point,
}
