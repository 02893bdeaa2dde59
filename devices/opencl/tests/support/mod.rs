//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which platforms a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_opencl::{OpenClBackend, OpenClConfig};

/// A backend that keeps no programs on disk.
pub fn config() -> OpenClConfig {
    OpenClConfig { cache_folder: None, ..OpenClConfig::default() }
}

pub fn backend() -> OpenClBackend {
    OpenClBackend::new(config())
}

device_bench::tested!(OpenClBackend, OpenClC, "OpenCL", "OpenCL driver");
