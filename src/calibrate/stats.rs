//! Statistics of repeated timings.

use crate::error::Result;
use ragtag_planner::cost::{TimePoint, TimeSample};
use std::time::{Duration, Instant};

/// Maximum number of repetitions of a measurement.
const MOST: usize = 200;
/// Ratio of interquartile range to median above which timings vary too much to be usable, and the minimum
/// number of timings for this check.
const UNSTEADY: f64 = 0.5;
const FEWEST: u32 = 5;

/// Median and interquartile range of repeated timings.
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

    /// Runs the measurement `once` as a warm-up, then repeats it for the time `limit`. Repeats it at least
    /// three times, unless that takes longer than four times `limit`. Does not run longer than `left`. If
    /// `left` is too short for a second run, uses the time of the warm-up.
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
            let allowed = if times.len() < 3 { limit * 4 } else { limit };
            let over = times.len() >= MOST || start.elapsed() >= allowed.min(left);
            if over && !times.is_empty() {
                return Ok(Self::of(times));
            }
            times.push(once()?);
        }
    }

    /// Repeats the measurement `once` like [`Stats::taken`]. If the timings vary too much and time is left,
    /// times it again and uses the new timings, unless there are too few of them.
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

    /// Repeats the measurement `once` until it has run `most` times or the time `left` has passed, whichever
    /// comes first. Runs it at least once. Returns all times.
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

    /// Returns whether the timings vary too much to be usable.
    pub(super) fn is_unsteady(&self) -> bool {
        self.count >= FEWEST && self.spread_us > self.median_us * UNSTEADY
    }

    pub(super) fn sample(&self, at: TimePoint, of: impl Fn(f64) -> f64) -> TimeSample {
        // The spread is scaled by the same factor as the median.
        let median_us = of(self.median_us).max(0.0);
        let spread_us = self.spread_us * (median_us / self.median_us.max(1e-9)).min(1.0);
        TimeSample { at, median_us, spread_us, count: self.count }
    }
}

/// Returns the tenth percentile of `times`, which approximates the time on an idle host. The host may be busy
/// during calibration, but the profile is used for much longer than the host stays busy.
pub(super) fn undisturbed_us(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Duration = Duration::from_secs(1000);

    /// Returns a fake measurement, which returns the values of `times` in order and then repeats the last
    /// one.
    fn giving(times: &[f64]) -> impl FnMut() -> Result<f64> {
        let (mut at, times) = (0, times.to_vec());
        move || {
            at += 1;
            Ok(times[(at - 1).min(times.len() - 1)])
        }
    }

    #[test]
    fn without_time_left_the_warm_up_counts() {
        let stats = Stats::taken(NO_LIMIT, Duration::ZERO, giving(&[7.0, 1.0])).unwrap();
        assert_eq!((stats.median_us, stats.count), (7.0, 1));
        let stats = Stats::taken(Duration::ZERO, NO_LIMIT, giving(&[7.0, 1.0])).unwrap();
        assert_eq!((stats.median_us, stats.count), (1.0, 1), "otherwise it is a warm-up");
        let times = Stats::times(9, Duration::ZERO, giving(&[3.0])).unwrap();
        assert_eq!(times, [3.0]);
    }

    #[test]
    fn unsteady_timings_are_repeated_once() {
        let wild: Vec<f64> = (0..=MOST).map(|at| if at % 2 == 0 { 1.0 } else { 9.0 }).collect();
        let steady = |times: &[f64]| Stats::steady(NO_LIMIT, || NO_LIMIT, &mut giving(times)).unwrap();
        assert!(!steady(&[5.0]).is_unsteady());
        let calm = [&wild[..], &[5.0]].concat();
        let again = steady(&calm);
        assert!(!again.is_unsteady() && again.median_us == 5.0, "{again:?}");
        let ever = [&wild[..], &wild[..]].concat();
        assert!(steady(&ever).is_unsteady());
        // There are too few timings for a meaningful spread.
        assert!(!Stats::of(vec![1.0, 9.0, 9.0]).is_unsteady());
    }
}
