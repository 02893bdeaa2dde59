//! Devices to test on, and the kernel of the tests in their language.
//!
//! Nothing here knows which platforms a machine has; tests say which they lack.

#![allow(dead_code, unused_imports)] // each test binary uses its part

pub use device_bench::suite::each;
pub use device_bench::*;

use ragtag_hal::{Adapter, Backend, KernelLanguage, Module, ModuleSource, TextEntry};
use ragtag_opencl::{OpenClBackend, OpenClConfig};
use std::sync::Arc;

/// A backend that keeps no programs on disk.
pub fn config() -> OpenClConfig {
    OpenClConfig { cache_folder: None, ..OpenClConfig::default() }
}

pub fn backend() -> OpenClBackend {
    OpenClBackend::new(config())
}

/// All adapters, or none with a skip.
pub fn adapters(backend: &OpenClBackend) -> Vec<Adapter> {
    match backend.probe() {
        Ok(adapters) => {
            if adapters.is_empty() {
                test_support::skip!("OpenCL driver", "the OpenCL library shows no device");
            }
            adapters
        }
        Err(unavailable) => {
            test_support::skip!("OpenCL driver", "{unavailable}");
            Vec::new()
        }
    }
}

/// The platform of an adapter.
pub fn platform(adapter: &Adapter) -> &str {
    adapter.driver.split(',').next().unwrap_or_default()
}

/// `SCALE` in OpenCL C.
pub fn source() -> Arc<str> {
    scale_text(KernelLanguage::OpenClC).unwrap()
}

pub fn module(text: Arc<str>) -> Module {
    module_of(KernelLanguage::OpenClC, text, function("scale"))
}

/// OpenCL C.
pub fn text(entries: Vec<TextEntry>) -> ModuleSource {
    ModuleSource::Text { language: KernelLanguage::OpenClC, entries }
}

/// The backend for tests that all backends share.
pub struct Tested(pub OpenClBackend);

pub fn subject() -> Tested {
    Tested(backend())
}

impl suite::Subject for Tested {
    fn api(&self) -> &'static str {
        "OpenCL"
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
