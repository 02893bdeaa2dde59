//! A lane: one in-order queue of the driver, what was put into it, and the thread that watches it and moves the timeline.
//!
//! The watcher takes submissions in order. It sleeps until what a submission waits for on other lanes has passed, since
//! some drivers spin where they wait, and only then waits for its last event.
//!
//! # What a submission holds
//! Points order everything; leases of host regions check that order. A submission that can start when it is enqueued
//! leases what it uses before, and is refused if somebody else has it. Any other leases when the points that it waits for
//! have passed, which the watcher sees: from then until its own point passes those bytes are nobody else's, so a lease
//! that is refused then is a mistake of whoever holds them, and fails the timeline. Regions themselves stay alive until
//! the driver has done with them, also on a timeline that failed long ago.
//!
//! This module must not know buffers, kernels or other devices, only scripts.

use crate::api::{self, Event};
use crate::clock::Clock;
use crate::script::{Ends, Script};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::{Error, Point, Reservation, Result, Timeline, Timing};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Most bytes that are copied on the submitting thread.
const INLINE_BYTES: usize = 64 << 10;
/// Most timings kept for someone to take.
const MAX_TIMINGS: usize = 1 << 16;

/// What the lanes of a device share.
pub(crate) struct Common {
    timelines: [Arc<Timeline>; 3],
    timings: Mutex<Vec<Timing>>,
    clock: Mutex<Clock>,
    lost: OnceLock<Error>,
}

impl Common {
    pub(crate) fn new(timelines: [Arc<Timeline>; 3], clock: Clock) -> Self {
        Self { timelines, timings: Mutex::default(), clock: Mutex::new(clock), lost: OnceLock::new() }
    }

    pub(crate) fn timelines(&self) -> &[Arc<Timeline>; 3] {
        &self.timelines
    }

    /// Looks at an error: a loss is the end of all lanes.
    pub(crate) fn note(&self, error: &Error) {
        if matches!(error, Error::Lost { .. }) && self.lost.set(error.clone()).is_ok() {
            tracing::warn!(%error, "an OpenCL device is lost");
            self.timelines.iter().for_each(|timeline| timeline.fail(error.clone()));
        }
    }

    /// # Errors
    /// [`Error::Lost`] once the device is.
    pub(crate) fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Moves the timings into a list.
    pub(crate) fn take_timings(&self, timings: &mut Vec<Timing>) {
        timings.append(&mut self.timings.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn time(&self, point: Point, ends: &Ends) {
        let first = ends.first.as_ref().unwrap_or(&ends.last);
        // A driver that measures nothing for some kind of command leaves that one out.
        let Ok((start_ns, end_ns)) = first.start_ns().and_then(|start| Ok((start, ends.last.end_ns()?)))
        else {
            return;
        };
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let (start_ns, end_ns) = clock.host(start_ns, end_ns);
        drop(clock);
        self.add(Timing { point, start_ns, end_ns });
    }

    fn add(&self, timing: Timing) {
        let mut timings = self.timings.lock().unwrap_or_else(PoisonError::into_inner);
        if timings.len() < MAX_TIMINGS {
            timings.push(timing);
        }
    }
}

/// A command of another lane that has to end first: its event for the driver, its point for the watcher.
pub(crate) struct After {
    pub(crate) event: Arc<Event>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) value: u64,
}

/// What becomes of a submission, as the watcher sees it.
enum Flight {
    /// The driver has it.
    Enqueued {
        signal: Point,
        after: Vec<After>,
        ends: Ends,
        /// Taken already, if it could start at once.
        reserved: Option<Vec<Reservation>>,
        /// Keeps alive what the driver uses.
        script: Arc<Script>,
    },
    /// It was never enqueued, because what it waits for has failed, or something before it.
    Doomed(Error),
}

/// What is guarded by a lane's order: whoever holds this may enqueue.
pub(crate) struct Order {
    /// `None` once the lane is being dropped.
    inbox: Option<Sender<Flight>>,
    /// Submissions that the watcher was told of.
    sent: u64,
    /// Whether one of them will fail the timeline when its turn comes: nothing may be enqueued behind it.
    doomed: Option<Error>,
    /// Scripts that were enqueued in part, whose end no event tells.
    abandoned: Vec<Arc<Script>>,
}

/// A queue of the driver. Dropping it waits for the watcher, and that for the driver.
pub(crate) struct Lane {
    api: Arc<api::Queue>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
    order: Mutex<Order>,
    /// What the driver has and has not passed yet, in order.
    events: Mutex<VecDeque<(u64, Arc<Event>)>>,
    /// Submissions that the watcher has dealt with.
    finished: Arc<AtomicU64>,
    watcher: Option<JoinHandle<()>>,
}

impl Lane {
    /// Starts the watcher of a timeline.
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub(crate) fn new(
        name: String,
        api: Arc<api::Queue>,
        timeline: Arc<Timeline>,
        common: Arc<Common>,
    ) -> Result<Self> {
        let (inbox, flights) = unbounded();
        let finished = Arc::<AtomicU64>::default();
        let theirs = (Arc::clone(&timeline), Arc::clone(&common), Arc::clone(&finished));
        let watcher = spawn(name, move || {
            let (timeline, common, finished) = theirs;
            watch(&timeline, &common, &finished, &flights);
        })?;
        let order = Order { inbox: Some(inbox), sent: 0, doomed: None, abandoned: Vec::new() };
        Ok(Self {
            api,
            timeline,
            common,
            order: Mutex::new(order),
            events: Mutex::default(),
            finished,
            watcher: Some(watcher),
        })
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    pub(crate) fn api(&self) -> &Arc<api::Queue> {
        &self.api
    }

    /// The right to enqueue.
    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Event>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event of the submission that lets `value` pass, if the driver has it.
    pub(crate) fn event(&self, value: u64) -> Option<Arc<Event>> {
        self.events().iter().find(|(signal, _)| *signal >= value).map(|(_, event)| Arc::clone(event))
    }

    /// Enqueues a script, or runs it at once if the host can and it need not wait.
    ///
    /// # Errors
    /// If the driver refuses, or the script can start now and somebody else uses its bytes of a host region.
    pub(crate) fn start(
        &self,
        order: &mut Order,
        script: Arc<Script>,
        after: Vec<After>,
        signal: Point,
    ) -> Result<()> {
        if let Some(error) = order.doomed.clone() {
            self.doom(order, error);
            return Ok(());
        }
        let now = after.is_empty() && self.finished.load(Ordering::Acquire) == order.sent;
        if now && script.host_bytes().is_some_and(|bytes| bytes <= INLINE_BYTES) {
            return self.run(&script, signal);
        }
        let reserved = if now { Some(script.reserve()?) } else { None };
        let ends = self.enqueue(order, &script, &after)?;
        let mut events = self.events();
        while events.front().is_some_and(|(value, _)| *value <= self.timeline.value()) {
            events.pop_front();
        }
        events.push_back((signal.value, Arc::clone(&ends.last)));
        drop(events);
        send(order, Flight::Enqueued { signal, after, ends, reserved, script });
        Ok(())
    }

    /// Lets a submission fail in its turn, behind what the driver has already, and everything behind it.
    pub(crate) fn doom(&self, order: &mut Order, error: Error) {
        order.doomed = Some(error.clone());
        send(order, Flight::Doomed(error));
    }

    /// Ends the timeline, and all of them if the device is lost.
    pub(crate) fn fail(&self, error: Error) {
        self.note(&error);
        self.timeline.fail(error);
    }

    /// Looks at an error: a loss is the end of all lanes.
    pub(crate) fn note(&self, error: &Error) {
        self.common.note(error);
    }

    /// Makes the host's copies, for which nothing has to be waited.
    fn run(&self, script: &Script, signal: Point) -> Result<()> {
        let start_ns = Timing::now_ns();
        script.run_on_host()?;
        self.common.add(Timing { point: signal, start_ns, end_ns: Timing::now_ns() });
        self.timeline.advance(signal.value);
        Ok(())
    }

    fn enqueue(&self, order: &mut Order, script: &Arc<Script>, after: &[After]) -> Result<Ends> {
        let events = api::raw(after.iter().map(|after| after.event.as_ref()));
        let enqueued = script.enqueue(&self.api, &events);
        enqueued.and_then(|ends| self.api.flush().map(|()| ends)).inspect_err(|_| {
            order.abandoned.push(Arc::clone(script));
        })
    }
}

fn send(order: &mut Order, flight: Flight) {
    order.sent += 1;
    // The watcher ends only when the lane does, which lets go of the inbox first.
    let _ = order.inbox.as_ref().map(|inbox| inbox.send(flight));
}

impl Drop for Lane {
    fn drop(&mut self) {
        let order = self.order.get_mut().unwrap_or_else(PoisonError::into_inner);
        order.inbox = None;
        if let Some(watcher) = self.watcher.take() {
            // What went wrong is on the timeline.
            let _ = watcher.join();
        }
        if !order.abandoned.is_empty() {
            // The last chance to wait for what no event tells of.
            let _ = self.api.finish();
        }
    }
}

/// # Errors
/// If the system gives no more threads.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned.map_err(|error| Error::Unsupported { what: format!("one more thread: {error}") })
}

/// The body of a watcher.
fn watch(timeline: &Timeline, common: &Common, finished: &AtomicU64, flights: &Receiver<Flight>) {
    for flight in flights {
        match end(flight, common) {
            Ok(signal) => timeline.advance(signal.value),
            Err(error) => timeline.fail(error),
        }
        finished.fetch_add(1, Ordering::Release);
    }
}

/// Waits for the end of a submission. What it held is let go before anyone hears of that.
fn end(flight: Flight, common: &Common) -> Result<Point> {
    let (signal, after, ends, reserved, script) = match flight {
        Flight::Enqueued { signal, after, ends, reserved, script } => (signal, after, ends, reserved, script),
        Flight::Doomed(error) => return Err(error),
    };
    // Points of the same device pass or fail as long as the driver works.
    let started = after.iter().try_for_each(|after| after.timeline.wait(after.value, None).map(drop));
    let reserved = started.and_then(|()| match reserved {
        Some(reserved) => Ok(reserved),
        None => script.reserve(),
    });
    // Whatever came of that: the driver has it until its event says otherwise.
    let ended = ends.last.wait().inspect_err(|error| common.note(error));
    reserved?;
    ended?;
    common.time(signal, &ends);
    Ok(signal)
}
