//! Backend for the tests.
//!
//! A test that finds no suitable device reports that it was skipped.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};

/// Returns a configuration without a cache on disk.
pub fn config() -> LevelZeroConfig {
    LevelZeroConfig { cache_folder: None, ..LevelZeroConfig::default() }
}

pub fn backend() -> LevelZeroBackend {
    LevelZeroBackend::new(config())
}

device_bench::tested!(LevelZeroBackend, SpirV, "Level Zero", "Level Zero driver");
