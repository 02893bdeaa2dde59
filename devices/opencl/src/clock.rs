//! A device's clock in terms of the host's.
//!
//! Where the driver tells both clocks at once, the difference is asked for. Elsewhere a command's end is known to be past
//! when the host hears of it, so the least difference seen is nearest to the truth. This module must not know commands.

use opencl3::device::Device;
use ragtag_hal::Timing;
use ragtag_hal::queues::Difference;

/// How long a difference that was asked for is trusted.
const SAMPLE_NS: u64 = 1_000_000_000;
/// Questions for one sample; the quickest answer counts.
const QUESTIONS: u32 = 4;

/// The difference between two clocks.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    /// Whether the driver tells both clocks.
    told: bool,
    difference: Option<Difference>,
}

impl Clock {
    pub(crate) fn new(device: Device) -> Self {
        let difference = sample(device);
        Self { device, told: difference.is_some(), difference }
    }

    /// The host's times for the start and the end of a command of which the host has just heard that it ended.
    pub(crate) fn host(&mut self, start_ns: u64, end_ns: u64) -> (u64, u64) {
        let now_ns = Timing::now_ns();
        let old = |difference: Difference| now_ns.saturating_sub(difference.at_ns) > SAMPLE_NS;
        if !self.told {
            self.difference = Some(Difference::heard(self.difference, end_ns, now_ns));
        } else if self.difference.is_none_or(old) {
            self.difference = sample(self.device).or(self.difference);
        }
        let difference = self.difference.unwrap_or(Difference { ns: 0, at_ns: now_ns });
        difference.host(start_ns, end_ns, now_ns)
    }
}

fn sample(device: Device) -> Option<Difference> {
    let ask = |_| {
        let before_ns = Timing::now_ns();
        let [device_ns, _] = device.get_device_and_host_timer().ok()?;
        let after_ns = Timing::now_ns();
        let middle_ns = before_ns + (after_ns - before_ns) / 2;
        let difference =
            Difference { ns: (middle_ns as i64).wrapping_sub(device_ns as i64), at_ns: after_ns };
        Some((after_ns - before_ns, difference))
    };
    let answers = (0..QUESTIONS).map(ask).collect::<Option<Vec<_>>>()?;
    answers.into_iter().min().map(|(_, difference)| difference)
}
