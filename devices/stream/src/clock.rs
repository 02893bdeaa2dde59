//! A device's clock in terms of the host's.
//!
//! The APIs say how much time lies between two events, as a `f32` of milliseconds: exact to a microsecond as long as they
//! are not many seconds apart. So an event that has passed serves as the anchor, and is replaced by a later one in time.
//! This module must not know commands.

use crate::driver::Driver;
use ragtag_hal::Timing;
use ragtag_hal::queues::{Difference, Ends};
use std::sync::Arc;

/// How long an anchor serves.
const ANCHOR_MS: f32 = 1000.0;
/// The device's time at the first anchor. Streams overtake each other, so that there are times before it.
const EPOCH_NS: u64 = 1 << 60;

/// An event whose time is known.
struct Anchor<E> {
    event: Arc<E>,
    ns: u64,
}

/// The clock of a device.
pub(crate) struct Clock<E> {
    anchor: Option<Anchor<E>>,
    difference: Option<Difference>,
}

impl<E> Clock<E> {
    pub(crate) fn new() -> Self {
        Self { anchor: None, difference: None }
    }

    /// The host's times for the start and the end of a script of which the host has just heard that it ended.
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
