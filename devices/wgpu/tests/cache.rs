//! Tests of the program caches in memory and on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_wgpu::{WgpuBackend, WgpuConfig};
use support::*;

device_bench::cache_tests!(|cache_folder| WgpuBackend::new(WgpuConfig { cache_folder }));
