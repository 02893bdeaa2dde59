//! Errors of transfers: an unusable route, or a disagreement between sender and receiver.

use crate::message::TransferId;
use crate::route::Route;
use serde::{Deserialize, Serialize};

/// Error for a route that cannot be used, or for a message that breaks the protocol between sender and
/// receiver.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The route is reserved for future use and not implemented.
    #[error("route {0:?} is not available")]
    Unavailable(Route),
    /// The ring has zero chunks, or its chunks have zero bytes.
    #[error("invalid staging ring: {depth} chunks of {chunk_bytes} bytes (both must be positive)")]
    EmptyRing {
        /// Number of bytes in a chunk.
        chunk_bytes: u64,
        /// Number of chunks in the ring.
        depth: u32,
    },
    /// The transfer has zero bytes.
    #[error("{0} has no bytes")]
    Empty(TransferId),
    /// The protocol does not allow this message in this state. This indicates a bug in the sender or the
    /// receiver.
    #[error("transfer protocol broken: {what}")]
    Protocol {
        /// Description of the broken rule, with the offending values.
        what: String,
    },
}

impl Error {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Error::Protocol { what: what.into() }
    }
}
