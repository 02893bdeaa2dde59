//! Table of backends. This module probes backends, merges their reports and opens their adapters.
//!
//! It knows nothing about the syntax of selections.

use crate::child::{self, Asked, ProbeChild};
use crate::identity;
use crate::sensors::Sensors;
use crate::throttle::ThrottleSpec;
use ragtag_hal::{
    Adapter, AdapterKind, Backend, Checked, Device, DeviceId, Error, Features, GemmChoice, Limits, Result,
    Throttle, Unavailable,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "vulkan", feature = "wgpu"))]
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// User settings that apply to all backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of CPU devices into which the backend `cpu` divides the host's cores.
    pub cpu_devices: u32,
    /// Number of threads of each CPU device. By default, the backend divides the cores among the devices.
    pub cpu_threads: Option<u32>,
    /// CPU features that kernels may use if the CPU has them. By default, kernels use all features of the
    /// CPU. Tests restrict the features to cover slower code paths.
    pub cpu_features: Option<Features>,
    /// Command that starts a child process, which probes drivers that may crash. Without a command, this
    /// process probes them.
    pub child: Option<ProbeChild>,
    /// Command, including arguments, that starts a child process for compiling HIP sources, because the
    /// compiler may crash. The program must call `compile_for_hip`. If the list is empty, this process
    /// compiles the sources.
    pub hip_compiler: Vec<OsString>,
    /// Throttles of devices and links.
    pub throttles: Vec<ThrottleSpec>,
    /// Choice between Ragtag's kernels and matrix product libraries.
    pub gemm: GemmChoice,
}

impl Default for Config {
    /// Returns a configuration with one CPU device that has all cores and features.
    fn default() -> Self {
        Self {
            cpu_devices: 1,
            cpu_threads: None,
            cpu_features: None,
            child: None,
            hip_compiler: Vec::new(),
            throttles: Vec::new(),
            gemm: GemmChoice::Auto,
        }
    }
}

/// An entry of the table: a backend and the process that probes it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The backend, or `None` if it is not compiled in.
    pub(crate) backend: Option<Arc<dyn Backend>>,
    /// Process that probes the backend.
    pub(crate) probed: Probed,
}

/// Process in which a backend is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probed {
    /// This process.
    Here,
    /// A child process, if the configuration has a command for it. Drivers that are known to crash are probed
    /// in a child process.
    Apart,
}

/// Returns the rows in order of preference. If several backends report the same physical device, Ragtag uses
/// the first of these backends.
///
/// Reasons for probing each backend in this process or in a child process:
/// - CUDA: NVIDIA's library returns error codes and does not crash. Initialising many GPUs twice, in two
///   processes, would take too long.
/// - HIP: AMD's runtime aborts on GPUs for which it was not built.
/// - Level Zero: Intel's driver crashes on calls after a failed initialisation, and the loader loads every
///   installed driver.
/// - OpenCL: the loader loads every installed driver. Two drivers in one process that each contain a compiler
///   are known to abort. PoCL aborts on unknown settings.
/// - Vulkan and wgpu: Vulkan's loader loads every installed driver, as well as layers that users install for
///   games.
fn rows(config: &Config) -> Vec<Row> {
    vec![
        Row { name: "cuda", backend: cuda(config), probed: Probed::Here },
        Row { name: "hip", backend: hip(config), probed: Probed::Apart },
        Row { name: "level-zero", backend: level_zero(), probed: Probed::Apart },
        Row { name: "vulkan", backend: vulkan(), probed: Probed::Apart },
        Row { name: "opencl", backend: opencl(), probed: Probed::Apart },
        Row { name: "wgpu", backend: wgpu(), probed: Probed::Apart },
        Row { name: "cpu", backend: cpu(config), probed: Probed::Here },
    ]
}

/// Process-wide table of backends, keyed by configuration. It is used for APIs whose drivers start and
/// compile slowly: a later probe with the same configuration reuses the backend, its probe results and its
/// compiled programs.
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "vulkan", feature = "wgpu"))]
struct Kept<C, B>(Mutex<Vec<(C, Arc<B>)>>);

#[cfg(any(feature = "level-zero", feature = "opencl", feature = "vulkan", feature = "wgpu"))]
impl<C: Clone + PartialEq, B> Kept<C, B> {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn get(&self, config: C, make: impl FnOnce(C) -> B) -> Arc<B> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, backend)) = kept.iter().find(|(own, _)| *own == config) {
            return Arc::clone(backend);
        }
        let backend = Arc::new(make(config.clone()));
        kept.push((config, Arc::clone(&backend)));
        backend
    }
}

/// Defines constructors for backends that are not in this build.
macro_rules! absent {
    ($($feature:literal $backend:ident($($config:ty)?);)*) => {$(
        #[cfg(not(feature = $feature))]
        fn $backend($(_: $config)?) -> Option<Arc<dyn Backend>> {
            None
        }
    )*};
}

absent! {
    "cpu" cpu(&Config);
    "hip" hip(&Config);
    "level-zero" level_zero();
    "opencl" opencl();
    "vulkan" vulkan();
    "wgpu" wgpu();
    "cuda" cuda(&Config);
}

#[cfg(feature = "cpu")]
fn cpu(config: &Config) -> Option<Arc<dyn Backend>> {
    let threads_of = config.throttles.iter().filter_map(|throttle| match throttle {
        ThrottleSpec::Threads { device, threads } => Some((device.index, *threads)),
        _ => None,
    });
    Some(Arc::new(ragtag_cpu::CpuBackend::new(ragtag_cpu::CpuConfig {
        threads_of: threads_of.collect(),
        devices: config.cpu_devices,
        threads: config.cpu_threads,
        features: config.cpu_features.clone(),
    })))
}

#[cfg(feature = "hip")]
fn hip(config: &Config) -> Option<Arc<dyn Backend>> {
    let own = ragtag_hip::HipConfig::default();
    let own = ragtag_hip::HipConfig { compiler: config.hip_compiler.clone(), ..own };
    Some(Arc::new(ragtag_hip::HipBackend::new(own)))
}

#[cfg(feature = "level-zero")]
fn level_zero() -> Option<Arc<dyn Backend>> {
    use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};
    static KEPT: Kept<LevelZeroConfig, LevelZeroBackend> = Kept::new();
    Some(KEPT.get(LevelZeroConfig::default(), LevelZeroBackend::new))
}

#[cfg(feature = "opencl")]
fn opencl() -> Option<Arc<dyn Backend>> {
    use ragtag_opencl::{OpenClBackend, OpenClConfig};
    static KEPT: Kept<OpenClConfig, OpenClBackend> = Kept::new();
    Some(KEPT.get(OpenClConfig::default(), OpenClBackend::new))
}

#[cfg(feature = "vulkan")]
fn vulkan() -> Option<Arc<dyn Backend>> {
    use ragtag_vulkan::{VulkanBackend, VulkanConfig};
    static KEPT: Kept<VulkanConfig, VulkanBackend> = Kept::new();
    Some(KEPT.get(VulkanConfig::default(), VulkanBackend::new))
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Option<Arc<dyn Backend>> {
    use ragtag_wgpu::{WgpuBackend, WgpuConfig};
    static KEPT: Kept<WgpuConfig, WgpuBackend> = Kept::new();
    Some(KEPT.get(WgpuConfig::default(), WgpuBackend::new))
}

#[cfg(feature = "cuda")]
fn cuda(config: &Config) -> Option<Arc<dyn Backend>> {
    let limited = config.throttles.iter().filter_map(|throttle| match throttle {
        ThrottleSpec::Multiprocessors { device, count } => Some((device.index, *count)),
        _ => None,
    });
    let own = ragtag_cuda::CudaConfig::default();
    let config = ragtag_cuda::CudaConfig { gemm: config.gemm, multiprocessors: limited.collect(), ..own };
    Some(Arc::new(ragtag_cuda::CudaBackend::new(config)))
}

/// Result of probing a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "status")]
pub enum Status {
    /// The build does not include the backend.
    NotCompiled,
    /// The backend was not probed, because the user named devices of other backends.
    NotProbed,
    /// The backend's library or driver is missing or broken.
    Unavailable(Unavailable),
    /// The backend works and has these adapters, possibly none.
    Found {
        /// Adapters.
        adapters: Vec<Adapter>,
    },
}

/// A backend and its probe result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendReport {
    /// Name of the backend: `cpu` in `cpu:0`.
    pub name: String,
    /// Probe result.
    #[serde(flatten)]
    pub status: Status,
}

/// One physical device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physical {
    /// Labels of the device's adapters, starting with the preferred adapter. The list is never empty.
    pub adapters: Vec<String>,
}

impl fmt::Display for Physical {
    /// Writes all labels, such as `cuda:0 = opencl:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.adapters.join(" = "))
    }
}

/// Probe results of all backends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Backends in order of preference.
    pub backends: Vec<BackendReport>,
    /// Physical devices.
    pub devices: Vec<Physical>,
}

impl Report {
    /// Returns all adapters in order of preference.
    pub fn adapters(&self) -> impl Iterator<Item = &Adapter> {
        self.backends.iter().flat_map(|backend| match &backend.status {
            Status::Found { adapters } => adapters.as_slice(),
            Status::NotCompiled | Status::NotProbed | Status::Unavailable(_) => &[],
        })
    }

    /// Makes the adapter with this label the preferred one of its physical device.
    pub fn prefer(&mut self, label: &str) {
        let own = |device: &&mut Physical| device.adapters.iter().any(|own| own == label);
        if let Some(device) = self.devices.iter_mut().find(own) {
            device.adapters.sort_by_key(|own| own != label);
        }
    }

    /// Returns the physical device of the adapter with this label.
    pub fn device(&self, label: &str) -> Option<&Physical> {
        self.devices.iter().find(|device| device.adapters.iter().any(|own| own == label))
    }

    /// Builds a report from probe results. Merges the adapters of each physical device. If an adapter lacks
    /// memory figures, uses those of another adapter of the same device.
    fn of(backends: Vec<BackendReport>) -> Self {
        let mut report = Self { backends, devices: Vec::new() };
        let all: Vec<&Adapter> = report.adapters().collect();
        let groups = identity::merge(&all);
        let label = |&at: &usize| all[at].label();
        let devices = groups.iter().map(|group| Physical { adapters: group.iter().map(label).collect() });
        let devices = devices.collect();
        let mut lent = Vec::new();
        for group in &groups {
            let members: Vec<&Adapter> = group.iter().map(|&at| all[at]).collect();
            for &at in group {
                lent.extend(identity::borrowed_memory(all[at], &members).map(|memory| (at, memory)));
            }
        }
        report.devices = devices;
        for (at, memory) in lent {
            if let Some(adapter) = report.adapters_mut().nth(at) {
                adapter.memory.splice(..adapter.memory.len().min(1), [memory]);
            }
        }
        report
    }

    /// Reads the sensors of each GPU, through all APIs and interfaces of the system that report them. All
    /// adapters of a GPU get the same condition.
    pub fn read_sensors(&mut self) {
        self.read(&Sensors::of_system());
    }

    pub(crate) fn read(&mut self, sensors: &Sensors) {
        for at in 0..self.devices.len() {
            let labels = self.devices[at].adapters.clone();
            let adapters: Vec<_> = labels.iter().filter_map(|label| self.adapter(label)).collect();
            let own = adapters.iter().filter_map(|adapter| adapter.condition.clone());
            let is_gpu = |kind| matches!(kind, AdapterKind::Discrete | AdapterKind::Integrated);
            let address =
                adapters.iter().filter(|adapter| is_gpu(adapter.kind)).find_map(|one| one.identity.pci);
            let read = address.and_then(|address| sensors.condition(address));
            let condition = own.chain(read).reduce(|all, one| all.or(&one));
            let these = self.adapters_mut().filter(|adapter| labels.contains(&adapter.label()));
            these.for_each(|adapter| adapter.condition.clone_from(&condition));
        }
    }

    fn adapters_mut(&mut self) -> impl Iterator<Item = &mut Adapter> {
        self.backends.iter_mut().flat_map(|backend| match &mut backend.status {
            Status::Found { adapters } => adapters.as_mut_slice(),
            Status::NotCompiled | Status::NotProbed | Status::Unavailable(_) => &mut [],
        })
    }

    /// Returns the adapter with this label.
    pub fn adapter(&self, label: &str) -> Option<&Adapter> {
        self.adapters().find(|adapter| adapter.label() == label)
    }
}

/// Function that wraps an opened device in validation.
pub type Check<'a> = dyn Fn(&Adapter, Box<dyn Device>) -> Result<Checked> + Send + Sync + 'a;

/// The backends that this build includes.
pub struct Backends {
    rows: Vec<Row>,
    child: Option<ProbeChild>,
    gemm: GemmChoice,
    /// Duty cycles of throttled devices in percent, by label.
    duty_percent: BTreeMap<String, u32>,
}

impl Backends {
    /// Returns all backends that are compiled in.
    pub fn new(config: &Config) -> Self {
        let duty = |throttle: &ThrottleSpec| match throttle {
            ThrottleSpec::Duty { device, percent } => Some((device.to_string(), *percent)),
            _ => None,
        };
        let duty_percent = config.throttles.iter().filter_map(duty).collect();
        Self { rows: rows(config), child: config.child.clone(), gemm: config.gemm, duty_percent }
    }

    #[cfg(test)]
    pub(crate) fn of(rows: Vec<Row>) -> Self {
        Self { rows, child: None, gemm: GemmChoice::Auto, duty_percent: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(crate) fn with_child(self, child: ProbeChild) -> Self {
        Self { child: Some(child), ..self }
    }

    /// Probes every backend. Child processes run concurrently.
    pub fn probe(&self) -> Report {
        self.probe_where(&[], |_| true)
    }

    /// Probes only the backends with the given names, because the drivers of each backend take time to start.
    pub fn probe_only(&self, names: &[&str]) -> Report {
        self.probe_where(&[], |name| names.contains(&name))
    }

    /// Probes the backends that `report` lacks, and adds them to the report.
    pub fn probe_rest(&self, report: &Report) -> Report {
        self.probe_where(&report.backends, |_| true)
    }

    /// Probes the backends that `earlier` lacks and whose names satisfy `wanted`.
    fn probe_where(&self, earlier: &[BackendReport], wanted: impl Fn(&str) -> bool) -> Report {
        let known = |row: &Row| {
            let known = earlier.iter().find(|known| known.name == row.name).map(|known| &known.status);
            let status = match (&row.backend, known) {
                (None, _) => Status::NotCompiled,
                (_, Some(status)) if *status != Status::NotProbed => status.clone(),
                _ if wanted(row.name) => return None,
                _ => Status::NotProbed,
            };
            Some(status)
        };
        let known: Vec<_> = self.rows.iter().map(known).collect();
        let ask = |(row, known): (&Row, &Option<Status>)| {
            let apart = known.is_none() && row.probed == Probed::Apart;
            self.child.as_ref().filter(|_| apart).and_then(|child| child.ask(row.name))
        };
        let start = Instant::now();
        let asked: Vec<_> = self.rows.iter().zip(&known).map(ask).collect();
        let rows = self.rows.iter().zip(&known).zip(&asked);
        let here = rows.map(|((row, known), asked)| match (&row.backend, known, asked) {
            (Some(backend), None, None) => Some(backend.probe()),
            _ => None,
        });
        let here: Vec<_> = here.collect();
        let answers = here.into_iter().zip(asked).map(|(here, asked)| here.or(asked.map(Asked::wait)));
        let backends = self.rows.iter().zip(known).zip(answers).map(|((row, known), answer)| {
            let status = answer.map(|answer| {
                tracing::debug!(backend = row.name, elapsed = ?start.elapsed(), "probed");
                self.status(answer)
            });
            let status = known.or(status).unwrap_or(Status::NotCompiled);
            BackendReport { name: row.name.into(), status }
        });
        Report::of(backends.collect())
    }

    /// Returns the status of a backend that was probed with this result.
    fn status(&self, answer: std::result::Result<Vec<Adapter>, Unavailable>) -> Status {
        match answer {
            Err(unavailable) => Status::Unavailable(unavailable),
            Ok(mut adapters) => {
                for adapter in &mut adapters {
                    // A child process that probes a backend does not know the user's choice.
                    adapter.caps.gemm = self.gemm.of(adapter.caps.gemm.take());
                    // Measurements of a throttled device do not describe the hardware, so reports must
                    // show the throttle.
                    adapter.driver.duty_percent = self.duty_percent.get(&adapter.label()).copied();
                }
                Status::Found { adapters }
            }
        }
    }

    /// Returns true if this build includes a backend.
    pub fn compiled(&self, backend: &str) -> bool {
        self.rows.iter().any(|row| row.name == backend && row.backend.is_some())
    }

    /// Probes one backend, or opens the library that an argument of [`ProbeChild::open_libraries`] names.
    /// Returns the line that a child process must print. Returns `None` if this build does not include the
    /// backend.
    pub fn answer(&self, backend: &str) -> Option<String> {
        if let Some(line) = child::opened(backend) {
            return Some(line);
        }
        let row = self.rows.iter().find(|row| row.name == backend)?;
        Some(child::line(&row.backend.as_ref()?.probe()))
    }

    /// Opens adapters of a report and wraps each device in validation. Adapters of one backend are opened
    /// together. Returns the devices in the order of `adapters`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if this build does not include the backend of an adapter. Returns the
    /// backend's error if the backend cannot open an adapter.
    pub fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Checked>> {
        self.open_with(adapters, limits, &|_, device| Ok(Checked::new(device)))
    }

    /// Opens adapters like [`Backends::open`], but lets `check` wrap each device. Tests use `check` to inject
    /// faults.
    ///
    /// # Errors
    /// Returns the errors of [`Backends::open`] and of `check`.
    pub fn open_with(
        &self,
        adapters: &[(Adapter, DeviceId)],
        limits: &Limits,
        check: &Check<'_>,
    ) -> Result<Vec<Checked>> {
        let mut opened: Vec<(DeviceId, Box<dyn Device>)> = Vec::with_capacity(adapters.len());
        for row in &self.rows {
            let own: Vec<_> =
                adapters.iter().filter(|(adapter, _)| adapter.backend == row.name).cloned().collect();
            if let (Some(backend), false) = (&row.backend, own.is_empty()) {
                let ids = own.iter().map(|(_, id)| *id);
                opened.extend(ids.zip(backend.open(&own, limits)?));
            }
        }
        let take = |(adapter, id): &(Adapter, DeviceId)| {
            let at = opened.iter().position(|(opened, _)| opened == id);
            let at = at.ok_or_else(|| Error::invalid(format!("{} is not in this build", adapter.label())))?;
            let throttle = Throttle { duty_percent: adapter.driver.duty_percent, ..Throttle::default() };
            check(adapter, throttle.over(opened.swap_remove(at).1)?)
        };
        adapters.iter().map(take).collect()
    }
}
