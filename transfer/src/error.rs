//! Transfer errors: an unusable route, or a disagreement between sender and receiver.

use crate::message::TransferId;
use crate::route::Route;
use serde::{Deserialize, Serialize};

/// A route that cannot be used, or a message that breaks the protocol between sender and receiver.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The route is reserved for future use and not implemented.
    #[error("route {0:?} is not available")]
    Unavailable(Route),
    /// A ring with zero chunks, or with chunks of zero bytes.
    #[error("invalid staging ring: {depth} chunks of {chunk_bytes} bytes (both must be positive)")]
    EmptyRing {
        /// Bytes per chunk.
        chunk_bytes: u64,
        /// Chunks in the ring.
        depth: u32,
    },
    /// A transfer of zero bytes.
    #[error("{0} has no bytes")]
    Empty(TransferId),
    /// A message that the protocol does not allow in this state. This is a defect in the sender or the
    /// receiver.
    #[error("transfer protocol broken: {what}")]
    Protocol {
        /// The broken rule, with the values.
        what: String,
    },
}

impl Error {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Error::Protocol { what: what.into() }
    }
}
