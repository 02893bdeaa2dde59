//! Moves activations from one device to the next. Defines the routes of an edge, and the state machines that
//! move bytes along them.
//!
//! An edge has a [`Sender`] in the actor of its source device and a [`Receiver`] in the actor of its
//! destination device. Each takes events and returns actions. The folder `route` has one file per route, with
//! the behaviour of both ends. The crate does not depend on backends, models or plans. It does no I/O, starts
//! no thread and reads no clock.

#![forbid(unsafe_code)]

mod action;
mod error;
mod guard;
mod message;
mod points;
mod receiver;
mod route;
mod sender;

pub use action::{Action, Copy, OtherEnd};
pub use error::Error;
pub use message::{Piece, ToReceiver, ToSender, TransferId};
pub use points::Points;
pub use receiver::{Receiver, ReceiverEvent};
pub use route::{Route, Routes, SizedRoute};
pub use sender::{Sender, SenderEvent};
