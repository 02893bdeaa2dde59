//! The difference between a device's clock and the host's.
//!
//! A command's end is known to be past when the host hears of it, so the least difference seen is nearest to the truth.
//! This module must not know commands, and reads no clock.

/// How much clocks may drift apart: one part in so many.
const DRIFT: u64 = 10_000;

/// The difference between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Host time less device time.
    pub ns: i64,
    /// The host time at which it was found.
    pub at_ns: u64,
}

impl Difference {
    /// What a command that ended at `end_ns` of the device's clock teaches a host that hears of it now: the least
    /// difference seen, allowing for drift since.
    pub fn heard(known: Option<Self>, end_ns: u64, now_ns: u64) -> Self {
        let seen = (now_ns as i64).wrapping_sub(end_ns as i64);
        let ns = known.map_or(seen, |known| {
            let drift = now_ns.saturating_sub(known.at_ns) / DRIFT;
            seen.min(known.ns.saturating_add(drift as i64))
        });
        Self { ns, at_ns: now_ns }
    }

    /// The host's times for a start and an end of the device's clock that have passed.
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
    fn the_least_difference_counts() {
        let heard = |known, end_ns, now_ns| Difference::heard(known, end_ns, now_ns).ns;
        let known = Some(Difference { ns: 4000, at_ns: 5000 });
        assert_eq!(heard(None, 1000, 5000), 4000);
        assert_eq!(heard(known, 2000, 5900), 3900);
        assert_eq!(heard(known, 2000, 7000), 4000, "heard of late");
    }

    #[test]
    fn clocks_may_drift_apart() {
        let second = 1_000_000_000;
        // The device's clock is slow by one part in twenty thousand, and the host hears at once.
        let mut known = Difference { ns: 4000, at_ns: 0 };
        for now_ns in (1..=20).map(|seconds| seconds * second) {
            let truth = 4000 + (now_ns / 20_000) as i64;
            known = Difference::heard(Some(known), now_ns - truth as u64, now_ns);
            assert_eq!(known, Difference { ns: truth, at_ns: now_ns });
        }
    }

    #[test]
    fn nothing_ends_in_the_future() {
        let difference = Difference { ns: -100, at_ns: 0 };
        assert_eq!(difference.host(500, 700, 1000), (400, 600));
        assert_eq!(difference.host(1200, 1300, 1000), (1000, 1000));
        assert_eq!(difference.host(50, 150, 1000), (0, 50));
    }
}
