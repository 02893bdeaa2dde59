//! Moves activations from one device to the next. Defines the route of an edge, and the state machine that
//! copies bytes along a host-staged route.
//!
//! The state machine has two halves, one on each device's actor. Each half takes events and returns actions.
//! Knows nothing about backends, models or plans. Does no I/O, starts no thread and reads no clock.

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
