//! Probing, selection and opening of devices.

use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::ledger::{self, Claim, Claimed, Part};
use crate::model::Model;
use ragtag_devices::{
    BackendReport, Backends, Check, Choice, Config, MemoryCapError, MemoryCaps, ProbeChild, Report,
    Requested, Status, ThrottleSpec,
};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Checked, Device, DeviceId, Feature, GemmChoice, HeapKind, HostMemory, Label,
    Limits, MemoryHandle, MemorySource, Throttle,
};
use ragtag_kernels::{Layout, TensorType, layout_for};
use ragtag_planner::plan::{Plan, PlanDeviceOptions, PlanStage};
use ragtag_planner::{BufferLimits, DeviceFacts, FigureSource, WeightSharing, fleet};
use ragtag_scheduler::weight_staging_bytes;
use ragtag_transfer::Route;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;

/// Options for probing and selecting devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Device selection: a comma-separated list of `auto`, `gpu`, `cpu`, names and filters.
    pub requested: Option<String>,
    /// Device selection from the environment variable `RAGTAG_DEVICES`. It applies only if `requested` is
    /// `None`.
    pub from_environment: Option<String>,
    /// Caps of the memory that plans use: a comma-separated list of `BACKEND:INDEX=SIZE`, `BACKEND=SIZE` for
    /// all devices of an API, and `host=SIZE`. An example is `cuda:0=12GiB,host=24GiB`.
    ///
    /// A device's cap limits [`DeviceFacts::memory_bytes`]. The cap of host memory limits pinned buffers and
    /// devices in host memory. CPU devices divide it evenly.
    pub memory: Option<String>,
    /// Memory caps from the environment variable `RAGTAG_MEMORY`. They apply only if `memory` is `None`.
    pub memory_from_environment: Option<String>,
    /// Number of CPU devices to create. The CPU's cores are divided among them. 0 means one device.
    pub cpu_devices: u32,
    /// Number of threads per CPU device. By default, the CPU devices divide the hardware threads evenly.
    pub cpu_threads: Option<u32>,
    /// Child process in which drivers are probed, because a driver may crash. If it is `None`, this process
    /// probes the drivers. [`isolated`](Self::isolated) sets it.
    pub probe_child: Option<ProbeChild>,
    /// Program and arguments of the child process that compiles HIP kernels, because the HIP compiler may
    /// crash. If the list is empty, this process compiles the kernels. [`isolated`](Self::isolated) sets it.
    pub hip_compiler: Vec<OsString>,
    /// Artificial slow-downs of devices and links, for tests.
    pub throttles: Vec<ThrottleSpec>,
    /// Kernels for matmuls with many rows: Ragtag's own kernels, or those of a GEMM library.
    pub gemm: GemmChoice,
}

impl DeviceOptions {
    /// Creates options that select `devices`: a comma-separated list of `auto`, `gpu`, `cpu`, names and
    /// filters.
    pub fn selecting(devices: impl Into<String>) -> Self {
        Self { requested: Some(devices.into()), ..Self::default() }
    }

    /// Caps the memory that plans use, as described at [`memory`](Self::memory).
    pub fn capping_memory(self, caps: impl Into<String>) -> Self {
        Self { memory: Some(caps.into()), ..self }
    }
}

/// Returns the route through host memory between two devices. Without a probe, plans use only this route.
pub(crate) fn staged_route(from: &Adapter, to: &Adapter) -> Route {
    let is_gpu = |adapter: &Adapter| matches!(adapter.kind, AdapterKind::Discrete | AdapterKind::Integrated);
    if is_gpu(from) && is_gpu(to) { Route::STAGED_BETWEEN_GPUS } else { Route::HOST_STAGED }
}

/// Maximum bytes of a tokenizer per token, while it is built. Measured with 262,144 tokens.
const TOKEN_BYTES: u64 = 480;
/// Maximum host memory of a driver and its compiler, in bytes. Measured: 175 MiB with PoCL, 72 MiB with Mesa's
/// Vulkan device on the CPU.
const DRIVER_BYTES: u64 = 192 << 20;
/// Maximum host memory for threads, programs, requests and the allocator's gaps, in bytes.
const PROCESS_BYTES: u64 = 32 << 20;

/// Fraction of a device's free memory that plans may use. The rest remains free for drivers and other
/// allocations.
const USABLE_SHARE: f64 = 0.95;

/// Reciprocal of the maximum fraction of a CPU device's threads that [`spare_threads`] reserves.
const SPARED_SHARE: u32 = 8;

/// Detected and selected devices. None of them is open. An engine opens its devices when it starts, and when it recovers.
#[derive(Clone)]
pub struct Devices {
    backends: Arc<Backends>,
    report: Report,
    choice: Choice,
    caps: MemoryCaps,
    plan_options: PlanDeviceOptions,
    throttles: Vec<ThrottleSpec>,
    limits: Limits,
    check: Arc<Check<'static>>,
    /// Number of changes of the ledger of claimed memory before the drivers were probed.
    changes: u64,
    /// Devices of other hosts.
    pub(crate) hosts: Hosts,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl Devices {
    /// Probes the backends that the selection needs, and resolves the selection. Other backends may remain
    /// unprobed, because their drivers take time to start.
    ///
    /// # Errors
    /// Returns [`Error::Devices`] if `requested` is malformed or matches no device. Returns
    /// [`Error::DevicesOfEnvironment`] if the selection from the environment is malformed or matches no
    /// device. Returns [`Error::MemoryCap`] or [`Error::MemoryCapOfEnvironment`] if a memory cap is malformed
    /// or names a device that is not selected. Returns [`Error::ThrottleSpec`] if a throttled device or link
    /// is not selected or cannot be throttled.
    pub fn probe(options: &DeviceOptions) -> Result<Self> {
        Self::probe_preferring(options, |_, _| Vec::new())
    }

    /// Probes like [`probe`](Self::probe). Prefers the devices that `preferred` returns to others of the same GPU.
    pub(crate) fn probe_preferring(
        options: &DeviceOptions,
        preferred: impl Fn(&Report, &[Adapter]) -> Vec<String>,
    ) -> Result<Self> {
        Self::resolve(options, |backends, requested, earlier| {
            let mut report = match (earlier, requested.backends()) {
                (Some(earlier), _) => backends.probe_rest(earlier),
                (None, Some(names)) => backends.probe_only(&names),
                (None, None) => backends.probe(),
            };
            if let Ok(choice) = requested.choose(&report) {
                preferred(&report, &choice.selected).iter().for_each(|label| report.prefer(label));
            }
            report
        })
    }

    /// Probes every backend and resolves the selection.
    ///
    /// # Errors
    /// Fails like [`probe`](Self::probe).
    pub fn probe_all(options: &DeviceOptions) -> Result<Self> {
        let probe = |backends: &Backends, _: &Requested, earlier: Option<&Report>| match earlier {
            Some(earlier) => backends.probe_rest(earlier),
            None => backends.probe(),
        };
        Self::resolve(options, probe)
    }

    /// Resolves the selection against the report that `probe` returns. The third argument of `probe` is a
    /// report to complete, if there is one.
    fn resolve(
        options: &DeviceOptions,
        probe: impl Fn(&Backends, &Requested, Option<&Report>) -> Report,
    ) -> Result<Self> {
        let (flag, environment) = (options.requested.as_deref(), options.from_environment.as_deref());
        let by_environment = flag.is_none() && environment.is_some_and(|value| !value.trim().is_empty());
        let wrong = if by_environment { Error::DevicesOfEnvironment } else { Error::Devices };
        let requested = Requested::new(flag, environment).map_err(wrong)?;
        let (backends, changes) = (backends(options), ledger::changes());
        let mut report = probe(&backends, &requested, None);
        let mut choice = requested.choose(&report);
        if !choice.as_ref().is_ok_and(Choice::has_free_memory) {
            // Another API may know the free memory of a device. An error lists all devices.
            report = probe(&backends, &requested, Some(&report));
            choice = requested.choose(&report);
        }
        let mut choice = choice.map_err(wrong)?;
        if options.cpu_threads.is_none() {
            spare_threads(&mut choice.selected, &options.throttles);
        }
        let caps = memory_caps(options, &choice.selected)?;
        let selected: Vec<_> = choice.selected.iter().map(Adapter::label).collect();
        let throttles = options.throttles.clone();
        ThrottleSpec::check(&throttles, &selected)?;
        let plan_options = PlanDeviceOptions {
            selection: choice.requested.clone(),
            cpu_devices: options.cpu_devices.max(1),
            threads: options.cpu_threads,
        };
        let check = Arc::new(|_: &Adapter, device| Ok(Checked::new(device)));
        let limits = Limits::default();
        let (backends, hosts) = (Arc::new(backends), Hosts::default());
        Ok(Self { backends, report, choice, caps, plan_options, throttles, limits, check, changes, hosts })
    }

    /// Adds the CPU to the devices of the selection `auto` if weights of `weight_bytes` bytes exceed the memory of
    /// the GPUs. Otherwise, and for other selections, changes nothing.
    ///
    /// # Errors
    /// Fails like [`probe`](Self::probe).
    pub fn helped_by_cpu(self, options: &DeviceOptions, weight_bytes: u64) -> Result<Self> {
        let uses_cpu = self.selected().iter().any(|adapter| adapter.kind == AdapterKind::Cpu);
        let memory_bytes = self.facts().iter().map(|facts| facts.memory_bytes).fold(0, u64::saturating_add);
        if self.choice.requested != "auto" || uses_cpu || weight_bytes <= memory_bytes {
            return Ok(self);
        }
        let options = DeviceOptions { requested: Some("auto,cpu".into()), ..options.clone() };
        let mut helped = Self::resolve(&options, |_, _, _| self.report.clone())?;
        let Self { limits, check, changes, hosts, choice, .. } = self;
        (helped.choice.requested, helped.choice.source) = (choice.requested, choice.source);
        Ok(Self { limits, check, changes, hosts, ..helped })
    }

    /// Adds the CPU to the devices of the selection `auto`. Returns `None` for other selections, and if the CPU is one of
    /// the devices.
    pub(crate) fn joined_by_cpu(&self) -> Option<Self> {
        let cpus = self.report.adapters().filter(|adapter| adapter.kind == AdapterKind::Cpu);
        let cpus: Vec<_> = cpus.filter(|cpu| !self.labels().contains(&cpu.label())).cloned().collect();
        (self.choice.requested == "auto" && !cpus.is_empty()).then(|| {
            let mut devices = self.clone();
            devices.choice.selected.extend(cpus);
            devices
        })
    }

    /// Adds a device that was found to the selection.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if it was not found.
    pub(crate) fn joined_by(&self, device: &str) -> Result<Self> {
        let mut devices = self.clone();
        if devices.report.adapter(device).is_none() {
            devices.report = devices.backends.probe_rest(&devices.report);
        }
        let known = || devices.report.adapters().map(Adapter::label).collect();
        let unknown = || Error::UnknownDevice { device: device.into(), known: known() };
        let adapter = devices.report.adapter(device).ok_or_else(unknown)?.clone();
        devices.choice.selected.push(adapter);
        Ok(devices)
    }

    /// Probes every backend and returns the report. Ignores the device selection in `options`.
    pub fn survey(options: &DeviceOptions) -> Report {
        backends(options).probe()
    }

    /// Reads the sensors of each GPU. The report then contains temperatures, power, clocks and their limits, as
    /// far as an API or the system reports them.
    pub fn with_sensors(mut self) -> Self {
        self.report.read_sensors();
        self
    }

    /// Limits the memory of devices below the sizes that they report, for tests.
    #[doc(hidden)]
    pub fn limited_to(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the devices of this host beside those of `hosts`.
    #[cfg(feature = "remote")]
    pub(crate) fn beside(self, hosts: Hosts) -> Self {
        Self { hosts, ..self }
    }

    /// Limits the size of a buffer binding on the selected devices to `bytes`, for tests.
    #[doc(hidden)]
    pub fn binding_at_most(mut self, bytes: u64) -> Self {
        self.choice.selected.iter_mut().for_each(|adapter| adapter.caps.max_binding_bytes = bytes);
        self
    }

    /// Sets the function that wraps each opened device in a [`Checked`], so that tests can inject faults or
    /// detect leaks.
    #[doc(hidden)]
    pub fn checked_by(
        mut self,
        check: impl Fn(&Adapter, Box<dyn Device>) -> ragtag_hal::Result<Checked> + Send + Sync + 'static,
    ) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// Returns the probe report of all backends.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the requested, detected and selected devices.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Returns whether the selection names the device with this label, or its backend.
    pub(crate) fn is_named(&self, label: &str) -> bool {
        self.report.adapter(label).is_some_and(|adapter| self.choice.names(adapter))
    }

    /// Returns the device options that plans record.
    pub(crate) fn plan_options(&self) -> &PlanDeviceOptions {
        &self.plan_options
    }

    /// Returns the selected adapters, in the order of the selection.
    pub fn selected(&self) -> &[Adapter] {
        &self.choice.selected
    }

    /// Returns the labels of the selected adapters.
    pub fn labels(&self) -> Vec<String> {
        self.selected().iter().map(Adapter::label).collect()
    }

    /// Returns the labels of the selected devices in every API that shows them.
    pub fn labels_of_every_api(&self) -> Vec<String> {
        let physical = |label: &String| {
            self.report.device(label).map_or(vec![label.clone()], |device| device.adapters.clone())
        };
        let mut labels: Vec<String> = self.labels().iter().flat_map(physical).collect();
        let mut seen = std::collections::BTreeSet::new();
        labels.retain(|label| seen.insert(label.clone()));
        labels
    }

    /// Returns a summary in one line: `requested=auto detected=[cpu:0] selected=[cpu:0]`, followed by any
    /// memory caps and throttles.
    pub fn start_line(&self) -> String {
        let mut line = self.choice.to_string();
        let throttles: Vec<_> = self.throttles.iter().map(ThrottleSpec::to_string).collect();
        for (name, items) in [("memory", self.caps.to_strings()), ("throttles", throttles)] {
            if !items.is_empty() {
                line.push_str(&format!(" {name}=[{}]", items.join(", ")));
            }
        }
        line
    }

    /// Returns the caps of the memory that plans use.
    pub fn memory_caps(&self) -> &MemoryCaps {
        &self.caps
    }

    /// Returns the throttles of devices and links.
    pub fn throttles(&self) -> &[ThrottleSpec] {
        &self.throttles
    }

    /// Returns the bandwidth to which the link from `a` to `b` is throttled, in bytes per second, or `None`
    /// if it is not throttled.
    fn link_limit_bytes_per_s(&self, a: &str, b: &str) -> Option<u64> {
        self.throttles.iter().find_map(|throttle| match throttle {
            ThrottleSpec::LinkRate { from, to, bytes_per_s } => {
                ([from, to].map(Label::to_string) == [a, b]).then_some(*bytes_per_s)
            }
            _ => None,
        })
    }

    /// Returns the rates and the free memory of the selected devices, for the planner. The rates come from
    /// the card library if it lists the device, and otherwise from the API. A rate that neither provides is
    /// assumed. Memory that other engines of this process need is not free. If a physical device is selected
    /// through several APIs, they divide its memory evenly. Memory caps apply afterwards. Engines under equal caps
    /// share them.
    pub fn facts(&self) -> Vec<DeviceFacts> {
        self.facts_beside(0)
    }

    /// Returns [`Self::facts`] if the process needs `host_bytes` bytes of the free host memory itself.
    pub(crate) fn facts_beside(&self, host_bytes: u64) -> Vec<DeviceFacts> {
        self.facts_with(self.adapters_now(), host_bytes, facts)
    }

    /// Returns whether the `opened` devices have the memory that `plan` needs besides `kept_bytes` of each device. They must not
    /// hold any memory yet. The process needs `host_bytes` bytes of the free host memory itself.
    pub(crate) fn have_room_for(
        &self,
        plan: &Plan,
        opened: &[Box<dyn Device>],
        host_bytes: u64,
        kept_bytes: impl Fn(&str) -> u64,
    ) -> bool {
        let now = |adapter: &Adapter| {
            let mut adapter = adapter.clone();
            let device = opened.iter().find(|device| device.adapter().label() == adapter.label());
            if let Some(memory) = device.and_then(|device| device.memory().ok()) {
                adapter.memory = memory;
                let sharers = self.sharers(&adapter);
                let free = adapter.memory.iter_mut().filter_map(|memory| memory.free_bytes.as_mut());
                free.for_each(|free| *free /= sharers);
            }
            adapter
        };
        let facts = self.facts_with(self.selected().iter().map(now).collect(), host_bytes, memory_facts);
        let needed = |label: &str| {
            let stages = plan.all_stages().filter(|stage| stage.device == label);
            let all = stages.map(|stage| stage.memory_bytes.total).fold(0, u64::saturating_add);
            all.saturating_sub(kept_bytes(label))
        };
        let host = self.host_memory_bytes(host_bytes);
        facts.iter().all(|facts| needed(&facts.label) <= facts.memory_bytes)
            && host.is_none_or(|free| plan.host_memory_bytes.total <= free)
    }

    /// Returns the facts of `adapters`, which are the selected ones with the memory that is free now. `facts` describes an
    /// adapter that this number of adapters share.
    fn facts_with(
        &self,
        adapters: Vec<Adapter>,
        host_bytes: u64,
        facts: impl Fn(&Adapter, u64) -> DeviceFacts,
    ) -> Vec<DeviceFacts> {
        let physical = |adapter: &Adapter| self.report.device(&adapter.label());
        let users = |adapter: &Adapter| {
            self.selected().iter().filter(|other| physical(other) == physical(adapter)).count() as u64
        };
        let host_bytes = host_bytes.saturating_add(self.claimed_of_host().free_bytes);
        let described = |mut adapter: Adapter| {
            let shared = host_bytes / self.sharers(&adapter);
            let own = self.claimed(&adapter).free_bytes;
            for memory in &mut adapter.memory {
                let taken = if memory.heap == HeapKind::Host { shared } else { own };
                memory.free_bytes = memory.free_bytes.map(|free| free.saturating_sub(taken));
            }
            self.capped(&adapter, facts(&adapter, users(&adapter)))
        };
        adapters.into_iter().map(described).collect()
    }

    /// Returns the selected adapters with the memory that is free now. Probes the drivers again if an engine of
    /// this process has started or ended since they were probed.
    fn adapters_now(&self) -> Vec<Adapter> {
        let mut adapters = self.selected().to_vec();
        if self.changes == ledger::changes() {
            return adapters;
        }
        let found = |backend: &&BackendReport| matches!(backend.status, Status::Found { .. });
        let names: Vec<_> =
            self.report.backends.iter().filter(found).map(|backend| backend.name.as_str()).collect();
        let report = self.backends.probe_only(&names);
        for adapter in &mut adapters {
            if let Some(now) = report.adapter(&adapter.label()) {
                adapter.memory.clone_from(&now.memory);
            }
        }
        adapters
    }

    /// Returns the names by which claims on the memory of a device recognize it.
    fn names(&self, adapter: &Adapter) -> Vec<String> {
        let label = adapter.label();
        let labels = self.report.device(&label).map_or(vec![label], |device| device.adapters.clone());
        let address = adapter.identity.pci.map(|pci| pci.to_string());
        labels.into_iter().chain(address).collect()
    }

    /// Returns the memory that engines of this process have claimed on a device.
    fn claimed(&self, adapter: &Adapter) -> Claimed {
        ledger::claimed(&self.names(adapter), &self.caps.to_strings())
    }

    /// Returns the host memory that engines of this process have claimed.
    fn claimed_of_host(&self) -> Claimed {
        ledger::claimed(&[ledger::HOST.into()], &self.caps.to_strings())
    }

    /// Claims the memory of a plan for an engine that is about to start.
    pub(crate) fn claim(&self, plan: &Plan) -> Claim {
        let in_host =
            |adapter: &Adapter| adapter.memory.first().is_some_and(|memory| memory.heap == HeapKind::Host);
        let of = |adapter: &Adapter, bytes: fn(&PlanStage) -> u64| {
            let label = adapter.label();
            plan.all_stages().filter(|stage| stage.device == label).map(bytes).fold(0, u64::saturating_add)
        };
        let devices = self.selected().iter().map(|adapter| Part {
            names: self.names(adapter),
            bytes: of(adapter, |stage| stage.memory_bytes.total),
            untouched_bytes: 0,
        });
        let untouched = self.selected().iter().filter(|adapter| in_host(adapter));
        let untouched_bytes = untouched.map(|adapter| of(adapter, |stage| stage.memory_bytes.kv)).sum();
        let bytes = plan.host_memory_bytes.total;
        let host = Part { names: vec![ledger::HOST.into()], bytes, untouched_bytes };
        Claim::new(devices.chain([host]).collect(), self.caps.to_strings())
    }

    /// Returns the number of devices, including `adapter`, that divide host memory evenly.
    fn sharers(&self, adapter: &Adapter) -> u64 {
        if adapter.kind == AdapterKind::Cpu { u64::from(self.plan_options.cpu_devices).max(1) } else { 1 }
    }

    /// Applies the memory caps to the description of a device. CPU devices divide the cap of host memory
    /// evenly, as they divide the free host memory.
    fn capped(&self, adapter: &Adapter, facts: DeviceFacts) -> DeviceFacts {
        let host = self.host_cap_bytes().filter(|_| facts.in_host_memory);
        let host = host.map(|bytes| usable_bytes(bytes) / self.sharers(adapter));
        let own = self.cap_bytes(adapter);
        let own = own.map(|cap| cap.saturating_sub(self.claimed(adapter).capped_bytes));
        match host.into_iter().chain(own).min() {
            Some(cap) if cap < facts.memory_bytes => {
                DeviceFacts { memory_bytes: cap, memory_source: FigureSource::User, ..facts }
            }
            _ => facts,
        }
    }

    /// Returns the part of the cap of host memory that no engine of this process has claimed under the same caps.
    fn host_cap_bytes(&self) -> Option<u64> {
        self.caps.host_bytes().map(|cap| cap.saturating_sub(self.claimed_of_host().capped_bytes))
    }

    /// Returns the memory cap of a device in bytes, without the cap of host memory.
    pub fn cap_bytes(&self, adapter: &Adapter) -> Option<u64> {
        self.caps.device_bytes(&label(adapter))
    }

    /// Returns whether two adapters are one physical device, seen through two APIs.
    pub(crate) fn is_same_device(&self, ends: [&Adapter; 2]) -> bool {
        let [from, to] = ends.map(|adapter| self.report.device(&adapter.label()));
        from.is_some() && from == to
    }

    /// Returns the free host memory in bytes without `beside` bytes that the process needs itself, at most its
    /// cap. Returns `None` if it has no cap and the CPU was not probed.
    pub(crate) fn host_memory_bytes(&self, beside: u64) -> Option<u64> {
        let beside = beside.saturating_add(self.claimed_of_host().free_bytes);
        let free = self.free_host_bytes().map(|free| free.saturating_sub(beside));
        free.into_iter().chain(self.host_cap_bytes()).min()
    }

    /// Returns the host memory in bytes that a run of `model` takes in addition to the buffers of its plan:
    /// the memory that the process has taken since the devices were probed, the tokenizer, the staging of
    /// weights, drivers, threads, programs and requests.
    pub(crate) fn process_bytes(&self, model: &Model) -> u64 {
        let since =
            self.free_host_bytes().map_or(0, |free| free.saturating_sub(HostMemory::now().free_bytes));
        let vocabulary = u64::from(model.hyperparameters().vocabulary);
        let tokenizer = if model.has_built_tokenizer() { 0 } else { vocabulary * TOKEN_BYTES };
        let staging = weight_staging_bytes().saturating_mul(self.selected().len() as u64);
        let with_drivers = self.selected().iter().filter(|adapter| adapter.kind != AdapterKind::Cpu);
        let backends: BTreeSet<&str> = with_drivers.map(|adapter| adapter.backend.as_str()).collect();
        let drivers = backends.len() as u64 * DRIVER_BYTES;
        [since, tokenizer, staging, drivers, PROCESS_BYTES].into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the free host memory in bytes. Returns `None` if the CPU was not probed. The figure is that of the
    /// probe unless an engine of this process has started or ended since.
    pub(crate) fn free_host_bytes(&self) -> Option<u64> {
        let processors = self.report.adapters().filter(|adapter| adapter.kind == AdapterKind::Cpu);
        // Each CPU device reports its own share of the memory.
        let free = processors.filter_map(|adapter| adapter.memory.first()?.free_bytes);
        let free = free.reduce(u64::saturating_add)?;
        Some(if self.changes == ledger::changes() { free } else { HostMemory::now().free_bytes })
    }

    /// Opens an adapter from the probe report, for work outside of a pipeline. The adapter need not be selected.
    ///
    /// # Errors
    /// Fails if the adapter cannot be opened.
    pub fn open_adapter(&self, adapter: &Adapter) -> ragtag_hal::Result<Checked> {
        let mut opened = self.backends.open(&[(adapter.clone(), DeviceId(0))], &self.limits)?;
        Ok(opened.swap_remove(0))
    }

    /// Opens the selected adapters with the given labels and returns them in the order of `labels`.
    ///
    /// # Errors
    /// Returns [`Error::Device`] if a device cannot be opened. The error names this device, or all devices if
    /// each device can be opened on its own. Returns [`Error::Usage`] if a label is not selected.
    pub(crate) fn open(&self, labels: &[String]) -> Result<Vec<(Adapter, Checked)>> {
        self.open_with(labels, |_| None)
    }

    /// Returns the adapter with this label, which is selected or on another host.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if it is not selected.
    pub(crate) fn selected_adapter(&self, label: &str) -> Result<&Adapter> {
        let missing = || Error::Usage(format!("the plan needs device {label}, which is not selected"));
        let own = self.selected().iter().find(|adapter| adapter.label() == label);
        own.or_else(|| self.hosts.adapter(label)).ok_or_else(missing)
    }

    /// Opens the devices of a pipeline's stages. `stages` has the device label of each stage, and `prefill`
    /// that of the prefill stage, which is the last of the hosts. Opens a device with several stages only
    /// once. Throttles the links between the stages.
    ///
    /// # Errors
    /// Fails like [`open`](Self::open).
    pub(crate) fn open_stages(&self, stages: &[String], prefill: Option<String>) -> Result<StageDevices> {
        let mut labels: Vec<String> = Vec::new();
        let hosts = stages.iter().chain(&prefill).map(|label| {
            let known = labels.iter().position(|other| other == label);
            known.unwrap_or_else(|| {
                labels.push(label.clone());
                labels.len() - 1
            })
        });
        let hosts = hosts.collect();
        let devices = self.open_with(&labels, |label| {
            let limits = stages.windows(2).filter(|pair| pair[0] == label);
            limits.filter_map(|pair| self.link_limit_bytes_per_s(&pair[0], &pair[1])).min()
        })?;
        Ok(StageDevices { devices, hosts })
    }

    fn open_with(
        &self,
        labels: &[String],
        link: impl Fn(&str) -> Option<u64> + Send + Sync,
    ) -> Result<Vec<(Adapter, Checked)>> {
        let find = |(index, label): (usize, &String)| {
            Ok((self.selected_adapter(label)?.clone(), DeviceId(index as u16)))
        };
        let wanted = labels.iter().enumerate().map(find).collect::<Result<Vec<_>>>()?;
        let check = |adapter: &Adapter, device: Box<dyn Device>| {
            let throttle = Throttle { link_bytes_per_s: link(&adapter.label()), ..Throttle::default() };
            (self.check)(adapter, throttle.over(device)?)
        };
        let open = |some: &[(Adapter, DeviceId)]| self.backends.open_with(some, &self.limits, &check);
        let opened = open(&wanted).map_err(|cause| {
            // All devices of an API are opened in one call, whose error does not name a device. Opening each
            // device alone finds the device that fails.
            let alone =
                |one: &(Adapter, DeviceId)| Some((one.0.label(), open(std::slice::from_ref(one)).err()?));
            let culprit = if wanted.len() > 1 { wanted.iter().find_map(alone) } else { None };
            let (device, cause) = culprit.unwrap_or_else(|| (labels.join(", "), cause));
            Error::Device { device, cause }
        })?;
        Ok(wanted.into_iter().map(|(adapter, _)| adapter).zip(opened).collect())
    }
}

/// Open devices on which a pipeline's stages run.
pub(crate) struct StageDevices {
    /// The devices, without duplicates.
    pub(crate) devices: Vec<(Adapter, Checked)>,
    /// For each stage, the index of its device in `devices`.
    pub(crate) hosts: Vec<usize>,
}

/// Parses the memory caps of `options`, and checks that they apply to the selected devices.
fn memory_caps(options: &DeviceOptions, selected: &[Adapter]) -> Result<MemoryCaps> {
    let environment = options.memory_from_environment.as_deref().filter(|value| !value.trim().is_empty());
    let (text, wrong): (_, fn(MemoryCapError) -> Error) = match (options.memory.as_deref(), environment) {
        (Some(text), _) => (text, Error::MemoryCap),
        (None, Some(text)) => (text, Error::MemoryCapOfEnvironment),
        (None, None) => return Ok(MemoryCaps::default()),
    };
    let caps: MemoryCaps = text.parse().map_err(wrong)?;
    caps.check(&selected.iter().map(label).collect::<Vec<_>>()).map_err(wrong)?;
    Ok(caps)
}

fn label(adapter: &Adapter) -> Label {
    Label { backend: adapter.backend.clone(), index: adapter.index }
}

/// Returns the part of `bytes` free bytes that plans may use.
fn usable_bytes(bytes: u64) -> u64 {
    (bytes as f64 * USABLE_SHARE) as u64
}

fn backends(options: &DeviceOptions) -> Backends {
    Backends::new(&Config {
        cpu_devices: options.cpu_devices.max(1),
        cpu_threads: options.cpu_threads,
        child: options.probe_child.clone(),
        hip_compiler: options.hip_compiler.clone(),
        throttles: options.throttles.clone(),
        gemm: options.gemm,
        ..Config::default()
    })
}

/// Reserves one CPU thread for each device other than a CPU, and one for the coordinator. Several CPU devices
/// divide the reserved threads among them. A CPU device gives up at most 1/[`SPARED_SHARE`] of its threads.
/// All threads of a CPU device synchronize after every operator, so a thread that shares its core with
/// another thread delays all of them. Leaves a device unchanged if the user has set its thread count.
fn spare_threads(selected: &mut [Adapter], throttles: &[ThrottleSpec]) {
    let is_processor = |adapter: &Adapter| adapter.kind == AdapterKind::Cpu;
    let processors = selected.iter().filter(|adapter| is_processor(adapter)).count();
    let others = selected.len() - processors;
    if others == 0 {
        return;
    }
    let each = (others + 1).div_ceil(processors.max(1)) as u32;
    let chosen = |label: &str| {
        throttles
            .iter()
            .any(|h| matches!(h, ThrottleSpec::Threads { device, .. } if device.to_string() == label))
    };
    for adapter in selected.iter_mut().filter(|adapter| is_processor(adapter) && !chosen(&adapter.label())) {
        let threads = adapter.caps.parallel_units;
        adapter.caps.parallel_units = threads - each.min(threads / SPARED_SHARE);
    }
}

/// Returns the weights that a device can stream from the memory of a CPU device. CPU devices store all types
/// in the layout `Rows16`.
fn weight_sharing(caps: &Caps) -> WeightSharing {
    let sharing = &caps.sharing;
    if sharing.exports.contains(&MemoryHandle::HostPages) {
        return WeightSharing::Owner;
    }
    if !sharing.imports.contains(&MemoryHandle::HostPages) {
        return WeightSharing::None;
    }
    match layout_for(TensorType::F16, caps) {
        Layout::Rows16 => WeightSharing::All,
        Layout::RowMajor => WeightSharing::Blocks,
    }
}

fn facts(adapter: &Adapter, users: u64) -> DeviceFacts {
    // Datasheets give rates of matrix units, but not all products with f16 activations use these. All of them
    // get scratch memory for f16 copies of quantized weights.
    let f16_products = ragtag_kernels::has_f16_products(&adapter.caps);
    DeviceFacts { f16_products, ..facts_by_figures(adapter, users) }
}

/// Returns the facts about the memory of a device, with assumed rates.
fn memory_facts(adapter: &Adapter, users: u64) -> DeviceFacts {
    let (bytes, source) = match adapter.memory.first() {
        Some(memory) => {
            let source = match memory.source {
                MemorySource::User => FigureSource::Assumed,
                MemorySource::Api | MemorySource::System | MemorySource::OtherApi => FigureSource::Reported,
            };
            (memory.free_bytes.unwrap_or(memory.total_bytes), source)
        }
        None => (0, FigureSource::Assumed),
    };
    let (label, caps) = (adapter.label(), &adapter.caps);
    let usable = usable_bytes(bytes) / users.max(1);
    // The workspace of the GEMM library is not one of the device's buffers.
    let usable = usable.saturating_sub(caps.gemm.as_ref().map_or(0, |library| library.workspace_bytes));
    let in_host_memory = adapter.memory.first().is_some_and(|memory| memory.heap == HeapKind::Host);
    let assumed = DeviceFacts::assumed(&label, adapter.kind, caps.parallel_units, usable, source);
    DeviceFacts { in_host_memory, ..assumed }
}

/// Returns the facts with `f16_products` set only for matrix units.
fn facts_by_figures(adapter: &Adapter, users: u64) -> DeviceFacts {
    let caps = &adapter.caps;
    let facts = DeviceFacts {
        f16_products: ragtag_kernels::has_matrix_products(caps),
        buffers: BufferLimits {
            allocation_bytes: caps.max_allocation_bytes,
            binding_bytes: caps.max_binding_bytes,
        },
        weight_sharing: weight_sharing(caps),
        ..memory_facts(adapter, users)
    };
    let is_gpu = matches!(adapter.kind, AdapterKind::Discrete | AdapterKind::Integrated);
    let total_bytes = adapter.memory.first().map_or(0, |memory| memory.total_bytes);
    if !is_gpu {
        return facts;
    }
    if let Some(card) = fleet::card_named(&adapter.name, total_bytes) {
        return fleet::with_datasheet(facts, card, &adapter.backend);
    }
    let (bandwidth, flops) =
        (caps.clocks.bandwidth_bytes_per_s(), caps.clocks.flops_per_s(caps.parallel_units));
    let integer_dot = caps.features.contains(&Feature::IntegerDot);
    fleet::with_reported_rates(facts, bandwidth, flops, integer_dot, &adapter.backend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_devices::Physical;

    #[test]
    fn two_apis_of_one_device_share_its_memory() {
        let options = DeviceOptions::selecting("cpu");
        let mut devices = Devices::probe(&options).unwrap();
        let alone = devices.facts()[0].memory_bytes;
        let mut other = devices.selected()[0].clone();
        other.backend = "abacus".into();
        devices.report.devices = vec![Physical { adapters: vec!["cpu:0".into(), other.label()] }];
        devices.choice.selected.push(other);
        let shares: Vec<_> = devices.facts().iter().map(|facts| facts.memory_bytes).collect();
        assert_eq!(shares, [alone / 2; 2]);
    }

    #[test]
    fn memory_caps_lower_the_memory_of_their_devices_and_replanning_keeps_them() {
        let mut options = DeviceOptions::selecting("cpu").capping_memory("cpu:0=1MiB,host=40MiB");
        options.cpu_devices = 2;
        let mut devices = Devices::probe(&options).unwrap();
        let mut gpu = Adapter { backend: "abacus".into(), index: 0, ..devices.selected()[0].clone() };
        (gpu.kind, gpu.memory[0].heap) = (AdapterKind::Discrete, HeapKind::Device);
        devices.choice.selected.push(gpu);
        let facts = devices.facts();
        let of = |at: usize| (facts[at].memory_bytes, facts[at].memory_source);
        assert_eq!(of(0), (1 << 20, FigureSource::User));
        assert_eq!(of(1), (usable_bytes(40 << 20) / 2, FigureSource::User));
        assert!(of(2).0 > 40 << 20 && of(2).1 == FigureSource::Reported, "{:?}", facts[2]);
        assert_eq!(devices.host_memory_bytes(0), Some(40 << 20));

        let model = crate::Model::bundled().unwrap();
        let planner = crate::Planner::new(&model).devices(&devices).holding_at_most("cpu:0", 2 << 20);
        assert_eq!(planner.facts().0[0].memory_bytes, 1 << 20);
    }

    #[test]
    fn plans_leave_host_memory_for_the_process() {
        let mut options = DeviceOptions::selecting("cpu");
        options.cpu_devices = 2;
        let mut devices = Devices::probe(&options).unwrap();
        for adapter in &mut devices.choice.selected {
            adapter.memory[0].free_bytes = Some(500 << 20);
        }
        let memory = |beside| devices.facts_beside(beside).iter().map(|facts| facts.memory_bytes).max();
        assert_eq!(memory(0), Some(usable_bytes(500 << 20)));
        assert_eq!(memory(100 << 20), Some(usable_bytes(450 << 20)), "each device leaves half");
        assert_eq!(memory(u64::MAX), Some(0));
        let free = devices.free_host_bytes().unwrap();
        assert_eq!(devices.host_memory_bytes(free - 7), Some(7));

        let model = crate::Model::bundled().unwrap();
        let least = weight_staging_bytes() * 2 + PROCESS_BYTES;
        let tokenizer = u64::from(model.hyperparameters().vocabulary) * TOKEN_BYTES;
        assert!(devices.process_bytes(&model) >= least + tokenizer);
        model.tokenizer().unwrap();
        assert!(devices.process_bytes(&model) >= least);
        let mut gpu = devices.selected()[0].clone();
        (gpu.backend, gpu.kind) = ("abacus".into(), AdapterKind::Discrete);
        devices.choice.selected.push(gpu);
        assert!(devices.process_bytes(&model) >= least + DRIVER_BYTES);
    }

    #[test]
    fn known_cards_use_their_datasheet_figures() {
        let options = DeviceOptions::selecting("cpu");
        let found = Devices::probe(&options).unwrap().selected()[0].clone();
        let bandwidth = |name: &str, kind| {
            let adapter = Adapter { backend: "vulkan".into(), name: name.into(), kind, ..found.clone() };
            facts(&adapter, 1).bandwidth_bytes_per_s
        };
        let arc = "Intel(R) Arc(TM) A770 Graphics (DG2)";
        let known = bandwidth(arc, AdapterKind::Discrete);
        assert_eq!(known.source, FigureSource::Datasheet);
        assert!((known.value / (0.74 * 560e9) - 1.0).abs() < 1e-9, "{known:?}");
        assert_eq!(bandwidth("a new card", AdapterKind::Discrete).source, FigureSource::Assumed);
        let mut reporting = Adapter { backend: "cuda".into(), kind: AdapterKind::Discrete, ..found.clone() };
        let clocks =
            ragtag_hal::Clocks { memory_khz: 10_000_000, memory_bus_bits: 256, ..Default::default() };
        reporting.caps.clocks = clocks;
        let reported = facts(&reporting, 1).bandwidth_bytes_per_s;
        assert_eq!(reported.source, FigureSource::Reported);
        assert!((reported.value / (0.85 * 640e9) - 1.0).abs() < 1e-9, "{reported:?}");
        assert_eq!(bandwidth(arc, AdapterKind::Software).source, FigureSource::Assumed, "an emulation");
    }

    #[test]
    fn cpu_devices_reserve_threads_for_other_devices() {
        let options = DeviceOptions::selecting("cpu");
        let found = Devices::probe(&options).unwrap().selected()[0].clone();
        let processor = |index, threads| {
            let mut adapter = Adapter { index, ..found.clone() };
            adapter.caps.parallel_units = threads;
            adapter
        };
        let gpu =
            |index| Adapter { backend: "abacus".into(), kind: AdapterKind::Discrete, ..processor(index, 99) };
        let left = |mut selected: Vec<Adapter>, throttles: &[&str]| {
            let throttles: Vec<ThrottleSpec> = throttles.iter().map(|text| text.parse().unwrap()).collect();
            spare_threads(&mut selected, &throttles);
            selected.iter().map(|adapter| adapter.caps.parallel_units).collect::<Vec<_>>()
        };
        assert_eq!(left(vec![processor(0, 32), processor(1, 32)], &[]), [32, 32], "no other devices");
        assert_eq!(left(vec![gpu(0), gpu(1), processor(0, 32)], &[]), [99, 99, 29]);
        assert_eq!(left(vec![gpu(0), processor(0, 32), processor(1, 32)], &[]), [99, 31, 31]);
        assert_eq!(left(vec![gpu(0), processor(0, 8)], &[]), [99, 7]);
        assert_eq!(left(vec![gpu(0), processor(0, 4)], &[]), [99, 4], "few threads are all needed");
        assert_eq!(left(vec![gpu(0), processor(0, 32)], &["cpu:0=threads:32"]), [99, 32]);
    }
}
