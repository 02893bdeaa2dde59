//! Conversion of device times to the host's clock.
//!
//! The driver reports times in cycles of the device's timer. Only the lowest bits of a time are valid. The
//! backend reads the timer once per second, and converts times relative to the last reading.

use crate::api::Device;
use ragtag_hal::Timing;

/// Age after which the timer is read again, in nanoseconds.
const SAMPLE_NS: u64 = 1_000_000_000;
/// Number of readings. The fastest one counts.
const READINGS: u32 = 3;

/// A reading of the device's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    cycles: u64,
    /// Host time of the reading.
    at_ns: u64,
}

/// A timer: its frequency and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// Cycles per second.
    pub(crate) hz: u64,
    /// Number of valid bits of a time.
    pub(crate) bits: u32,
}

impl Timer {
    /// Converts a time to host time.
    fn host_ns(self, sample: Sample, cycles: u64) -> u64 {
        // Shifting the valid bits to the top makes the difference signed: times may precede the reading.
        let shift = 64 - self.bits.clamp(1, 64);
        let passed = ((cycles.wrapping_sub(sample.cycles) << shift) as i64) >> shift;
        let passed_ns = i128::from(passed) * 1_000_000_000 / i128::from(self.hz.max(1));
        u64::try_from(i128::from(sample.at_ns) + passed_ns).unwrap_or(0)
    }
}

/// Clock of a device.
pub(crate) struct Clock {
    device: Device,
    timer: Timer,
    sample: Option<Sample>,
}

impl Clock {
    pub(crate) fn new(device: Device, timer: Timer) -> Self {
        Self { device, timer, sample: None }
    }

    /// Converts the start and end of a script to host time. Returns `None` if the driver does not report its
    /// timer.
    pub(crate) fn host(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        let now_ns = Timing::now_ns();
        if self.sample.is_none_or(|sample| now_ns.saturating_sub(sample.at_ns) > SAMPLE_NS) {
            self.sample = read(self.device).or(self.sample);
        }
        let sample = self.sample?;
        let end_ns = self.timer.host_ns(sample, end).min(now_ns);
        Some((self.timer.host_ns(sample, start).min(end_ns), end_ns))
    }
}

fn read(device: Device) -> Option<Sample> {
    let ask = |_| {
        let before_ns = Timing::now_ns();
        let cycles = device.timer().ok()?;
        let took_ns = Timing::now_ns() - before_ns;
        Some((took_ns, Sample { cycles, at_ns: before_ns + took_ns / 2 }))
    };
    let answers = (0..READINGS).map(ask).collect::<Option<Vec<_>>>()?;
    answers.into_iter().min_by_key(|(took_ns, _)| *took_ns).map(|(_, sample)| sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_a_reading_are_converted() {
        let timer = Timer { hz: 12_500_000, bits: 64 };
        let sample = Sample { cycles: 1000, at_ns: 1_000_000 };
        assert_eq!(timer.host_ns(sample, 1000), 1_000_000);
        assert_eq!(timer.host_ns(sample, 1010), 1_000_800);
        assert_eq!(timer.host_ns(sample, 990), 999_200);
        assert_eq!(timer.host_ns(Sample { cycles: 1000, at_ns: 10 }, 0), 0, "before the host's clock");
    }

    #[test]
    fn timers_wrap_around() {
        let timer = Timer { hz: 1_000_000_000, bits: 32 };
        let sample = Sample { cycles: 5 << 32 | 0xffff_fff0, at_ns: 1000 };
        assert_eq!(timer.host_ns(sample, 0x10), 1032, "32 cycles later");
        assert_eq!(timer.host_ns(sample, 0xffff_ffe0), 984, "16 cycles earlier");
    }
}
