//! Tries the routes between two devices, and verifies and times each of them.

use super::super::stats::{Stats, undisturbed_us};
use super::{LinkOptions, LinkRate, TriedRoute};
use crate::devices::staged_route;
use crate::error::{Error, Result};
use ragtag_scheduler::{Mismatch, SoloDevice, SoloLink};
use ragtag_transfer::Route;
use std::time::Duration;

/// Number of routes that are tried.
const ROUTES: usize = 3;
/// Sizes of the transfers, in bytes.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Number of transfers of each size that are timed back to back, as drivers' benchmarks do.
const COUNTS: [usize; SIZES.len()] = [16, 16, 8, 4];
/// Minimum ratio of the time of one more than [`COUNTS`] transfers to the time of a single one. Below it, noise
/// could be the difference of these times.
const APART: f64 = 1.2;
/// Number of transfers there and back that are timed together.
const ROUNDS: usize = 8;
/// Size whose time decides which route is the fastest.
const DECISIVE: usize = 2;
/// Size in bytes of an additional verified transfer. It starts at an odd offset and leaves the last chunk of
/// a ring incomplete. Size and offset are rounded up to the alignment of the devices.
const ODD_BYTES: u64 = 777_777;
/// Largest transfer, in bytes.
const MAX_BYTES: u64 = SIZES[SIZES.len() - 1];
/// Sizes whose times decide which ring is the fastest: activations of decode steps and of prefill chunks.
const RING_SIZES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Sizes of a ring's chunks that are tried with the usual depth, in bytes.
const RING_CHUNKS: [u64; 4] = [256 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Depths of a ring that are tried with the fastest chunk size.
const RING_DEPTHS: [u32; 2] = [2, 8];
/// Maximum size of a ring that is tried, in bytes of pinned host memory.
const MAX_RING_BYTES: u64 = 16 << 20;
/// Minimum gain of a ring over the usual one, as a fraction of the time. Smaller differences are noise.
const RING_GAIN: f64 = 0.05;
/// Maximum time of the repetitions of one measurement.
const MAX_EACH: Duration = Duration::from_millis(40);
/// Number of steps of a pair: the verification and the timing of each route in each direction, and both
/// directions together.
pub(super) const STEPS: usize = 2 * 2 * ROUTES + 1;
/// Number of measurements of a pair: for each route in each direction, and for both directions together, the
/// hand-over, the latency, and each size on idle and on busy devices, with one and with more transfers. For
/// each ring in each direction, each of its sizes.
const MEASUREMENTS: usize =
    (2 * ROUTES + 1) * (4 * SIZES.len() + 2) + 2 * RING_SIZES.len() * (RING_CHUNKS.len() + RING_DEPTHS.len());

/// Returns the routes that are tried, in order.
fn routes(staged: Route) -> [Route; ROUTES] {
    [Route::Peer, Route::Import, staged]
}

/// Prober of the links between pairs of devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prober {
    repetitions: usize,
    /// Time of the repetitions of one measurement.
    each: Duration,
}

/// Times of transfers of [`RING_SIZES`] through a ring, in microseconds.
type RingTimes = [f64; RING_SIZES.len()];

/// Result of the probe of one direction.
pub(super) struct Probed {
    pub(super) route: Option<Route>,
    pub(super) latency_us: Option<f64>,
    pub(super) rates: Vec<LinkRate>,
    pub(super) tried: Vec<TriedRoute>,
}

/// Times of both directions together.
struct Together {
    latency_us: f64,
    /// Bytes per second in each direction, for each size.
    bytes_per_s: Vec<f64>,
    /// The same rates while both devices compute.
    busy_bytes_per_s: Vec<f64>,
}

impl Prober {
    /// Creates a prober for `pairs` pairs of devices.
    pub(super) fn new(options: &LinkOptions, pairs: usize) -> Self {
        let measurements = (pairs * MEASUREMENTS).max(1) as u32;
        Self { repetitions: options.repetitions.max(1), each: (options.limit / measurements).min(MAX_EACH) }
    }

    /// Verifies each route from the first device to the second and from the second to the first. Calls `step`
    /// after each route.
    pub(super) fn verify([a, b]: [&mut SoloDevice; 2], step: &dyn Fn()) -> [Vec<TriedRoute>; 2] {
        let one_way = |from: &mut SoloDevice, to: &mut SoloDevice| {
            let tried = routes(staged_route(from.adapter(), to.adapter())).map(|route| {
                let verified = SoloLink::new(from, to, route, MAX_BYTES).map_err(Failure::from);
                let verified = verified.and_then(|mut link| {
                    verify(&mut link)?;
                    link.keep_busy()?;
                    verify(&mut link).map_err(Failure::on_busy_devices)
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
                        Ok((latency_us, rates)) => {
                            (tried.latency_us, tried.rates) = (Some(latency_us), rates);
                        }
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
                Ok(times) => {
                    together = Some(times);
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
        let mut timed = vec![(usual, self.ring_us(from, to, usual)?)];
        let chunks = RING_CHUNKS.map(|chunk_bytes| Route::HostStaged { chunk_bytes, depth });
        self.time_rings(from, to, &chunks, &mut timed);
        let (chunk_bytes, _) = fastest_of(&timed).ring();
        let depths = RING_DEPTHS.map(|depth| Route::HostStaged { chunk_bytes, depth });
        self.time_rings(from, to, &depths, &mut timed);
        let best = fastest_of(&timed);
        let is_intact = best == usual || verify(&mut SoloLink::new(from, to, best, MAX_BYTES)?).is_ok();
        Ok(if is_intact { best } else { usual })
    }

    /// Times rings that are not in `timed`, and appends them. Leaves out large rings and those that fail.
    fn time_rings(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        rings: &[Route],
        timed: &mut Vec<(Route, RingTimes)>,
    ) {
        for &ring in rings.iter().filter(|ring| ring.staging_bytes() <= MAX_RING_BYTES) {
            if timed.iter().any(|(other, _)| *other == ring) {
                continue;
            }
            match self.ring_us(from, to, ring) {
                Ok(times_us) => timed.push((ring, times_us)),
                Err(failure) => tracing::debug!(?ring, why = failure.why, "leaving out a ring"),
            }
        }
    }

    /// Returns the times of transfers through a ring, in microseconds.
    fn ring_us(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        ring: Route,
    ) -> std::result::Result<RingTimes, Failure> {
        let mut link = SoloLink::new(from, to, ring, MAX_BYTES)?;
        let mut times_us = [0.0; RING_SIZES.len()];
        for (us, bytes) in times_us.iter_mut().zip(RING_SIZES) {
            *us = self.timed(|| Ok(link.time_us(bytes)?))?;
        }
        Ok(times_us)
    }

    /// Times a route in one direction. Returns the latency in microseconds, and the rates.
    fn one_way(
        self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        route: Route,
    ) -> std::result::Result<(f64, Vec<LinkRate>), Failure> {
        let mut link = SoloLink::new(from, to, route, MAX_BYTES)?;
        let hand_over = self.hand_over(&mut link)?;
        let latency_us = hand_over.subtracted_from(self.timed(|| Ok(link.time_us(SIZES[0])?))?);
        let rates = self.rates(|bytes, count| Ok(link.times_us(bytes, count)?))?;
        link.keep_busy()?;
        let busy = self.rates(|bytes, count| Ok(link.busy_times_us(bytes, count)?))?;
        let rate = |(bytes, (bytes_per_s, busy_bytes_per_s))| LinkRate {
            bytes,
            bytes_per_s,
            both_bytes_per_s: None,
            busy_bytes_per_s,
            both_busy_bytes_per_s: None,
        };
        Ok((latency_us, SIZES.into_iter().zip(rates.into_iter().zip(busy)).map(rate).collect()))
    }

    /// Verifies and times both directions together.
    fn together(
        self,
        a: &mut SoloDevice,
        b: &mut SoloDevice,
        [there, back]: [Route; 2],
    ) -> std::result::Result<Together, Failure> {
        let mut link = SoloLink::new(a, b, there, MAX_BYTES)?.and_back(back)?;
        verify(&mut link)?;
        let hand_over = self.hand_over(&mut link)?;
        let rounds_us = hand_over.subtracted_from(self.timed(|| Ok(link.ping_pong_us(SIZES[0], ROUNDS)?))?);
        let latency_us = rounds_us / (2 * ROUNDS) as f64;
        let bytes_per_s = self.rates(|bytes, count| Ok(link.times_us(bytes, count)?))?;
        link.keep_busy()?;
        verify(&mut link).map_err(Failure::on_busy_devices)?;
        let busy_bytes_per_s = self.rates(|bytes, count| Ok(link.busy_times_us(bytes, count)?))?;
        Ok(Together { latency_us, bytes_per_s, busy_bytes_per_s })
    }

    /// Times the hand-over of an idle device to the host.
    fn hand_over(self, link: &mut SoloLink<'_>) -> Result<HandOver> {
        let times = Stats::times(self.repetitions, self.each, || Ok(link.hand_over_us()?))?;
        Ok(HandOver { us: undisturbed_us(times) })
    }

    /// Returns the rate of back-to-back transfers of each size, in bytes per second.
    fn rates(self, mut once: impl FnMut(u64, usize) -> Result<f64>) -> Result<Vec<f64>> {
        let rate = |(bytes, count): (u64, usize)| {
            let single_us = self.timed(|| once(bytes, 1))?;
            let us = self.timed(|| once(bytes, 1 + count))?;
            Ok(bytes_per_s(bytes * count as u64, more_us(single_us, us, count)))
        };
        SIZES.into_iter().zip(COUNTS).map(rate).collect()
    }

    /// Repeats a measurement after a warm-up. Returns the time on an undisturbed host, in microseconds.
    fn timed(self, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
        once()?;
        Ok(undisturbed_us(Stats::times(self.repetitions, self.each, once)?))
    }
}

/// Time from the end of work on an idle device until the host knows of it.
#[derive(Clone, Copy, Debug)]
struct HandOver {
    us: f64,
}

impl HandOver {
    /// Subtracts this time from one in microseconds that contains it. The clock is not exact, so the
    /// difference may be negative. The result is then the whole time.
    fn subtracted_from(self, us: f64) -> f64 {
        if us > self.us { us - self.us } else { us }
    }
}

impl TriedRoute {
    /// Returns a route that has not been timed. `failure` is the reason why it must not be used.
    pub(super) fn new(route: Route, failure: Option<Failure>) -> Self {
        let (why, corrupt) = failure.map_or((None, false), |failure| (Some(failure.why), failure.corrupt));
        Self { route, why, corrupt, latency_us: None, rates: Vec::new() }
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

/// Transfers pseudo-random contents of all sizes.
///
/// # Errors
/// Fails if a device fails, or if the link has changed a byte.
fn verify(link: &mut SoloLink<'_>) -> std::result::Result<(), Failure> {
    let alignment = link.alignment_bytes();
    let odd = alignment..alignment + ODD_BYTES.next_multiple_of(alignment);
    for (seed, part) in (1..).zip(SIZES.map(|bytes| 0..bytes).into_iter().chain([odd])) {
        if let Some(mismatch) = link.verify(part, seed)? {
            return Err(mismatch.into());
        }
    }
    Ok(())
}

/// Returns the index of the fastest verified route.
fn fastest(tried: &[TriedRoute]) -> Option<usize> {
    let rate = |at: &usize| tried[*at].rates.get(DECISIVE).map_or(0.0, |rate| rate.bytes_per_s);
    let verified = (0..tried.len()).filter(|&at| tried[at].why.is_none());
    verified.max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

/// Returns the ring with the lowest product of its times. The first is the usual ring, which stays unless
/// another one is faster by [`RING_GAIN`] on average.
fn fastest_of(timed: &[(Route, RingTimes)]) -> Route {
    let score = |times_us: &[f64]| times_us.iter().map(|us| us.max(1e-3).ln()).sum::<f64>();
    let least = RING_GAIN * RING_SIZES.len() as f64;
    let (usual, usual_score) = (timed[0].0, score(&timed[0].1));
    let others = timed[1..].iter().map(|(route, times_us)| (*route, score(times_us)));
    let best = others.min_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, score)| score + least < usual_score).map_or(usual, |(route, _)| route)
}

pub(super) fn unprobed(why: &str) -> Probed {
    probed(TriedRoute::all_failed(why), None)
}

fn probed(tried: Vec<TriedRoute>, together: Option<&Together>) -> Probed {
    let best = fastest(&tried).map(|at| &tried[at]);
    let mut rates = best.map_or_else(Vec::new, |best| best.rates.clone());
    for (at, rate) in rates.iter_mut().enumerate() {
        rate.both_bytes_per_s = together.map(|times| times.bytes_per_s[at]);
        rate.both_busy_bytes_per_s = together.map(|times| times.busy_bytes_per_s[at]);
    }
    let latency_us = best.and_then(|best| together.map_or(best.latency_us, |times| Some(times.latency_us)));
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
    use super::super::{LinkClass, ProbedLink};
    use super::*;
    use ragtag_transfer::Routes;

    fn tried(route: Route, bytes_per_s: f64, why: Option<&str>) -> TriedRoute {
        let rate = |bytes| LinkRate {
            bytes,
            bytes_per_s,
            both_bytes_per_s: None,
            busy_bytes_per_s: bytes_per_s / 2.0,
            both_busy_bytes_per_s: None,
        };
        let why = why.map(str::to_owned);
        TriedRoute {
            route,
            corrupt: why.is_some(),
            why,
            latency_us: Some(3.0),
            rates: SIZES.map(rate).into(),
        }
    }

    #[test]
    fn a_ring_replaces_the_usual_one_only_if_it_is_clearly_faster() {
        let ring = |chunk_bytes, depth| Route::HostStaged { chunk_bytes, depth };
        let usual = (Route::HOST_STAGED, [50.0, 200.0, 3000.0]);
        assert_eq!(fastest_of(&[usual]), Route::HOST_STAGED);
        let noise = (ring(1 << 20, 4), [49.0, 195.0, 2950.0]);
        assert_eq!(fastest_of(&[usual, noise]), Route::HOST_STAGED);
        let large = (ring(2 << 20, 4), [50.0, 180.0, 2000.0]);
        let largest = (ring(4 << 20, 4), [50.0, 190.0, 1900.0]);
        assert_eq!(fastest_of(&[usual, noise, largest, large]), ring(2 << 20, 4));
        assert!(RING_CHUNKS.iter().all(|chunk| ring(*chunk, 4).staging_bytes() <= MAX_RING_BYTES));
    }

    #[test]
    fn plans_use_the_ring_of_a_verified_staged_route() {
        let link = |why| ProbedLink {
            from: "a".into(),
            to: "b".into(),
            class: LinkClass::Host,
            numa_distance: None,
            route: None,
            latency_us: None,
            rates: Vec::new(),
            tried: vec![tried(Route::Peer, 9e9, None), tried(Route::STAGED_BETWEEN_GPUS, 2e9, why)],
            measured_unix_s: 0,
        };
        let usual = Routes::or_staged(Route::Peer);
        assert_eq!(link(None).with_ring(&usual), Routes::or(Route::Peer, Route::STAGED_BETWEEN_GPUS));
        assert_eq!(link(Some("wrong")).with_ring(&usual), usual);
        assert_eq!(link(None).with_ring(&Route::Import.into()), Route::Import.into());
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
                tried(Route::Peer, 9e9, Some("wrong")),
                tried(Route::Import, 5e9, None),
                tried(Route::HOST_STAGED, 2e9, None),
            ]
        };
        let alone = probed(all(), None);
        assert_eq!((alone.route, alone.latency_us), (Some(Route::Import), Some(3.0)));
        assert_eq!(alone.rates[0].both_bytes_per_s, None);
        let (bytes_per_s, busy_bytes_per_s) = (vec![1e9; SIZES.len()], vec![5e8; SIZES.len()]);
        let times = Together { latency_us: 2.0, bytes_per_s, busy_bytes_per_s };
        let both = probed(all(), Some(&times));
        assert_eq!((both.latency_us, both.rates[3].both_bytes_per_s), (Some(2.0), Some(1e9)));
        assert_eq!((both.rates[3].busy_bytes_per_s, both.rates[3].both_busy_bytes_per_s), (2.5e9, Some(5e8)));
        let none = probed(vec![tried(Route::Peer, 9e9, Some("wrong"))], Some(&times));
        assert!((none.route, none.latency_us, none.rates.len()) == (None, None, 0));
    }
}
