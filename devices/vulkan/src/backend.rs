//! Vulkan's physical devices as adapters, and how they are opened.
//!
//! This module must not know how a device works.

use crate::api::{Instance, Messages};
use crate::compiler::PipelineCompiler;
use crate::driver::{self, Opening, VulkanDevice};
use crate::probe::{Common, Found, compiled_for, devices};
use ragtag_hal::cache::{CacheCounters, Folder, Shelf, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Error, Limits, Result, Unavailable};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The backend's name.
const NAME: &str = "vulkan";

/// What can be said about Vulkan devices as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanConfig {
    /// The folder that compiled programs are kept in; without it they are kept in this process alone.
    pub cache_folder: Option<PathBuf>,
    /// Whether the validation layer looks at every call. What it says is logged, and kept for
    /// [`VulkanBackend::validation_messages`].
    pub validation: Validation,
    /// Whether buffers lie where the host sees them, on devices whose own memory can all be seen.
    pub direct_memory: bool,
    /// Whether host regions are imported, on devices that can.
    pub import_regions: bool,
    /// Which matrix units count.
    pub matrices: MatrixUnits,
}

/// Whether the validation layer looks at every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    /// It does not.
    Off,
    /// It does where it is installed.
    WhereInstalled,
    /// It does, and must be installed.
    On,
}

impl Validation {
    /// What a value of `RAGTAG_VULKAN_VALIDATION` asks for.
    fn wanted(value: &str, debugging: bool) -> Self {
        match value {
            "1" => Self::On,
            "0" => Self::Off,
            _ if debugging => Self::WhereInstalled,
            _ => Self::Off,
        }
    }
}

/// Which devices' cooperative matrices are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnits {
    /// None's: for a driver that computes wrongly with them, and to compare.
    Off,
    /// Those of graphics cards.
    Hardware,
    /// Also those that are software: they are slower than none, and kernels with many of them take minutes to compile.
    Software,
}

impl MatrixUnits {
    /// What `RAGTAG_VULKAN_MATRICES` asks for; what is not known is said and passed over.
    fn wanted() -> Self {
        const VARIABLE: &str = "RAGTAG_VULKAN_MATRICES";
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        match value.to_str() {
            Some("off") => Self::Off,
            Some("software") => Self::Software,
            Some("" | "auto") => Self::Hardware,
            _ => {
                tracing::warn!(?value, "{VARIABLE} is auto, off or software; taken as auto");
                Self::Hardware
            }
        }
    }
}

impl Default for VulkanConfig {
    /// Programs are kept in `vulkan` in the folder that `RAGTAG_CACHE_DIR` names, else in `ragtag/vulkan` in the user's folder
    /// for caches. The validation layer is asked for with `RAGTAG_VULKAN_VALIDATION=1`; builds for debugging have it where it is
    /// installed, except with `0`. `RAGTAG_VULKAN_MATRICES` is `off` for no matrix units and `software` for those that are
    /// software, too.
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
    /// A backend with this configuration. The loader is looked for at the first probe.
    pub fn new(config: VulkanConfig) -> Self {
        let shelf = Arc::new(Shelf::new(config.cache_folder.clone().map(Folder::new)));
        Self { config, instance: OnceLock::new(), messages: Arc::default(), shelf }
    }

    /// What became of the programs of all devices that were opened here.
    pub fn counters(&self) -> CacheCounters {
        self.shelf.counters()
    }

    /// What the validation layer objected to, if it was there.
    pub fn validation_messages(&self) -> Vec<String> {
        self.messages.all()
    }

    /// What compiles for each physical device that has the versions and queues for it, also for one that could not run what
    /// was compiled.
    ///
    /// # Errors
    /// If there is no loader, or a device cannot be opened.
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
            tracing::debug!(why, "a Vulkan device is left out");
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
    fn builds_for_debugging_are_validated_unless_told_otherwise() {
        let of = |value| [true, false].map(|debugging| Validation::wanted(value, debugging));
        assert_eq!(of("1"), [Validation::On; 2]);
        assert_eq!(of("0"), [Validation::Off; 2]);
        assert_eq!(of(""), [Validation::WhereInstalled, Validation::Off]);
    }
}
