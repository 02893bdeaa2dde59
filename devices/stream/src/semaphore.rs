//! Semaphores that a device shares with another device.
//!
//! Two devices of one API share a list of recorded events. A stream of the waiting device waits for the event
//! of the awaited work. A device of another API can wait for a stream: it shares a semaphore of that API, which
//! the driver imports and raises.

use crate::driver::Driver;
use ragtag_hal::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of events in a list. The waiting device needs an event only until its own work is enqueued,
/// so it needs at most as many as a pipeline has micro-batches in flight.
const MOST_EVENTS: usize = 256;

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

    fn add(&self, value: u64, event: &Arc<D::Event>) {
        let mut events = self.lock();
        if events.len() == MOST_EVENTS {
            events.pop_front();
        }
        events.push_back((value, Arc::clone(event)));
    }

    /// Returns the event of the first submission whose value is at least `value`.
    fn of(&self, value: u64) -> Option<Arc<D::Event>> {
        self.lock().iter().find(|(known, _)| *known >= value).map(|(_, event)| Arc::clone(event))
    }
}

/// A device's handle of a shared semaphore.
pub enum Semaphore<D: Driver> {
    /// Semaphore that two devices of this API share.
    Events(Arc<Events<D>>),
    /// Semaphore of another API.
    Native(D::Semaphore),
}

impl<D: Driver> Semaphore<D> {
    /// Makes later work on the stream wait until the semaphore has `value`.
    pub(crate) fn wait(&self, driver: &D, stream: &D::Stream, value: u64) -> Result<()> {
        match self {
            Self::Native(_) => Err(Error::invalid("a stream cannot wait for a semaphore of another API")),
            Self::Events(events) => {
                let unknown = || Error::invalid(format!("no event for value {value} of a semaphore"));
                driver.wait(stream, events.of(value).ok_or_else(unknown)?.as_ref())
            }
        }
    }

    /// Raises the semaphore to `value` when earlier work on the stream has ended. `last` is the event of that
    /// work.
    pub(crate) fn raise(
        &self,
        driver: &D,
        stream: &D::Stream,
        value: u64,
        last: &Arc<D::Event>,
    ) -> Result<()> {
        match self {
            Self::Native(semaphore) => driver.raise_semaphore(stream, semaphore, value),
            Self::Events(events) => {
                events.add(value, last);
                Ok(())
            }
        }
    }
}
