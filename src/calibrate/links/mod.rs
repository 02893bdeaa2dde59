//! Probes the links between devices. A probe transfers pseudo-random contents over each route, checks them at
//! the far end, and times the routes that keep them intact. Calibration uses the fastest verified route, and
//! the fastest ring of the host-staged route.

mod pairs;
mod probe;
mod topology;

use super::LOCK_WAIT;
use super::kept::{Kept, now_unix_s};
use crate::devices::Devices;
use crate::error::{Error, Result};
use pairs::{Pair, Pairs, rounds};
use probe::{Probed, Prober, STEPS, unprobed};
use ragtag_hal::{Adapter, Checked};
use ragtag_scheduler::SoloDevice;
use ragtag_transfer::{Route, Routes};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;
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
            repetitions: 25,
            limit: USUAL_LIMIT,
            total: USUAL_TOTAL,
            silence: USUAL_SILENCE,
            folder: None,
        }
    }
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
    /// Time of the smallest transfer in microseconds, without the hand-over to the host. `None` if the route
    /// is not verified.
    pub latency_us: Option<f64>,
    /// Rates by size.
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
    /// Half the time of a small transfer there and back over the fastest routes, in microseconds. It is the
    /// mean of several that are submitted together. If the opposite direction has no verified route, the time
    /// of a small transfer there.
    pub latency_us: Option<f64>,
    /// Rates of the fastest verified route, by size.
    pub rates: Vec<LinkRate>,
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

    /// Returns `routes` with the ring that the probe has found fastest, if it has verified the host-staged
    /// route.
    pub(crate) fn with_ring(&self, routes: &Routes) -> Routes {
        let is_verified = |tried: &&TriedRoute| !tried.route.shares_memory() && tried.why.is_none();
        let ring = self.tried.iter().find(is_verified).map(|tried| tried.route);
        let mut routes = routes.clone();
        for sized in routes.0.iter_mut().filter(|sized| !sized.route.shares_memory()) {
            sized.route = ring.unwrap_or(sized.route);
        }
        routes
    }

    /// Returns the reason why the probe has not verified a route, or `None` if it has.
    fn refusal(&self, route: Route) -> Option<&str> {
        match self.tried.iter().find(|tried| tried.route.name() == route.name()) {
            Some(tried) => tried.why.as_deref(),
            None => Some("the probe has not tried it"),
        }
    }
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
    /// Returns [`Error::Usage`] if fewer than two devices are selected. Returns [`Error::Device`] if fewer
    /// than two devices can be opened. If only some devices cannot be opened, returns a warning for each of
    /// them instead.
    pub fn run(devices: &Devices, options: &LinkOptions, progress: &dyn Fn(u64, u64)) -> Result<Self> {
        let mut adapters = devices.selected().to_vec();
        if adapters.len() < 2 {
            let what = "a link needs two devices (select them with --device, or use --cpu-devices 2)";
            return Err(Error::Usage(what.into()));
        }
        let mut kept = Kept::new(options.folder.clone());
        let is_known = |kept: &Kept, [a, b]: [&Adapter; 2]| {
            !options.reprobe && kept.probe(a, b).is_some() && kept.probe(b, a).is_some()
        };
        let mut report = Self::default();
        if !pairs(adapters.len()).all(|pair| is_known(&kept, pair.map(|at| &adapters[at]))) {
            let _lock = kept.lock(LOCK_WAIT);
            let opened = open(devices, &mut adapters, &mut report.warnings)?;
            // Another process may have probed links while this one waited for the lock.
            let missing = pairs(adapters.len()).filter(|pair| !is_known(&kept, pair.map(|at| &adapters[at])));
            let probe = Probe { devices, adapters: &adapters, options, progress };
            probe.run(opened, &missing.collect::<Vec<_>>(), |from, to, link| {
                // A failure may be temporary, such as a lack of memory. Wrong bytes are not.
                if link.route.is_some() || link.tried.iter().any(|tried| tried.corrupt) {
                    kept.keep_probe(from, to, &link);
                }
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
        let mut verified = Vec::new();
        for round in rounds(pairs, most) {
            let tried = solo.run(&round, Prober::verify);
            verified.extend(round.into_iter().zip(tried));
        }
        verified.sort_by_key(|(pair, _)| *pair);
        // Pairs are timed alone. They share host memory, PCIe switches or cores, so that they would disturb
        // each other.
        let prober = Prober::new(self.options, pairs.len());
        for (pair, tried) in verified {
            let time = |tried: [Vec<TriedRoute>; 2]| {
                let work =
                    move |ends: [&mut SoloDevice; 2], step: &dyn Fn()| prober.time(ends, tried.clone(), step);
                solo.run(&[pair], work).swap_remove(0)
            };
            let probed = tried.and_then(time).unwrap_or_else(|why| [unprobed(&why), unprobed(&why)]);
            let [a, b] = pair.map(|at| &self.adapters[at]);
            let [there, back] = self.links([a, b], probed);
            keep(a, b, there);
            keep(b, a, back);
        }
    }

    /// Adds the ends and the topology to the results of a pair.
    fn links(&self, [a, b]: [&Adapter; 2], probed: [Probed; 2]) -> [ProbedLink; 2] {
        // Idle PCIe links slow down, so the topology is read right after the transfers.
        let topology = Topology::new("/");
        let large = probed.iter().filter_map(|probed| Some(probed.rates.last()?.bytes_per_s));
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
            tried: probed.tried,
            measured_unix_s: now_unix_s(),
        })
    }
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
