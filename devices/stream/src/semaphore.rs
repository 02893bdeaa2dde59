//! Semaphores that two devices of one API share: lists of recorded events. A stream of the waiting device waits
//! for the event of the awaited work.

use crate::driver::Driver;
use ragtag_hal::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of events in a list. The waiting device needs an event only until its own work is enqueued,
/// so it needs at most as many as a pipeline has micro-batches in flight.
const MAX_EVENTS: usize = 256;

/// Events of the latest submissions of a queue, with the values of their points.
pub struct Events<D: Driver>(Mutex<VecDeque<(u64, Arc<D::Event>)>>);

impl<D: Driver> Default for Events<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Driver> Events<D> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<D::Event>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes later work on the stream wait for the first submission whose value is at least `value`.
    pub(crate) fn wait(&self, driver: &D, stream: &D::Stream, value: u64) -> Result<()> {
        let unknown = || Error::invalid(format!("no event for value {value} of a semaphore"));
        let event = self.lock().iter().find(|(known, _)| *known >= value).map(|(_, event)| Arc::clone(event));
        driver.wait(stream, event.ok_or_else(unknown)?.as_ref())
    }

    /// Adds the event of a submission.
    pub(crate) fn add(&self, value: u64, event: &Arc<D::Event>) {
        let mut events = self.lock();
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back((value, Arc::clone(event)));
    }
}
