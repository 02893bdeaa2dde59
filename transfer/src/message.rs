//! Messages between the sender and the receiver of a transfer.

use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identifies a transfer on its edge. Ids ascend along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfer {}", self.0)
    }
}

/// A piece of a transfer, and the ring slot that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Slot of the staging ring. Its bytes start at `slot × chunk_bytes`.
    pub slot: u32,
    /// First byte, counted from the start of the transfer.
    pub offset: u64,
    /// Number of bytes, at most the ring's chunk size.
    pub bytes: u64,
}

/// Sender to receiver: the chunk may be read once `ready` has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkReady {
    /// The transfer that the chunk belongs to.
    pub transfer: TransferId,
    /// The byte range and its ring slot.
    pub chunk: Chunk,
    /// Point that passes once the sender has downloaded the chunk. It belongs to the sender's device.
    pub ready: Point,
}

/// Receiver to sender: the slot may be written again once `after` has passed. A credit that carries a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFree {
    /// Slot of the staging ring.
    pub slot: u32,
    /// Point of the receiver's upload from the slot. Foreign to the sender.
    pub after: Point,
}
