//! Converts a fleet to the planner's input. Looks up cards and references, scales datasheet values to the
//! rates that kernels reach, and reports every error with its path.
//!
//! This module knows nothing about JSON.

use super::figure::{Bounds, GB_PER_S, MEMORY_BYTES, MEMORY_GIB, MICROSECONDS, T_PER_S};
use super::hosts::Hosts;
use super::{
    Card, FLEET_VERSION, Fleet, FleetDevice, FleetFigure, FleetLink, InvalidFleet, MAX_DEVICES, Reached,
    card, reached,
};
use crate::cost::{DeviceFacts, Figure, FigureSource, LinkFacts, Links, Profile, SharedLink, WeightSharing};
use crate::json::quoted;
use crate::search::HostFacts;
use ragtag_hal::AdapterKind;
use ragtag_transfer::Route;
use std::collections::{HashMap, HashSet};

/// Fraction of a card's memory that plans may use. The driver and other programs use the rest.
const MEMORY_SHARE: f64 = 0.95;
/// Fraction of a bus's peak rate that copies from pinned memory usually reach.
pub(super) const BUS_SHARE: f64 = 0.8;
/// Maximum number of characters in a label.
const LABEL_CHARACTERS: usize = 64;
pub(super) const GIB: f64 = (1u64 << 30) as f64;
/// Maximum memory of a measured device and of the host: 64 TiB.
const MAX_MEMORY_BYTES: u64 = 1 << 46;

pub(super) type Result<T> = std::result::Result<T, InvalidFleet>;

/// A value from the fleet file or from a card. `is_peak` is set if the value is a theoretical peak.
#[derive(Clone, Copy)]
pub(super) struct Stated {
    pub(super) figure: Figure,
    is_peak: bool,
}

impl Stated {
    /// Converts the value from multiples of `unit`. If the value is a peak, also scales it by `share`.
    fn reached(self, share: f64, unit: f64) -> Figure {
        let share = if self.is_peak { share } else { 1.0 };
        Figure { value: self.figure.value * share * unit, source: self.figure.source }
    }
}

/// The known values of a device, before peaks are scaled.
#[derive(Clone, Default)]
struct Known {
    kind: Option<AdapterKind>,
    through: Option<String>,
    memory_gib: Option<Stated>,
    bandwidth: Option<Stated>,
    f32: Option<Stated>,
    f16_matrix: Option<Stated>,
    int8: Option<Stated>,
    launch_us: Option<Stated>,
    stage_us: Option<Stated>,
    host_latency_us: Option<Stated>,
    host_bandwidth: Option<Stated>,
    measured: Option<DeviceFacts>,
}

pub(super) fn facts(fleet: &Fleet) -> Result<(Vec<DeviceFacts>, Links, Vec<HostFacts>)> {
    if fleet.ragtag_fleet != FLEET_VERSION {
        return Err(InvalidFleet::Version { found: fleet.ragtag_fleet });
    }
    if let Some(bytes) = fleet.host_memory_bytes.filter(|bytes| *bytes > MAX_MEMORY_BYTES) {
        let why = format!("is {bytes}, must be at most {MAX_MEMORY_BYTES}");
        return Err(InvalidFleet::wrong("host_memory_bytes", why));
    }
    let labels = labels(&fleet.devices)?;
    let hosts = Hosts::new(fleet)?;
    let mut devices = Vec::new();
    for (at, label) in &labels {
        let path = format!("devices[{at}]");
        let known = known(&fleet.devices, *at, &mut Vec::new())?;
        devices.push(hosts.placed(&path, &fleet.devices[*at], device_facts(&path, label, &known)?)?);
    }
    let others = hosts.share_memory(&mut devices);
    let links = links(fleet, &hosts, &devices)?;
    Ok((devices, links, others))
}

/// Replaces the rates of a local device with its card's datasheet rates, scaled to the fractions that kernels
/// reach through `api`. Returns the facts unchanged if these fractions are unknown.
pub fn with_datasheet(facts: DeviceFacts, card: &Card, api: &str) -> DeviceFacts {
    with_peaks(facts, of_card(card), api)
}

/// Replaces the rates of a device with rates that are derived from the peaks that its API reports: memory
/// bandwidth in bytes per second, and f32 arithmetic in operations per second. Keeps the rates that the API
/// does not report. `integer_dot` says whether the device supports four-way int8 dot products.
pub fn with_reported_rates(
    facts: DeviceFacts,
    bandwidth_bytes_per_s: Option<f64>,
    flops_per_s: Option<f64>,
    integer_dot: bool,
    api: &str,
) -> DeviceFacts {
    if bandwidth_bytes_per_s.is_none() && flops_per_s.is_none() {
        return facts;
    }
    let peak =
        |value: f64| Stated { figure: Figure { value, source: FigureSource::Reported }, is_peak: true };
    let own = |figure: Figure, unit: f64| Stated {
        figure: Figure { value: figure.value / unit, ..figure },
        is_peak: false,
    };
    let bandwidth = bandwidth_bytes_per_s.map(|rate| peak(rate / 1e9));
    let f32 = flops_per_s.map(|rate| rate / 1e12);
    let fast = |times: f64| match f32 {
        Some(rate) => peak(rate * times),
        None => own(facts.fast_flops_per_s, 1e12),
    };
    let known = Known {
        kind: None,
        bandwidth: Some(bandwidth.unwrap_or(own(facts.bandwidth_bytes_per_s, 1e9))),
        f32: Some(f32.map_or(own(facts.exact_flops_per_s, 1e12), peak)),
        int8: (integer_dot || f32.is_none()).then(|| fast(4.0)),
        // No API reports the rate of matrix units. The slowest matrix units are about four times as fast as
        // the f32 units.
        f16_matrix: Some(fast(4.0)),
        ..Known::default()
    };
    with_peaks(facts, known, api)
}

fn with_peaks(facts: DeviceFacts, mut known: Known, api: &str) -> DeviceFacts {
    // wgpu's kernels run through Vulkan or a similar API.
    known.through = Some(if api == "wgpu" { "vulkan" } else { api }.into());
    if !facts.f16_products {
        known.f16_matrix = None;
    }
    known.memory_gib = Some(Stated {
        figure: Figure { value: facts.memory_bytes as f64 / GIB, source: facts.memory_source },
        is_peak: false,
    });
    match device_facts("device", &facts.label, &known) {
        Err(_) => facts,
        Ok(scaled) => DeviceFacts {
            bandwidth_bytes_per_s: scaled.bandwidth_bytes_per_s,
            exact_flops_per_s: scaled.exact_flops_per_s,
            fast_flops_per_s: scaled.fast_flops_per_s,
            launch_us: scaled.launch_us,
            host_bandwidth_bytes_per_s: scaled.host_bandwidth_bytes_per_s,
            ..facts
        },
    }
}

/// Returns the label of each device, and the index of its entry in the file.
fn labels(devices: &[FleetDevice]) -> Result<Vec<(usize, String)>> {
    if devices.is_empty() {
        return Err(InvalidFleet::wrong("devices", "is empty; a fleet has at least one device"));
    }
    check_counts(devices)?;
    let mut labels: Vec<(usize, String)> = Vec::new();
    let mut of_card: HashMap<&str, u32> = HashMap::new();
    for (at, device) in devices.iter().enumerate() {
        let path = format!("devices[{at}]");
        for number in 0..device.count.unwrap_or(1) {
            let label = match (own_label(device), &device.card) {
                (Some(label), _) if device.count.is_none() => label.clone(),
                (Some(label), _) => format!("{label}:{number}"),
                (None, Some(card)) => {
                    let next = of_card.entry(card).or_default();
                    *next += 1;
                    format!("{card}:{}", *next - 1)
                }
                (None, None) => return Err(InvalidFleet::wrong(&path, "has neither label nor card")),
            };
            check_label(&format!("{path}.label"), &label)?;
            if let Some((first, _)) = labels.iter().find(|(_, other)| *other == label) {
                let why = format!("\"{label}\" is used twice; first by devices[{first}]");
                return Err(InvalidFleet::wrong(&format!("{path}.label"), why));
            }
            labels.push((at, label));
        }
    }
    Ok(labels)
}

/// Returns the label that the entry states, or that of the measured device.
fn own_label(device: &FleetDevice) -> Option<&String> {
    device.label.as_ref().or_else(|| Some(&device.measured.as_ref()?.label))
}

/// Checks the count of each entry, and the total number of devices.
fn check_counts(devices: &[FleetDevice]) -> Result<()> {
    for (at, count) in devices.iter().enumerate().filter_map(|(at, device)| Some((at, device.count?))) {
        if !(1..=MAX_DEVICES as u32).contains(&count) {
            let why = format!("is {count}; a count is 1 to {MAX_DEVICES}");
            return Err(InvalidFleet::wrong(&format!("devices[{at}].count"), why));
        }
    }
    let all: u64 = devices.iter().map(|device| u64::from(device.count.unwrap_or(1))).sum();
    if all > MAX_DEVICES as u64 {
        let why = format!("are {all}, counts included; a fleet has 1 to {MAX_DEVICES} in all");
        return Err(InvalidFleet::wrong("devices", why));
    }
    Ok(())
}

/// Checks that a label is valid. Labels appear in splits (`0-5=cpu:0,6-13=cpu:1`) and in terminal output.
pub(super) fn check_label(path: &str, label: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if label.is_empty() || label.len() > LABEL_CHARACTERS || !label.chars().all(plain) {
        let why = format!(
            "\"{}\" is not a valid label; use 1 to {LABEL_CHARACTERS} letters, digits and -_.:",
            quoted(label)
        );
        return Err(InvalidFleet::wrong(path, why));
    }
    Ok(())
}

/// Returns the values of the device at `at`. Omitted values come from its card, or from the device that it
/// refers to. `trail` holds the devices on the path of references, to detect cycles.
fn known(devices: &[FleetDevice], at: usize, trail: &mut Vec<usize>) -> Result<Known> {
    let (device, path) = (&devices[at], format!("devices[{at}]"));
    let own = own(device, &path)?;
    if device.measured.is_some() && (device.card.is_some() || device.like.is_some()) {
        let why = "conflicts with card and like; give only one of them";
        return Err(InvalidFleet::wrong(&format!("{path}.measured"), why));
    }
    let base = match (&device.card, &device.like) {
        (None, None) => Known::default(),
        (Some(_), Some(_)) => {
            return Err(InvalidFleet::wrong(
                &format!("{path}.like"),
                "conflicts with card; give only one of them",
            ));
        }
        (Some(name), None) => of_card(card(name).map_err(|nearest| {
            let why = format!("unknown card \"{}\"; similar cards are {}", quoted(name), nearest.join(", "));
            InvalidFleet::Wrong { path: format!("{path}.card"), why }
        })?),
        (None, Some(label)) => {
            let path = format!("{path}.like");
            let other = devices.iter().position(|other| own_label(other) == Some(label));
            let other = other.ok_or_else(|| {
                let why = format!("there is no device with the label \"{}\" in the file", quoted(label));
                InvalidFleet::wrong(&path, why)
            })?;
            trail.push(at);
            if trail.contains(&other) {
                let way: Vec<_> = trail.iter().chain([&other]).map(|at| format!("devices[{at}]")).collect();
                return Err(InvalidFleet::wrong(
                    &path,
                    format!("refers to itself: {}", way.join(" is like ")),
                ));
            }
            known(devices, other, trail)?
        }
    };
    Ok(Known {
        kind: own.kind.or(base.kind),
        through: own.through.or(base.through),
        memory_gib: own.memory_gib.or(base.memory_gib),
        bandwidth: own.bandwidth.or(base.bandwidth),
        f32: own.f32.or(base.f32),
        f16_matrix: own.f16_matrix.or(base.f16_matrix),
        int8: own.int8.or(base.int8),
        launch_us: own.launch_us.or(base.launch_us),
        stage_us: own.stage_us.or(base.stage_us),
        host_latency_us: own.host_latency_us.or(base.host_latency_us),
        host_bandwidth: own.host_bandwidth.or(base.host_bandwidth),
        measured: own.measured.or(base.measured),
    })
}

/// Checks a value from the file. A datasheet value counts as a peak.
pub(super) fn stated(path: &str, field: &str, bounds: &Bounds, figure: FleetFigure) -> Result<Stated> {
    let figure = bounds.check(&format!("{path}.{field}"), figure)?;
    Ok(Stated { figure, is_peak: figure.source == FigureSource::Datasheet })
}

/// Returns the values that the file states for the device itself.
fn own(device: &FleetDevice, path: &str) -> Result<Known> {
    let figure = |field: &str, bounds: &Bounds, figure: Option<FleetFigure>| {
        figure.map(|figure| stated(path, field, bounds, figure)).transpose()
    };
    let both = |field: &str, other: &str| {
        InvalidFleet::wrong(
            &format!("{path}.{field}"),
            format!("conflicts with {other}; give only one of them"),
        )
    };
    let bytes = figure("memory_bytes", &MEMORY_BYTES, device.memory_bytes)?;
    let memory_gib = match (figure("memory_gib", &MEMORY_GIB, device.memory_gib)?, bytes) {
        (Some(_), Some(_)) => return Err(both("memory_bytes", "memory_gib")),
        (gib, None) => gib,
        (None, Some(bytes)) => {
            let figure = Figure { value: bytes.figure.value / GIB, ..bytes.figure };
            Some(Stated { figure, ..bytes })
        }
    };
    let rate = figure("host_bandwidth_gb_per_s", &GB_PER_S, device.host_bandwidth_gb_per_s)?;
    let host_bandwidth = match (rate, device.pcie) {
        (Some(_), Some(_)) => return Err(both("pcie", "host_bandwidth_gb_per_s")),
        (rate, None) => rate,
        (None, Some(pcie)) => {
            let value = pcie.gb_per_s().ok_or_else(|| {
                let why = format!(
                    "generation {} with {} lanes does not exist; use generation 1 to 6 with 1, 2, 4, 8 or 16 lanes",
                    pcie.generation, pcie.lanes
                );
                InvalidFleet::wrong(&format!("{path}.pcie"), why)
            })?;
            Some(Stated { figure: Figure { value, source: FigureSource::Datasheet }, is_peak: true })
        }
    };
    Ok(Known {
        kind: device.kind,
        through: device.through.clone(),
        memory_gib,
        bandwidth: figure("bandwidth_gb_per_s", &GB_PER_S, device.bandwidth_gb_per_s)?,
        f32: figure("f32_tflop_per_s", &T_PER_S, device.f32_tflop_per_s)?,
        f16_matrix: figure("f16_matrix_tflop_per_s", &T_PER_S, device.f16_matrix_tflop_per_s)?,
        int8: figure("int8_top_per_s", &T_PER_S, device.int8_top_per_s)?,
        launch_us: figure("launch_us", &MICROSECONDS, device.launch_us)?,
        stage_us: figure("stage_us", &MICROSECONDS, device.stage_us)?,
        host_latency_us: figure("host_latency_us", &MICROSECONDS, device.host_latency_us)?,
        host_bandwidth,
        measured: measured(&format!("{path}.measured"), device.measured.as_ref())?,
    })
}

/// Checks the measurements of a device.
fn measured(path: &str, facts: Option<&DeviceFacts>) -> Result<Option<DeviceFacts>> {
    let Some(facts) = facts else { return Ok(None) };
    let profile =
        facts.profile.as_deref().and_then(Profile::nonsense).map(|field| format!("profile.{field}"));
    let memory = (facts.memory_bytes > MAX_MEMORY_BYTES).then(|| "memory_bytes".to_owned());
    match facts.nonsense().map(str::to_owned).or(memory).or(profile) {
        Some(field) => Err(InvalidFleet::wrong(&format!("{path}.{field}"), "is out of range")),
        None => Ok(Some(facts.clone())),
    }
}

/// Returns the values of a card, all of them as peaks. Values that are not from the datasheet have the source
/// `assumed`.
fn of_card(card: &Card) -> Known {
    let peak = |field: &str, value: f64| {
        let assumed = card.assumed.iter().any(|name| name == field);
        let source = if assumed { FigureSource::Assumed } else { FigureSource::Datasheet };
        Stated { figure: Figure { value, source }, is_peak: true }
    };
    Known {
        kind: Some(card.kind),
        through: Some(card.through.clone()),
        memory_gib: Some(peak("memory_gib", card.memory_gib)),
        bandwidth: Some(peak("bandwidth_gb_per_s", card.bandwidth_gb_per_s)),
        f32: Some(peak("f32_tflop_per_s", card.f32_tflop_per_s)),
        f16_matrix: card.f16_matrix_tflop_per_s.map(|value| peak("f16_matrix_tflop_per_s", value)),
        int8: card.int8_top_per_s.map(|value| peak("int8_top_per_s", value)),
        host_bandwidth: card.pcie.and_then(|pcie| pcie.gb_per_s()).map(|value| peak("pcie", value)),
        ..Known::default()
    }
}

/// Converts the known values of a device to the planner's form. Scales peaks to the rates that kernels reach.
fn device_facts(path: &str, label: &str, known: &Known) -> Result<DeviceFacts> {
    let rates = [known.bandwidth, known.f32, known.f16_matrix, known.int8];
    let share = shares(path, known, rates.into_iter().flatten().any(|rate| rate.is_peak))?;
    // Ignore matrix units that no kernel uses through this API.
    let matrix_share = share.map_or(Some(1.0), |s| s.f16_matrix);
    let matrix = known.f16_matrix.zip(matrix_share).map(|(matrix, share)| matrix.reached(share, 1e12));
    let base = match &known.measured {
        Some(facts) => of_measured(label, known, facts),
        None => DeviceFacts { f16_products: matrix.is_some(), ..of_figures(path, label, known, share)? },
    };
    let exact = known.f32.map(|f32| f32.reached(share.map_or(1.0, |s| s.f32), 1e12));
    let int8 = known.int8.map(|int8| int8.reached(share.map_or(1.0, |s| s.int8), 1e12));
    let slowest = exact.filter(|_| known.measured.is_none());
    let fast = [slowest, int8, matrix].into_iter().flatten();
    let fast = fast.reduce(|a, b| if b.value > a.value { b } else { a });
    let bandwidth = known.bandwidth.map(|rate| rate.reached(share.map_or(1.0, |s| s.bandwidth), 1e9));
    let overhead = |own: Option<Stated>, otherwise: Figure| own.map_or(otherwise, |own| own.figure);
    let host_bandwidth = known.host_bandwidth.map(|rate| rate.reached(BUS_SHARE, 1e9));
    Ok(DeviceFacts {
        bandwidth_bytes_per_s: bandwidth.unwrap_or(base.bandwidth_bytes_per_s),
        exact_flops_per_s: exact.unwrap_or(base.exact_flops_per_s),
        fast_flops_per_s: fast.unwrap_or(base.fast_flops_per_s),
        launch_us: overhead(known.launch_us, base.launch_us),
        stage_us: overhead(known.stage_us, base.stage_us),
        host_latency_us: overhead(known.host_latency_us, base.host_latency_us),
        host_bandwidth_bytes_per_s: host_bandwidth.unwrap_or(base.host_bandwidth_bytes_per_s),
        ..base
    })
}

/// Returns the measured facts with the label and the memory of the fleet. Without the profile if the fleet states a
/// rate that its times would hide.
fn of_measured(label: &str, known: &Known, facts: &DeviceFacts) -> DeviceFacts {
    let hidden = [known.bandwidth, known.f32, known.f16_matrix, known.int8, known.launch_us];
    let measured = (facts.memory_bytes, facts.memory_source);
    let (memory_bytes, memory_source) = known.memory_gib.map_or(measured, memory);
    DeviceFacts {
        label: label.into(),
        memory_bytes,
        memory_source,
        profile: facts.profile.clone().filter(|_| hidden.iter().all(Option::is_none)),
        ..facts.clone()
    }
}

/// Returns assumed facts of a device of the known kind, with the known memory.
fn of_figures(path: &str, label: &str, known: &Known, share: Option<&Reached>) -> Result<DeviceFacts> {
    let needed = |value: Option<Stated>, field: &str| {
        value.ok_or_else(|| {
            let why = "is missing; give it, or use a card or a device that has it";
            InvalidFleet::wrong(&format!("{path}.{field}"), why)
        })
    };
    let (memory_bytes, source) = memory(needed(known.memory_gib, "memory_gib")?);
    needed(known.bandwidth, "bandwidth_gb_per_s")?;
    needed(known.f32, "f32_tflop_per_s")?;
    let kind = known.kind.unwrap_or(AdapterKind::Discrete);
    let assumed = DeviceFacts::assumed(label, kind, 1, memory_bytes, source);
    Ok(DeviceFacts {
        launch_us: share.map_or(assumed.launch_us, |share| Figure::assumed(share.launch_us)),
        weight_sharing: match known.through.as_deref() {
            Some("cpu") => WeightSharing::Owner,
            Some("cuda" | "hip") => WeightSharing::Blocks,
            // Not all drivers of other APIs can pin the memory of a CPU device.
            _ => WeightSharing::None,
        },
        ..assumed
    })
}

/// Returns the memory that plans may use, in bytes, with its source.
fn memory(stated: Stated) -> (u64, FigureSource) {
    let figure = stated.reached(MEMORY_SHARE, GIB);
    (figure.value as u64, figure.source)
}

/// Returns the fractions of datasheet values that kernels reach through the device's API. `needed` says
/// whether any value of the device is a peak. If so, a missing API is an error.
fn shares(path: &str, known: &Known, needed: bool) -> Result<Option<&'static Reached>> {
    let names = || reached().keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let path = format!("{path}.through");
    match &known.through {
        Some(api) => reached().get(api).map(Some).ok_or_else(|| {
            let why = format!("unknown API \"{}\"; known APIs are {}", quoted(api), names());
            InvalidFleet::wrong(&path, why)
        }),
        None if needed => {
            let why = format!("is missing, but datasheet values need an API; known APIs are {}", names());
            Err(InvalidFleet::wrong(&path, why))
        }
        None => Ok(None),
    }
}

/// The devices of a fleet, indexed by label.
struct Ends<'a> {
    devices: &'a [DeviceFacts],
    index: HashMap<&'a str, usize>,
}

impl<'a> Ends<'a> {
    fn new(devices: &'a [DeviceFacts]) -> Self {
        let index = devices.iter().enumerate().map(|(at, device)| (device.label.as_str(), at)).collect();
        Self { devices, index }
    }

    fn find(&self, path: String, label: &str) -> Result<usize> {
        const SHOWN: usize = 8;
        self.index.get(label).copied().ok_or_else(|| {
            let shown: Vec<_> = self.devices.iter().take(SHOWN).map(|device| device.label.as_str()).collect();
            let more = if self.devices.len() > SHOWN { " …" } else { "" };
            let why =
                format!("there is no device \"{}\"; there are {}{more}", quoted(label), shown.join(", "));
            InvalidFleet::Wrong { path, why }
        })
    }
}

/// Returns the links that the file lists, and links through the host for all other pairs of devices.
fn links(fleet: &Fleet, hosts: &Hosts, devices: &[DeviceFacts]) -> Result<Links> {
    let ends = Ends::new(devices);
    let mut given = given_links(fleet, &ends)?;
    let mut known = Vec::new();
    for (from, source) in devices.iter().enumerate() {
        for (to, destination) in devices.iter().enumerate().filter(|(to, _)| *to != from) {
            let given = given.remove(&(from, to)).map(|(_, facts)| facts);
            let facts = match given {
                Some(facts) => facts,
                None => hosts.between(source, destination)?,
            };
            known.push((source.label.clone(), destination.label.clone(), facts));
        }
    }
    let shared =
        (0..fleet.shared_links.len()).map(|at| shared_link(fleet, at, &ends)).collect::<Result<_>>()?;
    Ok(Links { known, shared, ..Links::default() })
}

/// Returns the links that the file lists, indexed by source and destination. Each link is paired with its
/// index in the file.
fn given_links(fleet: &Fleet, ends: &Ends<'_>) -> Result<HashMap<(usize, usize), (usize, LinkFacts)>> {
    let mut given: HashMap<_, (usize, LinkFacts)> = HashMap::new();
    for (at, link) in fleet.links.iter().enumerate() {
        let path = format!("links[{at}]");
        let from = ends.find(format!("{path}.from"), &link.from)?;
        let to = ends.find(format!("{path}.to"), &link.to)?;
        if from == to {
            return Err(InvalidFleet::wrong(&path, format!("links {} to itself", link.from)));
        }
        let facts = link_facts(&path, link, [from, to].map(|at| &ends.devices[at]))?;
        let back = link.both_ways.then_some((to, from));
        for way in [Some((from, to)), back].into_iter().flatten() {
            if let Some((first, _)) = given.insert(way, (at, facts.clone())) {
                let (from, to) = (&ends.devices[way.0].label, &ends.devices[way.1].label);
                let why = format!("the link from {from} to {to} is given twice; first in links[{first}]");
                return Err(InvalidFleet::wrong(&path, why));
            }
        }
    }
    Ok(given)
}

/// Returns the measurements of a link, or those of a link through the host, with the values that the file states.
fn link_facts(path: &str, link: &FleetLink, ends: [&DeviceFacts; 2]) -> Result<LinkFacts> {
    let figure = |field: &str, bounds: &Bounds, figure: Option<FleetFigure>| {
        figure.map(|figure| stated(path, field, bounds, figure)).transpose()
    };
    let bandwidth = figure("bandwidth_gb_per_s", &GB_PER_S, link.bandwidth_gb_per_s)?;
    let latency = figure("latency_us", &MICROSECONDS, link.latency_us)?;
    let base = match &link.measured {
        None if bandwidth.is_none() => {
            return Err(InvalidFleet::wrong(&format!("{path}.bandwidth_gb_per_s"), "is missing"));
        }
        None => by_host(ends[0], ends[1]),
        Some(facts) => {
            let routes = facts.routes.check().err().map(|cause| ("routes", cause.to_string()));
            let figure = facts.nonsense().map(|field| (field, "is out of range".into()));
            match figure.or(routes) {
                Some((field, why)) => {
                    return Err(InvalidFleet::wrong(&format!("{path}.measured.{field}"), why));
                }
                None => facts.clone(),
            }
        }
    };
    Ok(LinkFacts {
        latency_us: latency.map_or(base.latency_us, |latency| latency.figure),
        bandwidth_bytes_per_s: bandwidth
            .map_or(base.bandwidth_bytes_per_s, |rate| rate.reached(BUS_SHARE, 1e9)),
        ..base
    })
}

/// Resolves the shared link at index `at` of the file.
fn shared_link(fleet: &Fleet, at: usize, ends: &Ends<'_>) -> Result<SharedLink> {
    let (link, path) = (&fleet.shared_links[at], format!("shared_links[{at}]"));
    let bandwidth = stated(&path, "bandwidth_gb_per_s", &GB_PER_S, link.bandwidth_gb_per_s)?;
    if link.users.is_empty() {
        return Err(InvalidFleet::wrong(&format!("{path}.users"), "is empty; nothing shares it"));
    }
    if fleet.shared_links[..at].iter().any(|other| other.name == link.name) {
        let why = format!("\"{}\" is used twice", quoted(&link.name));
        return Err(InvalidFleet::wrong(&format!("{path}.name"), why));
    }
    let mut seen = HashSet::new();
    for (number, (from, to)) in link.users.iter().enumerate() {
        let path = format!("{path}.users[{number}]");
        let way = (ends.find(format!("{path}[0]"), from)?, ends.find(format!("{path}[1]"), to)?);
        if way.0 == way.1 {
            return Err(InvalidFleet::wrong(&path, format!("links {from} to itself")));
        }
        if !seen.insert(way) {
            return Err(InvalidFleet::wrong(&path, format!("the link from {from} to {to} is given twice")));
        }
    }
    let bandwidth_bytes_per_s = bandwidth.reached(BUS_SHARE, 1e9);
    Ok(SharedLink { name: quoted(&link.name), users: link.users.clone(), bandwidth_bytes_per_s })
}

/// Returns the link between two devices through host memory. The copy out of one device overlaps the copy
/// into the other, so the slower device determines the rate.
pub(super) fn by_host(from: &DeviceFacts, to: &DeviceFacts) -> LinkFacts {
    let slower =
        if from.host_bandwidth_bytes_per_s.value <= to.host_bandwidth_bytes_per_s.value { from } else { to };
    let later = if from.host_latency_us.value >= to.host_latency_us.value { from } else { to };
    LinkFacts {
        routes: Route::HOST_STAGED.into(),
        latency_us: Figure {
            value: from.host_latency_us.value + to.host_latency_us.value,
            source: later.host_latency_us.source,
        },
        bandwidth_bytes_per_s: slower.host_bandwidth_bytes_per_s,
        verified: false,
    }
}
