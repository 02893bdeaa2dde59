//! Points of other devices as events of this one.
//!
//! The driver knows nothing of another device's timeline, so a submission that waits for one of its points waits for a
//! user event instead, which the host completes as soon as the timeline gets there. This module must not know
//! submissions.

use crate::api::UserEvent;
use crate::context::Context;
use ragtag_hal::{Progress, Result, Timeline};
use std::sync::{Arc, Mutex, PoisonError};

/// An event and the value of the point that it stands for.
type Proxy = (u64, Arc<UserEvent>);

/// The events of one timeline that are still open.
#[derive(Debug, Default)]
struct Open(Mutex<Vec<Proxy>>);

impl Open {
    /// Takes out what satisfies a condition.
    fn take(&self, wanted: impl Fn(u64) -> bool) -> Vec<Proxy> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.extract_if(.., |(value, _)| wanted(*value)).collect()
    }

    /// Sets the events whose fate is known. The list is not locked meanwhile: a driver may take its time.
    fn settle(&self, value: u64, failed: bool) {
        self.take(|point| point <= value).iter().for_each(|(_, event)| event.complete());
        if failed {
            self.take(|_| true).iter().for_each(|(_, event)| event.fail());
        }
    }
}

/// Another device's timeline. Dropping it fails whatever still waits for it.
#[derive(Debug)]
pub(crate) struct Foreign {
    timeline: Arc<Timeline>,
    open: Arc<Open>,
}

impl Foreign {
    pub(crate) fn new(timeline: Arc<Timeline>) -> Self {
        let open = Arc::<Open>::default();
        let theirs = Arc::downgrade(&open);
        // A subscription outlives the device.
        timeline.subscribe(move |Progress { value, failure }| {
            if let Some(open) = theirs.upgrade() {
                open.settle(*value, failure.is_some());
            }
        });
        Self { timeline, open }
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// An event for the point at `value`, which is completed or failed with it.
    ///
    /// # Errors
    /// If the driver gives no event.
    pub(crate) fn proxy(&self, context: &Context, value: u64) -> Result<Arc<UserEvent>> {
        let event = {
            let mut open = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, event)) = open.iter().find(|(point, _)| *point == value) {
                return Ok(Arc::clone(event));
            }
            let event = Arc::new(context.api().user_event()?);
            open.push((value, Arc::clone(&event)));
            event
        };
        // Whatever happened before the event was on the list, its subscription did not see.
        self.open.settle(self.timeline.value(), self.timeline.failure().is_some());
        Ok(event)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.open.take(|_| true).iter().for_each(|(_, event)| event.fail());
    }
}
