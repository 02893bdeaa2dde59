//! The CPU backend: reports shares of the host's CPU cores as adapters, and opens them.
//!
//! This module knows nothing about queues or kernels.

use crate::driver;
use crate::features;
use ragtag_hal::{
    Adapter, AdapterKind, Backend, Caps, Device, DeviceId, DriverInfo, Error, Features, HeapKind, HostMemory,
    KernelLanguage, Limits, Memory, MemoryHandle, MemorySharing, MemorySource, PhysicalIdentity, Result,
    Unavailable,
};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::available_parallelism;
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// Division of the host's CPU cores into devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Number of devices.
    pub devices: u32,
    /// Number of threads of each device. By default, the backend divides the cores among the devices, and
    /// each device has at least one thread.
    pub threads: Option<u32>,
    /// CPU features that kernels may use if the CPU has them. By default, kernels use all features of the
    /// CPU. Tests restrict the features to cover slower code paths.
    pub features: Option<Features>,
    /// Number of threads for individual devices, keyed by device number. It overrides `threads`.
    pub threads_of: BTreeMap<u32, u32>,
}

impl Default for CpuConfig {
    /// Returns a configuration with one device that has all cores and features.
    fn default() -> Self {
        Self { devices: 1, threads: None, features: None, threads_of: BTreeMap::new() }
    }
}

/// The CPU backend.
#[derive(Clone, Debug)]
pub struct CpuBackend {
    config: CpuConfig,
}

impl CpuBackend {
    /// Creates a backend with this configuration.
    pub fn new(config: CpuConfig) -> Self {
        Self { config }
    }

    /// Returns the number of threads of device `index`: the configured number, or the device's share of the
    /// cores.
    fn threads(&self, index: u32) -> u32 {
        if let Some(threads) = self.config.threads_of.get(&index).copied().or(self.config.threads) {
            return threads.max(1);
        }
        // This number respects CPU affinity and container limits.
        let cores = available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
        let (each, rest) = (cores / self.config.devices, cores % self.config.devices);
        (each + u32::from(index < rest)).max(1)
    }

    fn features(&self) -> Features {
        let found = features::detect();
        match &self.config.features {
            Some(allowed) => found.intersection(allowed).copied().collect(),
            None => found,
        }
    }

    fn adapters(&self) -> Vec<Adapter> {
        let name = processor_name();
        let (memory, parts) = (HostMemory::now(), u64::from(self.config.devices.max(1)));
        let features = self.features();
        let driver: DriverInfo =
            format!("ragtag {}, {}", env!("CARGO_PKG_VERSION"), features::name(&features)).into();
        let handles = BTreeSet::from([MemoryHandle::HostPages]);
        let sharing =
            MemorySharing { exports: handles.clone(), imports: handles, ..MemorySharing::default() };
        let adapter = |index| Adapter {
            backend: self.name().into(),
            index,
            name: name.clone(),
            driver: driver.clone(),
            kind: AdapterKind::Cpu,
            identity: PhysicalIdentity::default(),
            condition: None,
            memory: vec![Memory {
                heap: HeapKind::Host,
                total_bytes: memory.total_bytes / parts,
                free_bytes: Some(memory.free_bytes / parts),
                source: MemorySource::System,
            }],
            caps: Caps {
                languages: BTreeSet::from([KernelLanguage::Host]),
                features: features.clone(),
                parallel_units: self.threads(index),
                sharing: sharing.clone(),
                ..Caps::default()
            },
        };
        (0..self.config.devices).map(adapter).collect()
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        if self.config.devices == 0 {
            return Err(Unavailable { tried: vec![], cause: "no CPU devices were requested".into() });
        }
        Ok(self.adapters())
    }

    /// Opens devices. The number of threads comes from the adapter, where the caller may have lowered it
    /// since the probe.
    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>> {
        let present = self.adapters();
        let open = |(wanted, id): &(Adapter, DeviceId)| {
            let found = present.iter().find(|adapter| adapter.label() == wanted.label());
            let adapter = found.ok_or_else(|| Error::invalid(format!("no adapter {}", wanted.label())))?;
            let mut adapter = adapter.clone();
            adapter.caps.parallel_units = wanted.caps.parallel_units.clamp(1, adapter.caps.parallel_units);
            Ok(Box::new(driver::open(*id, adapter, limits)?) as Box<dyn Device>)
        };
        adapters.iter().map(open).collect()
    }
}

/// Returns the name of the CPU, as the operating system reports it.
fn processor_name() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let name = system.cpus().first().map(|cpu| cpu.brand().trim().to_string());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}
