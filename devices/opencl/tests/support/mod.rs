//! Backend for the tests, and the test kernel in OpenCL C.
//!
//! A test that finds no suitable device reports that it was skipped.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_opencl::{OpenClBackend, OpenClConfig};

/// Returns a configuration without a cache on disk.
pub fn config() -> OpenClConfig {
    OpenClConfig { cache_folder: None, ..OpenClConfig::default() }
}

pub fn backend() -> OpenClBackend {
    OpenClBackend::new(config())
}

device_bench::tested!(OpenClBackend, OpenClC, "OpenCL", "OpenCL driver");
