//! One in-order driver queue with its outstanding work, and the completion thread that advances its timeline.
//!
//! The completion thread handles submissions in order. It sleeps until the points of other queues that a
//! submission waits for have passed, because some drivers spin on waits. Only then does it wait for the
//! submission's last event. Around the expected times of both it spins ([`Anticipation`]).
//!
//! # What a submission holds
//! Points order all work; leases of host regions verify that order. A submission that can start when it is
//! enqueued takes its leases first, and is refused if one conflicts. Any other takes its leases when the
//! points that it waits for have passed, as seen by the completion thread. From then until its own point
//! passes, no other user may touch those bytes. A lease that is refused at that time is a mistake of its
//! holder and fails the timeline. Regions stay alive until the driver is done with them, even on a timeline
//! that failed long ago.
//!
//! Knows only scripts; nothing about buffers, kernels or other devices.

use super::thread::Thread;
use crate::adaptive_wait::{Anticipation, Outcome, Turn};
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
/// Most timings kept until they are taken.
const MAX_TIMINGS: usize = 1 << 16;
/// Time that a thread spins before it parks on machines with spare cores. Small copies take no longer.
pub(super) const LINGER: Duration = Duration::from_micros(40);
/// Spin time of a thread that executes the work itself. The next step of a decode is often this close.
const BRIEF: Duration = Duration::from_micros(5);
/// Longest sleep while the driver is expected to take longer. The driver does not wake the thread, and an
/// early end must not be noticed late.
const NAP: Duration = Duration::from_micros(100);

/// Interval at which a thread that waits for another device checks whether its own device is closing.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);

/// Returns the error of work that waited for a point when its device was closed.
pub(super) fn closed(point: Point) -> Error {
    Error::Lost { cause: format!("the device was closed while it waited for {point}") }
}

/// Events at the ends of an enqueued script.
#[derive(Debug)]
pub struct Ends<E> {
    /// Start, unless the end event reports it as well.
    pub first: Option<E>,
    /// End.
    pub last: Arc<E>,
}

/// An in-order queue of a driver.
pub trait DriverQueue: Send + Sync + 'static {
    /// Driver whose scripts it accepts.
    type Driver: Driver;
    /// Event that passes when enqueued work has ended.
    type Event: Send + Sync + 'static;

    /// Whether a script runs on the thread that waits for its event, starting at that wait. That thread also
    /// waits for the script's predecessors, and runs nothing after a failure.
    const RUNS_IN_WAIT: bool = false;

    /// Whether the driver may use memory and kernels of a script briefly after its end event. If so, programs
    /// are dropped after [`finish`](Self::finish).
    const USES_AFTER_END: bool = false;

    /// Enqueues a script to start after events of other queues of the device, and lets the driver begin.
    ///
    /// # Errors
    /// If the driver refuses. Part of the script may be running then.
    fn enqueue(
        &self,
        script: &Arc<Script<Self::Driver>>,
        after: &[&Self::Event],
    ) -> Result<Ends<Self::Event>>;

    /// Returns whether an event has passed or failed, or `None` if polling costs more than waiting.
    fn passed(&self, event: &Self::Event) -> Option<bool>;

    /// Waits for an event, asleep if the driver supports that.
    ///
    /// # Errors
    /// If the work of the event failed.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// Returns start and end of a script that has just ended, in host time ([`Timing::now_ns`]), if the
    /// driver measures them.
    fn times_ns(&self, ends: &Ends<Self::Event>) -> Option<(u64, u64)>;

    /// Waits for all enqueued work.
    ///
    /// # Errors
    /// If any of it failed.
    fn finish(&self) -> Result<()>;
}

/// State shared by the queues of a device.
pub struct Common {
    timelines: [Arc<Timeline>; 3],
    timings: Mutex<Vec<Timing>>,
    lost: OnceLock<Error>,
}

impl Common {
    /// Creates the state of a device.
    pub fn new(device: DeviceId) -> Arc<Self> {
        let timelines = QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device, queue }));
        Arc::new(Self { timelines, timings: Mutex::default(), lost: OnceLock::new() })
    }

    /// Returns the device.
    pub fn device(&self) -> DeviceId {
        self.timelines[0].id().device
    }

    /// Returns the timelines, by [`QueueKind::index`](crate::QueueKind::index).
    pub fn timelines(&self) -> &[Arc<Timeline>; 3] {
        &self.timelines
    }

    /// Records an error: a device loss fails every queue. Returns the error to report; once the device is
    /// lost, this is the first loss.
    pub fn record(&self, error: Error) -> Error {
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

    /// Records the error of a result.
    ///
    /// # Errors
    /// The error of the result, as [`record`](Self::record) returns it.
    pub fn recorded<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.record(error))
    }

    /// Fails if the device is lost.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is.
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

/// Work that must end first: its event for the driver, its point for the completion thread.
pub struct After<E> {
    /// Event, if the driver has it.
    pub event: Option<Arc<E>>,
    /// Timeline.
    pub timeline: Arc<Timeline>,
    /// Value on the timeline.
    pub value: u64,
}

/// A submission that was passed to the driver.
struct Enqueued<Q: DriverQueue> {
    signal: Point,
    after: Vec<After<Q::Event>>,
    ends: Ends<Q::Event>,
    /// Leases, if the submission could start at once.
    reserved: Option<Vec<Reservation>>,
    /// Keeps everything alive that the driver uses.
    script: Arc<Script<Q::Driver>>,
}

/// A submission as the completion thread receives it.
enum Flight<Q: DriverQueue> {
    /// Passed to the driver.
    Enqueued(Enqueued<Q>),
    /// Not enqueued, because a point that it waits for or an earlier submission has failed.
    Failed(Error),
    /// Enqueued in part; no event signals its end.
    Abandoned(Arc<Script<Q::Driver>>),
    /// Programs to drop at this position.
    Retired(Vec<Arc<Script<Q::Driver>>>),
}

/// State guarded by a queue's order. The holder may enqueue.
pub struct Order<Q: DriverQueue> {
    /// `None` once the queue is closed.
    inbox: Option<Sender<Flight<Q>>>,
    /// Submissions sent to the completion thread.
    sent: u64,
    /// Error with which a submission will fail the timeline in its turn. Nothing may be enqueued behind it.
    failed: Option<Error>,
}

/// A queue of the driver. It must be closed before it is dropped.
pub struct TrackedQueue<Q: DriverQueue> {
    queue: Arc<Q>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
    order: Mutex<Order<Q>>,
    /// Events of outstanding submissions, in order.
    events: Mutex<VecDeque<(u64, Arc<Q::Event>)>>,
    /// Submissions that the completion thread has handled.
    finished: Arc<AtomicU64>,
    /// Set to end waits for other devices.
    closing: Arc<AtomicBool>,
    completion: Thread,
}

impl<Q: DriverQueue> TrackedQueue<Q> {
    /// Starts the completion thread of a timeline.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub fn new(name: String, queue: Arc<Q>, timeline: Arc<Timeline>, common: Arc<Common>) -> Result<Self> {
        let (inbox, flights) = unbounded();
        let finished = Arc::<AtomicU64>::default();
        let completion = Completion {
            queue: Arc::clone(&queue),
            timeline: Arc::clone(&timeline),
            common: Arc::clone(&common),
        };
        let closing = Arc::<AtomicBool>::default();
        let (theirs, ends) = (Arc::clone(&finished), Arc::clone(&closing));
        let completion = Thread::spawn(name, move || completion.run_completion(&theirs, &flights, &ends))?;
        let order = Order { inbox: Some(inbox), sent: 0, failed: None };
        Ok(Self {
            queue,
            timeline,
            common,
            order: Mutex::new(order),
            events: Mutex::default(),
            finished,
            closing,
            completion,
        })
    }

    /// Returns the timeline that it advances.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Locks the right to enqueue.
    pub fn order(&self) -> MutexGuard<'_, Order<Q>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Q::Event>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the event of the submission after which `value` passes, if it is outstanding.
    pub fn event(&self, value: u64) -> Option<Arc<Q::Event>> {
        self.events().iter().find(|(signal, _)| *signal >= value).map(|(_, event)| Arc::clone(event))
    }

    /// Enqueues a script. Runs it at once if the host can execute it and it need not wait.
    ///
    /// # Errors
    /// If the driver refuses, or the script can start now and a lease conflicts with its host region ranges.
    pub fn start(
        &self,
        order: &mut Order<Q>,
        script: Arc<Script<Q::Driver>>,
        after: Vec<After<Q::Event>>,
        signal: Point,
    ) -> Result<()> {
        if let Some(error) = order.failed.clone() {
            self.fail_in_turn(order, error);
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

    /// Lets the completion thread end when it has handled everything. Nothing may be enqueued afterwards.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.order().inbox = None;
    }

    /// Waits for the completion thread until the deadline. Returns true if it has ended.
    pub(super) fn ends_before(&self, deadline: Instant) -> bool {
        self.completion.ends_before(deadline)
    }

    /// Fails a submission in its turn, after outstanding work, and everything behind it.
    pub fn fail_in_turn(&self, order: &mut Order<Q>, error: Error) {
        order.failed = Some(error.clone());
        send(order, Flight::Failed(error));
    }

    /// Drops programs that are not in flight. Never waits for the queue's work; the completion thread does if
    /// necessary.
    pub fn retire(&self, programs: Vec<Arc<Script<Q::Driver>>>) {
        if Q::USES_AFTER_END {
            let mut order = self.order();
            let idle = self.finished.load(Ordering::Acquire) == order.sent;
            // An abandoned script fails the timeline, and the queue may still execute it.
            if order.inbox.is_some() && (!idle || self.timeline.failure().is_some()) {
                return send(&mut order, Flight::Retired(programs));
            }
            finish(self.queue.as_ref());
        }
        drop(programs);
    }

    /// Fails the timeline, and all timelines if the device is lost. Returns the error to report.
    pub fn fail(&self, error: Error) -> Error {
        let error = self.record(error);
        self.timeline.fail(error.clone());
        error
    }

    /// Records an error; see [`Common::record`].
    pub fn record(&self, error: Error) -> Error {
        self.common.record(error)
    }

    /// Executes the script on the host. It need not wait for anything.
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
        tracing::debug!(%error, "cannot wait for the rest of a queue's work");
    }
}

fn send<Q: DriverQueue>(order: &mut Order<Q>, flight: Flight<Q>) {
    order.sent += 1;
    // The completion thread ends only when the queue is closed, which drops the inbox first.
    let _ = order.inbox.as_ref().map(|inbox| inbox.send(flight));
}

/// Wait policies of a completion thread: for predecessors of submissions and for their ends.
struct Waits {
    start: Anticipation,
    end: Anticipation,
}

impl Waits {
    fn new<Q: DriverQueue>() -> Self {
        let anticipation = || match Q::RUNS_IN_WAIT {
            // The device's own threads need the cores.
            true => Anticipation::brief(BRIEF),
            false => Anticipation::lingering_if_spare(LINGER),
        };
        Self { start: anticipation(), end: anticipation() }
    }

    /// Waits for a point. Points of the same device pass or fail as long as the driver works. Other points,
    /// for which the driver has no event, are awaited until the device closes.
    ///
    /// # Errors
    /// If the point will not pass.
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
    /// If the work of the event failed.
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

/// The completion thread's view of its queue.
struct Completion<Q: DriverQueue> {
    queue: Arc<Q>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
}

impl<Q: DriverQueue> Completion<Q> {
    /// Runs the completion thread.
    fn run_completion(&self, finished: &AtomicU64, flights: &Receiver<Flight<Q>>, closing: &AtomicBool) {
        let mut waits = Waits::new::<Q>();
        let mut abandoned = Vec::new();
        for flight in flights {
            let ended = match flight {
                Flight::Enqueued(work) => self.end(work, &mut waits, closing),
                Flight::Failed(error) => Err(error),
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
            // The last chance to wait for work without an event. Its error is on the timeline.
            finish(self.queue.as_ref());
        }
    }

    /// Waits for the end of a submission. Its resources are released before its end is reported.
    fn end(&self, work: Enqueued<Q>, waits: &mut Waits, closing: &AtomicBool) -> Result<Point> {
        let Enqueued { signal, after, ends, reserved, script } = work;
        let failure = self.timeline.failure().filter(|_| Q::RUNS_IN_WAIT);
        let started = failure.map_or(Ok(()), Err);
        let started = started.and_then(|()| after.iter().try_for_each(|after| waits.start(after, closing)));
        let reserved = started.and_then(|()| match reserved {
            Some(reserved) => Ok(reserved),
            None => script.reserve(),
        });
        if Q::RUNS_IN_WAIT && reserved.is_err() {
            return reserved.and(Ok(signal));
        }
        // Whatever the outcome, the driver uses it until its event passes.
        let ended = self.common.recorded(waits.end(self.queue.as_ref(), &ends.last));
        reserved?;
        ended?;
        if let Some((start_ns, end_ns)) = self.queue.times_ns(&ends) {
            self.common.add(Timing { point: signal, start_ns, end_ns });
        }
        Ok(signal)
    }
}
