//! Corrects device and link facts from a measured run.
//!
//! The corrections use only the deviations of predictions and the components of predicted times. This module
//! does not depend on plans or segments.

use super::{ComparedPart, Comparison, Phase, TimeParts};
use ragtag_planner::cost::{DeviceFacts, Figure, FigureSource, LinkFacts, Links, ProfileIdentity};
use ragtag_planner::plan::Place;

/// Maximum factor by which a value is corrected. The minimum is its reciprocal.
const LARGEST_FACTOR: f64 = 1e3;
/// Minimum ratio between the sizes of two transfers that lets the correction determine latency and bandwidth
/// separately.
const SIZES_APART: f64 = 2.0;

/// Two identical devices get separate corrections if their results differ persistently and by more than this
/// number of standard deviations.
const SPREADS: f64 = 3.0;
/// Minimum relative standard deviation of a time. Smaller measured deviations are not credible.
const MIN_SPREAD: f64 = 0.05;
/// Two devices differ persistently if `n · |ln(a / b)|` is at least this value, where `n` is the number of
/// micro-batches, and `a` and `b` are the devices' ratios of measured to predicted time. A factor of 1.5
/// between the ratios needs 20 micro-batches, and a factor of 4 needs six.
const PERSISTENT: f64 = 8.0;

/// Groups of devices that share correction factors. The devices of a group differ only in their labels and
/// memory sizes, and their results in a run differ by no more than noise.
#[derive(Clone, Debug)]
pub struct Alike {
    /// For each device, the index of the first device of its group.
    first: Vec<usize>,
}

impl Alike {
    /// Groups the devices by their facts and by the results of a run.
    pub fn of(comparison: &Comparison, devices: &[DeviceFacts]) -> Self {
        let first = |at: usize| {
            let is_first = |other: &usize| is_like(&devices[*other], &devices[at]);
            (0..at).find(is_first).unwrap_or(at)
        };
        let mut first: Vec<usize> = (0..devices.len()).map(first).collect();
        let pairs = (0..devices.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let differ = |(a, b): (usize, usize)| {
            let label = |at: usize| devices[at].label.as_str();
            (first[a] == first[b] && differ(comparison, label(a), label(b))).then_some(first[a])
        };
        let apart: Vec<usize> = pairs.filter_map(differ).collect();
        for (at, first) in first.iter_mut().enumerate() {
            if apart.contains(first) {
                *first = at;
            }
        }
        Self { first }
    }
}

/// Returns the API in a device label: the part before the colon.
fn api(device: &DeviceFacts) -> &str {
    device.label.split(':').next().unwrap_or_default()
}

/// Returns whether two devices differ only in label, memory size and measurement noise.
fn is_like(a: &DeviceFacts, b: &DeviceFacts) -> bool {
    let unnamed =
        |device: &DeviceFacts| DeviceFacts { label: String::new(), memory_bytes: 0, ..device.clone() };
    api(a) == api(b)
        && match (&a.profile, &b.profile) {
            (Some(a), Some(b)) => {
                let of = |identity: &ProfileIdentity| ProfileIdentity {
                    device: String::new(),
                    ..identity.clone()
                };
                of(&a.identity) == of(&b.identity)
            }
            (None, None) => unnamed(a) == unnamed(b),
            _ => false,
        }
}

/// Returns whether the deviations of two devices' stages differ persistently and by more than noise, in
/// decode or in prefill.
fn differ(comparison: &Comparison, a: &str, b: &str) -> bool {
    let stage = |label: &str, phase: Phase| {
        comparison.parts.iter().find(|p| p.place == Place::Stage && p.device == label && p.phase == phase)
    };
    [Phase::Decode, Phase::Prefill].into_iter().any(|phase| {
        let (Some(a), Some(b)) = (stage(a, phase), stage(b, phase)) else { return false };
        let log = |part: &ComparedPart| (part.measured_us / part.predicted_us).ln();
        let apart = (log(a) - log(b)).abs();
        let spread = a.spread.zip(b.spread).map(|(a, b)| a.max(b).max(MIN_SPREAD));
        let count = a.micro_batches.min(b.micro_batches) as f64;
        spread.is_some_and(|spread| apart > SPREADS * spread && apart * count >= PERSISTENT)
    })
}

/// Corrects facts from a measured run.
///
/// - Device: the deviations of its stages scale its launch times, its bandwidth and its arithmetic rates.
///   Each deviation is weighted by the value's share of the predicted time.
/// - Unused device: its assumed values are scaled by the mean factors of the devices of the same API that
///   took part in the run. Its other values do not change.
/// - Token return: it consists mostly of host time for sampling, so the measured difference is added to the
///   host latency of every device.
/// - Link: latency and bandwidth are computed from transfers of two sizes if possible. Otherwise the link's
///   deviation scales them.
///
/// The devices of one group in `alike` share their mean factors, so that noise does not make them differ.
///
/// The result is approximate if times are not a sum of these effects. To improve it, compare the run with the
/// new facts and correct them again.
pub fn facts_from(
    comparison: &Comparison,
    alike: &Alike,
    devices: &[DeviceFacts],
    links: &Links,
) -> (Vec<DeviceFacts>, Links) {
    let own: Vec<Option<Factors>> =
        devices.iter().map(|device| Factors::of_device(comparison, &device.label)).collect();
    let common = |(at, own_factors): (usize, &Option<Factors>)| {
        let like = alike.first.iter().zip(&own).filter(|(first, _)| **first == alike.first[at]);
        let like: Vec<_> = like.filter_map(|(_, factors)| factors.as_ref()).collect();
        own_factors.and_then(|_| Factors::mean(&like))
    };
    let measured: Vec<Option<Factors>> = own.iter().enumerate().map(common).collect();
    let corrected = |(at, device): (usize, &DeviceFacts)| match &measured[at] {
        Some(factors) => factors.apply(device, |_| Some(FigureSource::Fitted)),
        None => {
            let alike = devices.iter().zip(&measured).filter(|(other, _)| api(other) == api(device));
            let alike: Vec<_> = alike.filter_map(|(_, factors)| factors.as_ref()).collect();
            let assumed =
                |figure: &Figure| (figure.source == FigureSource::Assumed).then_some(FigureSource::Assumed);
            Factors::mean(&alike).map_or_else(|| device.clone(), |factors| factors.apply(device, assumed))
        }
    };
    let mut devices: Vec<_> = devices.iter().enumerate().map(corrected).collect();
    if let Some(more_us) = return_takes_more_us(comparison) {
        for device in &mut devices {
            let value = (device.host_latency_us.value + more_us).clamp(0.0, 1e9);
            device.host_latency_us = Figure { value, source: FigureSource::Fitted };
        }
    }
    (devices, corrected_links(comparison, links))
}

/// Ratios of measured to predicted times of a device, one per component of the time.
#[derive(Clone, Copy, Debug)]
struct Factors {
    overhead: f64,
    moving: f64,
    computing: f64,
}

impl Factors {
    fn of_device(comparison: &Comparison, label: &str) -> Option<Self> {
        let stages = comparison.parts.iter().filter(|p| p.place == Place::Stage && p.device == label);
        Self::of(stages)
    }

    fn of<'a>(parts: impl Iterator<Item = &'a ComparedPart>) -> Option<Self> {
        let parts: Vec<_> = parts.filter(|part| part.predicted_us > 0.0 && part.measured_us > 0.0).collect();
        if parts.is_empty() {
            return None;
        }
        let all = weighted(&parts, |_| 1.0)?;
        let by = |of: fn(&TimeParts) -> f64| {
            weighted(&parts, |part| of(&part.parts) / part.predicted_us).unwrap_or(all)
        };
        Some(Self {
            overhead: by(|parts| parts.overhead_us),
            moving: by(|parts| parts.moving_us),
            computing: by(|parts| parts.computing_us),
        })
    }

    fn mean(of: &[&Factors]) -> Option<Self> {
        let count = of.len() as f64;
        let mean = |get: fn(&Factors) -> f64| (of.iter().map(|f| get(f).ln()).sum::<f64>() / count).exp();
        let (overhead, moving, computing) = (mean(|f| f.overhead), mean(|f| f.moving), mean(|f| f.computing));
        (!of.is_empty()).then_some(Self { overhead, moving, computing })
    }

    /// Returns a copy of `device` with corrected values. `source` returns the new source of a value, or
    /// `None` if the value must not change.
    fn apply(&self, device: &DeviceFacts, source: impl Fn(&Figure) -> Option<FigureSource>) -> DeviceFacts {
        let corrected =
            |figure: Figure, value| source(&figure).map_or(figure, |source| Figure { value, source });
        let rate = |figure: Figure, factor: f64| corrected(figure, (figure.value / factor).max(1.0));
        let time = |figure: Figure, factor: f64| corrected(figure, (figure.value * factor).min(1e9));
        DeviceFacts {
            bandwidth_bytes_per_s: rate(device.bandwidth_bytes_per_s, self.moving),
            exact_flops_per_s: rate(device.exact_flops_per_s, self.computing),
            fast_flops_per_s: rate(device.fast_flops_per_s, self.computing),
            // The run replaces separate measurements and the values fitted to them.
            profile: None,
            launch_us: time(device.launch_us, self.overhead),
            stage_us: time(device.stage_us, self.overhead),
            ..device.clone()
        }
    }
}

/// Returns the weighted geometric mean of the parts' ratios of measured to predicted time. Returns `None` if
/// all weights are 0.
fn weighted(parts: &[&ComparedPart], weight: impl Fn(&ComparedPart) -> f64) -> Option<f64> {
    let sum: f64 = parts.iter().map(|part| weight(part)).sum();
    let logs = parts.iter().map(|part| weight(part) * (part.measured_us / part.predicted_us).ln());
    let factor = (logs.sum::<f64>() / sum).exp();
    (sum > 0.0).then(|| factor.clamp(1.0 / LARGEST_FACTOR, LARGEST_FACTOR))
}

/// Returns the measured minus the predicted time of the token return in decode, in microseconds.
fn return_takes_more_us(comparison: &Comparison) -> Option<f64> {
    let part = comparison.part(Place::TokenReturn, 0, Phase::Decode)?;
    Some((part.measured_us - part.predicted_us).clamp(-1e9, 1e9))
}

fn corrected_links(comparison: &Comparison, links: &Links) -> Links {
    let mut corrected = links.clone();
    let edges: Vec<_> = comparison.parts.iter().filter(|part| part.place == Place::Edge).collect();
    for edge in &edges {
        let Some(to) = &edge.to else { continue };
        let same = |other: &&&ComparedPart| other.device == edge.device && other.to == edge.to;
        let crossings: Vec<&ComparedPart> = edges.iter().filter(same).copied().collect();
        let before = links.between(&edge.device, to);
        let Some(facts) = link_from(&crossings, before) else { continue };
        corrected.known.retain(|(a, b, _)| (a, b) != (&edge.device, to));
        corrected.known.push((edge.device.clone(), to.clone(), facts));
    }
    corrected
}

fn link_from(crossings: &[&ComparedPart], before: &LinkFacts) -> Option<LinkFacts> {
    let (latency_us, bytes_per_s) = line(crossings).or_else(|| {
        let factors = Factors::of(crossings.iter().copied())?;
        let (latency, bandwidth) = (before.latency_us.value, before.bandwidth_bytes_per_s.value);
        Some((latency * factors.overhead, bandwidth / factors.moving))
    })?;
    let fitted = |value| Figure { value, source: FigureSource::Fitted };
    let facts = LinkFacts {
        routes: before.routes.clone(),
        latency_us: fitted(latency_us.min(1e9)),
        bandwidth_bytes_per_s: fitted(bytes_per_s.max(1.0)),
        verified: before.verified,
    };
    facts.nonsense().is_none().then_some(facts)
}

/// Returns the latency and bandwidth of a link, from a line through the times of its smallest and its largest
/// transfer. Returns `None` if the sizes of these transfers are too similar or the result is invalid.
fn line(crossings: &[&ComparedPart]) -> Option<(f64, f64)> {
    let small = crossings.iter().min_by(|a, b| a.bytes.total_cmp(&b.bytes))?;
    let large = crossings.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes))?;
    let (bytes, us) = (large.bytes - small.bytes, large.measured_us - small.measured_us);
    let latency_us = small.measured_us - small.bytes * us / bytes;
    let apart = large.bytes > small.bytes * SIZES_APART && us > 0.0 && latency_us >= 0.0;
    apart.then(|| (latency_us, bytes / us * 1e6))
}
