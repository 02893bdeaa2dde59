//! Probes the links between devices. A probe transfers pseudo-random contents over each route, checks them at
//! the far end, and times the routes that keep them intact. Plans use the fastest verified route, and the
//! fastest ring of the host-staged route. A quick probe verifies and times only what a plan needs. Calibration
//! makes it for each pair of devices without a cached probe. A thorough probe also measures rates.

mod pairs;
mod probe;
mod topology;

use super::kept::{Kept, now_unix_s};
use super::options::{LOCK_WAIT, QUICK_LOCK_WAIT};
use crate::calibrate::solo::SoloDevice;
use crate::devices::Devices;
use crate::error::{Error, Result};
use pairs::{Pair, Pairs, rounds};
use probe::{MAX_RING_BYTES, Probed, Prober, STEPS, unprobed};
use ragtag_hal::{Adapter, Checked};
use ragtag_planner::{LinkFacts, Links, Plan};
use ragtag_transfer::{Route, Routes};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
pub use topology::LinkClass;
pub(crate) use topology::Topology;

/// Default time limit of the measurements of all links.
const USUAL_LIMIT: Duration = Duration::from_secs(20);
/// Default time after which a probe starts no further work.
const USUAL_TOTAL: Duration = Duration::from_secs(600);
/// Default time without progress after which a pair of devices counts as silent.
const USUAL_SILENCE: Duration = Duration::from_secs(60);

/// Options for [`LinkReport::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkOptions {
    /// Whether to ignore cached results and to probe all links again.
    pub reprobe: bool,
    /// Whether to make only a quick probe, of about 0.3 seconds per pair: it verifies all routes with fewer
    /// sizes, and times only what plans need. Pairs that share no device are probed at the same time.
    pub quick: bool,
    /// Maximum number of repetitions of each measurement.
    pub repetitions: usize,
    /// Approximate time limit of all measurements. Each is taken at least once.
    pub limit: Duration,
    /// Time after which no further pair of devices is verified or timed. Their links are then not verified.
    pub total: Duration,
    /// Time without progress after which a pair of devices counts as silent. Its links are then not verified,
    /// and its devices are not probed again. The probe therefore waits at most this time for every second
    /// device.
    pub silence: Duration,
    /// Cache folder. It has the same meaning as in [`CalibrationOptions`](crate::CalibrationOptions).
    pub folder: Option<PathBuf>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            reprobe: false,
            quick: false,
            repetitions: 25,
            limit: USUAL_LIMIT,
            total: USUAL_TOTAL,
            silence: USUAL_SILENCE,
            folder: None,
        }
    }
}

impl LinkOptions {
    /// Returns the options of a quick probe with the cache in `folder`.
    pub fn quick(folder: Option<PathBuf>) -> Self {
        Self { quick: true, folder, ..Self::default() }
    }
}

/// Time of a transfer as a run pays for it: from the start of the first copy until the last byte has arrived,
/// while the sending device has just computed and the receiving device is idle. It includes the hand-over
/// between the devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// Size of the transfer in bytes.
    pub bytes: u64,
    /// Time in microseconds.
    pub us: f64,
}

/// Rate of transfers of one size that are submitted together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRate {
    /// Size of a transfer in bytes.
    pub bytes: u64,
    /// Bytes per second while only this direction is busy.
    pub bytes_per_s: f64,
    /// Bytes per second in this direction while both directions are busy. `None` if the opposite direction
    /// was not timed.
    pub both_bytes_per_s: Option<f64>,
    /// Bytes per second while only this direction is busy, and both devices compute.
    pub busy_bytes_per_s: f64,
    /// Bytes per second in this direction while both directions are busy, and both devices compute. `None` if
    /// the opposite direction was not timed.
    pub both_busy_bytes_per_s: Option<f64>,
}

/// A route that the probe tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriedRoute {
    /// The route.
    pub route: Route,
    /// Reason why the route must not be used: the driver's error, or wrong bytes. `None` if the route is
    /// verified.
    pub why: Option<String>,
    /// Whether the route has changed bytes.
    pub corrupt: bool,
    /// Times by size. Empty if the route is not verified.
    pub hops: Vec<Hop>,
    /// Rates by size. Empty if the route is not verified, and after a quick probe.
    pub rates: Vec<LinkRate>,
}

/// A probed link from one device to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbedLink {
    /// Label of the sending device.
    pub from: String,
    /// Label of the receiving device.
    pub to: String,
    /// Hardware between the devices.
    pub class: LinkClass,
    /// NUMA distance between the memories of the devices, if it is known.
    pub numa_distance: Option<u32>,
    /// The fastest verified route. `None` if no route is verified.
    pub route: Option<Route>,
    /// Time of the smallest transfer over the fastest route, in microseconds: its first [`Hop`].
    pub latency_us: Option<f64>,
    /// Rates of the fastest verified route, by size. Empty after a quick probe.
    pub rates: Vec<LinkRate>,
    /// Whether this is the result of a quick probe.
    pub quick: bool,
    /// All routes that were tried.
    pub tried: Vec<TriedRoute>,
    /// Time of the measurement, in seconds since 1970.
    pub measured_unix_s: u64,
}

impl ProbedLink {
    /// Returns an error message if the link has no verified route. The message has the reason for each route.
    pub fn unverified(&self) -> Option<String> {
        if self.route.is_some() {
            return None;
        }
        let reason = |tried: &TriedRoute| Some(format!("{}: {}", tried.route.name(), tried.why.as_ref()?));
        let reasons: Vec<_> = self.tried.iter().filter_map(reason).collect();
        Some(format!("no verified route from {} to {}: {}", self.from, self.to, reasons.join("; ")))
    }

    /// Returns the fastest verified route, followed by the host-staged route if a device may refuse the first
    /// and the host-staged route is verified. Returns `None` if no route is verified.
    pub fn routes(&self) -> Option<Routes> {
        let route = self.route?;
        let is_verified = |tried: &&TriedRoute| !tried.route.shares_memory() && tried.why.is_none();
        let staged = self.tried.iter().find(is_verified).map(|tried| tried.route);
        Some(staged.map_or_else(|| route.into(), |staged| Routes::or(route, staged)))
    }

    /// Returns the planner's description of the link with `routes`. The figures are those of the first route.
    /// Returns `None` if the probe has not timed this route.
    fn facts(&self, routes: Routes) -> Option<LinkFacts> {
        let is_first = |tried: &&TriedRoute| routes.iter().next().is_some_and(|route| tried.is_like(route));
        let hops = self.tried.iter().find(is_first)?.hops.iter();
        let samples: Vec<_> = hops.map(|hop| (hop.bytes, hop.us)).collect();
        let verified = routes.iter().all(|route| self.refusal(route).is_none());
        let facts = (!samples.is_empty()).then(|| LinkFacts::fitted(routes, &samples))?;
        Some(LinkFacts { verified, ..facts })
    }

    /// Returns whether the figures of the link are valid. A damaged file could hold any.
    pub(super) fn is_plausible(&self) -> bool {
        let is_time = |us: f64| us.is_finite() && us > 0.0;
        let tried = self.tried.iter();
        self.latency_us.is_none_or(is_time)
            && tried.clone().flat_map(|tried| &tried.hops).all(|hop| is_time(hop.us))
            && tried.clone().all(|tried| is_usable(tried.route))
            && self
                .route
                .is_none_or(|route| tried.clone().any(|tried| tried.route == route && tried.why.is_none()))
    }

    /// Describes each tried route in one line, for users.
    pub fn summary(&self) -> String {
        let describe = |tried: &TriedRoute| match (&tried.why, tried.hops.first()) {
            (Some(why), _) if tried.corrupt => format!("{} not used: {why}", tried.route.name()),
            (Some(_), _) => format!("{} refused", tried.route.name()),
            (None, Some(hop)) => format!("{} verified ({:.1} µs)", tried.route.name(), hop.us),
            (None, None) => format!("{} verified", tried.route.name()),
        };
        let tried: Vec<_> = self.tried.iter().map(describe).collect();
        format!("link {} -> {}: {}", self.from, self.to, tried.join(", "))
    }

    /// Returns the reason why the probe has not verified a route, or `None` if it has.
    fn refusal(&self, route: Route) -> Option<&str> {
        match self.tried.iter().find(|tried| tried.is_like(route)) {
            Some(tried) => tried.why.as_deref(),
            None => Some("the probe has not tried it"),
        }
    }
}

impl TriedRoute {
    /// Returns whether this is `route`, if the sizes of rings do not count.
    fn is_like(&self, route: Route) -> bool {
        self.route.name() == route.name()
    }
}

/// Returns whether a probe could have tried `route`.
fn is_usable(route: Route) -> bool {
    Routes::from(route).check().is_ok() && route.staging_bytes() <= MAX_RING_BYTES
}

/// Probed links between devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// A link for each ordered pair of devices.
    pub links: Vec<ProbedLink>,
    /// Warnings for the user, for example about a device that cannot be opened.
    pub warnings: Vec<String>,
    /// Reason why some results could not be cached, if any.
    pub unkept: Option<String>,
    /// Labels of the ends of the links that this call has probed. All other links come from the cache.
    #[serde(skip)]
    pub probed: Vec<[String; 2]>,
}

impl LinkReport {
    /// Returns the cached links between the selected devices, without probing. `folder` has the same meaning
    /// as in [`LinkOptions`].
    pub fn kept(devices: &Devices, folder: Option<PathBuf>) -> Self {
        let (kept, adapters) = (Kept::new(folder), devices.selected());
        let all = adapters.iter().flat_map(|from| adapters.iter().map(move |to| (from, to)));
        let links = all.filter_map(|(from, to)| kept.probe(from, to)).collect();
        Self { links, ..Self::default() }
    }

    /// Returns the reason why a route between two devices is not verified, or `None` if it is. Without a
    /// probe, only routes through host memory count as verified.
    pub fn refusal(&self, from: &str, to: &str, route: Route) -> Option<&str> {
        match self.links.iter().find(|link| link.from == from && link.to == to) {
            Some(link) => link.refusal(route),
            None => route.shares_memory().then_some("it was never probed"),
        }
    }

    /// Returns a reason for each route of `plan` that is not verified, as [`LinkReport::refusal`] says.
    pub(crate) fn refusals(&self, plan: &Plan) -> Vec<String> {
        let mut reasons = Vec::new();
        for edge in &plan.edges {
            let [Some(from), Some(to)] = [edge.from, edge.to].map(|stage| plan.stages.get(stage as usize))
            else {
                continue;
            };
            let (from, to) = (&from.device, &to.device);
            for route in edge.routes.iter() {
                if let Some(why) = self.refusal(from, to, route) {
                    let name = route.name();
                    reasons.push(format!(
                        "the edge from {from} to {to} may take the {name} route, which is not verified: {why}"
                    ));
                }
            }
        }
        reasons
    }

    /// Returns the planner's description of the link between two devices over `routes`. The figures are those
    /// of the first route. Returns `None` if no probe has timed this route.
    pub(crate) fn facts(&self, from: &str, to: &str, routes: &Routes) -> Option<LinkFacts> {
        let link = self.links.iter().find(|link| link.from == from && link.to == to)?;
        link.facts(routes.clone())
    }

    /// Returns the links for the planner, with their fastest verified routes. Leaves out links without any.
    pub fn planned(&self) -> Links {
        let planned =
            |link: &ProbedLink| Some((link.from.clone(), link.to.clone(), link.facts(link.routes()?)?));
        Links { known: self.links.iter().filter_map(planned).collect(), ..Links::default() }
    }

    /// Returns the number of steps of [`LinkReport::run`].
    pub(super) fn missing_steps(devices: &Devices, options: &LinkOptions) -> u64 {
        let (kept, adapters) = (Kept::new(options.folder.clone()), devices.selected());
        let is_missing = |pair: &Pair| !is_known(&kept, pair.map(|at| &adapters[at]), options);
        pairs(adapters.len()).filter(is_missing).count() as u64 * STEPS as u64
    }

    /// Returns the device with the most links without a verified route, among the devices in `labels`.
    /// Returns its index and the failure of one of these links. Returns `None` if there is no such link.
    pub(crate) fn without_route(&self, labels: &[String]) -> Option<(usize, String)> {
        let mut failures = vec![Vec::new(); labels.len()];
        for link in &self.links {
            let [from, to] = [&link.from, &link.to].map(|end| labels.iter().position(|label| label == end));
            if let (Some(from), Some(to), Some(why)) = (from, to, link.unverified()) {
                failures[from].push(why.clone());
                failures[to].push(why);
            }
        }
        let worst = failures.into_iter().enumerate().max_by_key(|(_, failures)| failures.len());
        worst.and_then(|(at, mut failures)| Some((at, failures.pop()?)))
    }

    /// Probes the links between the selected devices, except those with cached results. Calls `progress` with
    /// the number of finished steps and the total number of steps. Does not call it if all results are
    /// cached.
    ///
    /// # Errors
    /// Returns [`Error::NoLink`] if fewer than two devices are selected. Returns [`Error::Device`] if fewer
    /// than two devices can be opened. If only some devices cannot be opened, returns a warning for each of
    /// them instead.
    pub fn run(devices: &Devices, options: &LinkOptions, progress: &dyn Fn(u64, u64)) -> Result<Self> {
        let mut adapters = devices.selected().to_vec();
        if adapters.len() < 2 {
            return Err(Error::NoLink);
        }
        let mut kept = Kept::new(options.folder.clone());
        let mut report = Self::default();
        if !pairs(adapters.len()).all(|pair| is_known(&kept, pair.map(|at| &adapters[at]), options)) {
            let _lock = kept.lock(if options.quick { QUICK_LOCK_WAIT } else { LOCK_WAIT });
            let opened = open(devices, &mut adapters, &mut report.warnings)?;
            // Another process may have probed links while this one waited for the lock.
            let missing =
                pairs(adapters.len()).filter(|pair| !is_known(&kept, pair.map(|at| &adapters[at]), options));
            let probe = Probe { devices, adapters: &adapters, options, progress };
            probe.run(opened, &missing.collect::<Vec<_>>(), |from, to, link| {
                // A failure may be temporary, such as a lack of memory. Wrong bytes are not.
                if link.route.is_some() || link.tried.iter().any(|tried| tried.corrupt) {
                    kept.keep_probe(from, to, &link);
                }
                report.probed.push([link.from.clone(), link.to.clone()]);
                report.links.push(link);
            });
            report.unkept = kept.failure().map(str::to_owned);
        }
        let fresh = std::mem::take(&mut report.links);
        for (from, to) in adapters.iter().flat_map(|from| adapters.iter().map(move |to| (from, to))) {
            let is_this = |link: &&ProbedLink| link.from == from.label() && link.to == to.label();
            let link = fresh.iter().find(is_this).cloned();
            report.links.extend(link.or_else(|| kept.probe(from, to)));
        }
        Ok(report)
    }
}

/// Devices whose links are probed, and the options.
struct Probe<'a> {
    devices: &'a Devices,
    adapters: &'a [Adapter],
    options: &'a LinkOptions,
    progress: &'a dyn Fn(u64, u64),
}

impl Probe<'_> {
    /// Probes the links of `pairs` in both directions. Passes each link to `keep` with its ends.
    fn run(
        &self,
        opened: Vec<Checked>,
        pairs: &[Pair],
        mut keep: impl FnMut(&Adapter, &Adapter, ProbedLink),
    ) {
        let (done, total) = (Cell::new(0), (pairs.len() * STEPS) as u64);
        let step = || {
            done.set(done.get() + 1);
            (self.progress)(done.get(), total);
        };
        let solo = opened.into_iter().map(|device| SoloDevice::new(Box::new(device))).collect();
        let mut solo = Pairs::new(solo, self.options, &step);
        // Several pairs are verified at once, because the host generates and compares the contents on one
        // core per pair. Each pair has a second core for the threads of its devices.
        let most = available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        let prober = Prober::new(self.options, pairs.len());
        let mut keep_pair = |pair: Pair, probed: std::result::Result<[Probed; 2], String>| {
            let probed = probed.unwrap_or_else(|why| [unprobed(&why), unprobed(&why)]);
            let [a, b] = pair.map(|at| &self.adapters[at]);
            let [there, back] = self.links([a, b], probed);
            keep(a, b, there);
            keep(b, a, back);
        };
        let mut verified = Vec::new();
        for round in rounds(pairs, most) {
            if self.options.quick {
                let work = move |[a, b]: [&mut SoloDevice; 2], step: &dyn Fn()| {
                    let tried = prober.verify([&mut *a, &mut *b], step);
                    prober.time([a, b], tried, step)
                };
                let start = Instant::now();
                let probed = solo.run(&round, work);
                tracing::debug!(?round, elapsed = ?start.elapsed(), "probed links at their first use");
                round.into_iter().zip(probed).for_each(|(pair, probed)| keep_pair(pair, probed));
                continue;
            }
            let work = move |ends: [&mut SoloDevice; 2], step: &dyn Fn()| prober.verify(ends, step);
            let tried = solo.run(&round, work);
            verified.extend(round.into_iter().zip(tried));
        }
        verified.sort_by_key(|(pair, _)| *pair);
        // Pairs are timed alone. They share host memory, PCIe switches or cores, so that they would disturb
        // each other.
        for (pair, tried) in verified {
            let time = |tried: [Vec<TriedRoute>; 2]| {
                let work =
                    move |ends: [&mut SoloDevice; 2], step: &dyn Fn()| prober.time(ends, tried.clone(), step);
                solo.run(&[pair], work).swap_remove(0)
            };
            keep_pair(pair, tried.and_then(time));
        }
    }

    /// Adds the ends and the topology to the results of a pair.
    fn links(&self, [a, b]: [&Adapter; 2], probed: [Probed; 2]) -> [ProbedLink; 2] {
        // Idle PCIe links slow down, so the topology is read right after the transfers.
        let topology = Topology::new("/");
        let large = probed.iter().filter_map(Probed::large_bytes_per_s);
        let class = topology.class([a, b], self.devices.is_same_device([a, b]), large.fold(0.0, f64::max));
        let [there, back] = probed;
        [(a, b, there), (b, a, back)].map(|(from, to, probed)| ProbedLink {
            from: from.label(),
            to: to.label(),
            class,
            numa_distance: topology.numa_distance([from, to]),
            route: probed.route,
            latency_us: probed.latency_us,
            rates: probed.rates,
            quick: self.options.quick,
            tried: probed.tried,
            measured_unix_s: now_unix_s(),
        })
    }
}

/// Returns whether the cache has probes of both links of a pair that serve `options`.
fn is_known(kept: &Kept, [a, b]: [&Adapter; 2], options: &LinkOptions) -> bool {
    let serves = |link: ProbedLink| options.quick || !link.quick;
    !options.reprobe && [kept.probe(a, b), kept.probe(b, a)].into_iter().all(|link| link.is_some_and(serves))
}

/// Returns the indices of each unordered pair of `count` devices.
fn pairs(count: usize) -> impl Iterator<Item = [usize; 2]> {
    (0..count).flat_map(move |a| (a + 1..count).map(move |b| [a, b]))
}

/// Opens the devices in one call, because some routes need a shared driver context. Leaves out devices that
/// cannot be opened, with a warning for each, as long as two devices are left.
fn open(devices: &Devices, adapters: &mut Vec<Adapter>, warnings: &mut Vec<String>) -> Result<Vec<Checked>> {
    loop {
        let labels: Vec<_> = adapters.iter().map(Adapter::label).collect();
        let error = match devices.open(&labels) {
            Ok(opened) => return Ok(opened.into_iter().map(|(_, device)| device).collect()),
            Err(error) => error,
        };
        let Error::Device { device, cause } = &error else { return Err(error) };
        let at = labels.iter().position(|label| label == device);
        let Some(at) = at.filter(|_| adapters.len() > 2) else { return Err(error) };
        warnings.push(format!("cannot open {device}, leaving it out: {cause}"));
        adapters.remove(at);
    }
}
