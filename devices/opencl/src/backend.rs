//! The OpenCL backend: reports devices as adapters and opens them.

use crate::context::Context;
use crate::driver::{self, OpenClDevice};
use crate::probe::{Found, PlatformId, probe};
use crate::transfer::{TransferMode, transfer_mode};
use ragtag_hal::cache::{CacheCounters, Folder, Shelf, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Limits, Result, Unavailable};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Name of the backend.
const NAME: &str = "opencl";

/// Configuration of the OpenCL backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenClConfig {
    /// Folder for compiled programs. If it is `None`, programs are cached only in memory.
    pub cache_folder: Option<PathBuf>,
    /// Transfer mode for all devices. If it is `None`, each device uses the mode that is best for it.
    pub transfer: Option<TransferMode>,
    /// Whether to record programs in command buffers if the driver supports them.
    pub command_buffers: bool,
}

impl Default for OpenClConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/opencl`, or in
    /// `ragtag/opencl` in the user's cache folder.
    fn default() -> Self {
        Self { cache_folder: default_folder(NAME), transfer: None, command_buffers: true }
    }
}

/// The OpenCL backend.
pub struct OpenClBackend {
    config: OpenClConfig,
    shelf: Arc<Shelf>,
    /// Contexts in use. A device that is opened later uses an existing context that contains it, if there is
    /// one.
    contexts: Mutex<Vec<Weak<Context>>>,
}

impl OpenClBackend {
    /// Creates a backend with this configuration.
    pub fn new(config: OpenClConfig) -> Self {
        let shelf = Shelf::new(config.cache_folder.clone().map(Folder::new));
        Self { config, shelf: Arc::new(shelf), contexts: Mutex::default() }
    }

    /// Returns the cache counters of all devices opened by this backend.
    pub fn counters(&self) -> CacheCounters {
        self.shelf.counters()
    }

    pub(crate) fn found(&self) -> std::result::Result<Vec<Found>, Unavailable> {
        probe(NAME)
    }

    /// Returns a context for devices of one platform. Reuses an existing context if it contains all of these
    /// devices.
    fn context(&self, platform: PlatformId, found: &[&Found]) -> Result<Arc<Context>> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        let live = contexts.iter().filter_map(Weak::upgrade).find(|context| context.serves(found));
        if let Some(context) = live {
            return Ok(context);
        }
        let context = Arc::new(Context::new(platform, found, Arc::clone(&self.shelf))?);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    fn device(
        &self,
        id: DeviceId,
        mut found: Found,
        context: Arc<Context>,
        limits: &Limits,
    ) -> Result<OpenClDevice> {
        let mode = self.config.transfer.unwrap_or_else(|| transfer_mode(&found.memory));
        found.native.command_buffers = found.command_buffers.filter(|_| self.config.command_buffers);
        driver::open(id, found, context, mode, limits)
    }

    #[cfg(test)]
    pub(crate) fn open_one(&self, id: DeviceId, found: Found, limits: &Limits) -> Result<OpenClDevice> {
        let context = self.context(found.platform, &[&found])?;
        self.device(id, found, context, limits)
    }

    #[cfg(test)]
    pub(crate) fn contexts_in_use(&self) -> usize {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.iter().filter(|context| context.strong_count() > 0).count()
    }
}

impl Backend for OpenClBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        Ok(Found::adapters(self.found()?))
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        let present = self.found()?;
        let all: Vec<&Found> =
            adapters.iter().map(|(wanted, _)| Found::find(&present, wanted)).collect::<Result<_>>()?;
        // The devices of a platform share a context, which lives as long as any of them.
        let contexts = all.iter().map(|one| {
            let siblings: Vec<&Found> =
                all.iter().copied().filter(|other| other.platform == one.platform).collect();
            self.context(one.platform, &siblings)
        });
        let contexts: Vec<Arc<Context>> = contexts.collect::<Result<_>>()?;
        let opened = all.iter().zip(adapters).zip(contexts).map(|((found, (_, id)), context)| {
            self.device(*id, (*found).clone(), context, limits)
                .map(|device| Box::new(device) as Box<dyn Device>)
        });
        opened.collect()
    }
}
