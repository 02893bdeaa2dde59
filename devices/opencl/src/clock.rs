//! A device's clock in terms of the host's.
//!
//! Where the driver tells both clocks at once, the difference is asked for. Elsewhere a command's end is known to be past
//! when the host hears of it, so the least difference seen is nearest to the truth. This module must not know commands.

use opencl3::device::Device;
use ragtag_hal::Timing;

/// How long a difference that was asked for is trusted.
const SAMPLE_NS: u64 = 1_000_000_000;
/// How much clocks may drift apart: one part in so many.
const DRIFT: u64 = 10_000;
/// Questions for one sample; the quickest answer counts.
const QUESTIONS: u32 = 4;

/// The difference between two clocks.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    /// Whether the driver tells both clocks.
    told: bool,
    /// Host time less device time, and the host time at which it was found.
    difference: Option<(i64, u64)>,
}

impl Clock {
    pub(crate) fn new(device: Device) -> Self {
        let difference = sample(device);
        Self { device, told: difference.is_some(), difference }
    }

    /// The host's times for the start and the end of a command of which the host has just heard that it ended.
    pub(crate) fn host(&mut self, start_ns: u64, end_ns: u64) -> (u64, u64) {
        let now_ns = Timing::now_ns();
        if self.told {
            if self.difference.is_none_or(|(_, at_ns)| now_ns.saturating_sub(at_ns) > SAMPLE_NS) {
                self.difference = sample(self.device).or(self.difference);
            }
        } else {
            self.difference = Some((nearest(self.difference, end_ns, now_ns), now_ns));
        }
        let difference = self.difference.map_or(0, |(difference, _)| difference);
        let host = |device_ns: u64| u64::try_from((device_ns as i64).wrapping_add(difference)).unwrap_or(0);
        let end_ns = host(end_ns).min(now_ns);
        (host(start_ns).min(end_ns), end_ns)
    }
}

/// The least difference seen, allowing for drift since.
fn nearest(known: Option<(i64, u64)>, end_ns: u64, now_ns: u64) -> i64 {
    let seen = (now_ns as i64).wrapping_sub(end_ns as i64);
    known.map_or(seen, |(difference, at_ns)| {
        let drift = now_ns.saturating_sub(at_ns) / DRIFT;
        seen.min(difference.saturating_add(drift as i64))
    })
}

fn sample(device: Device) -> Option<(i64, u64)> {
    let ask = |_| {
        let before_ns = Timing::now_ns();
        let [device_ns, _] = device.get_device_and_host_timer().ok()?;
        let after_ns = Timing::now_ns();
        let middle_ns = before_ns + (after_ns - before_ns) / 2;
        Some((after_ns - before_ns, (middle_ns as i64).wrapping_sub(device_ns as i64), after_ns))
    };
    let answers = (0..QUESTIONS).map(ask).collect::<Option<Vec<_>>>()?;
    answers.into_iter().min().map(|(_, difference, at_ns)| (difference, at_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_difference_counts() {
        assert_eq!(nearest(None, 1000, 5000), 4000);
        assert_eq!(nearest(Some((4000, 5000)), 2000, 5900), 3900);
        assert_eq!(nearest(Some((4000, 5000)), 2000, 7000), 4000, "heard of late");
    }

    #[test]
    fn clocks_may_drift_apart() {
        let second = 1_000_000_000;
        // The device's clock is slow by one part in twenty thousand, and the host hears at once.
        let mut known = (4000, 0);
        for now_ns in (1..=20).map(|seconds| seconds * second) {
            let truth = 4000 + (now_ns / 20_000) as i64;
            let difference = nearest(Some(known), now_ns - truth as u64, now_ns);
            assert_eq!(difference, truth);
            known = (difference, now_ns);
        }
    }
}
