//! Messages between the two ends of an edge.

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

/// A piece of a transfer, and the place in a ring that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Place in the ring. Places are numbered across all rings of the edge.
    pub place: u32,
    /// Offset in bytes of the piece from the start of the transfer.
    pub offset: u64,
    /// Number of bytes in the piece, at most the ring's chunk size.
    pub bytes: u64,
}

/// Message from the sender to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReceiver {
    /// The receiver may read a piece from the ring once `ready` has passed.
    Piece {
        /// Transfer to which the piece belongs.
        transfer: TransferId,
        /// The piece.
        piece: Piece,
        /// Point on a timeline of the sender's device.
        ready: Point,
    },
    /// The whole transfer is in the receiver's slot once `ready` has passed.
    Written {
        /// The transfer.
        transfer: TransferId,
        /// Slot of the receiver's stage.
        slot: u32,
        /// Point on a timeline of the sender's device.
        ready: Point,
    },
    /// The receiver may read the transfer from the sender's slot once `ready` has passed.
    Readable {
        /// The transfer.
        transfer: TransferId,
        /// Slot of the sender's stage.
        slot: u32,
        /// Point on a timeline of the sender's device.
        ready: Point,
    },
    /// Checksum of a transfer in the sender's slot. Sent only if transfers are verified.
    Sum {
        /// The transfer.
        transfer: TransferId,
        /// The checksum.
        sum: u64,
    },
}

/// Message from the receiver to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSender {
    /// The sender may write to a place of a ring again once `after` has passed.
    Place {
        /// The place.
        place: u32,
        /// Point on a timeline of the receiver's device.
        after: Point,
    },
    /// A slot of the receiver's stage is free. The n-th slot that becomes free receives the n-th transfer of
    /// the edge, whatever its route.
    Slot(u32),
    /// The sender may reuse the slot of a transfer once `after` has passed.
    Read {
        /// The transfer.
        transfer: TransferId,
        /// Point on a timeline of the receiver's device.
        after: Point,
    },
    /// The transfer has arrived with the sender's checksum. Sent only if transfers are verified.
    Confirmed(TransferId),
    /// The transfer has arrived with another checksum. The sender must send it again. Sent only if transfers
    /// are verified.
    Again {
        /// The transfer.
        transfer: TransferId,
        /// Slot of the receiver's stage that holds the wrong bytes and receives the transfer again.
        slot: u32,
    },
}
