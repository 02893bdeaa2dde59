//! What can go wrong in a transfer: a route that cannot be taken, or halves that disagree.

use crate::message::TransferId;
use crate::route::Route;
use serde::{Deserialize, Serialize};

/// A route that cannot be taken, or a message that breaks the protocol between the two halves.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The route is named for later and not chosen yet.
    #[error("route {0:?} is not available")]
    Unavailable(Route),
    /// A ring of no chunks, or chunks of no bytes.
    #[error("a staging ring of {depth} chunks of {chunk_bytes} bytes")]
    EmptyRing {
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Chunks in the ring.
        depth: u32,
    },
    /// A transfer of no bytes.
    #[error("{0} has no bytes")]
    Empty(TransferId),
    /// A message that the protocol does not allow here; one of the halves is wrong.
    #[error("transfer protocol broken: {what}")]
    Protocol {
        /// Which rule, with the values.
        what: String,
    },
}

impl Error {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Error::Protocol { what: what.into() }
    }
}
