//! Compiled programs are kept in this process and on disk.

use crate::support::*;
use device_bench::suite::cache::Cached;
use ragtag_vulkan::{CacheCounters, VulkanBackend, VulkanConfig};
use std::path::Path;

impl Cached for Tested {
    fn counters(&self) -> CacheCounters {
        self.0.counters()
    }

    fn anew(&self, folder: Option<&Path>) -> Box<dyn Cached> {
        let cache_folder = folder.map(Path::to_path_buf);
        Box::new(Tested(VulkanBackend::new(VulkanConfig { cache_folder, ..config() })))
    }
}

device_bench::cache_tests!(subject());
