//! Moves activations from one device to the next. Defines the route of an edge, and the state machine that
//! copies bytes along a host-staged route.
//!
//! The state machine has two halves, one in the actor of each device. Each half takes events and returns
//! actions. The crate does not depend on backends, models or plans. It does no I/O, starts no thread and
//! reads no clock.

#![forbid(unsafe_code)]

mod error;
mod message;
mod points;
mod receiver;
mod route;
mod sender;

pub use error::Error;
pub use message::{Chunk, ChunkFree, ChunkReady, TransferId};
pub use points::Points;
pub use receiver::{Receiver, ReceiverAction, ReceiverEvent};
pub use route::Route;
pub use sender::{Sender, SenderAction, SenderEvent};
