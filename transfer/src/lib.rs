//! Moves activations from one device to the next: the route of an edge, and the state machine that copies
//! bytes along a host-staged route.
//!
//! The state machine has two steppers, one on each device's actor: events in, actions out. Knows nothing
//! about backends, models or plans. Does no I/O, starts no thread and reads no clock.

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
