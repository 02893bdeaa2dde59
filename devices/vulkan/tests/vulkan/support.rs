//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which drivers a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_vulkan::{VulkanBackend, VulkanConfig};

/// A backend that keeps no programs on disk.
pub fn config() -> VulkanConfig {
    VulkanConfig { cache_folder: None, ..VulkanConfig::default() }
}

pub fn backend() -> VulkanBackend {
    VulkanBackend::new(config())
}

/// How many adapters there must be: `RAGTAG_TEST_VULKAN_ADAPTERS`.
fn wanted() -> usize {
    std::env::var("RAGTAG_TEST_VULKAN_ADAPTERS").map_or(0, |wanted| wanted.parse().unwrap())
}

/// Fails if the validation layer objected to anything. Where it is not, it has said nothing.
#[track_caller]
pub fn no_objections(backend: &VulkanBackend) {
    let said = backend.validation_messages();
    assert!(said.is_empty(), "{said:#?}");
}

device_bench::tested!(VulkanBackend, Wgsl, "Vulkan", "Vulkan driver", wanted(), no_objections);
