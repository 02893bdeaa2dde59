//! The Vulkan backend: reports physical devices as adapters and opens them.

use crate::api::{Instance, Messages};
use crate::compiler::PipelineCompiler;
use crate::driver::{self, Opening, VulkanDevice};
use crate::probe::{Common, Found, compiled_for, devices};
use ragtag_hal::cache::{CacheCounters, Folder, Shelf, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Error, Limits, Result, Unavailable};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Name of the backend.
const NAME: &str = "vulkan";

/// Configuration of the Vulkan backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanConfig {
    /// Folder for compiled programs. If it is `None`, programs are cached only in memory.
    pub cache_folder: Option<PathBuf>,
    /// Use of the validation layer. The backend logs the layer's messages, and
    /// [`VulkanBackend::validation_messages`] returns them.
    pub validation: Validation,
    /// Whether to place buffers in host-visible memory, on devices whose entire memory is host-visible.
    pub direct_memory: bool,
    /// Whether to import host regions on devices that support it.
    pub import_regions: bool,
    /// Types of device on which kernels use cooperative matrices.
    pub matrices: MatrixUnits,
}

/// Use of the validation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    /// The layer is not used.
    Off,
    /// The layer is used if it is installed.
    WhereInstalled,
    /// The layer is always used. Probing fails if it is not installed.
    On,
}

impl Validation {
    /// Parses the value of `RAGTAG_VULKAN_VALIDATION`.
    fn wanted(value: &str, debugging: bool) -> Self {
        match value {
            "1" => Self::On,
            "0" => Self::Off,
            _ if debugging => Self::WhereInstalled,
            _ => Self::Off,
        }
    }
}

/// Types of device on which kernels use cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnits {
    /// No device. Use this value for comparisons, or if a driver computes wrong results with matrices.
    Off,
    /// GPUs.
    Hardware,
    /// GPUs and software devices. This value is for tests: matrices make software devices slower, and a
    /// kernel with many matrices takes minutes to compile.
    Software,
}

impl MatrixUnits {
    /// Reads `RAGTAG_VULKAN_MATRICES`. Logs a warning about an unknown value, and ignores the value.
    fn wanted() -> Self {
        const VARIABLE: &str = "RAGTAG_VULKAN_MATRICES";
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        match value.to_str() {
            Some("off") => Self::Off,
            Some("software") => Self::Software,
            Some("" | "auto") => Self::Hardware,
            _ => {
                tracing::warn!(?value, "invalid {VARIABLE}: using auto (expected auto, off or software)");
                Self::Hardware
            }
        }
    }
}

impl Default for VulkanConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/vulkan`, or in
    /// `ragtag/vulkan` in the user's cache folder. Two environment variables change the configuration:
    /// - `RAGTAG_VULKAN_VALIDATION=1` requires the validation layer, and `0` disables it. Without the
    ///   variable, debug builds use the layer if it is installed.
    /// - `RAGTAG_VULKAN_MATRICES=off` disables cooperative matrices, and `software` also enables them on
    ///   software devices.
    fn default() -> Self {
        let validation = std::env::var("RAGTAG_VULKAN_VALIDATION").unwrap_or_default();
        Self {
            cache_folder: default_folder(NAME),
            validation: Validation::wanted(&validation, cfg!(debug_assertions)),
            direct_memory: true,
            import_regions: true,
            matrices: MatrixUnits::wanted(),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_builds_are_validated_by_default() {
        let of = |value| [true, false].map(|debugging| Validation::wanted(value, debugging));
        assert_eq!(of("1"), [Validation::On; 2]);
        assert_eq!(of("0"), [Validation::Off; 2]);
        assert_eq!(of(""), [Validation::WhereInstalled, Validation::Off]);
    }
}
