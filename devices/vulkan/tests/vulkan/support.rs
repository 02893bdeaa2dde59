//! Backend for the tests, and the test kernel in WGSL.
//!
//! A test that finds no suitable device reports that it was skipped.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_vulkan::{VulkanBackend, VulkanConfig};

/// Returns a configuration without a cache on disk.
pub fn config() -> VulkanConfig {
    VulkanConfig { cache_folder: None, ..VulkanConfig::default() }
}

pub fn backend() -> VulkanBackend {
    VulkanBackend::new(config())
}

/// Returns the expected number of adapters, from `RAGTAG_TEST_VULKAN_ADAPTERS`.
fn wanted() -> usize {
    std::env::var("RAGTAG_TEST_VULKAN_ADAPTERS").map_or(0, |wanted| wanted.parse().unwrap())
}

/// Fails if the validation layer reported a message. Passes if the layer is not installed.
#[track_caller]
pub fn no_objections(backend: &VulkanBackend) {
    let said = backend.validation_messages();
    assert!(said.is_empty(), "{said:#?}");
}

device_bench::tested!(VulkanBackend, Wgsl, "Vulkan", "Vulkan driver", wanted(), no_objections);
