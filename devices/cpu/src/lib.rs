//! The CPU backend: shares of the host's CPU cores as devices `cpu:0 … cpu:N-1`.
//!
//! A device has three queues. Each queue has a thread, which takes submissions in order, waits for the points
//! that they need, runs their commands and advances the queue's timeline. The compute queue divides the work
//! groups of each dispatch among the device's threads. Kernels are `Host` functions that the caller passes as
//! modules.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `driver.rs` | `Driver`: memory, modules and launches of a device |
//! | `queue.rs` | `DriverQueue`: runs a script on the thread that waits for it |
//! | `script.rs` | execution of steps |
//! | `team.rs` | threads that share the work of a script |
//! | `memory.rs` | memory of buffers |
//! | `features.rs` | features of the CPU |
//!
//! This crate knows no operator, kernel or model.

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
