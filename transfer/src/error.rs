//! Errors of transfers: an unusable route, or a disagreement between sender and receiver.

use crate::message::TransferId;
use crate::route::Route;
use serde::{Deserialize, Serialize};

/// Error for routes that cannot be used, or for a message that breaks the protocol between sender and
/// receiver.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// A ring has zero chunks, or its chunks have zero bytes.
    #[error("a ring needs chunk_bytes and depth of at least 1")]
    EmptyRing,
    /// No route of the list serves large transfers, or the size limits of the routes do not ascend.
    #[error("the up_to_bytes of the routes must ascend, and only the last route must have none")]
    Sizes,
    /// Two routes of the list are peer routes, or two are import routes.
    #[error("the routes may list peer and import once each")]
    Repeated,
    /// The transfer has zero bytes.
    #[error("{0} has no bytes")]
    Empty(TransferId),
    /// Wrong bytes arrived again after the transfer was sent once more, and no other route is left.
    #[error("{transfer} arrived twice with wrong bytes over the {} route", route.name())]
    Corrupted {
        /// The transfer.
        transfer: TransferId,
        /// Route of the last attempt.
        route: Route,
    },
    /// The device refused the copy of a transfer, and no other route can replace the route.
    #[error("the copy of {transfer} over the {} route was refused, and no other route is left", route.name())]
    Refused {
        /// The transfer.
        transfer: TransferId,
        /// The route.
        route: Route,
    },
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
