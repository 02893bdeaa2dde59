//! Tests of the program caches in memory and on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};
use support::*;

device_bench::cache_tests!(|cache_folder| LevelZeroBackend::new(LevelZeroConfig {
    cache_folder,
    ..config()
}));
