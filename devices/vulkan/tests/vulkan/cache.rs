//! Tests of the program caches in memory and on disk.

use crate::support::*;
use ragtag_vulkan::{VulkanBackend, VulkanConfig};

device_bench::cache_tests!(|cache_folder| VulkanBackend::new(VulkanConfig { cache_folder, ..config() }));
