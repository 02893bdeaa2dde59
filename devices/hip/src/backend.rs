//! HIP's devices as adapters, and how they are opened.
//!
//! This module must not know how a device works.

use crate::driver::HipDriver;
use crate::probe::{Found, probe};
use crate::program::Programs;
use ragtag_hal::cache::{Folder, default_folder};
use ragtag_hal::{Adapter, Backend, Device, DeviceId, Limits, Result, Unavailable};
use ragtag_stream::{Pins, StreamDevice, open};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// The backend's name.
const NAME: &str = "hip";

/// What can be said about HIP devices as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HipConfig {
    /// The folder that compiled programs are kept in; without it every text is compiled anew.
    pub cache_folder: Option<PathBuf>,
    /// The program, with its arguments, that is started for each text to be compiled and calls
    /// [`compile_child`](crate::compile_child). Empty: texts are compiled in this process, and end it where the compiler
    /// does not know the architecture.
    pub compiler: Vec<OsString>,
}

impl Default for HipConfig {
    /// Programs are kept in `hip` in the folder that `RAGTAG_CACHE_DIR` names, else in `ragtag/hip` in the user's folder for
    /// caches. They are compiled in this process.
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
    /// A backend with this configuration.
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
        // What was chosen of what the first probe found is in the adapters.
        let present = probe(NAME, false)?;
        Found::open_each(&present, adapters, |found, adapter, id| self.device(found, adapter, id, limits))
    }
}
