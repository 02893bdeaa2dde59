//! Conversion of device times to the host's clock.
//!
//! The APIs report the time between two events as an `f32` in milliseconds. This value is accurate to a
//! microsecond if the events are at most a few seconds apart. The clock therefore measures from a recent
//! event, the anchor, and replaces the anchor every second.

use crate::driver::Driver;
use ragtag_hal::Timing;
use ragtag_hal::queues::{Difference, Ends};
use std::sync::Arc;

/// Age after which the anchor is replaced, in milliseconds.
const ANCHOR_MS: f32 = 1000.0;
/// Device time of the first anchor. It is not zero, because events on another stream may precede the anchor.
const EPOCH_NS: u64 = 1 << 60;

/// An event whose device time is known.
struct Anchor<E> {
    event: Arc<E>,
    ns: u64,
}

/// Clock of one device.
pub(crate) struct Clock<E> {
    anchor: Option<Anchor<E>>,
    difference: Option<Difference>,
}

impl<E> Clock<E> {
    pub(crate) fn new() -> Self {
        Self { anchor: None, difference: None }
    }

    /// Converts the start and end of a script to host time. The caller must make this call as soon as it
    /// observes the end of the script.
    pub(crate) fn host<D: Driver<Event = E>>(&mut self, driver: &D, ends: &Ends<E>) -> Option<(u64, u64)> {
        let now_ns = Timing::now_ns();
        let lasted_ms = driver.elapsed_ms(ends.first.as_ref()?, &ends.last).ok()?;
        let anchored = self.anchor.as_ref().map(|anchor| driver.elapsed_ms(&anchor.event, &ends.last));
        let since_ms = anchored.transpose().ok()?.unwrap_or(0.0);
        let anchor_ns = self.anchor.as_ref().map_or(EPOCH_NS, |anchor| anchor.ns);
        let end_ns = anchor_ns.saturating_add_signed((f64::from(since_ms) * 1e6) as i64);
        if self.anchor.is_none() || since_ms > ANCHOR_MS {
            self.anchor = Some(Anchor { event: Arc::clone(&ends.last), ns: end_ns });
        }
        let start_ns = end_ns.saturating_sub((f64::from(lasted_ms.max(0.0)) * 1e6) as u64);
        let difference = Difference::heard(self.difference, end_ns, now_ns);
        self.difference = Some(difference);
        Some(difference.host(start_ns, end_ns, now_ns))
    }
}
