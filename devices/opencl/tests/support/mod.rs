//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which platforms a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_hal::{KernelLanguage, Module};
use ragtag_opencl::{OpenClBackend, OpenClConfig};
use std::sync::Arc;

/// A backend that keeps no programs on disk.
pub fn config() -> OpenClConfig {
    OpenClConfig { cache_folder: None, ..OpenClConfig::default() }
}

pub fn backend() -> OpenClBackend {
    OpenClBackend::new(config())
}

/// `SCALE` in OpenCL C.
pub fn source() -> Arc<str> {
    scale_text(KernelLanguage::OpenClC).unwrap()
}

pub fn module(text: Arc<str>) -> Module {
    module_of(KernelLanguage::OpenClC, text, function("scale"))
}

device_bench::tested!(OpenClBackend, "OpenCL", "OpenCL driver");
