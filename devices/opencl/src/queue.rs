//! A queue: a command queue of the driver, and a thread that watches what was put into it and moves the timeline.
//!
//! Submissions are enqueued at once, whatever they wait for: the driver starts them when their events have passed. The
//! watcher takes them in order. It sleeps until a submission's points have passed, since some drivers spin where they
//! wait, and only then waits for its last event.
//!
//! # What a submission holds
//! Points order everything; leases of host regions check that order. A submission that can start when it is made, leases
//! what it uses before it is enqueued, and is refused if somebody else has it. Any other leases when its points have
//! passed, which the watcher sees: its bytes are nobody else's from then until its own point passes, so a lease that is
//! refused then is a mistake of whoever holds the bytes, and fails the timeline. Regions themselves stay alive until the
//! driver has done with them, also on a timeline that failed long ago.
//!
//! This module must not know buffers or kernels, only scripts.

use crate::api::{self, Event, UserEvent};
use crate::clock::Clock;
use crate::script::{Ends, Script};
use crossbeam_channel::{Receiver, Sender, unbounded};
use opencl3::types::cl_event;
use ragtag_hal::{Error, Point, Reservation, Result, Timeline, Timing};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most bytes that are copied on the caller's thread.
const INLINE_BYTES: usize = 64 << 10;
/// How soon a watcher that waits for another device notices that its own device closes.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);
/// Most timings kept for someone to take.
const MAX_TIMINGS: usize = 1 << 16;

/// What a device's queues share.
pub(crate) struct Common {
    timelines: [Arc<Timeline>; 3],
    closing: AtomicBool,
    timings: Mutex<Vec<Timing>>,
    clock: Mutex<Clock>,
    lost: OnceLock<Error>,
}

impl Common {
    pub(crate) fn new(timelines: [Arc<Timeline>; 3], clock: Clock) -> Self {
        Self {
            timelines,
            closing: AtomicBool::new(false),
            timings: Mutex::default(),
            clock: Mutex::new(clock),
            lost: OnceLock::new(),
        }
    }

    pub(crate) fn timelines(&self) -> &[Arc<Timeline>; 3] {
        &self.timelines
    }

    /// No watcher waits for another device from now on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Looks at an error: a loss is the end of all queues.
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
        let Ok((start_ns, end_ns)) = first.start_ns().and_then(|start| Ok((start, ends.last.end_ns()?))) else {
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

/// A point to wait for on the host.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) value: u64,
    /// Of another device. Own points pass or fail as long as the driver works; a foreign one may never.
    pub(crate) foreign: bool,
}

impl Wait {
    /// Blocks until the point has passed.
    fn block(&self, closing: &AtomicBool) -> Result<()> {
        let timeout = self.foreign.then_some(CLOSING_PERIOD);
        while !self.timeline.wait(self.value, timeout)? {
            if closing.load(Ordering::Acquire) {
                let point = self.timeline.id().at(self.value);
                return Err(Error::Lost {
                    cause: format!("the device was closed while it waited for {point}"),
                });
            }
        }
        Ok(())
    }
}

/// What a submission waits for.
#[derive(Default)]
pub(crate) struct Dependencies {
    /// Points that have not passed yet.
    pub(crate) waits: Vec<Wait>,
    /// The same for the driver: commands of other queues of the device …
    pub(crate) events: Vec<Arc<Event>>,
    /// … and proxies of other devices' points.
    pub(crate) proxies: Vec<Arc<UserEvent>>,
    /// Whether any of them may still fail for a reason outside this device.
    pub(crate) conditional: bool,
    /// Whether any of them has failed already: the submission will, too, in its turn.
    pub(crate) doomed: bool,
}

impl Dependencies {
    fn raw(&self) -> Vec<cl_event> {
        let proxies = self.proxies.iter().map(|proxy| proxy.event());
        api::raw(self.events.iter().map(Arc::as_ref).chain(proxies))
    }
}

/// A submission that has not passed, as later ones see it.
struct Outstanding {
    value: u64,
    /// `None` if it was never enqueued, because it cannot but fail.
    event: Option<Arc<Event>>,
    conditional: bool,
}

/// A submission on its way, as the watcher sees it.
struct Flight {
    signal: Point,
    waits: Vec<Wait>,
    /// `None` if it was never enqueued.
    ends: Option<Ends>,
    /// Taken already, if it could start at once.
    reserved: Option<Vec<Reservation>>,
    /// Keeps alive what the driver uses.
    script: Arc<Script>,
}

/// The device's end of a queue. Dropping it waits for the watcher, and that for the driver; close the device before, and
/// fail its proxies.
pub(crate) struct Queue {
    api: Arc<api::Queue>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
    outstanding: VecDeque<Outstanding>,
    /// `None` once the queue is being dropped.
    inbox: Option<Sender<Flight>>,
    watcher: Option<JoinHandle<()>>,
    /// Submissions that the watcher was told of, and that it has dealt with.
    sent: u64,
    finished: Arc<AtomicU64>,
    /// Scripts that were enqueued in part, whose end no event tells.
    abandoned: Vec<Arc<Script>>,
}

impl Queue {
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
        let watcher = std::thread::Builder::new().name(name).spawn(move || {
            let (timeline, common, finished) = theirs;
            watch(&timeline, &common, &finished, &flights);
        });
        let watcher = watcher.map_err(|error| Error::Unsupported { what: format!("one more thread: {error}") })?;
        Ok(Self {
            api,
            timeline,
            common,
            outstanding: VecDeque::new(),
            inbox: Some(inbox),
            watcher: Some(watcher),
            sent: 0,
            finished,
            abandoned: Vec::new(),
        })
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    pub(crate) fn api(&self) -> &Arc<api::Queue> {
        &self.api
    }

    /// Adds what a submission to another queue has to wait for until `value` has passed here.
    pub(crate) fn depend(&self, value: u64, on: &mut Dependencies) {
        // The order counts: what fails does not pass, and what has passed stays so.
        let failed = self.timeline.failure().is_some();
        if self.timeline.value() >= value {
            return;
        }
        on.waits.push(Wait { timeline: Arc::clone(&self.timeline), value, foreign: false });
        match self.outstanding.iter().find(|one| one.value >= value) {
            Some(Outstanding { event: Some(event), conditional, .. }) if !failed => {
                on.events.push(Arc::clone(event));
                on.conditional |= conditional;
            }
            _ => on.doomed = true,
        }
    }

    /// Enqueues a script, or runs it at once if the host can and it need not wait.
    ///
    /// # Errors
    /// If the driver refuses, or the script can start now and somebody else uses its bytes of a host region.
    pub(crate) fn submit(&mut self, script: Arc<Script>, mut on: Dependencies, signal: Point) -> Result<()> {
        if self.timeline.failure().is_some() {
            return Ok(());
        }
        while self.outstanding.front().is_some_and(|first| first.value <= self.timeline.value()) {
            self.outstanding.pop_front();
        }
        let idle = self.finished.load(Ordering::Acquire) == self.sent;
        let now = idle && on.waits.is_empty();
        if now && script.host_bytes().is_some_and(|bytes| bytes <= INLINE_BYTES) {
            return self.run(&script, signal);
        }
        self.follow(&mut on);
        let reserved = if now { Some(script.reserve()?) } else { None };
        let ends = if on.doomed { None } else { Some(self.enqueue(&script, &on)?) };
        self.outstanding.push_back(Outstanding {
            value: signal.value,
            event: ends.as_ref().map(|ends| Arc::clone(&ends.last)),
            conditional: on.conditional,
        });
        self.sent += 1;
        let flight = Flight { signal, waits: on.waits, ends, reserved, script };
        let sent = self.inbox.as_ref().map(|inbox| inbox.send(flight));
        if matches!(sent, Some(Ok(()))) {
            return Ok(());
        }
        Err(Error::Lost { cause: "the thread that watches a queue has ended".into() })
    }

    /// Makes the host's copies, for which nothing has to be waited.
    fn run(&self, script: &Script, signal: Point) -> Result<()> {
        let start_ns = Timing::now_ns();
        script.run_on_host()?;
        self.common.add(Timing { point: signal, start_ns, end_ns: Timing::now_ns() });
        self.timeline.advance(signal.value);
        Ok(())
    }

    /// What follows a submission that may still fail, must not run if it does. An in-order queue alone does not promise
    /// that; an event does.
    fn follow(&self, on: &mut Dependencies) {
        let Some(last) = self.outstanding.back().filter(|last| last.conditional || last.event.is_none()) else {
            return;
        };
        match &last.event {
            Some(event) => {
                on.events.push(Arc::clone(event));
                on.conditional = true;
            }
            None => on.doomed = true,
        }
    }

    fn enqueue(&mut self, script: &Arc<Script>, on: &Dependencies) -> Result<Ends> {
        let enqueued = script.enqueue(&self.api, &on.raw());
        enqueued.and_then(|ends| self.api.flush().map(|()| ends)).inspect_err(|_| {
            self.abandoned.push(Arc::clone(script));
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(watcher) = self.watcher.take() {
            // What went wrong is on the timeline.
            let _ = watcher.join();
        }
        if !self.abandoned.is_empty() {
            // The last chance to wait for what no event tells of.
            let _ = self.api.finish();
        }
    }
}

/// The body of a watcher.
fn watch(timeline: &Timeline, common: &Common, finished: &AtomicU64, flights: &Receiver<Flight>) {
    for flight in flights {
        let signal = flight.signal;
        match end(flight, common) {
            Ok(()) => timeline.advance(signal.value),
            Err(error) => {
                common.note(&error);
                timeline.fail(error);
            }
        }
        finished.fetch_add(1, Ordering::Release);
    }
}

/// Waits for the end of a submission. What it held is let go before anyone hears of that.
fn end(flight: Flight, common: &Common) -> Result<()> {
    let Flight { signal, waits, ends, reserved, script } = flight;
    let started = waits.iter().try_for_each(|wait| wait.block(&common.closing));
    let reserved = started.and_then(|()| match reserved {
        Some(reserved) => Ok(reserved),
        None => script.reserve(),
    });
    // Also if it failed before it began: the driver has it until its event says otherwise.
    let ended = match &ends {
        Some(ends) => ends.last.wait(),
        None => Err(Error::invalid("a submission behind one that failed")),
    };
    reserved?;
    ended?;
    if let Some(ends) = &ends {
        common.time(signal, ends);
    }
    Ok(())
}
