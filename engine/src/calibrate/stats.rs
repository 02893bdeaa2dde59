//! Statistics of repeated timings.

use super::busy::{Meter, Threads};
use super::sweep::Sweep;
use crate::error::Result;
use ragtag_planner::cost::{TimePoint, TimeSample};
use std::time::{Duration, Instant};

/// Maximum number of repetitions of a measurement in one visit.
const MOST: usize = 200;
/// Ratio of interquartile range to median above which timings vary too much to be usable, and the minimum
/// number of timings for this check.
const UNSTEADY: f64 = 0.5;
const FEWEST: u32 = 5;
/// Maximum fraction of its time that a clean timing has lost to other processes, and the number of clean timings that
/// suffice for a median.
pub(super) const CLEAN: f64 = 0.03;
const FEWEST_CLEAN: usize = 3;
/// Minimum time for which the threads' waits are read. Reading takes tens of microseconds. The time is also at least
/// this many times as long as the reading.
const WINDOW: Duration = Duration::from_millis(2);
const READINGS: u32 = 4;
/// Factor by which a timing may have lost more of its time than all timings together.
const MORE_LOST: f64 = 1.25;
/// Typical time for which a system lets a thread run, in microseconds. Other processes disturb only some of the
/// shorter timings.
const SLICE_US: f64 = 1000.0;

/// Circumstances of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Circumstances<'a> {
    pub(super) meter: &'a Meter,
    /// Sweep before each repetition.
    pub(super) sweep: Option<&'a Sweep>,
}

/// A timing, in microseconds, with the fraction of the time that its threads have lost to other processes, and an
/// estimate of the time without other processes.
#[derive(Clone, Copy, Debug)]
struct Timed {
    us: f64,
    lost: f64,
    undisturbed_us: f64,
}

impl Timed {
    fn new(us: f64) -> Self {
        Self { us, lost: 0.0, undisturbed_us: us }
    }
}

/// Repeated timings of one measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Timings(Vec<Timed>);

/// Median and interquartile range of repeated timings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stats {
    pub(super) median_us: f64,
    spread_us: f64,
    count: u32,
    /// Fraction of the time that the timings have lost to other processes. 0 if enough timings are clean.
    pub(super) lost: f64,
}

impl Timings {
    /// Runs the measurement `once` as a warm-up, then repeats it for the time `limit`. Repeats it at least
    /// three times, unless that takes longer than four times `limit`. Does not run longer than `left`. If
    /// `left` is too short for a second run, uses the time of the warm-up.
    pub(super) fn taken(
        limit: Duration,
        left: Duration,
        of: Circumstances<'_>,
        mut once: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        let (start, mut timings) = (Instant::now(), Vec::new());
        let sweep = || {
            if let Some(sweep) = of.sweep {
                sweep.go()
            }
        };
        sweep();
        let mut window = Window::open(0);
        let first_us = once()?;
        if start.elapsed() * 2 > left {
            timings.push(Timed::new(first_us));
        } else {
            window = Window::open(0);
        }
        loop {
            let allowed = if timings.len() < 3 { limit * 4 } else { limit };
            let is_over = timings.len() >= MOST || start.elapsed() >= allowed.min(left);
            let is_over = is_over && !timings.is_empty();
            if is_over || window.is_long() || of.sweep.is_some() {
                window.close(&mut timings, of.meter);
                if is_over {
                    return Ok(Self(timings));
                }
                sweep();
                window = Window::open(timings.len());
            }
            timings.push(Timed::new(once()?));
        }
    }

    /// Adds the timings of a later visit. They replace timings that vary too much, unless there are too few of them.
    pub(super) fn add(&mut self, later: Self, is_processor: bool) {
        if self.stats(is_processor).is_unsteady() && later.0.len() >= FEWEST as usize {
            self.0.clear();
        }
        self.0.extend(later.0);
    }

    /// Returns the statistics of the timings that other processes have not disturbed. If there are too few of
    /// them, estimates the undisturbed time from the others. `is_processor` states whether this
    /// process's threads do the measured work.
    pub(super) fn stats(&self, is_processor: bool) -> Stats {
        let clean: Vec<_> = self.0.iter().filter(|timed| timed.lost <= CLEAN).map(|timed| timed.us).collect();
        if clean.len() >= FEWEST_CLEAN.min(self.0.len()) {
            return Stats::of(clean, 0.0);
        }
        let mut timed = self.0.clone();
        timed.sort_by(|a, b| a.us.total_cmp(&b.us));
        let lost = |timed: &[Timed]| timed.iter().map(|timed| timed.lost).sum::<f64>() / timed.len() as f64;
        if !is_processor || timed[timed.len() / 2].us < SLICE_US {
            // Some of the timings lie between two disturbances.
            let shortest = timed[..timed.len().div_ceil(4)].iter().map(|timed| timed.us).collect();
            return Stats::of(shortest, lost(&timed));
        }
        // All timings are disturbed, but the disturbance is known best for those with the least.
        timed.sort_by(|a, b| a.lost.total_cmp(&b.lost));
        timed.truncate(timed.len().div_ceil(2));
        Stats::of(timed.iter().map(|timed| timed.undisturbed_us).collect(), lost(&timed))
    }
}

/// Period for which the threads' waits are read. It contains one or several timings.
struct Window {
    threads: Threads,
    start: Instant,
    reading: Duration,
    /// Index of the first timing.
    first: usize,
}

impl Window {
    fn open(first: usize) -> Self {
        let before = Instant::now();
        let threads = Threads::now();
        Self { threads, start: Instant::now(), reading: before.elapsed(), first }
    }

    fn is_long(&self) -> bool {
        self.start.elapsed() >= WINDOW.max(self.reading * READINGS)
    }

    /// Sets the loss of the window's timings.
    fn close(&self, timings: &mut [Timed], meter: &Meter) {
        let lost = meter.lost_since(&self.threads);
        // The system counts a wait when it ends, which may be in another window. Over all windows, the sum is right.
        let certain = lost.min(meter.lost() * MORE_LOST);
        for timed in &mut timings[self.first..] {
            *timed = Timed { lost, undisturbed_us: timed.us * (1.0 - certain), ..*timed };
        }
    }
}

impl Stats {
    fn of(mut times: Vec<f64>, lost: f64) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        let at = |quarters: usize| times.get((times.len().saturating_sub(1)) * quarters / 4).copied();
        let quartile = |quarters| at(quarters).unwrap_or(0.0);
        let spread_us = quartile(3) - quartile(1);
        Self { median_us: quartile(2), spread_us, count: times.len() as u32, lost }
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

    /// Returns whether the timings vary too much to be usable, although other processes have not disturbed them.
    pub(super) fn is_unsteady(&self) -> bool {
        self.lost <= CLEAN && self.count >= FEWEST && self.spread_us > self.median_us * UNSTEADY
    }

    /// Returns whether more timings would be worthwhile.
    pub(super) fn is_doubtful(&self) -> bool {
        self.lost > CLEAN || self.is_unsteady()
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

    /// Takes timings of a fake measurement, which returns the values of `times` in order and then repeats the last
    /// one. Returns the times.
    fn taken(limit: Duration, left: Duration, times: &[f64]) -> Vec<f64> {
        let mut at = 0;
        let once = || {
            at += 1;
            Ok(times[(at - 1).min(times.len() - 1)])
        };
        let of = Circumstances { meter: &Meter::start(), sweep: None };
        let timings = Timings::taken(limit, left, of, once).unwrap();
        timings.0.iter().map(|timed| timed.us).collect()
    }

    #[test]
    fn without_time_left_the_warm_up_counts() {
        assert_eq!(taken(NO_LIMIT, Duration::ZERO, &[7.0, 1.0]), [7.0]);
        assert_eq!(taken(Duration::ZERO, NO_LIMIT, &[7.0, 1.0]), [1.0], "otherwise it is a warm-up");
        assert_eq!(taken(NO_LIMIT, NO_LIMIT, &[7.0, 1.0]), [1.0; MOST]);
        assert_eq!(Stats::times(9, Duration::ZERO, || Ok(3.0)).unwrap(), [3.0]);
    }

    /// Returns timings, given as pairs of time and loss.
    fn timings(timings: &[(f64, f64)]) -> Timings {
        Timings(
            timings.iter().map(|&(us, lost)| Timed { us, lost, undisturbed_us: us * (1.0 - lost) }).collect(),
        )
    }

    fn stats(all: &[(f64, f64)]) -> Stats {
        timings(all).stats(true)
    }

    #[test]
    fn clean_timings_suffice() {
        let disturbed = [(9e3, 0.6), (8e3, 0.5), (3e3, 0.01), (3.1e3, 0.0), (2.9e3, 0.03), (7e3, 0.4)];
        let Stats { median_us, count, lost, .. } = stats(&disturbed);
        assert_eq!((median_us, count, lost), (3e3, 3, 0.0));
        // A long measurement runs only once.
        assert_eq!(stats(&[(5e4, 0.02)]).lost, 0.0);
    }

    #[test]
    fn a_disturbed_time_is_estimated() {
        // Two of three time slices went to others.
        let long =
            stats(&[(9e3, 2.0 / 3.0), (10e3, 0.7), (6e3, 0.5), (3.4e3, 0.1), (20e3, 0.8), (30e3, 0.9)]);
        assert!((long.median_us - 3e3).abs() < 61.0 && long.count == 3, "{long:?}");
        assert!((long.lost - (0.1 + 0.5 + 2.0 / 3.0) / 3.0).abs() < 1e-9 && long.is_doubtful());
        // Of short timings, some are not disturbed at all, so the loss is not subtracted.
        let short: Vec<_> = (0..16).map(|at| (if at % 3 == 0 { 50.0 } else { 90.0 }, 0.4)).collect();
        assert_eq!((stats(&short).median_us, stats(&short).count), (50.0, 4));
        // The work of a GPU is not done by the threads that waited.
        let gpu = timings(&[(4e3, 0.5); 8]).stats(false);
        assert_eq!((gpu.median_us, gpu.lost), (4e3, 0.5));
    }

    #[test]
    fn timings_that_vary_are_unsteady() {
        let wild: Vec<_> = (0..100).map(|at| (if at % 2 == 0 { 1.0 } else { 9.0 }, 0.0)).collect();
        assert!(stats(&wild).is_unsteady());
        assert!(!stats(&[(5.0, 0.0); 9]).is_doubtful());
        // There are too few timings for a meaningful spread.
        assert!(!stats(&[(1.0, 0.0), (9.0, 0.0), (9.0, 0.0)]).is_unsteady());
        // Later timings replace them if there are enough.
        let later = |count: usize| {
            let mut all = timings(&wild);
            all.add(timings(&vec![(5.0, 0.0); count]), true);
            all.stats(true)
        };
        assert!(later(4).is_unsteady() && !later(5).is_unsteady() && later(5).median_us == 5.0);
        // Disturbed timings count as such.
        let disturbed: Vec<_> = wild.iter().map(|&(us, _)| (us * 1e4, 0.4)).collect();
        assert!(!stats(&disturbed).is_unsteady() && stats(&disturbed).is_doubtful());
    }
}
