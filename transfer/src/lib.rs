//! How activations cross from one device to the next: which route an edge takes, and the machine that moves bytes along a
//! host-staged route.
//!
//! The machine is two steppers, one on each device's actor: events in, actions out. This crate must not know any
//! backend, model or plan; it does no I/O, starts no thread and reads no clock.

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
