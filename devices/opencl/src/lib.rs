//! The OpenCL backend: the devices of all OpenCL platforms of the machine, named `opencl:0`, `opencl:1` and
//! so on.
//!
//! The backend loads the OpenCL library at run time. A device has three in-order queues. A submission that
//! waits only for its own device is enqueued immediately, with the events of its predecessors. A submission
//! that waits for another device is enqueued when the points of that device have passed. One thread per queue
//! waits for events and advances the timeline. Kernels are OpenCL C or SPIR-V. The driver compiles them, and
//! the backend caches the programs on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | platforms and devices, and their properties |
//! | `context.rs` | state shared by devices of one platform |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs`, `recording.rs` | a driver queue: single commands and recorded commands |
//! | `program.rs` | compiled programs, cached in memory and on disk |
//! | `memory.rs`, `transfer.rs` | buffer memory, and transfers to and from it |
//! | `clock.rs` | conversion of the device's clock to the host's |
//! | `error.rs`, `api/` | OpenCL's codes, objects and calls |
//!
//! This crate does not depend on operators, kernels or models.

mod api;
mod backend;
mod clock;
mod context;
mod driver;
mod error;
mod memory;
mod probe;
mod program;
mod queue;
mod recording;
#[cfg(test)]
mod tests;
mod transfer;

pub use backend::{OpenClBackend, OpenClConfig};
pub use ragtag_hal::cache::CacheCounters;
pub use transfer::{MemoryCaps, TransferMode, transfer_mode};
