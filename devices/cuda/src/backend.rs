//! The CUDA backend: reports devices as adapters and opens them.

use crate::api::{Context, CublasLt, Functions, Nvrtc};
use crate::driver::{Abilities, CudaDriver, Tools, WORKSPACE_BYTES};
use crate::nvrtc::Compiler;
use crate::probe::{Common, Found, devices};
use ragtag_hal::cache::{Folder, default_folder};
use ragtag_hal::{
    Adapter, Backend, Device, DeviceId, Feature, GemmChoice, GemmLibrary, Limits, Result, Unavailable,
};
use ragtag_stream::{Pins, StreamDevice, open};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Name of the backend.
const NAME: &str = "cuda";

/// Configuration of the CUDA backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaConfig {
    /// Folder for compiled programs. `None` disables the cache, and NVRTC compiles the kernels at every
    /// start. The driver has its own cache for the PTX that it compiles.
    pub cache_folder: Option<PathBuf>,
    /// Choice between Ragtag's kernels and cuBLASLt for products with many rows. `Auto` loads cuBLASLt only
    /// if a device has no matrix units, because loading takes 0.2 seconds.
    pub gemm: GemmChoice,
    /// Maximum number of multiprocessors that a device uses, keyed by device number. Throttles set these
    /// limits.
    pub multiprocessors: BTreeMap<u32, u32>,
}

impl Default for CudaConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/cuda`, or in
    /// `ragtag/cuda` in the user's cache folder.
    fn default() -> Self {
        Self { cache_folder: default_folder(NAME), gemm: GemmChoice::Auto, multiprocessors: BTreeMap::new() }
    }
}

/// The loaded libraries.
struct Libraries {
    functions: Arc<Functions>,
    nvrtc: Option<Arc<Nvrtc>>,
    cublas_lt: OnceLock<Option<Arc<CublasLt>>>,
}

impl Libraries {
    fn load() -> std::result::Result<Self, Unavailable> {
        let functions = Functions::load().map_err(|missing| unavailable(missing.to_string()))?;
        let nvrtc = Nvrtc::find(functions.version()).map(Arc::new);
        Ok(Self { functions: Arc::new(functions), nvrtc, cublas_lt: OnceLock::new() })
    }

    fn found(&self, config: &CudaConfig) -> Result<Vec<Found>> {
        let compiles = |capability| self.nvrtc.as_ref().is_some_and(|nvrtc| nvrtc.knows(capability));
        let mut found = devices(&self.functions, &Common { backend: NAME, compiles: &compiles })?;
        for Found { adapter, .. } in &mut found {
            // The adapter reports the limit, because a limited device is slower than the whole device.
            adapter.driver.multiprocessors = config.multiprocessors.get(&adapter.index).copied();
            let most = adapter.driver.multiprocessors.unwrap_or(u32::MAX);
            adapter.caps.parallel_units = adapter.caps.parallel_units.min(most);
        }
        Ok(found)
    }

    /// Returns cuBLASLt, loaded on first use. Returns `None` if it is not installed.
    fn cublas_lt(&self) -> Option<&Arc<CublasLt>> {
        let find = || CublasLt::find(self.functions.version()).map(Arc::new);
        self.cublas_lt.get_or_init(find).as_ref()
    }

    /// Returns the product library if `choice` allows it and it is installed.
    fn gemm(&self, choice: GemmChoice, found: &[Found]) -> Option<GemmLibrary> {
        let has_matrix_units = |found: &Found| found.adapter.caps.features.contains(&Feature::Sm70);
        let looked_for = match choice {
            GemmChoice::Own => false,
            GemmChoice::Auto => !found.iter().all(has_matrix_units),
            GemmChoice::Library => true,
        };
        let library = looked_for.then(|| self.cublas_lt()).flatten()?;
        Some(GemmLibrary {
            name: "cuBLASLt".into(),
            version: library.version(),
            workspace_bytes: WORKSPACE_BYTES,
            preferred: choice == GemmChoice::Library,
        })
    }
}

/// The CUDA backend.
pub struct CudaBackend {
    config: CudaConfig,
    libraries: OnceLock<std::result::Result<Libraries, Unavailable>>,
    pins: Arc<Pins<CudaDriver>>,
    /// Contexts of the last probe. They are kept until devices are opened, because the driver takes a tenth
    /// of a second or more to create a context.
    probed: Mutex<Vec<Arc<Context>>>,
}

impl CudaBackend {
    /// Creates a backend with this configuration. The driver is loaded by the first probe.
    pub fn new(config: CudaConfig) -> Self {
        Self { config, libraries: OnceLock::new(), pins: Arc::default(), probed: Mutex::default() }
    }

    fn libraries(&self) -> std::result::Result<&Libraries, Unavailable> {
        self.libraries.get_or_init(Libraries::load).as_ref().map_err(Clone::clone)
    }

    fn keep(&self, contexts: Vec<Arc<Context>>) -> Vec<Arc<Context>> {
        std::mem::replace(&mut self.probed.lock().unwrap_or_else(PoisonError::into_inner), contexts)
    }

    fn device(
        &self,
        libraries: &Libraries,
        found: &Found,
        adapter: &Adapter,
        id: DeviceId,
        limits: &Limits,
    ) -> Result<StreamDevice<CudaDriver>> {
        let multiprocessors = found.adapter.driver.multiprocessors;
        let context = Context::new(&libraries.functions, found.device, multiprocessors)?;
        let folder = self.config.cache_folder.clone().map(Folder::new);
        let compiler = |nvrtc: &Arc<Nvrtc>| Compiler::new(Arc::clone(nvrtc), folder, found.capability);
        let abilities = Abilities {
            overlaps: adapter.caps.features.contains(&Feature::Sm90),
            pools: found.pools,
            local_memory_bytes: adapter.caps.local_memory_bytes,
        };
        let tools = Tools {
            compiler: libraries.nvrtc.as_ref().map(compiler),
            cublas_lt: adapter.caps.gemm.as_ref().and_then(|_| libraries.cublas_lt().cloned()),
        };
        let driver = CudaDriver::new(context, tools, abilities)?;
        open(id, adapter.clone(), Arc::new(driver), Arc::clone(&self.pins), limits)
    }
}

fn unavailable(cause: String) -> Unavailable {
    Unavailable { tried: Functions::tried(), cause }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        let libraries = self.libraries()?;
        let mut found = libraries.found(&self.config).map_err(|error| unavailable(error.to_string()))?;
        let gemm = libraries.gemm(self.config.gemm, &found);
        found.iter_mut().for_each(|found| found.adapter.caps.gemm = gemm.clone());
        let ask = |mut found: Found| {
            // The memory of the context itself is not counted as free.
            let context = Context::new(&libraries.functions, found.device, None);
            let free = context.as_ref().map_err(Clone::clone).and_then(|context| context.memory());
            let free = free.inspect_err(|error| {
                tracing::warn!(adapter = found.adapter.label(), %error, "cannot query the device's free memory");
            });
            let free_bytes = free.ok().map(|(free_bytes, _)| free_bytes);
            found.adapter.memory.iter_mut().for_each(|memory| memory.free_bytes = free_bytes);
            (found.adapter, context.ok())
        };
        // Creating a context is slow, so each device creates its own in parallel.
        let (adapters, contexts): (_, Vec<_>) = std::thread::scope(|scope| {
            let asked: Vec<_> = found.into_iter().map(|found| scope.spawn(|| ask(found))).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()).unzip()
        });
        self.keep(contexts.into_iter().flatten().collect());
        Ok(adapters)
    }

    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        let libraries = self.libraries()?;
        let present = libraries.found(&self.config)?;
        let probed = self.keep(Vec::new());
        let opened = Found::open_each(&present, adapters, |found, adapter, id| {
            self.device(libraries, found, adapter, id, limits)
        });
        // Destroying the contexts of other devices is slow, so they are destroyed in parallel.
        std::thread::scope(|scope| {
            probed.into_iter().for_each(|context| drop(scope.spawn(|| drop(context))))
        });
        opened
    }
}
