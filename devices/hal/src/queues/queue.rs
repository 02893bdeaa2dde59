//! One in-order driver queue, its outstanding work, and the completion thread that advances its timeline.
//!
//! The completion thread handles submissions in order. For each submission, it first waits for the points of
//! other queues, and only then for the submission's last event. If it waited for the event immediately, some
//! drivers would spin until those points pass. The thread is normally parked. It spins only around the times
//! at which it expects a point or an event ([`Anticipation`]).
//!
//! # Leases of a submission
//! Points order all work, and leases of host regions verify this order. A submission that can start
//! immediately takes its leases before it is enqueued. If a lease conflicts, the submission is rejected. For
//! any other submission, the completion thread takes the leases once the points that the submission waits for
//! have passed. A conflict at that time is the caller's error and fails the timeline. The leases last until
//! the submission's own point passes. Regions stay alive until the driver has finished with them, even if the
//! timeline has failed.
//!
//! This module knows about scripts, but not about buffers, kernels or other devices.

use super::thread::Thread;
use crate::adaptive_wait::{Anticipation, Awaited, Turn};
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

/// Maximum size in bytes of a script of copies that the submitting thread runs itself.
const INLINE_BYTES: usize = 64 << 10;
/// Maximum number of stored timings that the caller has not taken yet.
const MAX_TIMINGS: usize = 1 << 16;
/// Time for which a thread spins before it parks, on machines with spare cores. Small copies end within this
/// time.
pub(super) const LINGER: Duration = Duration::from_micros(40);
/// Time for which a completion thread that executes scripts itself spins before it parks. The next decode
/// step often arrives within this time. On machines with spare cores, the thread also spins around predicted times.
const BRIEF: Duration = Duration::from_micros(5);
/// Maximum time between two polls of the driver. The driver does not wake the thread, so after a longer sleep
/// the thread could notice an early end too late.
const NAP: Duration = Duration::from_micros(100);

/// Interval at which a thread that waits for another device checks whether its own device is closing.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);

/// Returns the error for work that was still waiting for a point when its device was closed.
pub(super) fn closed(point: Point) -> Error {
    Error::Lost { cause: format!("the device was closed while it waited for {point}") }
}

/// Events at the start and the end of an enqueued script.
#[derive(Debug)]
pub struct Ends<E> {
    /// Start event, or `None` if the end event also reports the start, or if the times are not needed.
    pub first: Option<E>,
    /// End event.
    pub last: Arc<E>,
}

/// Semaphore of a queue's driver.
pub type Semaphore<Q> = <<Q as DriverQueue>::Driver as Driver>::Semaphore;

/// Events and semaphores between which a script runs.
pub struct Fences<'a, Q: DriverQueue + ?Sized> {
    /// Events of other queues of the device. The script starts after them.
    pub after: &'a [&'a Q::Event],
    /// Semaphores that other devices raise. The script starts when they have these values.
    pub waits: &'a [(&'a Semaphore<Q>, u64)],
    /// Semaphores that the end of the script raises to these values.
    pub raises: &'a [(&'a Semaphore<Q>, u64)],
    /// Whether the events must record the times at which the script starts and ends.
    pub are_timed: bool,
}

/// An in-order queue of a driver.
pub trait DriverQueue: Send + Sync + 'static {
    /// Driver that creates the scripts for this queue.
    type Driver: Driver;
    /// Event that passes when enqueued work ends.
    type Event: Send + Sync + 'static;

    /// Whether [`wait`](Self::wait) runs the event's script on the calling thread. If so, `wait` also waits
    /// for the script's predecessors, and runs no more scripts after a failure.
    const RUNS_IN_WAIT: bool = false;

    /// Whether the driver may still use the memory and kernels of a script for a short time after its end
    /// event. If so, programs are dropped only after [`finish`](Self::finish).
    const USES_AFTER_END: bool = false;

    /// Enqueues a script and flushes the queue. The script starts and ends as `fences` says.
    ///
    /// # Errors
    /// Returns an error if a driver call fails. Part of the script may already be running, except after
    /// [`Error::Refused`].
    fn enqueue(
        &self,
        script: &Arc<Script<Self::Driver>>,
        fences: &Fences<'_, Self>,
    ) -> Result<Ends<Self::Event>>;

    /// Returns true if an event has passed or failed. Returns `None` if polling costs more than waiting.
    fn passed(&self, event: &Self::Event) -> Option<bool>;

    /// Waits for an event. The thread sleeps if the driver supports it.
    ///
    /// # Errors
    /// Returns an error if the work of the event failed.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// Returns the start and end time of a script that has just ended, in host time ([`Timing::now_ns`]).
    /// Returns `None` if the driver does not measure these times.
    fn times_ns(&self, ends: &Ends<Self::Event>) -> Option<(u64, u64)>;

    /// Waits for all enqueued work.
    ///
    /// # Errors
    /// Returns an error if any of the work failed.
    fn finish(&self) -> Result<()>;
}

/// State that the queues of a device share.
pub struct Common {
    timelines: [Arc<Timeline>; 3],
    timings: Mutex<Vec<Timing>>,
    lost: OnceLock<Error>,
}

impl Common {
    /// Creates the state that the queues of `device` share.
    pub fn new(device: DeviceId) -> Arc<Self> {
        let timelines = QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device, queue }));
        Arc::new(Self { timelines, timings: Mutex::default(), lost: OnceLock::new() })
    }

    /// Returns the ID of the device.
    pub fn device(&self) -> DeviceId {
        self.timelines[0].id().device
    }

    /// Returns the timelines in the order of [`QueueKind::ALL`](crate::QueueKind::ALL).
    pub fn timelines(&self) -> &[Arc<Timeline>; 3] {
        &self.timelines
    }

    /// Records an error. If `error` is a device loss, fails the timelines of all queues. Returns the error to
    /// report: the first recorded loss if `error` is a loss, otherwise `error`.
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

    /// Records the error of `result`, if there is one.
    ///
    /// # Errors
    /// Returns the error that [`record`](Self::record) returns.
    pub fn recorded<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.record(error))
    }

    /// Fails if the device is lost.
    ///
    /// # Errors
    /// Returns the first [`Error::Lost`] of the device.
    pub fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Appends the collected timings to `timings`.
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

/// A predecessor of a submission. The driver waits for its event, and the completion thread waits for its
/// point.
pub struct After<Q: DriverQueue> {
    /// Event, or `None` if the driver has no event for the point.
    pub event: Option<Arc<Q::Event>>,
    /// Semaphore for which the device waits, if another device signals the point and both share one.
    pub semaphore: Option<Arc<Semaphore<Q>>>,
    /// Timeline of the predecessor.
    pub timeline: Arc<Timeline>,
    /// Value on the timeline that the predecessor signals.
    pub value: u64,
}

impl<Q: DriverQueue> After<Q> {
    /// Returns the semaphore for which the device waits, and the awaited value.
    fn wait(&self) -> Option<(&Semaphore<Q>, u64)> {
        self.semaphore.as_deref().map(|semaphore| (semaphore, self.value))
    }
}

/// A submission that was passed to the driver.
struct Enqueued<Q: DriverQueue> {
    signal: Point,
    after: Vec<After<Q>>,
    ends: Ends<Q::Event>,
    /// Leases of the script's host regions, if the submission could start immediately.
    reserved: Option<Vec<Reservation>>,
    /// Script, which keeps the resources that the driver uses alive.
    script: Arc<Script<Q::Driver>>,
}

/// A message to the completion thread.
enum Flight<Q: DriverQueue> {
    /// A submission that was passed to the driver.
    Enqueued(Enqueued<Q>),
    /// A submission that was not enqueued because an awaited point or an earlier submission has failed.
    Failed(Error),
    /// The script of a submission that was only partly enqueued. No event signals its end.
    Abandoned(Arc<Script<Q::Driver>>),
    /// Programs to drop when all earlier submissions have ended.
    Retired(Vec<Arc<Script<Q::Driver>>>),
}

/// State under the lock that serialises a queue's submissions. Only the holder of the lock may enqueue.
pub struct Order<Q: DriverQueue> {
    /// Channel to the completion thread. It is `None` once the queue is closed.
    inbox: Option<Sender<Flight<Q>>>,
    /// Number of messages sent to the completion thread.
    sent: u64,
    /// Error with which the completion thread will fail the timeline. Once it is set, nothing more may be
    /// enqueued.
    failed: Option<Error>,
    /// Semaphores that each submission raises to the value of its point.
    raised: Vec<Arc<Semaphore<Q>>>,
}

/// A driver queue, its timeline and its completion thread. It must be closed before it is dropped.
pub struct TrackedQueue<Q: DriverQueue> {
    queue: Arc<Q>,
    timeline: Arc<Timeline>,
    common: Arc<Common>,
    order: Mutex<Order<Q>>,
    /// Events of outstanding submissions, in order.
    events: Mutex<VecDeque<(u64, Arc<Q::Event>)>>,
    /// Number of messages that the completion thread has handled.
    finished: Arc<AtomicU64>,
    /// Whether the queue is closing. A closing queue stops waiting for other devices.
    closing: Arc<AtomicBool>,
    completion: Thread,
}

impl<Q: DriverQueue> TrackedQueue<Q> {
    /// Creates a queue and starts its completion thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
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
        let order = Order { inbox: Some(inbox), sent: 0, failed: None, raised: Vec::new() };
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

    /// Returns the timeline of the queue.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Locks the submission order.
    pub fn order(&self) -> MutexGuard<'_, Order<Q>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes each later submission raise `semaphore` to the value of its point.
    pub(crate) fn raise(&self, semaphore: Arc<Semaphore<Q>>) {
        self.order().raised.push(semaphore);
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Q::Event>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the event of the first outstanding submission that signals `value` or a larger value.
    pub fn event(&self, value: u64) -> Option<Arc<Q::Event>> {
        self.events().iter().find(|(signal, _)| *signal >= value).map(|(_, event)| Arc::clone(event))
    }

    /// Enqueues a script. A small script of copies that has nothing to wait for runs immediately on the
    /// calling thread.
    ///
    /// # Errors
    /// Returns an error if a driver call fails. Also returns an error if the script can start now and another
    /// lease conflicts with its use of a host region.
    pub fn start(
        &self,
        order: &mut Order<Q>,
        script: Arc<Script<Q::Driver>>,
        after: Vec<After<Q>>,
        (signal, is_timed): (Point, bool),
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
        let ends = self.enqueue(order, &script, &after, (signal, is_timed))?;
        let mut events = self.events();
        while events.front().is_some_and(|(value, _)| *value <= self.timeline.value()) {
            events.pop_front();
        }
        events.push_back((signal.value, Arc::clone(&ends.last)));
        drop(events);
        send(order, Flight::Enqueued(Enqueued { signal, after, ends, reserved, script }));
        self.timeline.enqueue(signal.value);
        Ok(())
    }

    /// Closes the queue. Nothing may be enqueued afterwards. The completion thread ends when it has handled
    /// all messages.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.order().inbox = None;
    }

    /// Waits for the completion thread until the deadline. Returns true if the thread has ended.
    pub(super) fn ends_before(&self, deadline: Instant) -> bool {
        self.completion.ends_before(deadline)
    }

    /// Fails a submission and all later submissions. Reports the failure only after the outstanding work has
    /// ended.
    pub fn fail_in_turn(&self, order: &mut Order<Q>, error: Error) {
        order.failed = Some(error.clone());
        send(order, Flight::Failed(error));
    }

    /// Drops programs that are not in flight. If the driver may still use them, the completion thread drops
    /// them later, so that the caller does not wait.
    pub fn retire(&self, programs: Vec<Arc<Script<Q::Driver>>>) {
        if Q::USES_AFTER_END {
            let mut order = self.order();
            let idle = self.finished.load(Ordering::Acquire) == order.sent;
            // On a failed timeline, the queue may still execute an abandoned script.
            if order.inbox.is_some() && (!idle || self.timeline.failure().is_some()) {
                return send(&mut order, Flight::Retired(programs));
            }
            finish(self.queue.as_ref());
        }
        drop(programs);
    }

    /// Fails the queue's timeline. If `error` is a device loss, fails the timelines of all queues. Returns
    /// the error to report.
    pub fn fail(&self, error: Error) -> Error {
        let error = self.record(error);
        self.timeline.fail(error.clone());
        error
    }

    /// Records an error, as [`Common::record`] does.
    pub fn record(&self, error: Error) -> Error {
        self.common.record(error)
    }

    /// Executes a script on the host. The script must have no outstanding predecessors.
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
        after: &[After<Q>],
        (signal, are_timed): (Point, bool),
    ) -> Result<Ends<Q::Event>> {
        let events: Vec<&Q::Event> = after.iter().filter_map(|after| after.event.as_deref()).collect();
        let waits: Vec<_> = after.iter().filter_map(After::wait).collect();
        let raises: Vec<_> =
            order.raised.iter().map(|semaphore| (semaphore.as_ref(), signal.value)).collect();
        let fences = Fences { after: &events, waits: &waits, raises: &raises, are_timed };
        let enqueued = self.queue.enqueue(script, &fences);
        enqueued.inspect_err(|error| {
            if !matches!(error, Error::Refused { .. }) {
                send(order, Flight::Abandoned(Arc::clone(script)));
            }
        })
    }
}

fn finish<Q: DriverQueue>(queue: &Q) {
    if let Err(error) = queue.finish() {
        tracing::debug!(%error, "cannot wait for the rest of a queue's work");
    }
}

fn send<Q: DriverQueue>(order: &mut Order<Q>, flight: Flight<Q>) {
    order.sent += 1;
    if let Some(inbox) = &order.inbox {
        inbox.send(flight).expect("the completion thread receives until the inbox is dropped");
    }
}

/// Wait policies of a completion thread: one for predecessors, one for the ends of submissions.
struct Waits {
    start: Anticipation,
    end: Anticipation,
}

impl Waits {
    fn new<Q: DriverQueue>() -> Self {
        let anticipation = || match Q::RUNS_IN_WAIT {
            // If `wait` runs the scripts, the device's kernel threads need the cores, unless there are many.
            true => Anticipation::lingering(BRIEF),
            false => Anticipation::lingering_if_spare(LINGER),
        };
        Self { start: anticipation(), end: anticipation() }
    }

    /// Waits for the point of `after`. A point of the same device always passes or fails, unless the driver
    /// hangs. A point of another device has no event here. A wait for such a point also ends when this device
    /// closes.
    ///
    /// # Errors
    /// Returns an error if the timeline of the point fails or the device closes.
    fn start<Q: DriverQueue>(&mut self, after: &After<Q>, closing: &AtomicBool) -> Result<()> {
        let After { event, timeline, value, .. } = after;
        let most = event.is_none().then_some(CLOSING_PERIOD);
        let passed = self.start.wait(|turn| match turn {
            Turn::Look if timeline.value() >= *value => Awaited::Found(Ok(())),
            Turn::Look => Awaited::Nothing,
            Turn::Rest(limit) => match timeline.wait(*value, limit.into_iter().chain(most).min()) {
                Ok(false) if event.is_none() && closing.load(Ordering::Acquire) => {
                    Awaited::Found(Err(closed(timeline.id().at(*value))))
                }
                Ok(false) => Awaited::Nothing,
                known => Awaited::Found(known.map(drop)),
            },
        });
        passed.unwrap_or(Ok(()))
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// Returns an error if the work of the event failed.
    fn end<Q: DriverQueue>(&mut self, queue: &Q, event: &Q::Event) -> Result<()> {
        let ended = self.end.wait(|turn| match (turn, queue.passed(event)) {
            (Turn::Look, Some(false)) => Awaited::Nothing,
            (Turn::Rest(Some(limit)), Some(false)) => {
                std::thread::sleep(limit.min(NAP));
                Awaited::Nothing
            }
            _ => Awaited::Found(queue.wait(event)),
        });
        ended.unwrap_or(Ok(()))
    }
}

/// The part of a queue's state that the completion thread uses.
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
        let mut next = match Q::RUNS_IN_WAIT {
            true => Anticipation::lingering_if_spare(BRIEF),
            false => Anticipation::default(),
        };
        while let Some(flight) = next.receive(flights) {
            let ended = match flight {
                Flight::Enqueued(work) => self.end(work, &mut waits, closing),
                Flight::Failed(error) => Err(error),
                Flight::Abandoned(script) => {
                    abandoned.push(script);
                    // The caller of `start` fails the timeline.
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
            // Abandoned scripts have no event, so this call waits for the whole queue. The timeline has
            // already failed with the error.
            finish(self.queue.as_ref());
        }
    }

    /// Waits for the end of a submission and returns its point. Releases the submission's resources before it
    /// returns, so that the caller reports the end only afterwards.
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
        // Even after an error, the driver uses the script until its last event has passed.
        let ended = self.common.recorded(waits.end(self.queue.as_ref(), &ends.last));
        reserved?;
        ended?;
        if let Some((start_ns, end_ns)) = self.queue.times_ns(&ends) {
            self.common.add(Timing { point: signal, start_ns, end_ns });
        }
        Ok(signal)
    }
}
