//! The OpenCL backend: the devices of every platform that the machine's OpenCL library shows, as `opencl:0 …`.
//!
//! The library is found when the program runs. A device has three in-order queues. A submission is enqueued when it is
//! made, with events for what it waits for on its own device; one that waits for another device is enqueued when that
//! has got there. A thread for each queue watches events end and moves the timelines. Kernels are OpenCL C or SPIR-V,
//! compiled by the driver and kept on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | platforms and devices, and what they say of themselves |
//! | `context.rs` | what devices of one platform share |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs`, `recording.rs` | a queue of the driver: how it takes commands one by one and recorded |
//! | `program.rs` | compiled programs, in this process and on disk |
//! | `memory.rs`, `transfer.rs` | memory of buffers, and how it is filled and read |
//! | `clock.rs` | the device's clock in terms of the host's |
//! | `error.rs`, `api/` | OpenCL's codes, objects and calls |
//!
//! This crate must not know any operator, kernel or model.

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
