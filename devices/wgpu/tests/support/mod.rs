//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which devices a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_hal::{Adapter, Backend, KernelLanguage, Module, ModuleSource, TextEntry};
use ragtag_wgpu::{WgpuBackend, WgpuConfig};
use std::sync::Arc;

/// A backend that keeps no programs on disk.
pub fn config() -> WgpuConfig {
    WgpuConfig { cache_folder: None }
}

pub fn backend() -> WgpuBackend {
    WgpuBackend::new(config())
}

/// All adapters, or none with a skip.
pub fn adapters(backend: &WgpuBackend) -> Vec<Adapter> {
    let found = backend.probe().map_err(|unavailable| unavailable.to_string());
    found.and_then(some).unwrap_or_else(|why| {
        test_support::skip!("Vulkan driver", "wgpu: {why}");
        Vec::new()
    })
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
pub struct Tested(pub WgpuBackend);

pub fn subject() -> Tested {
    Tested(backend())
}

impl suite::Subject for Tested {
    fn api(&self) -> &'static str {
        "wgpu"
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
}
