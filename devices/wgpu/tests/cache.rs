//! Compiled programs are kept in this process and on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use device_bench::suite::cache::Cached;
use ragtag_wgpu::{CacheCounters, WgpuBackend, WgpuConfig};
use std::path::Path;
use support::*;

impl Cached for Tested {
    fn counters(&self) -> CacheCounters {
        self.0.counters()
    }

    fn anew(&self, folder: Option<&Path>) -> Box<dyn Cached> {
        let cache_folder = folder.map(Path::to_path_buf);
        Box::new(Tested(WgpuBackend::new(WgpuConfig { cache_folder })))
    }
}

device_bench::cache_tests!(subject());
