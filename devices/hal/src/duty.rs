//! A device that is slowed on purpose: after each submission it rests, so that it works for a share of the time alone.
//!
//! This module must not know what the work is.

use crate::backend::Timing;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How soon a device that rests notices that it is closed.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);

/// A duty cycle. Systems let threads sleep for longer than they ask for; what was rested too long counts for later.
#[derive(Debug)]
pub struct Duty {
    percent: u32,
    /// Rest that is due, less what was rested too much.
    due_ns: i64,
}

impl Duty {
    /// A device that works for so many hundredths of the time: 1 to 100.
    pub fn new(percent: u32) -> Self {
        Self { percent: percent.clamp(1, 100), due_ns: 0 }
    }

    /// Rests after so much work, unless the device closes.
    pub fn rest(&mut self, worked_ns: u64, closing: &AtomicBool) {
        let until_ns = self.worked(worked_ns).map(|rest_ns| Timing::now_ns().saturating_add(rest_ns));
        let Some(until_ns) = until_ns else { return };
        let began_ns = Timing::now_ns();
        while Timing::now_ns() < until_ns && !closing.load(Ordering::Acquire) {
            let left = Duration::from_nanos(until_ns.saturating_sub(Timing::now_ns()));
            std::thread::sleep(left.min(CLOSING_PERIOD));
        }
        self.rested(Timing::now_ns().saturating_sub(began_ns));
    }

    /// So much work was done: how long to rest now, if at all.
    fn worked(&mut self, worked_ns: u64) -> Option<u64> {
        let (percent, worked_ns) = (u64::from(self.percent), worked_ns.min(i64::MAX as u64 / 100));
        self.due_ns = self.due_ns.saturating_add((worked_ns * (100 - percent) / percent) as i64);
        u64::try_from(self.due_ns).ok().filter(|due_ns| *due_ns > 0)
    }

    /// So long was rested.
    fn rested(&mut self, rested_ns: u64) {
        self.due_ns = self.due_ns.saturating_sub(i64::try_from(rested_ns).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_and_work_keep_their_shares() {
        let mut duty = Duty::new(25);
        assert_eq!(duty.worked(1000), Some(3000));
        duty.rested(3500);
        assert_eq!(duty.worked(100), None, "it has rested for 500 too long");
        assert_eq!(duty.worked(200), Some(400));
        duty.rested(400);
        assert_eq!(duty.due_ns, 0);
        assert_eq!(Duty::new(100).worked(1000), None);
        assert_eq!(Duty::new(50).worked(1000), Some(1000));
        assert!(Duty::new(0).worked(u64::MAX).is_some());
    }

    #[test]
    fn closing_ends_a_rest() {
        let mut duty = Duty::new(1);
        // A rest of days.
        duty.rest(3_600_000_000_000, &AtomicBool::new(true));
        assert!(duty.due_ns > 0);
    }
}
