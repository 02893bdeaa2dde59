//! Tests of the program caches in memory and on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_opencl::{OpenClBackend, OpenClConfig};
use support::*;

device_bench::cache_tests!(|cache_folder| OpenClBackend::new(OpenClConfig { cache_folder, ..config() }));
