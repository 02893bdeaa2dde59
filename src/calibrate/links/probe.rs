//! Tries the routes between two devices, and verifies and times each of them.

use super::super::stats::{Stats, undisturbed_us};
use super::{LinkOptions, LinkRate, TriedRoute};
use crate::error::{Error, Result};
use ragtag_scheduler::{Mismatch, SoloDevice, SoloLink};
use ragtag_transfer::Route;
use std::cell::Cell;
use std::time::Duration;

/// Routes that are tried, in order.
const ROUTES: [Route; 3] = [Route::Peer, Route::Import, Route::HOST_STAGED];
/// Sizes of the transfers, in bytes.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Size whose time decides which route is the fastest.
const DECISIVE: usize = 2;
/// Size in bytes of an additional verified transfer. It starts at an odd offset and leaves the last chunk of
/// a ring incomplete. Size and offset are rounded up to the alignment of the devices.
const ODD_BYTES: u64 = 777_777;
/// Largest transfer, in bytes.
const MOST_BYTES: u64 = SIZES[SIZES.len() - 1];
/// Maximum time of the repetitions of one measurement.
const MOST_EACH: Duration = Duration::from_millis(60);
/// Number of steps of a pair: each route in each direction, and both directions together.
const STEPS: usize = 2 * ROUTES.len() + 1;

/// Prober of the links between pairs of devices.
pub(super) struct Prober<'a> {
    repetitions: usize,
    /// Time of the repetitions of one measurement.
    each: Duration,
    progress: &'a dyn Fn(u64, u64),
    done: Cell<u64>,
    total: u64,
}

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
}

impl<'a> Prober<'a> {
    /// Creates a prober for `pairs` pairs of devices.
    pub(super) fn new(options: &LinkOptions, pairs: usize, progress: &'a dyn Fn(u64, u64)) -> Self {
        let steps = pairs * STEPS;
        let measurements = (steps * (SIZES.len() + 1)).max(1) as u32;
        Self {
            repetitions: options.repetitions.max(1),
            each: (options.limit / measurements).min(MOST_EACH),
            progress,
            done: Cell::new(0),
            total: steps as u64,
        }
    }

    fn tick(&self) {
        self.done.set(self.done.get() + 1);
        (self.progress)(self.done.get(), self.total);
    }

    /// Probes the links from the first device to the second and from the second to the first.
    pub(super) fn pair(&self, [a, b]: [&mut SoloDevice; 2]) -> [Probed; 2] {
        let mut tried = [self.routes(a, b), self.routes(b, a)];
        let mut together = None;
        // The fastest routes may fail only if both directions are busy. The next fastest are tried then.
        while let [Some(there), Some(back)] = tried.each_ref().map(|tried| fastest(tried)) {
            match self.together(a, b, [tried[0][there].route, tried[1][back].route]) {
                Ok(times) => {
                    together = Some(times);
                    break;
                }
                Err(failure) => {
                    tried[0][there].refuse(&failure);
                    tried[1][back].refuse(&failure);
                }
            }
        }
        self.tick();
        tried.map(|tried| probed(tried, together.as_ref()))
    }

    /// Tries each route in one direction.
    fn routes(&self, from: &mut SoloDevice, to: &mut SoloDevice) -> Vec<TriedRoute> {
        let tried = ROUTES.map(|route| {
            let tried = match self.one_way(from, to, route) {
                Ok((latency_us, rates)) => {
                    TriedRoute { route, why: None, corrupt: false, latency_us: Some(latency_us), rates }
                }
                Err(Failure { why, corrupt }) => {
                    TriedRoute { route, why: Some(why), corrupt, latency_us: None, rates: Vec::new() }
                }
            };
            self.tick();
            tried
        });
        tried.into()
    }

    /// Verifies and times a route in one direction. Returns the latency in microseconds, and the rates.
    fn one_way(
        &self,
        from: &mut SoloDevice,
        to: &mut SoloDevice,
        route: Route,
    ) -> std::result::Result<(f64, Vec<LinkRate>), Failure> {
        let mut link = SoloLink::new(from, to, route, MOST_BYTES)?;
        verify(&mut link)?;
        let idle = Stats::times(self.repetitions, self.each, || Ok(link.hand_over_us()?))?;
        let hand_over_us = undisturbed_us(idle);
        let mut net_us = |bytes: u64| {
            let us = self.timed(|| Ok(link.time_us(bytes)?))?;
            // The clock is not exact, so the difference may be negative.
            Ok::<_, Error>(if us > hand_over_us { us - hand_over_us } else { us })
        };
        let mut times = Vec::new();
        for bytes in SIZES {
            times.push((bytes, net_us(bytes)?));
        }
        let rate = |&(bytes, us): &(u64, f64)| LinkRate {
            bytes,
            bytes_per_s: bytes_per_s(bytes, us),
            both_bytes_per_s: None,
        };
        Ok((times[0].1, times.iter().map(rate).collect()))
    }

    /// Verifies and times both directions together.
    fn together(
        &self,
        a: &mut SoloDevice,
        b: &mut SoloDevice,
        [there, back]: [Route; 2],
    ) -> std::result::Result<Together, Failure> {
        let mut link = SoloLink::new(a, b, there, MOST_BYTES)?.and_back(back)?;
        verify(&mut link)?;
        let latency_us = self.timed(|| Ok(link.half_ping_pong_us(SIZES[0])?))?;
        let rate = |bytes| Ok::<_, Error>(bytes_per_s(bytes, self.timed(|| Ok(link.time_us(bytes)?))?));
        let rates = SIZES.into_iter().map(rate).collect::<Result<_>>()?;
        Ok(Together { latency_us, bytes_per_s: rates })
    }

    /// Repeats a measurement after a warm-up. Returns the time on an undisturbed host, in microseconds.
    fn timed(&self, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
        once()?;
        Ok(undisturbed_us(Stats::times(self.repetitions, self.each, once)?))
    }
}

impl TriedRoute {
    /// Records that the route failed while both directions were busy.
    fn refuse(&mut self, failure: &Failure) {
        self.why = Some(format!("both directions at once: {}", failure.why));
        self.corrupt = failure.corrupt;
        self.latency_us = None;
        self.rates.clear();
    }
}

/// Reason why a route is not verified.
struct Failure {
    why: String,
    /// Whether the route has changed bytes.
    corrupt: bool,
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

fn probed(tried: Vec<TriedRoute>, together: Option<&Together>) -> Probed {
    let best = fastest(&tried).map(|at| &tried[at]);
    let mut rates = best.map_or_else(Vec::new, |best| best.rates.clone());
    for (rate, both) in rates.iter_mut().zip(together.iter().flat_map(|times| &times.bytes_per_s)) {
        rate.both_bytes_per_s = Some(*both);
    }
    let latency_us = best.and_then(|best| together.map_or(best.latency_us, |times| Some(times.latency_us)));
    Probed { route: best.map(|best| best.route), latency_us, rates, tried }
}

fn bytes_per_s(bytes: u64, us: f64) -> f64 {
    bytes as f64 / us.max(1e-3) * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(route: Route, bytes_per_s: f64, why: Option<&str>) -> TriedRoute {
        let rate = |bytes| LinkRate { bytes, bytes_per_s, both_bytes_per_s: None };
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
        let times = Together { latency_us: 2.0, bytes_per_s: vec![1e9; SIZES.len()] };
        let both = probed(all(), Some(&times));
        assert_eq!((both.latency_us, both.rates[3].both_bytes_per_s), (Some(2.0), Some(1e9)));
        let none = probed(vec![tried(Route::Peer, 9e9, Some("wrong"))], Some(&times));
        assert!((none.route, none.latency_us, none.rates.len()) == (None, None, 0));
    }
}
