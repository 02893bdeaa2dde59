//! Throttles: a device that computes for a share of the time, and one whose downloads reach other devices late. They make a
//! mixed machine of equal devices.
//!
//! A throttled device works as ever. Its timelines report the work later: see [`Faulty`]. This module must not know what the
//! work is.

use crate::backend::Device;
use crate::error::Result;
use crate::faults::{Faults, Faulty};
use std::time::{Duration, Instant};

/// How a device is throttled. Not at all by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Share of the time in which the compute queue works, in percent: 1 to 100. It rests after each submission.
    pub duty_percent: Option<u32>,
    /// Bytes per second of the link on which its downloads reach other devices, at least 1. The device itself does not wait
    /// for the link.
    pub link_bytes_per_s: Option<u64>,
}

impl Throttle {
    /// Puts the throttle above a device; none if there is nothing to throttle.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn over(self, device: Box<dyn Device>) -> Result<Box<dyn Device>> {
        if self == Self::default() {
            return Ok(device);
        }
        Ok(Box::new(Faulty::new(device, Faults::default(), self)?))
    }
}

/// When throttled work is over.
#[derive(Debug)]
pub(crate) struct Pace {
    throttle: Throttle,
    /// Rest that is due, less the rest beyond what was due: systems let threads sleep longer than they ask for.
    due_ns: i64,
    /// When the link has carried all that it was given.
    free: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(throttle: Throttle) -> Self {
        Self { throttle, due_ns: 0, free: None }
    }

    /// How long to rest after work of this length.
    pub(crate) fn rest(&mut self, worked: Duration) -> Duration {
        let percent = i64::from(self.throttle.duty_percent.unwrap_or(100).clamp(1, 100));
        let worked_ns = i64::try_from(worked.as_nanos()).unwrap_or(i64::MAX).min(i64::MAX / 100);
        self.due_ns = self.due_ns.saturating_add(worked_ns * (100 - percent) / percent);
        Duration::from_nanos(u64::try_from(self.due_ns).unwrap_or(0))
    }

    /// The device has rested.
    pub(crate) fn rested(&mut self, rest: Duration) {
        self.due_ns = self.due_ns.saturating_sub(i64::try_from(rest.as_nanos()).unwrap_or(i64::MAX));
    }

    /// When bytes that may start now have passed the link: one transfer after the other. `None` is too far away to count.
    pub(crate) fn passed(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let rate = self.throttle.link_bytes_per_s.unwrap_or(u64::MAX).max(1);
        let start = self.free.map_or(now, |free| free.max(now));
        let takes = Duration::try_from_secs_f64(bytes as f64 / rate as f64).ok()?;
        let passed = start.checked_add(takes)?;
        self.free = Some(passed);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_and_work_keep_their_shares() {
        let pace = |percent| Pace::new(Throttle { duty_percent: Some(percent), link_bytes_per_s: None });
        let ns = Duration::from_nanos;
        let mut quarter = pace(25);
        assert_eq!(quarter.rest(ns(1000)), ns(3000));
        quarter.rested(ns(3500));
        assert_eq!(quarter.rest(ns(100)), ns(0), "it has rested for 500 too long");
        assert_eq!(quarter.rest(ns(200)), ns(400));
        quarter.rested(ns(400));
        assert_eq!(quarter.due_ns, 0);
        assert_eq!([pace(100).rest(ns(1000)), pace(50).rest(ns(1000))], [ns(0), ns(1000)]);
        assert!(pace(0).rest(Duration::MAX) > Duration::ZERO);
    }

    #[test]
    fn transfers_follow_each_other_at_the_rate() {
        let mut pace = Pace::new(Throttle { duty_percent: None, link_bytes_per_s: Some(1_000_000) });
        let (start, us) = (Instant::now(), Duration::from_micros);
        assert_eq!(pace.passed(start, 1000), Some(start + us(1000)));
        assert_eq!(pace.passed(start, 500), Some(start + us(1500)), "the link is busy until then");
        assert_eq!(pace.passed(start + us(2000), 1), Some(start + us(2001)), "idle time is not saved up");
        let mut slow = Pace::new(Throttle { duty_percent: None, link_bytes_per_s: Some(1) });
        assert_eq!(slow.passed(start, u64::MAX), None, "centuries");
    }
}
