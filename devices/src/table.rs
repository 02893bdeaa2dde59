//! The table of backends, what their probes report, and how their adapters are opened.
//!
//! This module must not know how users name devices.

use crate::identity;
use ragtag_hal::{Adapter, Backend, Checked, Device, DeviceId, Error, Features, Limits, Result, Unavailable};
use serde::{Deserialize, Serialize};

/// What the user says about backends as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Into how many devices the host's processor is divided.
    pub cpu_devices: u32,
    /// Threads of each CPU device; without it the cores are divided among them.
    pub cpu_threads: Option<u32>,
    /// The only features that CPU devices may claim, where the processor has them: for tests of lesser code paths.
    pub cpu_features: Option<Features>,
}

impl Default for Config {
    /// One CPU device with all cores and features.
    fn default() -> Self {
        Self { cpu_devices: 1, cpu_threads: None, cpu_features: None }
    }
}

/// A backend of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// `None` if it is not compiled in.
    pub(crate) backend: Option<Box<dyn Backend>>,
}

/// The rows in order of preference: where several backends see one physical device, the first of them is taken.
fn rows(config: &Config) -> Vec<Row> {
    vec![
        Row { name: "cuda", backend: cuda() },
        Row { name: "opencl", backend: opencl() },
        Row { name: "cpu", backend: cpu(config) },
    ]
}

#[cfg(feature = "cpu")]
fn cpu(config: &Config) -> Option<Box<dyn Backend>> {
    Some(Box::new(ragtag_cpu::CpuBackend::new(ragtag_cpu::CpuConfig {
        devices: config.cpu_devices,
        threads: config.cpu_threads,
        features: config.cpu_features.clone(),
    })))
}

#[cfg(not(feature = "cpu"))]
fn cpu(_: &Config) -> Option<Box<dyn Backend>> {
    None
}

#[cfg(feature = "opencl")]
fn opencl() -> Option<Box<dyn Backend>> {
    Some(Box::new(ragtag_opencl::OpenClBackend::new(ragtag_opencl::OpenClConfig::default())))
}

#[cfg(not(feature = "opencl"))]
fn opencl() -> Option<Box<dyn Backend>> {
    None
}

#[cfg(feature = "cuda")]
fn cuda() -> Option<Box<dyn Backend>> {
    Some(Box::new(ragtag_cuda::CudaBackend::new(ragtag_cuda::CudaConfig::default())))
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Option<Box<dyn Backend>> {
    None
}

/// What became of a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "status")]
pub enum Status {
    /// This build does not have it.
    NotCompiled,
    /// Its library or driver is missing or refuses.
    Unavailable(Unavailable),
    /// It works, and shows these adapters; perhaps none.
    Found {
        /// The adapters.
        adapters: Vec<Adapter>,
    },
}

/// A backend and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendReport {
    /// Its name, as in `cpu:0`.
    pub name: String,
    /// What became of it.
    #[serde(flatten)]
    pub status: Status,
}

/// One physical device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physical {
    /// The labels of the adapters that show it, the preferred one first; never empty.
    pub adapters: Vec<String>,
}

/// What the probes of all backends say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The backends in order of preference.
    pub backends: Vec<BackendReport>,
    /// The physical devices that they show.
    pub devices: Vec<Physical>,
}

impl Report {
    /// All adapters, in order of preference.
    pub fn adapters(&self) -> impl Iterator<Item = &Adapter> {
        self.backends.iter().flat_map(|backend| match &backend.status {
            Status::Found { adapters } => adapters.as_slice(),
            Status::NotCompiled | Status::Unavailable(_) => &[],
        })
    }

    /// The adapter with this label.
    pub fn adapter(&self, label: &str) -> Option<&Adapter> {
        self.adapters().find(|adapter| adapter.label() == label)
    }
}

/// Puts the checks above a device that has been opened.
pub type Check = dyn Fn(&Adapter, Box<dyn Device>) -> Result<Checked> + Send + Sync;

/// The backends of this build.
pub struct Backends {
    rows: Vec<Row>,
}

impl Backends {
    /// All backends that are compiled in.
    pub fn new(config: &Config) -> Self {
        Self { rows: rows(config) }
    }

    #[cfg(test)]
    pub(crate) fn of(rows: Vec<Row>) -> Self {
        Self { rows }
    }

    /// Asks every backend for its adapters.
    pub fn probe(&self) -> Report {
        let status = |row: &Row| match row.backend.as_ref().map(|backend| backend.probe()) {
            None => Status::NotCompiled,
            Some(Err(unavailable)) => Status::Unavailable(unavailable),
            Some(Ok(adapters)) => Status::Found { adapters },
        };
        let backends =
            self.rows.iter().map(|row| BackendReport { name: row.name.into(), status: status(row) });
        let mut report = Report { backends: backends.collect(), devices: Vec::new() };
        report.devices = identity::merge(report.adapters());
        report
    }

    /// Opens adapters of a report, those of one backend together, and puts the checks above each. The devices come in
    /// the order of `adapters`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an adapter whose backend this build does not have; what a backend says if it cannot open
    /// one.
    pub fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Checked>> {
        self.open_with(adapters, limits, &|_, device| Ok(Checked::new(device)))
    }

    /// The same, with `check` putting the checks above each device: where tests add faults.
    ///
    /// # Errors
    /// As [`Backends::open`], and what `check` says.
    pub fn open_with(
        &self,
        adapters: &[(Adapter, DeviceId)],
        limits: &Limits,
        check: &Check,
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
            check(adapter, opened.swap_remove(at).1)
        };
        adapters.iter().map(take).collect()
    }
}
