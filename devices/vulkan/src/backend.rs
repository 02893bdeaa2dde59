//! The Vulkan backend: reports physical devices as adapters and opens them.

use crate::api::{Instance, Messages};
use crate::compiler::PipelineCompiler;
use crate::config::{NAME, VulkanConfig};
use crate::driver::{self, Opening, VulkanDevice};
use crate::probe::{Common, Found, compiled_for, devices};
use ragtag_hal::cache::{CacheCounters, Folder, Shelf};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Error, Limits, Result, Unavailable};
use std::sync::{Arc, OnceLock};

/// The Vulkan backend.
pub struct VulkanBackend {
    config: VulkanConfig,
    instance: OnceLock<std::result::Result<Arc<Instance>, String>>,
    messages: Arc<Messages>,
    shelf: Arc<Shelf>,
}

impl VulkanBackend {
    /// Creates a backend with this configuration. The Vulkan loader is loaded by the first probe.
    pub fn new(config: VulkanConfig) -> Self {
        let shelf = Arc::new(Shelf::new(config.cache_folder.clone().map(Folder::new)));
        Self { config, instance: OnceLock::new(), messages: Arc::default(), shelf }
    }

    /// Returns the cache counters of all devices opened by this backend.
    pub fn counters(&self) -> CacheCounters {
        self.shelf.counters()
    }

    /// Returns the messages of the validation layer. The list is empty if the layer is not used.
    pub fn validation_messages(&self) -> Vec<String> {
        self.messages.all()
    }

    /// Returns a pipeline compiler for each physical device that has the required Vulkan version and queues.
    /// This includes devices on which this machine cannot run the compiled pipelines.
    ///
    /// # Errors
    /// Returns an error if there is no loader or a device cannot be opened.
    pub fn compilers(&self) -> Result<Vec<PipelineCompiler>> {
        let unsupported = |what| Error::Unsupported { what };
        let instance = self.instance().map_err(unsupported)?;
        let found = compiled_for(instance).map_err(unsupported)?.into_iter();
        found.map(|found| PipelineCompiler::new(instance, found, &self.common())).collect()
    }

    fn common(&self) -> Common {
        let VulkanConfig { direct_memory: direct, matrices, .. } = self.config;
        Common { backend: NAME, direct, matrices }
    }

    fn instance(&self) -> std::result::Result<&Arc<Instance>, String> {
        let load = || Instance::load(self.config.validation, &self.messages).map(Arc::new);
        self.instance.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn found(&self) -> std::result::Result<Vec<Found>, Unavailable> {
        let unavailable = |cause| Unavailable { tried: vec![Instance::LIBRARY.into()], cause };
        let instance = self.instance().map_err(unavailable)?;
        let (found, left_out) = devices(instance, &self.common()).map_err(unavailable)?;
        for why in &left_out {
            tracing::debug!(why, "skipping a Vulkan device");
        }
        if found.is_empty() {
            let none = || "the loader shows no devices".to_string();
            return Err(unavailable(left_out.into_iter().reduce(|a, b| a + ", " + &b).unwrap_or_else(none)));
        }
        Ok(found)
    }
}

impl VulkanBackend {
    fn device(&self, found: &Found, id: DeviceId, limits: &Limits) -> Result<VulkanDevice> {
        let instance = self.instance().map_err(|what| Error::Unsupported { what })?;
        let (found, import_regions) = (found.clone(), self.config.import_regions);
        driver::open(id, Opening { instance, found, shelf: &self.shelf, import_regions }, limits)
    }

    #[cfg(test)]
    pub(crate) fn open_one(&self, id: DeviceId, adapter: &Adapter, limits: &Limits) -> Result<VulkanDevice> {
        self.device(Found::find(&self.found()?, adapter)?, id, limits)
    }
}

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        Ok(Found::adapters(self.found()?))
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        Found::open_each(&self.found()?, adapters, |found, _, id| self.device(found, id, limits))
    }
}
