//! A link that is slowed on purpose: a timeline of its own that follows the one of the source's downloads, each point by as
//! much later as its bytes take at the link's rate.
//!
//! The receiving stage waits for points of this timeline instead of the source's, as it would for those of a slow device;
//! neither actor waits for anything. This module must not know stages or micro-batches.

use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::{Timeline, TimelineId, Timing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a link that waits notices that its pipeline ends.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);

/// Moments at which bytes have passed a link of a given rate: one crossing after the other.
#[derive(Clone, Copy, Debug)]
struct Rate {
    bytes_per_s: f64,
    /// When the link is done with what has been given to it.
    free_ns: u64,
}

impl Rate {
    /// When bytes that may start now have passed.
    fn passed_ns(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let takes_ns = bytes as f64 / self.bytes_per_s * 1e9;
        // Of more than centuries nothing is left but to wait: `as` saturates.
        self.free_ns = self.free_ns.max(now_ns).saturating_add(takes_ns as u64);
        self.free_ns
    }
}

/// Bytes that cross once the source's timeline has come to a value.
struct SlowTransfer {
    bytes: u64,
    value: u64,
}

/// The source's end: who sends tells it what.
#[derive(Clone)]
pub(crate) struct SlowLinkSender {
    crossings: Sender<SlowTransfer>,
    timeline: TimelineId,
}

impl SlowLinkSender {
    /// Sends bytes that the source has copied when its download timeline has come to `value`; returns the timeline on which
    /// the same value says that they have passed the link.
    pub(crate) fn send(&self, bytes: u64, value: u64) -> TimelineId {
        // If the link's thread has ended, its timeline has failed, and whoever waits hears that.
        let _ = self.crossings.send(SlowTransfer { bytes, value });
        self.timeline
    }
}

/// A slowed link. Dropping it ends its thread, after what crosses if the source is still there.
pub(crate) struct SlowLink {
    sender: Option<SlowLinkSender>,
    timeline: Arc<Timeline>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowLink {
    /// Starts a link behind the download timeline of its source. Its own timeline is named `id`.
    ///
    /// # Errors
    /// [`Error::Spec`] for a rate below a byte per second, and if the system gives no thread.
    pub(crate) fn start(id: TimelineId, source: Arc<Timeline>, bytes_per_s: f64) -> Result<Self> {
        if !bytes_per_s.is_finite() || bytes_per_s < 1.0 {
            return Err(Error::Spec { what: format!("a link of {bytes_per_s} bytes per second") });
        }
        let (crossings, inbox) = unbounded();
        let (timeline, closing) = (Timeline::new(id), Arc::new(AtomicBool::new(false)));
        let link = Link { source, timeline: Arc::clone(&timeline), closing: Arc::clone(&closing) };
        let rate = Rate { bytes_per_s, free_ns: 0 };
        let thread = super::spawn("ragtag slow link".into(), move || link.serve(&inbox, rate))?;
        let sender = Some(SlowLinkSender { crossings, timeline: id });
        Ok(Self { sender, timeline, closing, thread: Some(thread) })
    }

    /// The source's end, handed out once: when it is gone, the link ends.
    pub(crate) fn take_sender(&mut self) -> Option<SlowLinkSender> {
        self.sender.take()
    }

    /// What the receiver waits for.
    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.sender = None;
        self.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said by way of its timeline.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Link {
    source: Arc<Timeline>,
    timeline: Arc<Timeline>,
    closing: Arc<AtomicBool>,
}

impl Link {
    fn serve(&self, inbox: &Receiver<SlowTransfer>, mut rate: Rate) {
        for SlowTransfer { bytes, value } in inbox {
            let passed = self.wait_for_source(value).and_then(|()| {
                let passed_ns = rate.passed_ns(Timing::now_ns(), bytes);
                self.sleep_until(passed_ns)
            });
            match passed {
                Ok(()) => self.timeline.advance(value),
                Err(error) => return self.timeline.fail(error),
            }
        }
    }

    fn wait_for_source(&self, value: u64) -> ragtag_hal::Result<()> {
        while !self.source.wait(value, Some(CLOSING_PERIOD))? {
            self.check_open()?;
        }
        Ok(())
    }

    fn sleep_until(&self, moment_ns: u64) -> ragtag_hal::Result<()> {
        loop {
            let left = Duration::from_nanos(moment_ns.saturating_sub(Timing::now_ns()));
            if left.is_zero() {
                return Ok(());
            }
            self.check_open()?;
            std::thread::sleep(left.min(CLOSING_PERIOD));
        }
    }

    fn check_open(&self) -> ragtag_hal::Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(ragtag_hal::Error::Lost { cause: "the pipeline ended while bytes crossed".into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::{DeviceId, QueueKind};

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

    const fn id(device: u16) -> TimelineId {
        TimelineId { device: DeviceId(device), queue: QueueKind::Download }
    }

    #[test]
    fn crossings_follow_each_other_at_the_rate() {
        let mut rate = Rate { bytes_per_s: 1e6, free_ns: 0 };
        assert_eq!(rate.passed_ns(5_000, 1000), 1_005_000);
        // The link is busy until then.
        assert_eq!(rate.passed_ns(5_000, 500), 1_505_000);
        assert_eq!(rate.passed_ns(2_000_000, 1), 2_001_000, "idle time is not saved up");
        assert_eq!(rate.passed_ns(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_point_passes_after_the_source_and_after_its_bytes() {
        let source = Timeline::new(id(0));
        let mut link = SlowLink::start(id(9), Arc::clone(&source), 1e6).unwrap();
        let sender = link.take_sender().unwrap();
        let began_ns = Timing::now_ns();
        assert_eq!(sender.send(20_000, 7), id(9));
        assert_eq!(link.timeline().value(), 0);
        source.advance(7);
        assert_eq!(link.timeline().wait(7, PATIENCE), Ok(true));
        assert!(Timing::now_ns() - began_ns >= 20_000_000, "20 kB at 1 MB/s");
    }

    #[test]
    fn failures_pass_and_closing_ends_a_crossing_of_ages() {
        let source = Timeline::new(id(0));
        let mut link = SlowLink::start(id(9), Arc::clone(&source), 1.0).unwrap();
        let sender = link.take_sender().unwrap();
        sender.send(1 << 40, 1);
        source.advance(1);
        let timeline = Arc::clone(link.timeline());
        drop(link);
        assert!(timeline.failure().is_some());

        let mut link = SlowLink::start(id(9), Arc::clone(&source), 1.0).unwrap();
        link.take_sender().unwrap().send(1, 2);
        source.fail(ragtag_hal::Error::Lost { cause: "unplugged".into() });
        let failed = link.timeline().wait(2, PATIENCE).unwrap_err();
        assert_eq!(crate::actor::culprit(&failed), Some(DeviceId(0)), "the source is to blame: {failed}");
    }

    #[test]
    fn rates_are_rates() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(SlowLink::start(id(9), Timeline::new(id(0)), rate).is_err());
        }
    }
}
