//! The wgpu backend: what Vulkan, Metal and Direct3D 12 show on this machine, as `wgpu:0 …`.
//!
//! wgpu is the way to Metal and Direct3D 12; where there is Vulkan, the machine's own backend for it has less between itself
//! and the driver. A device has one hardware queue. What is submitted goes to a thread that encodes it anew each time, since
//! wgpu's command buffers are submitted once; threads of the lanes wait until it is done, and read what was downloaded.
//! Kernels are in WGSL.
//!
//! | file | subject |
//! | --- | --- |
//! | `backend.rs` | probe and open |
//! | `probe.rs` | adapters, and what they say of themselves |
//! | `vulkan.rs` | what Vulkan says of an adapter, and wgpu does not |
//! | `gpu.rs` | wgpu's device: its errors as results, its loss, waiting |
//! | `driver.rs` | the driver of a device, as `ragtag-hal` uses it |
//! | `memory.rs`, `belt.rs` | memory of buffers, and the staging buffers that fill and read it |
//! | `program.rs` | compiled programs, in this process and on disk |
//! | `script.rs`, `tools.rs` | launches, and the commands that are kernels here |
//! | `encoder.rs` | the thread that encodes and submits |
//! | `stamps.rs` | the device's clock in terms of the host's |
//! | `queue.rs` | that thread as the lanes of `ragtag-hal` use it |
//!
//! This crate must not know any operator, kernel or model.

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
