//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which devices a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_wgpu::{WgpuBackend, WgpuConfig};

/// A backend that keeps no programs on disk.
pub fn config() -> WgpuConfig {
    WgpuConfig { cache_folder: None }
}

pub fn backend() -> WgpuBackend {
    WgpuBackend::new(config())
}

device_bench::tested!(WgpuBackend, Wgsl, "wgpu", "Vulkan driver");
