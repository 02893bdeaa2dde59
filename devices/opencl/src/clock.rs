//! Conversion of device times to the host's clock.
//!
//! If the driver has a call that reads both clocks at once, the backend measures the offset with this call.
//! Otherwise it compares the device time at which a command ended with the host time at which the host
//! noticed the end. The host always notices the end late, so the smallest observed difference is the best
//! estimate of the offset.

use opencl3::device::Device;
use ragtag_hal::Timing;
use ragtag_hal::queues::Difference;

/// Age after which the offset is measured again, in nanoseconds.
const SAMPLE_NS: u64 = 1_000_000_000;
/// Number of readings per measurement. The measurement uses the reading that took the least time.
const QUESTIONS: u32 = 4;

/// Offset between the device's clock and the host's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    /// Whether the driver can read both clocks in one call.
    reads_both: bool,
    difference: Option<Difference>,
}

impl Clock {
    pub(crate) fn new(device: Device) -> Self {
        let difference = sample(device);
        Self { device, reads_both: difference.is_some(), difference }
    }

    /// Converts the start and end of a command to host time. The caller must make this call as soon as it
    /// observes the end of the command.
    pub(crate) fn host(&mut self, start_ns: u64, end_ns: u64) -> (u64, u64) {
        let now_ns = Timing::now_ns();
        let old = |difference: Difference| now_ns.saturating_sub(difference.at_ns) > SAMPLE_NS;
        if !self.reads_both {
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
