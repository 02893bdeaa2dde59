//! Events of a device, which are reused, and the ends of submissions.
//!
//! An event may be reset only when no command on any device will signal it or wait for it. Therefore every
//! submission keeps the events that it waits for until it has ended itself. If its end is never observed, these
//! events are never used again.

use crate::api;
use ragtag_hal::Result;
use std::mem::{ManuallyDrop, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of events in a pool.
const POOL_EVENTS: u32 = 128;

/// The events of a device.
pub(crate) struct Events {
    /// Field order: events are destroyed before their context.
    stock: Mutex<Stock>,
    context: Arc<api::Context>,
}

#[derive(Default)]
struct Stock {
    /// Events that no command uses. They are reset.
    free: Vec<Arc<api::Event>>,
    /// The newest pool, and its first place without an event.
    pool: Option<(Arc<api::EventPool>, u32)>,
}

impl Events {
    pub(crate) fn new(context: &Arc<api::Context>) -> Arc<Self> {
        Arc::new(Self { stock: Mutex::default(), context: Arc::clone(context) })
    }

    /// Returns an event that is not signalled.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn signal(self: &Arc<Self>) -> Result<Arc<Signal>> {
        let (event, pending) = (self.take()?, AtomicBool::new(false));
        Ok(Arc::new(Signal { event, pending, events: Arc::clone(self) }))
    }

    fn take(&self) -> Result<Arc<api::Event>> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = stock.free.pop() {
            return Ok(event);
        }
        let (pool, index) = match stock.pool.take().filter(|(_, used)| *used < POOL_EVENTS) {
            Some(current) => current,
            None => (api::EventPool::new(&self.context, POOL_EVENTS)?, 0),
        };
        let event = api::Event::new(&pool, index);
        stock.pool = Some((pool, index + 1));
        event.map(Arc::new)
    }

    fn give_back(&self, event: &Arc<api::Event>) {
        match event.reset() {
            Ok(()) => self.stock.lock().unwrap_or_else(PoisonError::into_inner).free.push(Arc::clone(event)),
            Err(error) => tracing::debug!(%error, "cannot reset an event"),
        }
    }
}

/// An event that is reused when the last reference to it is dropped.
pub(crate) struct Signal {
    pub(crate) event: Arc<api::Event>,
    /// Whether a command will signal the event, or has done so unnoticed.
    pending: AtomicBool,
    events: Arc<Events>,
}

impl Signal {
    /// Returns true until the host has observed the event.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    fn set_pending(&self, pending: bool) {
        self.pending.store(pending, Ordering::Release);
    }

    /// Signals the event from the host, so that commands of other devices no longer wait for it.
    pub(crate) fn release(&self) {
        if let Err(error) = self.event.signal() {
            tracing::debug!(%error, "cannot release an event");
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if self.is_pending() {
            // The device may still signal the event, so it is never destroyed.
            let _leaked = ManuallyDrop::new(Arc::clone(&self.event));
        } else {
            self.events.give_back(&self.event);
        }
    }
}

/// The start or the end of a submission.
pub(crate) struct Event {
    pub(crate) signal: Arc<Signal>,
    /// Events that the submission waits for.
    after: Vec<Arc<Signal>>,
    /// Event at the start of the submission.
    start: Option<Arc<Signal>>,
    /// Event at the end of the recorded program that the submission runs.
    recorded: Option<Arc<Signal>>,
}

impl Event {
    /// Returns the end of a submission that waits for `after` and is about to be enqueued.
    pub(crate) fn end(signal: Arc<Signal>, after: Vec<Arc<Signal>>) -> Self {
        signal.set_pending(true);
        Self { signal, after, start: None, recorded: None }
    }

    /// Returns the start of a submission. The end of the submission must keep the event too.
    pub(crate) fn start(signal: Arc<Signal>) -> Self {
        Self { signal, after: Vec::new(), start: None, recorded: None }
    }

    /// Makes this end of a submission also end a recorded program, which signals `recorded`.
    pub(crate) fn of_program(self, recorded: Arc<Signal>) -> Self {
        let mut event = self;
        event.recorded = Some(recorded);
        event
    }

    /// Returns the events that the submission waits for.
    pub(crate) fn awaited(&self) -> Vec<&api::Event> {
        self.after.iter().map(|signal| signal.event.as_ref()).collect()
    }

    /// Keeps the event at the start of the submission until its end.
    pub(crate) fn started_by(self, start: &Arc<Signal>) -> Self {
        let mut event = self;
        event.start = Some(Arc::clone(start));
        event
    }

    /// Notes that nothing was enqueued.
    pub(crate) fn cancel(&self) {
        self.signal.set_pending(false);
    }

    /// Notes that the host has observed the end. Prepares the recorded program for its next run.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn observe(&self) -> Result<()> {
        if let Some(recorded) = &self.recorded {
            recorded.event.reset()?;
        }
        self.signal.set_pending(false);
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.signal.is_pending() {
            // The device may still wait for these events or signal them.
            let _leaked = ManuallyDrop::new((take(&mut self.after), self.start.take(), self.recorded.take()));
        }
    }
}
