//! Backend for the tests, and the test kernel in WGSL.
//!
//! A test that finds no suitable device reports that it was skipped.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_wgpu::{WgpuBackend, WgpuConfig};

/// Returns a configuration without a cache on disk.
pub fn config() -> WgpuConfig {
    WgpuConfig { cache_folder: None }
}

pub fn backend() -> WgpuBackend {
    WgpuBackend::new(config())
}

device_bench::tested!(WgpuBackend, Wgsl, "wgpu", "Vulkan driver");
