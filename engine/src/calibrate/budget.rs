//! Wall time budget of a calibration.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A wall time budget. The time for compilation does not count, because the next run finds the compiled
/// programs in a cache.
#[derive(Debug)]
pub(super) struct Budget {
    start: Instant,
    /// The whole budget, or `None` for no limit.
    whole: Option<Duration>,
    excused: Cell<Duration>,
}

impl Budget {
    /// Creates a budget that starts now.
    pub(super) fn new(whole: Option<Duration>) -> Self {
        Self { start: Instant::now(), whole, excused: Cell::default() }
    }

    /// Excludes `time` from the time that counts towards the budget.
    pub(super) fn excuse(&self, time: Duration) {
        self.excused.set(self.excused.get() + time);
    }

    /// Returns the total time that does not count towards the budget.
    pub(super) fn excused(&self) -> Duration {
        self.excused.get()
    }

    /// Returns the whole budget, or `None` for no limit.
    pub(super) fn whole(&self) -> Option<Duration> {
        self.whole
    }

    /// Returns the time until the fraction `share` of the budget is used up. Without a limit, the result is
    /// practically infinite.
    pub(super) fn left(&self, share: f64) -> Duration {
        let Some(whole) = self.whole else { return Duration::from_secs(1 << 32) };
        (whole.mul_f64(share) + self.excused()).saturating_sub(self.start.elapsed())
    }

    /// Returns the fraction of the budget that will be used up once the fraction `part` of the remaining time
    /// has passed.
    pub(super) fn share_after(&self, part: f64) -> f64 {
        let Some(whole) = self.whole.filter(|whole| !whole.is_zero()) else { return 1.0 };
        let left = self.left(1.0).as_secs_f64() / whole.as_secs_f64();
        1.0 - left * (1.0 - part)
    }

    /// Creates a budget that starts now and lasts for the fraction `part` of `self.left(share)`.
    pub(super) fn part(&self, share: f64, part: f64) -> Self {
        Self::new(self.whole.map(|_| self.left(share).mul_f64(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilation_does_not_use_the_budget() {
        let whole = Duration::from_secs(1000);
        let budget = Budget::new(Some(whole));
        assert!((budget.share_after(0.5) - 0.5).abs() < 0.01);
        assert!((Budget::new(Some(Duration::ZERO)).share_after(0.5) - 1.0).abs() < 0.01);
        assert!(budget.left(0.5) <= whole / 2 && budget.left(0.5) > whole / 4);
        budget.excuse(whole);
        assert!(budget.left(0.5) > whole && budget.excused() == whole);
        assert_eq!(Budget::new(Some(Duration::ZERO)).left(1.0), Duration::ZERO);
        assert!(Budget::new(None).left(0.0) > whole);
        assert!(Budget::new(None).part(1.0, 0.1).whole().is_none());
        assert!(budget.part(1.0, 0.5).whole().is_some_and(|part| part <= whole && part > whole / 2));
    }
}
