//! The Level Zero backend: Intel GPUs through their own API, named `level-zero:0`, `level-zero:1` and so on.
//!
//! The backend loads Level Zero's loader at run time. A device has three immediate command lists: for compute,
//! uploads and downloads. Copies use a copy engine if the device has one. A submission of single commands is
//! appended to an immediate list, and waits for the events of its predecessors on the device. A recorded
//! program is a regular command list. One thread per queue waits for events and advances the timeline. Kernels
//! are SPIR-V. The driver compiles them, and the backend caches the native binaries on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | drivers and devices, and their properties |
//! | `context.rs` | state shared by the devices of one driver |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs`, `recording.rs`, `steps.rs` | a driver queue: single commands and recorded commands |
//! | `events.rs`, `semaphore.rs` | events, and semaphores that two devices share |
//! | `program.rs` | compiled programs, cached in memory and on disk |
//! | `memory.rs` | buffer memory |
//! | `clock.rs` | conversion of the device's clock to the host's |
//! | `error.rs`, `api/` | Level Zero's codes, objects and calls |
//!
//! This crate does not depend on operators, kernels or models.

mod api;
mod backend;
mod clock;
mod context;
mod driver;
mod error;
mod events;
mod memory;
mod probe;
mod program;
mod queue;
mod recording;
mod semaphore;
mod steps;
#[cfg(test)]
mod tests;

pub use backend::{LevelZeroBackend, LevelZeroConfig};
pub use ragtag_hal::cache::CacheCounters;
