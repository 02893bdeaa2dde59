//! The devices of this machine, as users choose them.

use crate::error::{Error, Result};
use ragtag_devices::{Backends, Check, Choice, Config, Handicap, ProbeChild, Report, Requested};
use ragtag_hal::{
    Adapter, AdapterKind, Checked, Device, DeviceId, Feature, GemmChoice, HeapKind, Label, Limits,
    MemorySource, Throttle,
};
use ragtag_scheduler::plan::PlanDeviceOptions;
use ragtag_scheduler::{BufferLimits, DeviceFacts, FigureSource, fleet};
use std::ffi::OsString;

/// What to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// `auto`, `gpu`, `cpu`, names and filters, separated by commas.
    pub requested: Option<String>,
    /// The same from the environment, where nothing was requested.
    pub from_environment: Option<String>,
    /// Into how many devices the processor's cores are split; 0 means one.
    pub cpu_devices: u32,
    /// Threads of each CPU device; by default the cores, divided evenly.
    pub cpu_threads: Option<u32>,
    /// How to start a process in which drivers that may crash are probed, as the command does. Without it they are probed
    /// in this one.
    pub(crate) probe_child: Option<ProbeChild>,
    /// The program, with its arguments, that is started to compile a text for HIP, whose compiler may crash, as the command
    /// does: one that calls `ragtag::compile_for_hip`. Empty: texts are compiled in this process.
    pub(crate) hip_compiler: Vec<OsString>,
    /// Devices and links that are slowed on purpose, for tests.
    pub(crate) handicaps: Vec<Handicap>,
    /// Who computes products of many rows where a library for that is found.
    pub gemm: GemmChoice,
}

impl DeviceOptions {
    /// Options that select devices: `auto`, `gpu`, `cpu`, names and filters, separated by commas.
    pub fn selecting(devices: impl Into<String>) -> Self {
        Self { requested: Some(devices.into()), ..Self::default() }
    }

    /// For benchmarks: slows devices and links on purpose.
    #[doc(hidden)]
    pub fn handicapped(self, handicaps: Vec<Handicap>) -> Self {
        Self { handicaps, ..self }
    }
}

/// Share of a device's free memory that plans may use; the rest is for drivers, other programs and this one.
const USABLE_SHARE: f64 = 0.95;

/// The share of a processor's threads, one part in so many, that is left at most to those who serve other devices.
const SPARED_SHARE: u32 = 8;

/// What was found, and what of it is selected. Nothing is opened before an engine starts.
pub struct Devices {
    backends: Backends,
    report: Report,
    choice: Choice,
    plan_options: PlanDeviceOptions,
    handicaps: Vec<Handicap>,
    limits: Limits,
    check: Box<Check<'static>>,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl Devices {
    /// Probes every backend and resolves the selection.
    ///
    /// # Errors
    /// [`Error::Devices`] or [`Error::DevicesOfEnvironment`] for a selection that cannot be read or that nothing fits; [`Error::Handicap`] for a handicap of
    /// something that is not selected or cannot be slowed.
    pub fn probe(options: &DeviceOptions) -> Result<Self> {
        let (flag, environment) = (options.requested.as_deref(), options.from_environment.as_deref());
        let by_environment = flag.is_none() && environment.is_some_and(|value| !value.trim().is_empty());
        let wrong = if by_environment { Error::DevicesOfEnvironment } else { Error::Devices };
        let requested = Requested::new(flag, environment).map_err(wrong)?;
        let backends = backends(options);
        let report = backends.probe();
        let mut choice = requested.choose(&report).map_err(wrong)?;
        if options.cpu_threads.is_none() {
            spare_threads(&mut choice.selected, &options.handicaps);
        }
        let selected: Vec<_> = choice.selected.iter().map(Adapter::label).collect();
        let handicaps = options.handicaps.clone();
        Handicap::check(&handicaps, &selected)?;
        let plan_options = PlanDeviceOptions {
            selection: choice.requested.clone(),
            cpu_devices: options.cpu_devices.max(1),
            threads: options.cpu_threads,
        };
        let check = Box::new(|_: &Adapter, device| Ok(Checked::new(device)));
        Ok(Self { backends, report, choice, plan_options, handicaps, limits: Limits::default(), check })
    }

    /// Probes every backend, whatever is selected.
    pub fn survey(options: &DeviceOptions) -> Report {
        backends(options).probe()
    }

    /// For tests: devices that turn out to hold less than they said.
    #[doc(hidden)]
    pub fn limited_to(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// For tests: devices that bind only so much at once.
    #[doc(hidden)]
    pub fn binding_at_most(mut self, bytes: u64) -> Self {
        self.choice.selected.iter_mut().for_each(|adapter| adapter.caps.max_binding_bytes = bytes);
        self
    }

    /// For tests: puts the checks above each device as it is opened, with faults on demand, say, or a watch over what it
    /// is left with.
    #[doc(hidden)]
    pub fn checked_by(
        mut self,
        check: impl Fn(&Adapter, Box<dyn Device>) -> ragtag_hal::Result<Checked> + Send + Sync + 'static,
    ) -> Self {
        self.check = Box::new(check);
        self
    }

    /// What each backend found.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What was requested, detected and selected.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The options that these devices were found with, as plans name them.
    pub(crate) fn plan_options(&self) -> &PlanDeviceOptions {
        &self.plan_options
    }

    /// The selected adapters, in pipeline order.
    pub fn selected(&self) -> &[Adapter] {
        &self.choice.selected
    }

    /// Labels of the selected adapters.
    pub fn labels(&self) -> Vec<String> {
        self.selected().iter().map(Adapter::label).collect()
    }

    /// One line: `requested=auto detected=[cpu:0] selected=[cpu:0]`, and what is slowed on purpose if anything is.
    pub fn start_line(&self) -> String {
        if self.handicaps.is_empty() {
            return self.choice.to_string();
        }
        let handicaps: Vec<_> = self.handicaps.iter().map(Handicap::to_string).collect();
        format!("{} handicaps=[{}]", self.choice, handicaps.join(", "))
    }

    /// What is slowed on purpose.
    pub fn handicaps(&self) -> &[Handicap] {
        &self.handicaps
    }

    /// The rate to which a link is slowed on purpose.
    fn link_limit_bytes_per_s(&self, a: &str, b: &str) -> Option<u64> {
        self.handicaps.iter().find_map(|handicap| match handicap {
            Handicap::LinkRate { from, to, bytes_per_s } => {
                ([from, to].map(Label::to_string) == [a, b]).then_some(*bytes_per_s)
            }
            _ => None,
        })
    }

    /// Rates and free memory of the selected devices, for the planner: those of its card in the library, else what the API reports, else assumed ones. Where a physical device is used through
    /// several APIs, each has its share of the memory.
    pub fn facts(&self) -> Vec<DeviceFacts> {
        let physical = |adapter: &Adapter| self.report.device(&adapter.label());
        let users = |adapter: &Adapter| {
            self.selected().iter().filter(|other| physical(other) == physical(adapter)).count() as u64
        };
        self.selected().iter().map(|adapter| facts(adapter, users(adapter))).collect()
    }

    /// Host memory that is free; none where the processor was not probed.
    pub(crate) fn host_memory_bytes(&self) -> Option<u64> {
        let processors = self.report.adapters().filter(|adapter| adapter.kind == AdapterKind::Cpu);
        // Each has its share of it.
        let free = processors.filter_map(|adapter| adapter.memory.first()?.free_bytes);
        free.reduce(u64::saturating_add)
    }

    /// What `--strict` has against the selection: software devices where a GPU was asked for, and handicaps.
    pub(crate) fn strict_findings(&self) -> Vec<String> {
        let software = |a: &&Adapter| a.kind == AdapterKind::Software;
        let slowed = self.handicaps.iter().map(|handicap| format!("{handicap} is slowed on purpose"));
        self.selected()
            .iter()
            .filter(software)
            .map(|a| format!("{} ({}) is a GPU API executed by the processor", a.label(), a.name))
            .chain(slowed)
            .collect()
    }

    /// Opens one adapter of the report, selected or not.
    pub(crate) fn open_adapter(&self, adapter: &Adapter) -> ragtag_hal::Result<Checked> {
        let mut opened = self.backends.open(&[(adapter.clone(), DeviceId(0))], &self.limits)?;
        Ok(opened.swap_remove(0))
    }

    /// Opens adapters by label, in this order.
    ///
    /// # Errors
    /// [`Error::Device`] names the one that does not open, or all of them if each opens without the others.
    pub(crate) fn open(&self, labels: &[String]) -> Result<Vec<(Adapter, Checked)>> {
        self.open_with(labels, |_| None)
    }

    /// The same for the stages of a pipeline: the link from one to the next is as slow as a handicap has it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_stages(&self, labels: &[String]) -> Result<Vec<(Adapter, Checked)>> {
        self.open_with(labels, |label| {
            let [from, to] = labels.windows(2).find(|pair| pair[0] == label)? else { return None };
            self.link_limit_bytes_per_s(from, to)
        })
    }

    fn open_with(
        &self,
        labels: &[String],
        link: impl Fn(&str) -> Option<u64> + Send + Sync,
    ) -> Result<Vec<(Adapter, Checked)>> {
        let find = |(index, label): (usize, &String)| {
            let adapter = self.selected().iter().find(|a| a.label() == *label).cloned();
            let missing =
                || Error::Usage(format!("device {label} of the plan is not among the selected ones"));
            Ok((adapter.ok_or_else(missing)?, DeviceId(index as u16)))
        };
        let wanted = labels.iter().enumerate().map(find).collect::<Result<Vec<_>>>()?;
        let check = |adapter: &Adapter, device: Box<dyn Device>| {
            let throttle = Throttle { link_bytes_per_s: link(&adapter.label()), ..Throttle::default() };
            (self.check)(adapter, throttle.over(device)?)
        };
        let open = |some: &[(Adapter, DeviceId)]| self.backends.open_with(some, &self.limits, &check);
        let opened = open(&wanted).map_err(|cause| {
            // Those of an API open together, and it does not say which of them would not.
            let alone =
                |one: &(Adapter, DeviceId)| Some((one.0.label(), open(std::slice::from_ref(one)).err()?));
            let culprit = if wanted.len() > 1 { wanted.iter().find_map(alone) } else { None };
            let (device, cause) = culprit.unwrap_or_else(|| (labels.join(", "), cause));
            Error::Device { device, cause }
        })?;
        Ok(wanted.into_iter().map(|(adapter, _)| adapter).zip(opened).collect())
    }
}

fn backends(options: &DeviceOptions) -> Backends {
    Backends::new(&Config {
        cpu_devices: options.cpu_devices.max(1),
        cpu_threads: options.cpu_threads,
        child: options.probe_child.clone(),
        hip_compiler: options.hip_compiler.clone(),
        handicaps: options.handicaps.clone(),
        gemm: options.gemm,
        ..Config::default()
    })
}

/// Leaves a thread for each device beside the processor, and one for the coordinator, to those who serve them: all threads
/// of a processor's device wait for each other after every operator, so one that has to share its core holds up the rest.
/// A device whose threads somebody chose keeps them.
fn spare_threads(selected: &mut [Adapter], handicaps: &[Handicap]) {
    let is_processor = |adapter: &Adapter| adapter.kind == AdapterKind::Cpu;
    let processors = selected.iter().filter(|adapter| is_processor(adapter)).count();
    let others = selected.len() - processors;
    if others == 0 {
        return;
    }
    let each = (others + 1).div_ceil(processors.max(1)) as u32;
    let chosen = |label: &str| {
        handicaps.iter().any(|h| matches!(h, Handicap::Threads { device, .. } if device.to_string() == label))
    };
    for adapter in selected.iter_mut().filter(|adapter| is_processor(adapter) && !chosen(&adapter.label())) {
        let threads = adapter.caps.parallel_units;
        adapter.caps.parallel_units = threads - each.min(threads / SPARED_SHARE);
    }
}

fn facts(adapter: &Adapter, users: u64) -> DeviceFacts {
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
    let usable = (bytes as f64 * USABLE_SHARE) as u64 / users.max(1);
    // What a library works in is not from the device's buffers.
    let usable = usable.saturating_sub(caps.gemm.as_ref().map_or(0, |library| library.workspace_bytes));
    let facts = DeviceFacts::assumed(&label, adapter.kind, caps.parallel_units, usable, source);
    let facts = DeviceFacts {
        f16_products: ragtag_kernels::has_f16_products(caps),
        buffers: BufferLimits {
            allocation_bytes: caps.max_allocation_bytes,
            binding_bytes: caps.max_binding_bytes,
        },
        in_host_memory: adapter.memory.first().is_some_and(|memory| memory.heap == HeapKind::Host),
        ..facts
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
    fn two_apis_of_one_device_divide_its_memory() {
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
    fn a_card_that_is_known_has_the_figures_of_its_datasheet() {
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
    fn a_processor_beside_other_devices_leaves_them_threads() {
        let options = DeviceOptions::selecting("cpu");
        let found = Devices::probe(&options).unwrap().selected()[0].clone();
        let processor = |index, threads| {
            let mut adapter = Adapter { index, ..found.clone() };
            adapter.caps.parallel_units = threads;
            adapter
        };
        let gpu =
            |index| Adapter { backend: "abacus".into(), kind: AdapterKind::Discrete, ..processor(index, 99) };
        let left = |mut selected: Vec<Adapter>, handicaps: &[&str]| {
            let handicaps: Vec<Handicap> = handicaps.iter().map(|text| text.parse().unwrap()).collect();
            spare_threads(&mut selected, &handicaps);
            selected.iter().map(|adapter| adapter.caps.parallel_units).collect::<Vec<_>>()
        };
        assert_eq!(left(vec![processor(0, 32), processor(1, 32)], &[]), [32, 32], "nobody else is there");
        assert_eq!(left(vec![gpu(0), gpu(1), processor(0, 32)], &[]), [99, 99, 29]);
        assert_eq!(left(vec![gpu(0), processor(0, 32), processor(1, 32)], &[]), [99, 31, 31]);
        assert_eq!(left(vec![gpu(0), processor(0, 8)], &[]), [99, 7]);
        assert_eq!(left(vec![gpu(0), processor(0, 4)], &[]), [99, 4], "few threads are all needed");
        assert_eq!(left(vec![gpu(0), processor(0, 32)], &["cpu:0=threads:32"]), [99, 32]);
    }
}
