//! The CPU backend: host processors as devices `cpu:0 … cpu:N-1`, each with its share of the cores.
//!
//! A device has three queues, each a thread that takes submissions in order: it waits for their points, runs their
//! commands and advances the queue's timeline. The compute queue shares the work groups of each dispatch among the
//! device's threads. Kernels are `Host` functions that the caller hands over as modules.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs` | a queue, as the lanes of `ragtag-hal` use it |
//! | `script.rs` | how each step is executed |
//! | `team.rs` | the threads that share a script |
//! | `memory.rs` | memory of buffers, and what the host has left |
//! | `features.rs` | what the processor can do |
//!
//! This crate must not know any operator, kernel or model.

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
