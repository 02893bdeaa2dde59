//! A device's clock in terms of the host's.
//!
//! A submission's end is known to be past when the host hears of it, so the least difference seen is nearest to the truth.
//! This module must not know submissions, and reads no clock.

use ragtag_hal::queues::Difference;

/// How far back a clock may be that only tells ends out of order; one that is further back has begun anew.
const DISORDER_NS: u64 = 60_000_000_000;

/// The difference between the two clocks.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    difference: Option<Difference>,
    /// The latest time that the device's clock has told.
    latest_ns: u64,
}

impl Clock {
    /// The host's times for the start and the end of a submission of which the host hears now that it has ended.
    pub(crate) fn host(&mut self, start_ns: u64, end_ns: u64, now_ns: u64) -> (u64, u64) {
        if end_ns.saturating_add(DISORDER_NS) < self.latest_ns {
            // Some clocks have so few bits that they begin anew within hours.
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
    fn a_clock_that_begins_anew_is_learnt_anew() {
        let mut clock = Clock::default();
        let hour = 3_600_000_000_000;
        assert_eq!(clock.host(hour, hour + 10, 2 * hour), (2 * hour - 10, 2 * hour));
        assert_eq!(clock.host(hour - 20, hour, 2 * hour + 5), (2 * hour - 30, 2 * hour - 10), "out of order");
        assert_eq!(clock.host(5, 10, 3 * hour), (3 * hour - 5, 3 * hour), "anew");
    }
}
