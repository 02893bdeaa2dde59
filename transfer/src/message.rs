//! What the two halves of a transfer tell each other.

use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Names one transfer on its edge; transfers of an edge have ascending ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfer {}", self.0)
    }
}

/// A piece of a transfer and the ring slot that it travels through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Slot of the staging ring; its bytes start at `slot × chunk_bytes`.
    pub slot: u32,
    /// First byte, counted from the start of the transfer.
    pub offset: u64,
    /// Number of bytes, at most the ring's chunk.
    pub bytes: u64,
}

/// Sender to receiver: this chunk may be read once the point has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkReady {
    /// Which transfer.
    pub transfer: TransferId,
    /// Which bytes, and where in the ring.
    pub chunk: Chunk,
    /// The sender's download of the chunk; a foreign point for the receiver.
    pub ready: Point,
}

/// Receiver to sender: this slot may be written again once the point has passed. A credit that carries a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFree {
    /// The slot of the staging ring.
    pub slot: u32,
    /// The receiver's upload out of it; a foreign point for the sender.
    pub after: Point,
}
