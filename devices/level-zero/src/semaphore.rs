//! Semaphores that two devices of one context share: lists of the events at the ends of submissions. A queue of
//! the waiting device waits for the event of the awaited work.
//!
//! If the signalling device fails, its queue signals its events from the host. The waiting device then runs
//! its work, and the timeline of the failed device fails the submission.

use crate::context::Context;
use crate::events::Signal;
use ragtag_hal::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of events in a list. The waiting device needs an event only until its own work is enqueued,
/// so it needs at most as many as a pipeline has micro-batches in flight.
const MAX_EVENTS: usize = 256;

/// Events of the latest submissions of a queue, with the values of their points.
pub(crate) struct Semaphore {
    events: Mutex<VecDeque<(u64, Arc<Signal>)>>,
    context: Arc<Context>,
}

impl Semaphore {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { events: Mutex::default(), context: Arc::clone(context) }
    }

    /// Returns true if devices of this context can wait for the semaphore.
    pub(crate) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Signal>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the event of the first submission whose value is at least `value`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if there is no such submission.
    pub(crate) fn event(&self, value: u64) -> Result<Arc<Signal>> {
        let unknown = || Error::invalid(format!("no event for value {value} of a semaphore"));
        let event = self.lock().iter().find(|(known, _)| *known >= value).map(|(_, event)| Arc::clone(event));
        event.ok_or_else(unknown)
    }

    /// Adds the event of a submission.
    pub(crate) fn add(&self, value: u64, event: &Arc<Signal>) {
        let mut events = self.lock();
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back((value, Arc::clone(event)));
    }
}
