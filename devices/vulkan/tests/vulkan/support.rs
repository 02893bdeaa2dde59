//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which drivers a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_hal::{Adapter, Backend, KernelLanguage, Module, ModuleSource, TextEntry};
use ragtag_vulkan::{VulkanBackend, VulkanConfig};
use std::sync::Arc;

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

/// All adapters, or none with a skip.
pub fn adapters(backend: &VulkanBackend) -> Vec<Adapter> {
    let found = backend.probe().map_err(|unavailable| unavailable.to_string());
    match found.and_then(some) {
        Ok(adapters) => {
            assert!(adapters.len() >= wanted(), "{} adapters of {}", adapters.len(), wanted());
            adapters
        }
        Err(why) => {
            assert_eq!(wanted(), 0, "{why}");
            test_support::skip!("Vulkan driver", "{why}");
            Vec::new()
        }
    }
}

/// `SCALE` in WGSL.
pub fn source() -> Arc<str> {
    scale_text(KernelLanguage::Wgsl).unwrap()
}

pub fn module(text: Arc<str>) -> Module {
    module_of(KernelLanguage::Wgsl, text, function("scale"))
}

/// WGSL.
pub fn text(entries: Vec<TextEntry>) -> ModuleSource {
    ModuleSource::Text { language: KernelLanguage::Wgsl, entries }
}

/// The backend for tests that all backends share.
pub struct Tested(pub VulkanBackend);

pub fn subject() -> Tested {
    Tested(backend())
}

impl suite::Subject for Tested {
    fn api(&self) -> &'static str {
        "Vulkan"
    }

    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn adapters(&self) -> Vec<Adapter> {
        adapters(&self.0)
    }

    fn skip(&self, missing: &str, why: &str) {
        test_support::skip!(missing, "{why}");
    }

    fn check(&self) {
        no_objections(&self.0);
    }
}
