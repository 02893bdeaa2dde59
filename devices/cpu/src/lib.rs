//! The CPU backend: host processors as devices `cpu:0 … cpu:N-1`, each with its share of the cores.
//!
//! A device has three queues. Each is a thread that takes submissions in order, waits for their points, runs
//! their commands and advances the queue's timeline. The compute queue divides the work groups of each
//! dispatch among the device's threads. Kernels are `Host` functions that the caller passes as modules.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs` | a queue, as `ragtag-hal` uses it |
//! | `script.rs` | execution of steps |
//! | `team.rs` | the threads that share a script |
//! | `memory.rs` | buffer memory, and free host memory |
//! | `features.rs` | features of the processor |
//!
//! Knows no operator, kernel or model.

mod backend;
mod driver;
mod features;
mod memory;
mod queue;
mod script;
mod team;
#[cfg(test)]
mod tests;

pub use backend::{CpuBackend, CpuConfig};
