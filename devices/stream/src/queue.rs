//! An implementation of `ragtag-hal`'s queue on top of a stream. It enqueues scripts, returns events, and
//! converts times to the host's clock.
//!
//! The APIs could make a stream wait until a word of pinned memory changes (`cuStreamWaitValue64`,
//! `hipStreamWaitValue64`). Ragtag does not use such waits, because enqueued work cannot be cancelled. A stream
//! waits only for events of work that the driver already has, also of another device ([`crate::semaphore`]).
//!
//! This module does not depend on buffers, kernels or points.

use crate::clock::Clock;
use crate::device::{Script, Streams, enqueue};
use crate::driver::Driver;

use ragtag_hal::Result;
use ragtag_hal::queues::{DriverQueue, Ends, Fences};
use std::sync::{Arc, Mutex, PoisonError};

/// A stream as a queue of the device.
pub struct Queue<D: Driver> {
    driver: Arc<D>,
    stream: D::Stream,
    /// Clock of the device, shared by its queues.
    clock: Arc<Mutex<Clock<D::Event>>>,
}

impl<D: Driver> Queue<D> {
    /// Creates a queue.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(driver: &Arc<D>, clock: &Arc<Mutex<Clock<D::Event>>>) -> Result<Self> {
        let stream = driver.stream()?;
        Ok(Self { driver: Arc::clone(driver), stream, clock: Arc::clone(clock) })
    }

    fn mark(&self, is_timed: bool) -> Result<D::Event> {
        let event = self.driver.event(is_timed)?;
        self.driver.record(&event, &self.stream)?;
        Ok(event)
    }
}

impl<D: Driver> DriverQueue for Queue<D> {
    type Driver = Streams<D>;
    type Event = D::Event;

    fn enqueue(&self, script: &Arc<Script<D>>, fences: &Fences<'_, Self>) -> Result<Ends<D::Event>> {
        let Fences { after, waits, raises, are_timed } = fences;
        after.iter().try_for_each(|event| self.driver.wait(&self.stream, event))?;
        for (events, value) in *waits {
            events.wait(self.driver.as_ref(), &self.stream, *value)?;
        }
        let first = are_timed.then(|| self.mark(true)).transpose()?;
        match script.recording() {
            // SAFETY: the guarantees for each single step apply to the graph.
            Some(graph) => unsafe { self.driver.play(&self.stream, graph) }?,
            None => script.steps().iter().enumerate().try_for_each(|(at, step)| {
                let enqueued = enqueue(self.driver.as_ref(), &self.stream, step);
                enqueued.map_err(|error| match at == 0 && step.is_copy() {
                    true => error.refusing_copy(),
                    false => error,
                })
            })?,
        }
        let last = Arc::new(self.mark(*are_timed)?);
        raises.iter().for_each(|(events, value)| events.add(*value, &last));
        Ok(Ends { first, last })
    }

    fn passed(&self, event: &D::Event) -> Option<bool> {
        Some(self.driver.has_passed(event))
    }

    fn wait(&self, event: &D::Event) -> Result<()> {
        self.driver.synchronise(event)
    }

    fn times_ns(&self, ends: &Ends<D::Event>) -> Option<(u64, u64)> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).host(self.driver.as_ref(), ends)
    }

    fn finish(&self) -> Result<()> {
        self.driver.finish(&self.stream)
    }
}
