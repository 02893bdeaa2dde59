//! Tries the routes between two devices, and verifies and times each of them.

use super::super::busy::Meter;
use super::super::stats::{Circumstances, Stats, Timings, undisturbed_us};
use super::{Hop, LinkOptions, LinkRate, TriedRoute};
use crate::calibrate::solo::{Mismatch, SoloDevice, SoloLink};
use crate::devices::staged_route;
use crate::error::{Error, Result};
use ragtag_transfer::Route;
use std::time::Duration;

/// Number of routes that are tried.
const ROUTES: usize = 3;
/// Sizes of the transfers, in bytes.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Minimum ratio of the time of several transfers to the time of a single one. Below it, noise could be the
/// difference of these times.
const APART: f64 = 1.2;
/// Sizes of the transfers that are timed as a run pays for them, in bytes: activations of decode steps and of
/// prefill chunks. The product of these times decides which route and which ring is the fastest.
const HOP_SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
/// Size in bytes of an additional verified transfer. It starts at an odd offset and leaves the last chunk of
/// a ring incomplete. Size and offset are rounded up to the alignment of the devices.
const ODD_BYTES: u64 = 777_777;
/// Sizes of a ring's chunks that are tried with the usual depth, in bytes.
const RING_CHUNKS: [u64; 4] = [256 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Depths of a ring that are tried with the fastest chunk size.
const RING_DEPTHS: [u32; 2] = [2, 8];
/// Maximum size of a ring that is tried, in bytes of pinned host memory.
pub(super) const MAX_RING_BYTES: u64 = 16 << 20;
/// Minimum gain of a ring over the usual one, as a fraction of the time. Smaller differences are noise.
const RING_GAIN: f64 = 0.05;
/// Maximum time of the repetitions of one measurement, and that of a quick probe.
const MAX_EACH: Duration = Duration::from_millis(40);
const QUICK_EACH: Duration = Duration::from_millis(4);
/// Number of steps of a pair: the verification and the timing of each route in each direction, and both
/// directions together.
pub(super) const STEPS: usize = 2 * 2 * ROUTES + 1;
/// Number of measurements of a pair: for each route in each direction, and for both directions together, each
/// size on idle and on busy devices, with one and with more transfers. For each route and each ring in each
/// direction, the hops.
const MEASUREMENTS: usize = (2 * ROUTES + 1) * 4 * SIZES.len()
    + 2 * HOP_SIZES.len() * (ROUTES + RING_CHUNKS.len() + RING_DEPTHS.len());

/// Transfers of a probe.
#[derive(Debug)]
struct Scope {
    /// Sizes that are verified, in bytes.
    verified: &'static [u64],
    /// Sizes whose rates are measured, each with the number of transfers that are timed back to back, as
    /// drivers' benchmarks do.
    rates: &'static [(u64, usize)],
    /// Sizes of chunks and depths of the rings that are tried, as [`RING_CHUNKS`] and [`RING_DEPTHS`].
    ring_chunks: &'static [u64],
    ring_depths: &'static [u32],
    /// Largest transfer, in bytes.
    max_bytes: u64,
}

/// Transfers of a complete probe.
const THOROUGH: Scope = Scope {
    verified: &SIZES,
    rates: &[(SIZES[0], 16), (SIZES[1], 16), (SIZES[2], 8), (SIZES[3], 4)],
    ring_chunks: &RING_CHUNKS,
    ring_depths: &RING_DEPTHS,
    max_bytes: SIZES[SIZES.len() - 1],
};

/// Transfers of the quick probe before the first plan.
const QUICK: Scope = Scope {
    verified: &[SIZES[0], SIZES[1]],
    rates: &[],
    ring_chunks: &[RING_CHUNKS[1]],
    ring_depths: &[],
    max_bytes: HOP_SIZES[HOP_SIZES.len() - 1],
};

/// Returns the routes that are tried, in order.
fn routes(staged: Route) -> [Route; ROUTES] {
    [Route::Peer, Route::Import, staged]
}

/// Prober of the links between pairs of devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prober {
    scope: &'static Scope,
    repetitions: usize,
    /// Time of the repetitions of one measurement.
    each: Duration,
}

/// Result of the probe of one direction.
pub(super) struct Probed {
    pub(super) route: Option<Route>,
    pub(super) latency_us: Option<f64>,
    pub(super) rates: Vec<LinkRate>,
    pub(super) tried: Vec<TriedRoute>,
}

impl Probed {
    /// Returns the rate of the largest transfer over the fastest route, in bytes per second.
    pub(super) fn large_bytes_per_s(&self) -> Option<f64> {
        let of_hop = |hop: &Hop| bytes_per_s(hop.bytes, hop.us);
        let hops =
            || self.tried.iter().find(|tried| Some(tried.route) == self.route)?.hops.last().map(of_hop);
        self.rates.last().map(|rate| rate.bytes_per_s).or_else(hops)
    }
}

/// Rates of both directions together.
struct Together {
    /// Bytes per second in each direction, for each size.
    bytes_per_s: Vec<f64>,
    /// The same rates while both devices compute.
    busy_bytes_per_s: Vec<f64>,
}

impl Prober {
    /// Creates a prober for `pairs` pairs of devices.
    pub(super) fn new(options: &LinkOptions, pairs: usize) -> Self {
        let repetitions = options.repetitions.max(1);
        if options.quick {
            return Self { scope: &QUICK, repetitions, each: QUICK_EACH.min(options.limit) };
        }
        let measurements = (pairs * MEASUREMENTS).max(1) as u32;
        Self { scope: &THOROUGH, repetitions, each: (options.limit / measurements).min(MAX_EACH) }
    }

    /// Verifies each route from the first device to the second and from the second to the first. Calls `step`
    /// after each route.
    pub(super) fn verify(self, [a, b]: [&mut SoloDevice; 2], step: &dyn Fn()) -> [Vec<TriedRoute>; 2] {
        let one_way = |from: &mut SoloDevice, to: &mut SoloDevice| {
            let tried = routes(staged_route(from.adapter(), to.adapter())).map(|route| {
                let verified = self.link(from, to, route).and_then(|mut link| {
                    self.contents(&mut link)?;
                    link.keep_busy()?;
                    self.contents(&mut link).map_err(Failure::on_busy_devices)
                });
                step();
                TriedRoute::new(route, verified.err())
            });
            tried.into()
        };
        [one_way(a, b), one_way(b, a)]
    }

    /// Times the verified routes between two devices. Calls `step` after each route.
    pub(super) fn time(
        self,
        [a, b]: [&mut SoloDevice; 2],
        mut tried: [Vec<TriedRoute>; 2],
        step: &dyn Fn(),
    ) -> [Probed; 2] {
        let one_way = |tried: &mut Vec<TriedRoute>, from: &mut SoloDevice, to: &mut SoloDevice| {
            for tried in tried {
                if tried.why.is_none() {
                    let timed = self.fastest_ring(from, to, tried.route).and_then(|route| {
                        tried.route = route;
                        self.one_way(from, to, route)
                    });
                    match timed {
                        Ok((hops, rates)) => (tried.hops, tried.rates) = (hops, rates),
                        Err(failure) => *tried = TriedRoute::new(tried.route, Some(failure)),
                    }
                }
                step();
            }
        };
        one_way(&mut tried[0], a, b);
        one_way(&mut tried[1], b, a);
        let mut together = None;
        // The fastest routes may fail only if both directions are busy. The next fastest are tried then.
        while let [Some(there), Some(back)] = tried.each_ref().map(|tried| fastest(tried)) {
            match self.together(a, b, [tried[0][there].route, tried[1][back].route]) {
                Ok(rates) => {
                    together = Some(rates);
                    break;
                }
                Err(failure) => {
                    let failure = failure.in_both_directions();
                    for (tried, at) in tried.iter_mut().zip([there, back]) {
                        tried[at] = TriedRoute::new(tried[at].route, Some(failure.clone()));
                    }
                }
            }
        }
        step();
        tried.map(|tried| probed(tried, together.as_ref()))
    }

    fn link<'d>(
        self,
        from: &'d mut SoloDevice,
        to: &'d mut SoloDevice,
        route: Route,
    ) -> std::result::Result<SoloLink<'d>, Failure> {
        Ok(SoloLink::new(from, to, route, self.scope.max_bytes)?)
    }

    /// Returns the host-staged route with the fastest ring. Times a few chunk sizes, and then a few depths
    /// with the best of them. Keeps the usual ring unless another one is clearly faster and keeps data
    /// intact. Returns any other route unchanged.
    fn fastest_ring(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        usual: Route,
    ) -> std::result::Result<Route, Failure> {
        let Route::HostStaged { depth, .. } = usual else { return Ok(usual) };
        let mut timed = vec![(usual, self.ring_hops(from, to, usual)?)];
        let chunks = self.scope.ring_chunks.iter();
        let chunks: Vec<_> = chunks.map(|&chunk_bytes| Route::HostStaged { chunk_bytes, depth }).collect();
        self.time_rings(from, to, &chunks, &mut timed);
        let (chunk_bytes, _) = fastest_of(&timed).ring();
        let depths = self.scope.ring_depths.iter();
        let depths: Vec<_> = depths.map(|&depth| Route::HostStaged { chunk_bytes, depth }).collect();
        self.time_rings(from, to, &depths, &mut timed);
        let best = fastest_of(&timed);
        let is_intact = best == usual || self.contents(&mut self.link(from, to, best)?).is_ok();
        Ok(if is_intact { best } else { usual })
    }

    /// Times rings that are not in `timed`, and appends them. Leaves out large rings and those that fail.
    fn time_rings(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        rings: &[Route],
        timed: &mut Vec<(Route, Vec<Hop>)>,
    ) {
        for &ring in rings.iter().filter(|ring| ring.staging_bytes() <= MAX_RING_BYTES) {
            if timed.iter().any(|(other, _)| *other == ring) {
                continue;
            }
            match self.ring_hops(from, to, ring) {
                Ok(hops) => timed.push((ring, hops)),
                Err(failure) => tracing::debug!(?ring, why = failure.why, "leaving out a ring"),
            }
        }
    }

    /// Times the transfers through a ring between idle devices. Leaves out sizes that fit one chunk of any
    /// ring.
    fn ring_hops(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        ring: Route,
    ) -> std::result::Result<Vec<Hop>, Failure> {
        let sizes = HOP_SIZES.iter().filter(|bytes| **bytes > RING_CHUNKS[0]);
        self.hops(&mut self.link(from, to, ring)?, sizes)
    }

    /// Times a route in one direction. Returns the hops and the rates.
    fn one_way(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        route: Route,
    ) -> std::result::Result<(Vec<Hop>, Vec<LinkRate>), Failure> {
        let mut link = self.link(from, to, route)?;
        let rates = self.rates(|bytes, count| Ok(link.times_us(bytes, count)?))?;
        link.keep_busy()?;
        let busy = self.rates(|bytes, count| Ok(link.busy_times_us(bytes, count)?))?;
        let hops = self.hops(&mut link, HOP_SIZES.iter())?;
        let rate = |(&(bytes, _), (bytes_per_s, busy_bytes_per_s))| LinkRate {
            bytes,
            bytes_per_s,
            both_bytes_per_s: None,
            busy_bytes_per_s,
            both_busy_bytes_per_s: None,
        };
        Ok((hops, self.scope.rates.iter().zip(rates.into_iter().zip(busy)).map(rate).collect()))
    }

    /// Times transfers of `sizes` bytes as a run pays for them. Takes the median of those that other processes have not
    /// disturbed, because waking a thread is just as slow in a run.
    fn hops<'s>(
        self,
        link: &mut SoloLink<'_>,
        sizes: impl Iterator<Item = &'s u64>,
    ) -> std::result::Result<Vec<Hop>, Failure> {
        let meter = Meter::start();
        let of = Circumstances { meter: &meter, sweep: None };
        let hop = |&bytes: &u64| {
            let timings = Timings::taken(self.each, Duration::MAX, of, || Ok(link.hop_us(bytes)?))?;
            Ok(Hop { bytes, us: timings.stats(false).median_us })
        };
        sizes.map(hop).collect()
    }

    /// Verifies both directions together, and times them.
    fn together(
        self,
        a: &mut SoloDevice,
        b: &mut SoloDevice,
        [there, back]: [Route; 2],
    ) -> std::result::Result<Together, Failure> {
        let mut link = self.link(a, b, there)?.and_back(back)?;
        self.contents(&mut link)?;
        let bytes_per_s = self.rates(|bytes, count| Ok(link.times_us(bytes, count)?))?;
        link.keep_busy()?;
        self.contents(&mut link).map_err(Failure::on_busy_devices)?;
        let busy_bytes_per_s = self.rates(|bytes, count| Ok(link.busy_times_us(bytes, count)?))?;
        Ok(Together { bytes_per_s, busy_bytes_per_s })
    }

    /// Transfers pseudo-random contents of all sizes.
    ///
    /// # Errors
    /// Fails if a device fails, or if the link has changed a byte.
    fn contents(self, link: &mut SoloLink<'_>) -> std::result::Result<(), Failure> {
        let alignment = link.alignment_bytes();
        let odd = alignment..alignment + ODD_BYTES.next_multiple_of(alignment);
        let parts = self.scope.verified.iter().map(|&bytes| 0..bytes).chain([odd]);
        for (seed, part) in (1..).zip(parts) {
            if let Some(mismatch) = link.verify(part, seed)? {
                return Err(mismatch.into());
            }
        }
        Ok(())
    }

    /// Returns the rate of back-to-back transfers of each size, in bytes per second.
    fn rates(self, mut once: impl FnMut(u64, usize) -> Result<f64>) -> Result<Vec<f64>> {
        let rate = |&(bytes, count): &(u64, usize)| {
            let single_us = self.timed(|| once(bytes, 1))?;
            let us = self.timed(|| once(bytes, 1 + count))?;
            Ok(bytes_per_s(bytes * count as u64, more_us(single_us, us, count)))
        };
        self.scope.rates.iter().map(rate).collect()
    }

    /// Repeats a measurement after a warm-up. Returns the time on an undisturbed host, in microseconds.
    fn timed(self, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
        once()?;
        Ok(undisturbed_us(Stats::times(self.repetitions, self.each, once)?))
    }
}

impl TriedRoute {
    /// Returns a route that has not been timed. `failure` is the reason why it must not be used.
    pub(super) fn new(route: Route, failure: Option<Failure>) -> Self {
        let (why, corrupt) = failure.map_or((None, false), |failure| (Some(failure.why), failure.corrupt));
        Self { route, why, corrupt, hops: Vec::new(), rates: Vec::new() }
    }

    /// Returns all routes of a pair that was not probed, with the reason.
    pub(super) fn all_failed(why: &str) -> Vec<Self> {
        let failure = || Failure { why: why.into(), corrupt: false };
        routes(Route::HOST_STAGED).map(|route| Self::new(route, Some(failure()))).into()
    }
}

/// Reason why a route is not verified.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    why: String,
    /// Whether the route has changed bytes.
    corrupt: bool,
}

impl Failure {
    fn on_busy_devices(self) -> Self {
        Self { why: format!("while both devices compute: {}", self.why), ..self }
    }

    fn in_both_directions(self) -> Self {
        Self { why: format!("both directions at once: {}", self.why), ..self }
    }
}

impl From<Mismatch> for Failure {
    fn from(mismatch: Mismatch) -> Self {
        Self { why: mismatch.to_string(), corrupt: true }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Errors of solo devices name a stage, which a link does not have.
        let why = match error {
            Error::Run(ragtag_scheduler::Error::Stage { device, cause, .. }) => format!("{device}: {cause}"),
            other => other.to_string(),
        };
        Self { why, corrupt: false }
    }
}

impl From<ragtag_scheduler::Error> for Failure {
    fn from(error: ragtag_scheduler::Error) -> Self {
        Error::from(error).into()
    }
}

/// Returns the index of the fastest verified route: the one with the lowest product of its hops.
fn fastest(tried: &[TriedRoute]) -> Option<usize> {
    let verified = (0..tried.len()).filter(|&at| tried[at].why.is_none());
    verified.min_by(|&a, &b| score(&tried[a].hops).total_cmp(&score(&tried[b].hops)))
}

/// Returns the mean logarithm of the times.
fn score(hops: &[Hop]) -> f64 {
    hops.iter().map(|hop| hop.us.max(1e-3).ln()).sum::<f64>() / hops.len().max(1) as f64
}

/// Returns the ring with the lowest product of its times. The first is the usual ring, which stays unless
/// another one is faster by [`RING_GAIN`] on average.
fn fastest_of(timed: &[(Route, Vec<Hop>)]) -> Route {
    let (usual, usual_score) = (timed[0].0, score(&timed[0].1));
    let others = timed[1..].iter().map(|(route, hops)| (*route, score(hops)));
    let best = others.min_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, score)| score + RING_GAIN < usual_score).map_or(usual, |(route, _)| route)
}

pub(super) fn unprobed(why: &str) -> Probed {
    probed(TriedRoute::all_failed(why), None)
}

fn probed(tried: Vec<TriedRoute>, together: Option<&Together>) -> Probed {
    let best = fastest(&tried).map(|at| &tried[at]);
    let mut rates = best.map_or_else(Vec::new, |best| best.rates.clone());
    for (at, rate) in rates.iter_mut().enumerate() {
        rate.both_bytes_per_s = together.map(|rates| rates.bytes_per_s[at]);
        rate.both_busy_bytes_per_s = together.map(|rates| rates.busy_bytes_per_s[at]);
    }
    let latency_us = best.and_then(|best| Some(best.hops.first()?.us));
    Probed { route: best.map(|best| best.route), latency_us, rates, tried }
}

/// Returns the time of `count` transfers in microseconds, if a single transfer takes `single_us` and one more
/// than `count` take `us`. Both times include the way of the first and the last transfer to and from the host.
fn more_us(single_us: f64, us: f64, count: usize) -> f64 {
    if us > APART * single_us { us - single_us } else { us * count as f64 / (1 + count) as f64 }
}

fn bytes_per_s(bytes: u64, us: f64) -> f64 {
    bytes as f64 / us.max(1e-3) * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(us: [f64; HOP_SIZES.len()]) -> Vec<Hop> {
        HOP_SIZES.into_iter().zip(us).map(|(bytes, us)| Hop { bytes, us }).collect()
    }

    fn tried(route: Route, us: f64, why: Option<&str>) -> TriedRoute {
        let rate = |bytes| LinkRate {
            bytes,
            bytes_per_s: 5e9,
            both_bytes_per_s: None,
            busy_bytes_per_s: 2.5e9,
            both_busy_bytes_per_s: None,
        };
        let why = why.map(str::to_owned);
        let hops = hops([us, 2.0 * us, 20.0 * us, 80.0 * us]);
        TriedRoute { route, corrupt: why.is_some(), why, hops, rates: SIZES.map(rate).into() }
    }

    #[test]
    fn a_ring_replaces_the_usual_one_only_if_it_is_clearly_faster() {
        let ring = |chunk_bytes, depth| Route::HostStaged { chunk_bytes, depth };
        let timed = |route, us| (route, hops(us));
        let usual = timed(Route::HOST_STAGED, [40.0, 50.0, 200.0, 3000.0]);
        assert_eq!(fastest_of(std::slice::from_ref(&usual)), Route::HOST_STAGED);
        let noise = timed(ring(1 << 20, 4), [39.0, 49.0, 195.0, 2950.0]);
        assert_eq!(fastest_of(&[usual.clone(), noise.clone()]), Route::HOST_STAGED);
        let large = timed(ring(2 << 20, 4), [40.0, 50.0, 180.0, 2000.0]);
        let largest = timed(ring(4 << 20, 4), [40.0, 50.0, 190.0, 1900.0]);
        assert_eq!(fastest_of(&[usual, noise, largest, large]), ring(2 << 20, 4));
        assert!(RING_CHUNKS.iter().all(|chunk| ring(*chunk, 4).staging_bytes() <= MAX_RING_BYTES));
    }

    #[test]
    fn the_sizes_of_a_quick_probe_fit_its_links() {
        for scope in [&THOROUGH, &QUICK] {
            let sizes =
                scope.verified.iter().chain(&HOP_SIZES).chain(scope.rates.iter().map(|(bytes, _)| bytes));
            assert!(sizes.chain([&ODD_BYTES]).all(|bytes| *bytes <= scope.max_bytes), "{scope:?}");
        }
    }

    #[test]
    fn rates_leave_out_what_a_single_transfer_takes_besides() {
        // A transfer takes 10 µs, and 40 µs pass before and after all of them.
        assert_eq!(more_us(50.0, 40.0 + 5.0 * 10.0, 4), 40.0);
        // The difference is noise.
        assert_eq!(more_us(50.0, 55.0, 4), 44.0);
        assert_eq!(more_us(50.0, 45.0, 4), 36.0);
    }

    #[test]
    fn the_fastest_verified_route_is_chosen() {
        let all = || {
            vec![
                tried(Route::Peer, 1.0, Some("wrong")),
                tried(Route::Import, 3.0, None),
                tried(Route::HOST_STAGED, 8.0, None),
            ]
        };
        let alone = probed(all(), None);
        assert_eq!((alone.route, alone.latency_us), (Some(Route::Import), Some(3.0)));
        assert_eq!(alone.rates[0].both_bytes_per_s, None);
        let (bytes_per_s, busy_bytes_per_s) = (vec![1e9; SIZES.len()], vec![5e8; SIZES.len()]);
        let rates = Together { bytes_per_s, busy_bytes_per_s };
        let both = probed(all(), Some(&rates));
        assert_eq!((both.latency_us, both.rates[3].both_bytes_per_s), (Some(3.0), Some(1e9)));
        assert_eq!((both.rates[3].busy_bytes_per_s, both.rates[3].both_busy_bytes_per_s), (2.5e9, Some(5e8)));
        let none = probed(vec![tried(Route::Peer, 1.0, Some("wrong"))], Some(&rates));
        assert!((none.route, none.latency_us, none.rates.len()) == (None, None, 0));
    }
}
