//! The HIP backend: reports devices as adapters and opens them.

use crate::driver::HipDriver;
use crate::probe::{Found, probe};
use crate::program::Programs;
use ragtag_hal::cache::{Folder, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Limits, Result, Unavailable};
use ragtag_stream::{Pins, StreamDevice, open};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// Name of the backend.
const NAME: &str = "hip";

/// Configuration of the HIP backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HipConfig {
    /// Folder for compiled programs. `None` disables the cache, and every source is compiled again at each
    /// start.
    pub cache_folder: Option<PathBuf>,
    /// Command that starts a child process, which compiles a source with
    /// [`compile_child`](crate::compile_child). If the command is empty, this process compiles. A compiler
    /// that does not know the architecture may abort its process.
    pub compiler: Vec<OsString>,
}

impl Default for HipConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/hip`, or in `ragtag/hip`
    /// in the user's cache folder. This process compiles them.
    fn default() -> Self {
        Self { cache_folder: default_folder(NAME), compiler: Vec::new() }
    }
}

/// The HIP backend.
pub struct HipBackend {
    config: HipConfig,
    pins: Arc<Pins<HipDriver>>,
}

impl HipBackend {
    /// Creates a backend with this configuration.
    pub fn new(config: HipConfig) -> Self {
        Self { config, pins: Arc::default() }
    }

    fn device(
        &self,
        found: &Found,
        adapter: &Adapter,
        id: DeviceId,
        limits: &Limits,
    ) -> Result<StreamDevice<HipDriver>> {
        let folder = self.config.cache_folder.clone().map(Folder::new);
        let programs = Programs::new(found, self.config.compiler.clone(), folder);
        let driver = Arc::new(HipDriver::new(found, programs)?);
        open(id, adapter.clone(), driver, Arc::clone(&self.pins), limits)
    }
}

impl Backend for HipBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        Ok(Found::adapters(probe(NAME, true)?))
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        // The adapters already contain the product library that the first probe found.
        let present = probe(NAME, false)?;
        Found::open_each(&present, adapters, |found, adapter, id| self.device(found, adapter, id, limits))
    }
}
