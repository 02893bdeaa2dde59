//! A lane: one in-order queue of the driver, what was put into it, and the thread that watches it and moves the timeline.
//!
//! The watcher takes submissions in order. It sleeps until what a submission waits for on other lanes has passed, since
//! some drivers spin where they wait, and only then waits for its last event. Around the times after which either came before
//! it is awake ([`Anticipation`]).
//!
//! # What a submission holds
//! Points order everything; leases of host regions check that order. A submission that can start when it is enqueued
//! leases what it uses before, and is refused if somebody else has it. Any other leases when the points that it waits for
//! have passed, which the watcher sees: from then until its own point passes those bytes are nobody else's, so a lease
//! that is refused then is a mistake of whoever holds them, and fails the timeline. Regions themselves stay alive until
//! the driver has done with them, also on a timeline that failed long ago.
//!
//! This module must not know buffers, kernels or other devices, only scripts.

use super::thread::Thread;
use crate::anticipation::{Anticipation, Outcome, Turn};
use crate::backend::Timing;
use crate::driver::{Driver, Script};
use crate::error::{Error, Result};
use crate::ids::{DeviceId, Point, QueueKind, TimelineId};
use crate::region::Reservation;
use crate::timeline::Timeline;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes that are copied on the submitting thread.
const INLINE_BYTES: usize = 64 << 10;
/// Most timings kept for someone to take.
const MAX_TIMINGS: usize = 1 << 16;
/// How long a watcher looks before it sleeps, where cores are to spare: small copies take no longer.
pub(super) const LINGER: Duration = Duration::from_micros(40);
/// The same for a watcher that runs the work itself: the next step of a decode is often that near.
const BRIEF: Duration = Duration::from_micros(5);
/// How long a watcher sleeps at a time while it expects the driver to take longer: the driver does not wake it, and what ends
/// early must not be noticed late.
const NAP: Duration = Duration::from_micros(100);

/// How soon a watcher that waits for another device notices that its own device closes.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);

/// The error of work that waited for a point when its device was closed.
pub(super) fn closed(point: Point) -> Error {
    Error::Lost { cause: format!("the device was closed while it waited for {point}") }
}

/// The ends of a script on its way through a queue.
#[derive(Debug)]
pub struct Ends<E> {
    /// Where it begins, if the end does not tell that as well.
    pub first: Option<E>,
    /// Where it ends.
    pub last: Arc<E>,
}

/// An in-order queue of a driver.
pub trait DriverQueue: Send + Sync + 'static {
    /// The driver whose scripts it takes.
    type Driver: Driver;
    /// What passes when something that was enqueued has ended.
    type Event: Send + Sync + 'static;

    /// Whether a script runs on the thread that waits for its event, from then on. That thread also waits for what the script
    /// comes after, and runs nothing after a failure.
    const RUNS_IN_WAIT: bool = false;

    /// Whether the driver may use memory and kernels of a script for a moment after the event of its end. Programs are dropped
    /// after [`finish`](Self::finish) then.
    const USES_AFTER_END: bool = false;

    /// Enqueues a script, to start after events of other queues of the device, and lets the driver begin.
    ///
    /// # Errors
    /// If the driver refuses; some of the script may be under way then.
    fn enqueue(
        &self,
        script: &Arc<Script<Self::Driver>>,
        after: &[&Self::Event],
    ) -> Result<Ends<Self::Event>>;

    /// Whether an event has passed, or failed; `None` where asking costs more than waiting.
    fn passed(&self, event: &Self::Event) -> Option<bool>;

    /// Waits for an event, asleep where the driver can.
    ///
    /// # Errors
    /// If what it stands for failed.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// When a script that has just ended started and ended, in the host's time ([`Timing::now_ns`]), where the driver
    /// measures that.
    fn times_ns(&self, ends: &Ends<Self::Event>) -> Option<(u64, u64)>;

    /// Waits for all that was enqueued.
    ///
    /// # Errors
    /// If some of it failed.
    fn finish(&self) -> Result<()>;
}

/// What the lanes of a device share.
pub struct Common {
    timelines: [Arc<Timeline>; 3],
    timings: Mutex<Vec<Timing>>,
    lost: OnceLock<Error>,
}

impl Common {
    /// For a device.
    pub fn new(device: DeviceId) -> Arc<Self> {
        let timelines = QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device, queue }));
        Arc::new(Self { timelines, timings: Mutex::default(), lost: OnceLock::new() })
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.timelines[0].id().device
    }

    /// The timelines, by [`QueueKind::index`](crate::QueueKind::index).
    pub fn timelines(&self) -> &[Arc<Timeline>; 3] {
        &self.timelines
    }

    /// What is to be said of an error: a loss is the end of all lanes, and is told as the first was.
    pub fn told(&self, error: Error) -> Error {
        if !matches!(error, Error::Lost { .. }) {
            return error;
        }
        let mut first = false;
        let lost = self.lost.get_or_init(|| {
            first = true;
            error
        });
        if first {
            tracing::warn!(error = %lost, "{} is lost", self.device());
            self.timelines.iter().for_each(|timeline| timeline.fail(lost.clone()));
        }
        lost.clone()
    }

    /// What is to be said of what a call came to.
    ///
    /// # Errors
    /// The call's, as [`told`](Self::told).
    pub fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.told(error))
    }

    /// # Errors
    /// [`Error::Lost`] once the device is.
    pub fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Moves the timings into a list.
    pub fn take_timings(&self, timings: &mut Vec<Timing>) {
        timings.append(&mut self.timings.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn add(&self, timing: Timing) {
        let mut timings = self.timings.lock().unwrap_or_else(PoisonError::into_inner);
        if timings.len() < MAX_TIMINGS {
            timings.push(timing);
        }
    }
}

/// Work that has to end first: its event for the driver, its point for the watcher.
pub struct After<E> {
    /// Its event, if the driver has it.
    pub event: Option<Arc<E>>,
    /// Its timeline.
    pub timeline: Arc<Timeline>,
    /// The point on it.
    pub value: u64,
}

/// A submission that the driver has.
struct Enqueued<Q: DriverQueue> {
    signal: Point,
    after: Vec<After<Q::Event>>,
    ends: Ends<Q::Event>,
    /// Taken already, if it could start at once.
    reserved: Option<Vec<Reservation>>,
    /// Keeps alive what the driver uses.
    script: Arc<Script<Q::Driver>>,
}

/// What becomes of a submission, as the watcher sees it.
enum Flight<Q: DriverQueue> {
    /// The driver has it.
    Enqueued(Enqueued<Q>),
    /// It was never enqueued, because what it waits for has failed, or something before it.
    Doomed(Error),
    /// It was enqueued in part, and no event tells its end.
    Abandoned(Arc<Script<Q::Driver>>),
    /// Programs that are dropped here.
    Retired(Vec<Arc<Script<Q::Driver>>>),
}

/// What is guarded by a lane's order: whoever holds this may enqueue.
pub struct Order<Q: DriverQueue> {
    /// `None` once the lane is closed.
    inbox: Option<Sender<Flight<Q>>>,
    /// Submissions that the watcher was told of.
    sent: u64,
    /// Whether one of them will fail the timeline when its turn comes: nothing may be enqueued behind it.
    doomed: Option<Error>,
}

/// A queue of the driver. It is closed before it is dropped.
pub struct Lane<Q: DriverQueue> {
    queue: Arc<Q>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
    order: Mutex<Order<Q>>,
    /// What the driver has and has not passed yet, in order.
    events: Mutex<VecDeque<(u64, Arc<Q::Event>)>>,
    /// Submissions that the watcher has dealt with.
    finished: Arc<AtomicU64>,
    /// Whether it need not wait for other devices any more.
    closing: Arc<AtomicBool>,
    watcher: Thread,
}

impl<Q: DriverQueue> Lane<Q> {
    /// Starts the watcher of a timeline.
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub fn new(name: String, queue: Arc<Q>, timeline: Arc<Timeline>, common: Arc<Common>) -> Result<Self> {
        let (inbox, flights) = unbounded();
        let finished = Arc::<AtomicU64>::default();
        let watched = Watched {
            queue: Arc::clone(&queue),
            timeline: Arc::clone(&timeline),
            common: Arc::clone(&common),
        };
        let closing = Arc::<AtomicBool>::default();
        let (theirs, ends) = (Arc::clone(&finished), Arc::clone(&closing));
        let watcher = Thread::spawn(name, move || watched.watch(&theirs, &flights, &ends))?;
        let order = Order { inbox: Some(inbox), sent: 0, doomed: None };
        Ok(Self {
            queue,
            timeline,
            common,
            order: Mutex::new(order),
            events: Mutex::default(),
            finished,
            closing,
            watcher,
        })
    }

    /// The timeline that it moves.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// The right to enqueue.
    pub fn order(&self) -> MutexGuard<'_, Order<Q>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Q::Event>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event of the submission that lets `value` pass, if the driver has it.
    pub fn event(&self, value: u64) -> Option<Arc<Q::Event>> {
        self.events().iter().find(|(signal, _)| *signal >= value).map(|(_, event)| Arc::clone(event))
    }

    /// Enqueues a script, or runs it at once if the host can and it need not wait.
    ///
    /// # Errors
    /// If the driver refuses, or the script can start now and somebody else uses its bytes of a host region.
    pub fn start(
        &self,
        order: &mut Order<Q>,
        script: Arc<Script<Q::Driver>>,
        after: Vec<After<Q::Event>>,
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
        send(order, Flight::Enqueued(Enqueued { signal, after, ends, reserved, script }));
        Ok(())
    }

    /// Has the watcher end when it has dealt with everything. Nothing may be enqueued afterwards.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.order().inbox = None;
    }

    /// Waits until the watcher has ended, or until the deadline. Whether it has.
    pub(super) fn ends_before(&self, deadline: Instant) -> bool {
        self.watcher.ends_before(deadline)
    }

    /// Lets a submission fail in its turn, behind what the driver has already, and everything behind it.
    pub fn doom(&self, order: &mut Order<Q>, error: Error) {
        order.doomed = Some(error.clone());
        send(order, Flight::Doomed(error));
    }

    /// Drops programs that are not in flight. Never waits for the queue's work: the watcher does where that is necessary.
    pub fn retire(&self, programs: Vec<Arc<Script<Q::Driver>>>) {
        if Q::USES_AFTER_END {
            let mut order = self.order();
            let idle = self.finished.load(Ordering::Acquire) == order.sent;
            // An abandoned script fails the timeline, and the queue may still have it.
            if order.inbox.is_some() && (!idle || self.timeline.failure().is_some()) {
                return send(&mut order, Flight::Retired(programs));
            }
            finish(self.queue.as_ref());
        }
        drop(programs);
    }

    /// Ends the timeline, and all of them if the device is lost. Returns what is to be said of that.
    pub fn fail(&self, error: Error) -> Error {
        let error = self.told(error);
        self.timeline.fail(error.clone());
        error
    }

    /// What is to be said of an error: a loss is the end of all lanes, and is told as the first was.
    pub fn told(&self, error: Error) -> Error {
        self.common.told(error)
    }

    /// Makes the host's copies, for which nothing has to be waited.
    fn run(&self, script: &Script<Q::Driver>, signal: Point) -> Result<()> {
        let start_ns = Timing::now_ns();
        script.run_on_host()?;
        self.common.add(Timing { point: signal, start_ns, end_ns: Timing::now_ns() });
        self.timeline.advance(signal.value);
        Ok(())
    }

    fn enqueue(
        &self,
        order: &mut Order<Q>,
        script: &Arc<Script<Q::Driver>>,
        after: &[After<Q::Event>],
    ) -> Result<Ends<Q::Event>> {
        let events: Vec<&Q::Event> = after.iter().filter_map(|after| after.event.as_deref()).collect();
        let enqueued = self.queue.enqueue(script, &events);
        enqueued.inspect_err(|_| send(order, Flight::Abandoned(Arc::clone(script))))
    }
}

fn finish<Q: DriverQueue>(queue: &Q) {
    if let Err(error) = queue.finish() {
        tracing::debug!(%error, "the queue was not finished");
    }
}

fn send<Q: DriverQueue>(order: &mut Order<Q>, flight: Flight<Q>) {
    order.sent += 1;
    // The watcher ends only when the lane does, which lets go of the inbox first.
    let _ = order.inbox.as_ref().map(|inbox| inbox.send(flight));
}

/// How a watcher waits: for what comes before its submissions, and for their ends.
struct Patience {
    start: Anticipation,
    end: Anticipation,
}

impl Patience {
    fn new<Q: DriverQueue>() -> Self {
        let anticipation = || match Q::RUNS_IN_WAIT {
            // The device's own threads need the cores.
            true => Anticipation::brief(BRIEF),
            false => Anticipation::lingering_if_spare(LINGER),
        };
        Self { start: anticipation(), end: anticipation() }
    }

    /// Waits for a point. Points of the same device pass or fail as long as the driver works. Other points, for which the
    /// driver has no event, are waited for until the device closes.
    ///
    /// # Errors
    /// If it will not pass.
    fn start<E>(&mut self, after: &After<E>, closing: &AtomicBool) -> Result<()> {
        let After { event, timeline, value } = after;
        let most = event.is_none().then_some(CLOSING_PERIOD);
        let passed = self.start.wait(|turn| match turn {
            Turn::Look if timeline.value() >= *value => Outcome::Found(Ok(())),
            Turn::Look => Outcome::Nothing,
            Turn::Rest(limit) => match timeline.wait(*value, limit.into_iter().chain(most).min()) {
                Ok(false) if event.is_none() && closing.load(Ordering::Acquire) => {
                    Outcome::Found(Err(closed(timeline.id().at(*value))))
                }
                Ok(false) => Outcome::Nothing,
                known => Outcome::Found(known.map(drop)),
            },
        });
        passed.unwrap_or(Ok(()))
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// If what it stands for failed.
    fn end<Q: DriverQueue>(&mut self, queue: &Q, event: &Q::Event) -> Result<()> {
        let ended = self.end.wait(|turn| match (turn, queue.passed(event)) {
            (Turn::Look, Some(false)) => Outcome::Nothing,
            (Turn::Rest(Some(limit)), Some(false)) => {
                std::thread::sleep(limit.min(NAP));
                Outcome::Nothing
            }
            _ => Outcome::Found(queue.wait(event)),
        });
        ended.unwrap_or(Ok(()))
    }
}

/// What a watcher sees of its lane.
struct Watched<Q: DriverQueue> {
    queue: Arc<Q>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
}

impl<Q: DriverQueue> Watched<Q> {
    /// The body of a watcher.
    fn watch(&self, finished: &AtomicU64, flights: &Receiver<Flight<Q>>, closing: &AtomicBool) {
        let mut patience = Patience::new::<Q>();
        let mut abandoned = Vec::new();
        for flight in flights {
            let ended = match flight {
                Flight::Enqueued(work) => self.end(work, &mut patience, closing),
                Flight::Doomed(error) => Err(error),
                Flight::Abandoned(script) => {
                    abandoned.push(script);
                    // The failed submission fails the timeline.
                    Ok(self.timeline.id().at(0))
                }
                Flight::Retired(programs) => {
                    finish(self.queue.as_ref());
                    drop(programs);
                    Ok(self.timeline.id().at(0))
                }
            };
            match ended {
                Ok(signal) => self.timeline.advance(signal.value),
                Err(error) => self.timeline.fail(error),
            }
            finished.fetch_add(1, Ordering::Release);
        }
        if !abandoned.is_empty() {
            // The last chance to wait for what no event tells of. What went wrong is on the timeline.
            finish(self.queue.as_ref());
        }
    }

    /// Waits for the end of a submission. What it held is let go before anyone hears of that.
    fn end(&self, work: Enqueued<Q>, patience: &mut Patience, closing: &AtomicBool) -> Result<Point> {
        let Enqueued { signal, after, ends, reserved, script } = work;
        let failure = self.timeline.failure().filter(|_| Q::RUNS_IN_WAIT);
        let started = failure.map_or(Ok(()), Err);
        let started =
            started.and_then(|()| after.iter().try_for_each(|after| patience.start(after, closing)));
        let reserved = started.and_then(|()| match reserved {
            Some(reserved) => Ok(reserved),
            None => script.reserve(),
        });
        if Q::RUNS_IN_WAIT && reserved.is_err() {
            return reserved.and(Ok(signal));
        }
        // Whatever came of that: the driver has it until its event says otherwise.
        let ended = self.common.noted(patience.end(self.queue.as_ref(), &ends.last));
        reserved?;
        ended?;
        if let Some((start_ns, end_ns)) = self.queue.times_ns(&ends) {
            self.common.add(Timing { point: signal, start_ns, end_ns });
        }
        Ok(signal)
    }
}
