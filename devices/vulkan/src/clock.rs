//! Conversion of device times to the host's clock.
//!
//! The host notices the end of a submission only some time after the submission has ended. The smallest
//! observed difference between the clocks is therefore the best estimate of their offset. This module reads
//! no clock.

use ragtag_hal::queues::Difference;

/// Maximum decrease of the device time, in nanoseconds, that can occur because the host observes ends out of
/// order. A larger decrease means that the device's clock has wrapped around.
const DISORDER_NS: u64 = 60_000_000_000;

/// Offset between the device's clock and the host's clock.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    difference: Option<Difference>,
    /// Latest device time seen so far, in nanoseconds.
    latest_ns: u64,
}

impl Clock {
    /// Converts the start and end of a submission to host time. The caller must make this call as soon as it
    /// observes the end of the submission.
    pub(crate) fn host(&mut self, start_ns: u64, end_ns: u64, now_ns: u64) -> (u64, u64) {
        if end_ns.saturating_add(DISORDER_NS) < self.latest_ns {
            // Some clocks have only a few bits and wrap around within hours.
            *self = Self::default();
        }
        self.latest_ns = self.latest_ns.max(end_ns);
        let difference = Difference::heard(self.difference, end_ns, now_ns);
        self.difference = Some(difference);
        difference.host(start_ns, end_ns, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_wraps_is_measured_again() {
        let mut clock = Clock::default();
        let hour = 3_600_000_000_000;
        assert_eq!(clock.host(hour, hour + 10, 2 * hour), (2 * hour - 10, 2 * hour));
        assert_eq!(clock.host(hour - 20, hour, 2 * hour + 5), (2 * hour - 30, 2 * hour - 10), "out of order");
        assert_eq!(clock.host(5, 10, 3 * hour), (3 * hour - 5, 3 * hour), "anew");
    }
}
