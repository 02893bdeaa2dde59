//! The Vulkan backend: the physical devices that the Vulkan loader lists, named `vulkan:0`, `vulkan:1` and so
//! on.
//!
//! The backend loads the Vulkan loader at run time. A device has up to three queues, each with a timeline
//! semaphore. A submission that waits only for its own device is enqueued immediately, with the semaphore
//! values of its predecessors. A submission that waits for another device is enqueued when the points of that
//! device have passed. One thread per queue waits for the semaphore and advances the timeline. Kernels are
//! WGSL, which this process translates to SPIR-V. Pipelines are cached on disk.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | physical devices and their properties |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `queue.rs` | a driver queue, as `ragtag-hal` uses it |
//! | `recording.rs` | recording of command buffers |
//! | `hazards.rs` | placement of barriers |
//! | `program.rs`, `translate.rs` | pipelines and their SPIR-V, cached in memory and on disk |
//! | `halves.rs`, `memory_model.rs` | passes over the SPIR-V that naga generates |
//! | `compiler.rs` | pipeline compilation for GPUs that the machine does not have |
//! | `memory.rs`, `region.rs` | buffer memory, and host regions as buffers |
//! | `clock.rs` | conversion of the device's clock to the host's |
//! | `error.rs`, `api/` | Vulkan's codes, objects and calls |
//!
//! This crate does not depend on operators, kernels or models.

mod api;
mod backend;
mod clock;
mod compiler;
mod config;
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

pub use backend::VulkanBackend;
pub use compiler::PipelineCompiler;
pub use config::{MatrixUnits, Validation, VulkanConfig};
pub use ragtag_hal::cache::CacheCounters;
pub use translate::{SpirV, SpirVTarget, translate};
