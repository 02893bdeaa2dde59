//! Tests of the program caches in memory and on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::cache::CacheCounters;
use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};
use std::path::Path;
use support::*;

impl suite::cache::Cached for Tested {
    fn counters(&self) -> CacheCounters {
        self.backend.counters()
    }

    fn anew(&self, folder: Option<&Path>) -> Box<dyn suite::cache::Cached> {
        let cache_folder = folder.map(Path::to_path_buf);
        Box::new(Tested::new(LevelZeroBackend::new(LevelZeroConfig { cache_folder, ..config() })))
    }
}

device_bench::suite_tests! {
    subject(), cache:
    programs_are_compiled_once,
    damaged_and_foreign_files_are_replaced,
    identical_devices_have_their_own_programs,
    everything_works_without_a_folder,
}
