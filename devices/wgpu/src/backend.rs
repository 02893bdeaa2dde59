//! The wgpu backend: reports adapters and opens them.

use crate::driver::{self, WgpuDevice};
use crate::gpu::{Gpu, ready};
use crate::probe::{Found, instance, probe, wanted_features};
use crate::program::Programs;
use ragtag_hal::cache::{CacheCounters, Folder, Shelf, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Error, Limits, Result, Unavailable};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use wgpu::{DeviceDescriptor, ExperimentalFeatures, Instance, MemoryHints};

/// Name of the backend.
const NAME: &str = "wgpu";

/// Configuration of the wgpu backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WgpuConfig {
    /// Folder for compiled programs. If it is `None`, programs are cached only in memory.
    pub cache_folder: Option<PathBuf>,
}

impl Default for WgpuConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/wgpu`, or in
    /// `ragtag/wgpu` in the user's cache folder.
    fn default() -> Self {
        Self { cache_folder: default_folder(NAME) }
    }
}

/// The wgpu backend.
pub struct WgpuBackend {
    instance: OnceLock<Instance>,
    shelf: Arc<Shelf>,
}

impl WgpuBackend {
    /// Creates a backend with this configuration. The first probe loads the drivers.
    pub fn new(config: WgpuConfig) -> Self {
        let shelf = Shelf::new(config.cache_folder.map(Folder::new));
        Self { instance: OnceLock::new(), shelf: Arc::new(shelf) }
    }

    /// Returns the cache counters of all devices opened by this backend.
    pub fn counters(&self) -> CacheCounters {
        self.shelf.counters()
    }

    fn found(&self) -> std::result::Result<Vec<Found>, Unavailable> {
        probe(NAME, self.instance.get_or_init(instance))
    }

    fn device(&self, id: DeviceId, found: Found, limits: &Limits) -> Result<WgpuDevice> {
        let programs = Programs::new(Arc::clone(&self.shelf));
        driver::open(id, open(&found)?, found, programs, limits)
    }
}

/// Opens an adapter with the adapter's own limits and all features that Ragtag can use.
fn open(found: &Found) -> Result<Gpu> {
    let features = wanted_features(&found.wgpu);
    let descriptor = DeviceDescriptor {
        label: None,
        required_features: features,
        required_limits: found.wgpu.limits(),
        experimental_features: ExperimentalFeatures::disabled(),
        memory_hints: MemoryHints::MemoryUsage,
        trace: wgpu::Trace::Off,
    };
    let refused = |why: String| Error::Unsupported { what: format!("opening a wgpu device: {why}") };
    let opened = ready(found.wgpu.request_device(&descriptor));
    let opened = opened.ok_or_else(|| refused("the request does not complete".into()))?;
    opened.map(|(device, queue)| Gpu::new(device, queue)).map_err(|error| refused(error.to_string()))
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        Ok(Found::adapters(self.found()?))
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        Found::open_each(&self.found()?, adapters, |found, wanted, id| {
            let mut found = found.clone();
            if found.adapter.memory.is_empty() {
                // Another API reported these sizes.
                found.adapter.memory.clone_from(&wanted.memory);
            }
            self.device(id, found, limits)
        })
    }
}

#[cfg(test)]
pub(crate) fn open_one(id: DeviceId, found: Found, limits: &Limits) -> Result<WgpuDevice> {
    WgpuBackend::new(WgpuConfig { cache_folder: None }).device(id, found, limits)
}
