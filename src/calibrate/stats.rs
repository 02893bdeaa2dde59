//! Times of a thing that was done several times.

use crate::error::Result;
use ragtag_planner::cost::{TimePoint, TimeSample};
use std::time::{Duration, Instant};

/// Most repetitions of anything.
const MOST: usize = 200;
/// The spread, as a share of the median, from which on times say nothing, and the fewest times that tell a spread.
const UNSTEADY: f64 = 0.5;
const FEWEST: u32 = 5;

/// Median and spread of some times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stats {
    pub(super) median_us: f64,
    spread_us: f64,
    count: u32,
}

impl Stats {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        let at = |quarters: usize| times.get((times.len().saturating_sub(1)) * quarters / 4).copied();
        let quartile = |quarters| at(quarters).unwrap_or(0.0);
        Self { median_us: quartile(2), spread_us: quartile(3) - quartile(1), count: times.len() as u32 }
    }

    /// Some times of a thing, after one that does not count: as many as go into `limit`, three at least unless they take
    /// very long. Where `left` is not enough for a second one, the first one counts.
    pub(super) fn taken(
        limit: Duration,
        left: Duration,
        mut once: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        let start = Instant::now();
        let first_us = once()?;
        let mut times = Vec::new();
        if start.elapsed() * 2 > left {
            times.push(first_us);
        }
        loop {
            let patience = if times.len() < 3 { limit * 4 } else { limit };
            let over = times.len() >= MOST || start.elapsed() >= patience.min(left);
            if over && !times.is_empty() {
                return Ok(Self::of(times));
            }
            times.push(once()?);
        }
    }

    /// The same, and once more if the times vary too much and there is time for it.
    pub(super) fn steady(
        limit: Duration,
        left: impl Fn() -> Duration,
        once: &mut impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        let first = Self::taken(limit, left(), &mut *once)?;
        if !first.is_unsteady() || left() < limit {
            return Ok(first);
        }
        let second = Self::taken(limit, left(), once)?;
        Ok(if second.count < FEWEST { first } else { second })
    }

    /// So many times of a thing, or as many as there is time for; at least one.
    pub(super) fn times(
        most: usize,
        left: Duration,
        mut once: impl FnMut() -> Result<f64>,
    ) -> Result<Vec<f64>> {
        let start = Instant::now();
        let mut times = Vec::new();
        while times.is_empty() || (times.len() < most && start.elapsed() < left) {
            times.push(once()?);
        }
        Ok(times)
    }

    /// Whether the times vary so much that they say nothing.
    pub(super) fn is_unsteady(&self) -> bool {
        self.count >= FEWEST && self.spread_us > self.median_us * UNSTEADY
    }

    pub(super) fn sample(&self, at: TimePoint, of: impl Fn(f64) -> f64) -> TimeSample {
        // The spread is scaled as the median is.
        let median_us = of(self.median_us).max(0.0);
        let spread_us = self.spread_us * (median_us / self.median_us.max(1e-9)).min(1.0);
        TimeSample { at, median_us, spread_us, count: self.count }
    }
}

/// The lowest tenth of some times: for hand-overs, which wait for threads of the host, what they take on a host that has
/// nothing else to do. A profile is kept for longer than a host is busy.
pub(super) fn undisturbed_us(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Duration = Duration::from_secs(1000);

    /// Gives these times, then the last one again and again.
    fn giving(times: &[f64]) -> impl FnMut() -> Result<f64> {
        let (mut at, times) = (0, times.to_vec());
        move || {
            at += 1;
            Ok(times[(at - 1).min(times.len() - 1)])
        }
    }

    #[test]
    fn without_time_the_first_repetition_counts() {
        let stats = Stats::taken(NO_LIMIT, Duration::ZERO, giving(&[7.0, 1.0])).unwrap();
        assert_eq!((stats.median_us, stats.count), (7.0, 1));
        let stats = Stats::taken(Duration::ZERO, NO_LIMIT, giving(&[7.0, 1.0])).unwrap();
        assert_eq!((stats.median_us, stats.count), (1.0, 1), "else it warms up");
        let times = Stats::times(9, Duration::ZERO, giving(&[3.0])).unwrap();
        assert_eq!(times, [3.0]);
    }

    #[test]
    fn times_that_vary_are_taken_again_and_then_refused() {
        let wild: Vec<f64> = (0..=MOST).map(|at| if at % 2 == 0 { 1.0 } else { 9.0 }).collect();
        let steady = |times: &[f64]| Stats::steady(NO_LIMIT, || NO_LIMIT, &mut giving(times)).unwrap();
        assert!(!steady(&[5.0]).is_unsteady());
        let calm = [&wild[..], &[5.0]].concat();
        let again = steady(&calm);
        assert!(!again.is_unsteady() && again.median_us == 5.0, "{again:?}");
        let ever = [&wild[..], &wild[..]].concat();
        assert!(steady(&ever).is_unsteady());
        // A few times tell no spread.
        assert!(!Stats::of(vec![1.0, 9.0, 9.0]).is_unsteady());
    }
}
