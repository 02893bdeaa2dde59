//! Submitter: enqueues a device's submissions, and holds those that must wait for other devices.
//!
//! A submission that waits only for its own device is enqueued immediately, because the driver has events for
//! those points. A submission that waits for another device is held. Later submissions to the same queue and
//! submissions that wait for a held submission are held too. The device's submission thread enqueues held
//! submissions when the awaited points have passed.
//!
//! If two devices share a semaphore, a submission need not be held until the other device's point passes. It
//! is enqueued as soon as the driver of the other device has the awaited work, and the device itself waits for
//! the semaphore. Enqueued work cannot be cancelled: if the point fails, the work still runs, and the completion
//! thread fails its submission. A wait never precedes the work that raises the semaphore, so that a submission
//! which never reaches its driver blocks no device.
//!
//! This module knows nothing about commands or the driver.

use super::queue::{After, DriverQueue, LINGER, Order, TrackedQueue, closed};
use super::thread::Thread;
use crate::adaptive_wait::{Anticipation, Awaited, Turn};
use crate::driver::{Driver, Script};
use crate::error::{Error, Result};
use crate::ids::{Point, QueueKind};
use crate::timeline::Timeline;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An awaited point.
pub struct Wait<D: Driver> {
    /// Timeline of the point.
    pub timeline: Arc<Timeline>,
    /// Value on the timeline.
    pub value: u64,
    /// Queue of the timeline, if the timeline belongs to this device.
    pub own: Option<QueueKind>,
    /// Semaphore that the queue of the timeline raises, if the two devices share one.
    pub semaphore: Option<Arc<D::Semaphore>>,
}

impl<D: Driver> Wait<D> {
    fn point(&self) -> Point {
        self.timeline.id().at(self.value)
    }
}

/// A submission with resolved IDs.
pub struct Task<D: Driver> {
    /// Script to execute.
    pub script: Arc<Script<D>>,
    /// Awaited points.
    pub waits: Vec<Wait<D>>,
    /// Point that passes when the work is done.
    pub signal: Point,
    /// Whether to report the times of the work.
    pub is_timed: bool,
}

/// Whether a task can be enqueued.
enum Readiness<Q: DriverQueue> {
    /// The task can be enqueued, and runs after these predecessors.
    Ready(Vec<After<Q>>),
    /// The task cannot be enqueued before this point passes.
    Waiting(Point),
    /// The task can never be enqueued, because of this error.
    Failed(Error),
}

/// A task and its readiness, which is never `Waiting`.
type Fate<Q> = (Task<<Q as DriverQueue>::Driver>, Readiness<Q>);

/// Wake-up signal of the submission thread.
#[derive(Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    rung: Condvar,
}

#[derive(Default)]
struct AlarmState {
    /// Number of held tasks. While it is zero, signals do not wake the thread.
    held: usize,
    /// Number of signals so far.
    rings: u64,
    closing: bool,
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals that a change may have made a held task ready.
    fn ring(&self) {
        let mut state = self.lock();
        if state.held > 0 || state.closing {
            state.rings += 1;
            self.rung.notify_one();
        }
    }

    /// Waits until the alarm has rung more than `rings` times or is closing.
    fn heard(&self, rings: u64, turn: Turn) -> Awaited<()> {
        let quiet = |state: &mut AlarmState| state.rings == rings && !state.closing;
        let mut state = self.lock();
        match turn {
            Turn::Look => {}
            Turn::Rest(None) => {
                state = self.rung.wait_while(state, quiet).unwrap_or_else(PoisonError::into_inner);
            }
            Turn::Rest(Some(limit)) => {
                let waited = self.rung.wait_timeout_while(state, limit, quiet);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if quiet(&mut state) { Awaited::Nothing } else { Awaited::Found(()) }
    }

    /// Increments the number of held tasks.
    fn hold(&self) {
        self.lock().held += 1;
    }

    /// Decrements the number of held tasks.
    fn release(&self) {
        self.lock().held -= 1;
    }
}

/// Queues of a device and their held tasks.
struct Shared<Q: DriverQueue> {
    queues: [TrackedQueue<Q>; 3],
    /// Held tasks of each queue in submission order. A thread that needs this lock and the lock of the
    /// queue's `Order` takes the lock of `Order` first.
    held: [Mutex<VecDeque<Task<Q::Driver>>>; 3],
    alarm: Arc<Alarm>,
}

impl<Q: DriverQueue> Shared<Q> {
    fn held(&self, queue: QueueKind) -> MutexGuard<'_, VecDeque<Task<Q::Driver>>> {
        self.held[queue.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readiness(&self, task: &Task<Q::Driver>) -> Readiness<Q> {
        let mut after = Vec::new();
        for wait in &task.waits {
            // The failure must be read before the value. A failed timeline does not advance, so if the value
            // read afterwards is too small, the point will never pass.
            let failure = wait.timeline.failure();
            let event = wait.own.and_then(|queue| self.queues[queue.index()].event(wait.value));
            if wait.timeline.value() >= wait.value {
                continue;
            }
            match (failure, event) {
                (Some(cause), _) => {
                    return Readiness::Failed(Error::Poisoned {
                        point: wait.point(),
                        cause: Box::new(cause),
                    });
                }
                (None, event) => {
                    let is_enqueued = wait.timeline.enqueued() >= wait.value;
                    let semaphore = wait.semaphore.clone().filter(|_| is_enqueued);
                    if event.is_none() && semaphore.is_none() && !Q::RUNS_IN_WAIT {
                        return Readiness::Waiting(wait.point());
                    }
                    let (timeline, value) = (Arc::clone(&wait.timeline), wait.value);
                    after.push(After { event, semaphore, timeline, value });
                }
            }
        }
        Readiness::Ready(after)
    }

    /// Enqueues the held tasks of a queue that are ready. If `closing` is true, fails all other held tasks.
    /// Returns true if it removed any task.
    fn submit_ready(&self, queue: QueueKind, closing: bool) -> bool {
        let tracked = &self.queues[queue.index()];
        let mut moved = false;
        loop {
            let mut order = tracked.order();
            let Some((task, readiness)) = self.next(queue, closing) else { return moved };
            self.alarm.release();
            moved = true;
            if let Err(error) = submit_one(tracked, &mut order, task, readiness) {
                let error = tracked.record(error);
                tracked.fail_in_turn(&mut order, error);
            }
        }
    }

    /// Takes the first held task of a queue if it is ready or has failed. If `closing` is true, also takes a
    /// task that is still waiting, and fails it.
    fn next(&self, queue: QueueKind, closing: bool) -> Option<Fate<Q>> {
        let mut held = self.held(queue);
        let task = held.front()?;
        let mut readiness = match self.queues[queue.index()].timeline().failure() {
            Some(cause) => Readiness::Failed(cause),
            None => self.readiness(task),
        };
        if let Readiness::Waiting(point) = readiness {
            if !closing {
                return None;
            }
            readiness = Readiness::Failed(closed(point));
        }
        Some((held.pop_front()?, readiness))
    }
}

fn submit_one<Q: DriverQueue>(
    tracked: &TrackedQueue<Q>,
    order: &mut Order<Q>,
    task: Task<Q::Driver>,
    readiness: Readiness<Q>,
) -> Result<()> {
    match readiness {
        Readiness::Ready(after) => tracked.start(order, task.script, after, (task.signal, task.is_timed)),
        Readiness::Failed(error) => {
            tracked.fail_in_turn(order, error);
            Ok(())
        }
        Readiness::Waiting(point) => Err(Error::invalid(format!("{point} has not passed"))),
    }
}

/// Handle through which a device submits work. It must be closed before it is dropped.
pub struct Submitter<Q: DriverQueue> {
    shared: Arc<Shared<Q>>,
    thread: Thread,
}

impl<Q: DriverQueue> Submitter<Q> {
    /// Starts the submission thread of a device. `queues` are in the order of [`QueueKind::ALL`].
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
    pub fn new(name: String, queues: [TrackedQueue<Q>; 3]) -> Result<Self> {
        let shared = Arc::new(Shared { queues, held: Default::default(), alarm: Arc::default() });
        let theirs = Arc::clone(&shared);
        let thread = Thread::spawn(name, move || serve(&theirs))?;
        let submitter = Self { shared, thread };
        // A held task may also wait for a held task of another queue of this device.
        submitter.shared.queues.iter().for_each(|tracked| submitter.listen(tracked.timeline()));
        Ok(submitter)
    }

    /// Returns the driver queue that executes the work of `queue`.
    pub fn tracked(&self, queue: QueueKind) -> &TrackedQueue<Q> {
        &self.shared.queues[queue.index()]
    }

    /// Wakes the submission thread whenever `timeline` changes.
    pub fn listen(&self, timeline: &Timeline) {
        // The reference is weak, because a subscription can outlive the device.
        let alarm = Arc::downgrade(&self.shared.alarm);
        timeline.subscribe(move |_| {
            if let Some(alarm) = alarm.upgrade() {
                alarm.ring();
            }
        });
    }

    /// Fails all held tasks and waits until the deadline for the driver to finish. Returns true if all work
    /// has ended. Otherwise leaks the queues, because a thread may still use the resources of its
    /// submissions.
    pub fn close(&self, deadline: Instant) -> bool {
        self.shared.alarm.lock().closing = true;
        self.shared.alarm.ring();
        let queues = &self.shared.queues;
        // A submission thread that is still inside the driver may hold the lock of a queue's `Order`. In that
        // case, the queues are not closed.
        let mut ended = self.thread.ends_before(deadline);
        if ended {
            // Close all queues before waiting for any of them, because a queue may wait for work of another
            // queue.
            queues.iter().for_each(TrackedQueue::close);
            ended = queues.each_ref().map(|tracked| tracked.ends_before(deadline)) == [true; 3];
        }
        if !ended {
            let cause = "the driver did not finish its work while the device was closing".to_string();
            queues.iter().for_each(|tracked| tracked.timeline().fail(Error::Closed { cause: cause.clone() }));
            let _leaked = ManuallyDrop::new(Arc::clone(&self.shared));
        }
        ended
    }

    /// Enqueues a task now or when it becomes ready. Does nothing on a failed timeline.
    ///
    /// # Errors
    /// Returns an error if the task is ready, and either a driver call fails or another lease conflicts with
    /// the task's use of a host region.
    pub fn submit(&self, queue: QueueKind, task: Task<Q::Driver>) -> Result<()> {
        let tracked = self.tracked(queue);
        if tracked.timeline().failure().is_some() {
            return Ok(());
        }
        let mut order = tracked.order();
        let mut held = self.shared.held(queue);
        if held.is_empty() {
            match self.shared.readiness(&task) {
                Readiness::Waiting(_) => {}
                readiness => {
                    drop(held);
                    return submit_one(tracked, &mut order, task, readiness);
                }
            }
        }
        held.push_back(task);
        self.shared.alarm.hold();
        drop((held, order));
        self.shared.alarm.ring();
        Ok(())
    }
}

/// Runs the submission thread.
fn serve<Q: DriverQueue>(shared: &Shared<Q>) {
    let mut anticipation = Anticipation::lingering_if_spare(LINGER);
    loop {
        let (rings, closing) = {
            let state = shared.alarm.lock();
            (state.rings, state.closing)
        };
        // `map` visits every queue. `any` would stop at the first queue that has changed.
        let moved = QueueKind::ALL.map(|queue| shared.submit_ready(queue, closing));
        if moved.contains(&true) {
            continue;
        }
        if closing {
            return;
        }
        anticipation.wait(|turn| shared.alarm.heard(rings, turn));
    }
}
