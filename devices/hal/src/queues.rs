//! Queues of a device, built on a driver's in-order queues and events.
//!
//! A `TrackedQueue` is one driver queue, its outstanding work, and the completion thread that advances its
//! timeline. The `Submitter` enqueues a device's submissions. A submission is enqueued immediately if the
//! driver has events for all points that it waits for. Otherwise a submission thread enqueues it when the
//! points of other devices have passed, or when their work is enqueued, if the devices share a semaphore. A
//! backend implements [`DriverQueue`].
//!
//! This module knows nothing about buffers, kernels or any API.

mod claims;
mod clock;
mod queue;
mod submitter;
mod thread;

pub(crate) use claims::{Claim, Claims};
pub use clock::Difference;
pub(crate) use queue::TrackedQueue;
pub use queue::{Common, DriverQueue, Ends, Fences, Semaphore};
pub(crate) use submitter::{Submitter, Task, Wait};
pub use thread::Thread;
