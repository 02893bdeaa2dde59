//! The Vulkan backend: the physical devices that the machine's Vulkan loader shows, as `vulkan:0 …`.
//!
//! The loader is found when the program runs. A device has up to three queues, each with a timeline semaphore: a submission
//! is enqueued when it is made, with values for what it waits for on its own device; one that waits for another device is
//! enqueued when that has got there. A thread for each queue waits for the values and moves the timelines. Kernels are WGSL,
//! translated to SPIR-V in this process; pipelines are kept on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | physical devices, and what they say of themselves |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs` | a queue of the driver, as the lanes of `ragtag-hal` use it |
//! | `recording.rs` | how commands become a command buffer |
//! | `hazards.rs` | which commands must wait for which |
//! | `program.rs`, `translate.rs` | pipelines, in this process and on disk, and the SPIR-V that they are made of |
//! | `compiler.rs` | pipelines for devices that only compile |
//! | `memory.rs`, `region.rs` | memory of buffers, and the host's memory that they are filled from |
//! | `clock.rs` | the device's clock in terms of the host's |
//! | `error.rs`, `api/` | Vulkan's codes, objects and calls |
//!
//! This crate must not know any operator, kernel or model.

mod api;
mod backend;
mod clock;
mod compiler;
mod driver;
mod error;
mod halves;
mod hazards;
mod memory;
mod memory_model;
mod probe;
mod program;
mod queue;
mod recording;
mod region;
#[cfg(test)]
mod tests;
mod translate;

pub use backend::{MatrixUnits, Validation, VulkanBackend, VulkanConfig};
pub use compiler::PipelineCompiler;
pub use ragtag_hal::cache::CacheCounters;
pub use translate::{SpirV, SpirVTarget, translate};
