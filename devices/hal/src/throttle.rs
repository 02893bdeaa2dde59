//! Throttles: a throttled device computes only part of the time, or its downloads reach other devices late.
//! Throttles let a machine with identical devices behave like a machine with different ones.
//!
//! The hardware runs at full speed. The timelines of the device report completed work late: see [`Faulty`].
//! This module does not know what the work is.

use crate::backend::Device;
use crate::error::Result;
use crate::faults::{Faults, Faulty};
use std::time::{Duration, Instant};

/// Throttle settings of a device. The default does not throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Duty cycle of the compute queue in percent: 1 to 100. After each submission, the queue idles for a
    /// rest period.
    pub duty_percent: Option<u32>,
    /// Bandwidth of the link over which downloads reach other devices, in bytes per second, at least 1. The
    /// device itself does not wait for the link.
    pub link_bytes_per_s: Option<u64>,
}

impl Throttle {
    /// Wraps a device in this throttle. Returns the device itself if the throttle does nothing.
    ///
    /// # Errors
    /// Returns an error if the device cannot import mirrored timelines, or the system cannot start the
    /// mirror's thread.
    pub fn over(self, device: Box<dyn Device>) -> Result<Box<dyn Device>> {
        if self == Self::default() {
            return Ok(device);
        }
        Ok(Box::new(Faulty::new(device, Faults::default(), self)?))
    }
}

/// State for calculating the completion times of throttled work.
#[derive(Debug)]
pub(crate) struct Pace {
    throttle: Throttle,
    /// Rest that is still due, in nanoseconds. The value is negative if the queue has rested too long, which
    /// happens because a thread may sleep longer than requested.
    due_ns: i64,
    /// Time at which the link becomes free.
    free: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(throttle: Throttle) -> Self {
        Self { throttle, due_ns: 0, free: None }
    }

    /// Returns how long the queue must rest after work that took `worked`.
    pub(crate) fn rest(&mut self, worked: Duration) -> Duration {
        let percent = i64::from(self.throttle.duty_percent.unwrap_or(100).clamp(1, 100));
        let worked_ns = i64::try_from(worked.as_nanos()).unwrap_or(i64::MAX).min(i64::MAX / 100);
        self.due_ns = self.due_ns.saturating_add(worked_ns * (100 - percent) / percent);
        Duration::from_nanos(u64::try_from(self.due_ns).unwrap_or(0))
    }

    /// Records that the queue has rested for `rest`.
    pub(crate) fn rested(&mut self, rest: Duration) {
        self.due_ns = self.due_ns.saturating_sub(i64::try_from(rest.as_nanos()).unwrap_or(i64::MAX));
    }

    /// Returns the time at which the link has transferred `bytes` bytes that are ready now. The link carries
    /// one transfer at a time. Returns `None` if the time is not representable.
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
    fn work_and_rest_keep_the_duty_cycle() {
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
