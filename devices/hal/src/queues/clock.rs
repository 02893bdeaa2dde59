//! Offset between a device's clock and the host's clock.
//!
//! The host observes the end of a command only after some delay. The smallest observed difference between
//! host time and device time is therefore the best estimate of the offset. This module knows nothing about
//! commands, and reads no clock.

/// Reciprocal of the assumed drift between the two clocks: 1 part in 10,000.
const DRIFT: u64 = 10_000;

/// Offset between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Host time minus device time.
    pub ns: i64,
    /// Host time of the measurement.
    pub at_ns: u64,
}

impl Difference {
    /// Updates the offset from a command that ended at device time `end_ns` and whose end the host observed
    /// at host time `now_ns`. Keeps the smallest difference, with an allowance for clock drift since that
    /// difference was measured.
    pub fn heard(known: Option<Self>, end_ns: u64, now_ns: u64) -> Self {
        let seen = (now_ns as i64).wrapping_sub(end_ns as i64);
        let ns = known.map_or(seen, |known| {
            let drift = now_ns.saturating_sub(known.at_ns) / DRIFT;
            seen.min(known.ns.saturating_add(drift as i64))
        });
        Self { ns, at_ns: now_ns }
    }

    /// Converts the start and end of a finished command from device time to host time.
    pub fn host(self, start_ns: u64, end_ns: u64, now_ns: u64) -> (u64, u64) {
        let host = |device_ns: u64| u64::try_from((device_ns as i64).wrapping_add(self.ns)).unwrap_or(0);
        let end_ns = host(end_ns).min(now_ns);
        (host(start_ns).min(end_ns), end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_difference_wins() {
        let heard = |known, end_ns, now_ns| Difference::heard(known, end_ns, now_ns).ns;
        let known = Some(Difference { ns: 4000, at_ns: 5000 });
        assert_eq!(heard(None, 1000, 5000), 4000);
        assert_eq!(heard(known, 2000, 5900), 3900);
        assert_eq!(heard(known, 2000, 7000), 4000, "heard of late");
    }

    #[test]
    fn clocks_may_drift() {
        let second = 1_000_000_000;
        // The device's clock is slow by 1 part in 20,000, and the host observes each end without delay.
        let mut known = Difference { ns: 4000, at_ns: 0 };
        for now_ns in (1..=20).map(|seconds| seconds * second) {
            let truth = 4000 + (now_ns / 20_000) as i64;
            known = Difference::heard(Some(known), now_ns - truth as u64, now_ns);
            assert_eq!(known, Difference { ns: truth, at_ns: now_ns });
        }
    }

    #[test]
    fn ends_are_never_in_the_future() {
        let difference = Difference { ns: -100, at_ns: 0 };
        assert_eq!(difference.host(500, 700, 1000), (400, 600));
        assert_eq!(difference.host(1200, 1300, 1000), (1000, 1000));
        assert_eq!(difference.host(50, 150, 1000), (0, 50));
    }
}
