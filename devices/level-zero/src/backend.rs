//! The Level Zero backend: reports devices as adapters and opens them.

use crate::api::Driver;
use crate::context::Context;
use crate::driver::{self, LevelZeroDevice};
use crate::probe::{Found, probe};
use ragtag_hal::cache::{CacheCounters, Folder, Shelf, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Limits, Result, Unavailable};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Name of the backend.
const NAME: &str = "level-zero";
/// Default of [`LevelZeroConfig::shared_below_bytes`].
const SHARED_BELOW_BYTES: u64 = 64 << 10;

/// Configuration of the Level Zero backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelZeroConfig {
    /// Folder for compiled programs. If it is `None`, programs are cached only in memory.
    pub cache_folder: Option<PathBuf>,
    /// Size in bytes below which a device with its own memory shares a buffer with the host. The host then
    /// makes small copies that need not wait for commands. Integrated devices share all buffers.
    pub shared_below_bytes: u64,
}

impl Default for LevelZeroConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/level-zero`, or in
    /// `ragtag/level-zero` in the user's cache folder. Host and device share buffers below 64 KiB.
    fn default() -> Self {
        Self { cache_folder: default_folder(NAME), shared_below_bytes: SHARED_BELOW_BYTES }
    }
}

/// The Level Zero backend.
pub struct LevelZeroBackend {
    config: LevelZeroConfig,
    shelf: Arc<Shelf>,
    /// Contexts in use. The devices of a driver share a context, which lives as long as any of them.
    contexts: Mutex<Vec<Weak<Context>>>,
}

impl LevelZeroBackend {
    /// Creates a backend with this configuration.
    pub fn new(config: LevelZeroConfig) -> Self {
        let shelf = Shelf::new(config.cache_folder.clone().map(Folder::new));
        Self { config, shelf: Arc::new(shelf), contexts: Mutex::default() }
    }

    /// Returns the cache counters of all devices opened by this backend.
    pub fn counters(&self) -> CacheCounters {
        self.shelf.counters()
    }

    fn context(&self, driver: Driver) -> Result<Arc<Context>> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        if let Some(context) = contexts.iter().filter_map(Weak::upgrade).find(|own| own.is_of(driver)) {
            return Ok(context);
        }
        let context = Arc::new(Context::new(driver, Arc::clone(&self.shelf))?);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    fn device(&self, found: &Found, id: DeviceId, limits: &Limits) -> Result<LevelZeroDevice> {
        let context = self.context(found.driver)?;
        driver::open(id, found, context, self.config.shared_below_bytes, limits)
    }

    #[cfg(test)]
    pub(crate) fn open_one(&self, id: DeviceId, adapter: &Adapter) -> Result<LevelZeroDevice> {
        let present = probe(NAME)?;
        self.device(Found::find(&present, adapter)?, id, &Limits::default())
    }
}

impl Backend for LevelZeroBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        Ok(Found::adapters(probe(NAME)?))
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        let present = probe(NAME)?;
        Found::open_each(&present, adapters, |found, _, id| self.device(found, id, limits))
    }
}
