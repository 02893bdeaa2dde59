//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which devices a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_hal::{KernelLanguage, Module};
use ragtag_wgpu::{WgpuBackend, WgpuConfig};
use std::sync::Arc;

/// A backend that keeps no programs on disk.
pub fn config() -> WgpuConfig {
    WgpuConfig { cache_folder: None }
}

pub fn backend() -> WgpuBackend {
    WgpuBackend::new(config())
}

/// `SCALE` in WGSL.
pub fn source() -> Arc<str> {
    scale_text(KernelLanguage::Wgsl).unwrap()
}

pub fn module(text: Arc<str>) -> Module {
    module_of(KernelLanguage::Wgsl, text, function("scale"))
}

device_bench::tested!(WgpuBackend, "wgpu", "Vulkan driver");
