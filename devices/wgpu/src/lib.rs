//! The wgpu backend: devices available through Vulkan, Metal and Direct3D 12, named `wgpu:0`, `wgpu:1` and so
//! on.
//!
//! Ragtag uses wgpu for Metal and Direct3D 12. For Vulkan, Ragtag has its own backend, which has fewer layers
//! above the driver. A device has one hardware queue. A thread encodes every submission anew, because wgpu's
//! command buffers can be submitted only once. The completion threads of the queues wait for results and copy
//! downloads to host regions. Kernels are WGSL.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | adapters and their properties |
//! | `vulkan.rs` | properties that Vulkan reports and wgpu does not |
//! | `gpu.rs` | wgpu's device: errors as results, device loss, waits |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `memory.rs`, `belt.rs` | buffer memory, and staging chunks |
//! | `program.rs` | compiled programs, cached in memory and on disk |
//! | `script.rs`, `tools.rs` | launches, and commands implemented as kernels |
//! | `encoder.rs` | the thread that encodes and submits |
//! | `stamps.rs` | conversion of the device's clock to the host's |
//! | `queue.rs` | the three queues, which share that thread, as `ragtag-hal` uses them |
//!
//! This crate does not depend on operators, kernels or models.

mod backend;
mod belt;
mod driver;
mod encoder;
mod gpu;
mod memory;
mod probe;
mod program;
mod queue;
mod script;
mod stamps;
#[cfg(test)]
mod tests;
mod tools;
mod vulkan;

pub use backend::{WgpuBackend, WgpuConfig};
pub use ragtag_hal::cache::CacheCounters;
