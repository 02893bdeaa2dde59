//! Lanes: the queues of a device over a driver's in-order queues and events, for backends whose API has those.
//!
//! A `Lane` is one queue of the driver, what was put into it, and the thread that watches it and moves the timeline. The
//! `Feeder` puts submissions into the lanes of a device: at once where the driver knows everything that they wait for,
//! and as points pass where they wait for another device. A backend implements [`DriverQueue`].
//!
//! This module must not know buffers, kernels or any API.

mod claims;
mod clock;
mod feeder;
mod lane;
mod thread;

pub(crate) use claims::{Claim, Claims};
pub use clock::Difference;
pub(crate) use feeder::{Feeder, Task, Wait};
pub(crate) use lane::Lane;
pub use lane::{Common, DriverQueue, Ends};
pub use thread::Thread;
