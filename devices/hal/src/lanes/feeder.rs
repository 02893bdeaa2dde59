//! Submissions of a device on their way to its lanes.
//!
//! One that waits for its own device alone is enqueued when it is made: the driver knows the events. One that waits for
//! another device is held, and so is what comes behind it or waits for it; a thread of the device enqueues them as the
//! points pass.
//!
//! No API's own means are used for that last part: what has to happen when the other device fails would be the driver's to
//! decide, and nothing that was enqueued can be taken back. The backends say what they saw.
//!
//! This module must not know commands or the driver.

use super::lane::{After, DriverQueue, LINGER, Lane, Order, closed};
use super::thread::Thread;
use crate::anticipation::{Anticipation, Outcome, Turn};
use crate::driver::{Driver, Script};
use crate::error::{Error, Result};
use crate::ids::{Point, QueueKind};
use crate::timeline::Timeline;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A point to wait for.
pub struct Wait {
    /// The timeline.
    pub timeline: Arc<Timeline>,
    /// The value on it.
    pub value: u64,
    /// The lane, if it is the device's own.
    pub own: Option<QueueKind>,
}

impl Wait {
    fn point(&self) -> Point {
        self.timeline.id().at(self.value)
    }
}

/// A submission whose names are resolved.
pub struct Task<D: Driver> {
    /// What to do.
    pub script: Arc<Script<D>>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// What passes when it is done.
    pub signal: Point,
}

/// Whether a task can be enqueued.
enum Readiness<E> {
    /// After these, which the driver has.
    Ready(Vec<After<E>>),
    /// Not yet: because of this point.
    Waiting(Point),
    /// Never.
    Failed(Error),
}

/// A task with what is to become of it.
type Fate<Q> = (Task<<Q as DriverQueue>::Driver>, Readiness<<Q as DriverQueue>::Event>);

/// What wakes the thread.
#[derive(Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    rung: Condvar,
}

#[derive(Default)]
struct AlarmState {
    /// Tasks that are held; while there are none, nobody need be woken.
    held: usize,
    /// How often it was rung.
    rings: u64,
    closing: bool,
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something changed that a task may wait for.
    fn ring(&self) {
        let mut state = self.lock();
        if state.held > 0 || state.closing {
            state.rings += 1;
            self.rung.notify_one();
        }
    }

    /// Whether it was rung after so many times.
    fn heard(&self, rings: u64, turn: Turn) -> Outcome<()> {
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
        if quiet(&mut state) { Outcome::Nothing } else { Outcome::Found(()) }
    }

    /// One more task is held.
    fn hold(&self) {
        self.lock().held += 1;
    }

    /// One less is.
    fn release(&self) {
        self.lock().held -= 1;
    }
}

/// A device's lanes, with what each of them is to get.
struct Shared<Q: DriverQueue> {
    lanes: [Lane<Q>; 3],
    /// Tasks of each lane that are held, in order. Locked after the lane's order.
    held: [Mutex<VecDeque<Task<Q::Driver>>>; 3],
    alarm: Arc<Alarm>,
}

impl<Q: DriverQueue> Shared<Q> {
    fn held(&self, queue: QueueKind) -> MutexGuard<'_, VecDeque<Task<Q::Driver>>> {
        self.held[queue.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readiness(&self, task: &Task<Q::Driver>) -> Readiness<Q::Event> {
        let mut after = Vec::new();
        for wait in &task.waits {
            // The order of the questions counts: what fails does not pass, and what has passed stays so.
            let failure = wait.timeline.failure();
            let event = wait.own.and_then(|queue| self.lanes[queue.index()].event(wait.value));
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
                (None, None) if !Q::RUNS_IN_WAIT => return Readiness::Waiting(wait.point()),
                (None, event) => {
                    after.push(After { event, timeline: Arc::clone(&wait.timeline), value: wait.value });
                }
            }
        }
        Readiness::Ready(after)
    }

    /// Enqueues what can be enqueued by now; with `closing`, lets the rest fail. Whether anything moved.
    fn feed(&self, queue: QueueKind, closing: bool) -> bool {
        let lane = &self.lanes[queue.index()];
        let mut moved = false;
        loop {
            let mut order = lane.order();
            let Some((task, readiness)) = self.next(queue, closing) else { return moved };
            self.alarm.release();
            moved = true;
            if let Err(error) = feed_one(lane, &mut order, task, readiness) {
                let error = lane.told(error);
                lane.doom(&mut order, error);
            }
        }
    }

    /// Takes the first task of a lane if its fate is known.
    fn next(&self, queue: QueueKind, closing: bool) -> Option<Fate<Q>> {
        let mut held = self.held(queue);
        let task = held.front()?;
        let mut readiness = match self.lanes[queue.index()].timeline().failure() {
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

fn feed_one<Q: DriverQueue>(
    lane: &Lane<Q>,
    order: &mut Order<Q>,
    task: Task<Q::Driver>,
    readiness: Readiness<Q::Event>,
) -> Result<()> {
    match readiness {
        Readiness::Ready(after) => lane.start(order, task.script, after, task.signal),
        Readiness::Failed(error) => {
            lane.doom(order, error);
            Ok(())
        }
        Readiness::Waiting(point) => Err(Error::invalid(format!("{point} has not passed"))),
    }
}

/// The device's end. It is closed before it is dropped.
pub struct Feeder<Q: DriverQueue> {
    shared: Arc<Shared<Q>>,
    thread: Thread,
}

impl<Q: DriverQueue> Feeder<Q> {
    /// Starts the thread of a device with these lanes, by [`QueueKind::index`].
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub fn new(name: String, lanes: [Lane<Q>; 3]) -> Result<Self> {
        let shared = Arc::new(Shared { lanes, held: Default::default(), alarm: Arc::default() });
        let theirs = Arc::clone(&shared);
        let thread = Thread::spawn(name, move || serve(&theirs))?;
        let feeder = Self { shared, thread };
        // What is held may also wait for what is held on another lane.
        feeder.shared.lanes.iter().for_each(|lane| feeder.listen(lane.timeline()));
        Ok(feeder)
    }

    /// The lane of a queue.
    pub fn lane(&self, queue: QueueKind) -> &Lane<Q> {
        &self.shared.lanes[queue.index()]
    }

    /// Looks again whenever this timeline moves.
    pub fn listen(&self, timeline: &Timeline) {
        // A subscription outlives the device.
        let alarm = Arc::downgrade(&self.shared.alarm);
        timeline.subscribe(move |_| {
            if let Some(alarm) = alarm.upgrade() {
                alarm.ring();
            }
        });
    }

    /// Fails held tasks and waits for the driver until the deadline. Returns whether all work has ended. If not, a thread still
    /// uses what its submissions name, and the lanes are leaked.
    pub fn close(&self, deadline: Instant) -> bool {
        self.shared.alarm.lock().closing = true;
        self.shared.alarm.ring();
        let lanes = &self.shared.lanes;
        // The thread may be in the driver, with a lane's order.
        let mut ended = self.thread.ends_before(deadline);
        if ended {
            // A lane may wait for another, which waits for what closing ends.
            lanes.iter().for_each(Lane::close);
            ended = lanes.each_ref().map(|lane| lane.ends_before(deadline)) == [true; 3];
        }
        if !ended {
            let cause = "the driver did not end its work while the device was closed".to_string();
            lanes.iter().for_each(|lane| lane.timeline().fail(Error::Closed { cause: cause.clone() }));
            let _leaked = ManuallyDrop::new(Arc::clone(&self.shared));
        }
        ended
    }

    /// Enqueues a task on a lane, now or when it can be. On a timeline that has failed nothing happens any more.
    ///
    /// # Errors
    /// If it can be now and the driver refuses, or somebody else uses its bytes of a host region.
    pub fn submit(&self, queue: QueueKind, task: Task<Q::Driver>) -> Result<()> {
        let lane = self.lane(queue);
        if lane.timeline().failure().is_some() {
            return Ok(());
        }
        let mut order = lane.order();
        let mut held = self.shared.held(queue);
        if held.is_empty() {
            match self.shared.readiness(&task) {
                Readiness::Waiting(_) => {}
                readiness => {
                    drop(held);
                    return feed_one(lane, &mut order, task, readiness);
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

/// The body of the thread.
fn serve<Q: DriverQueue>(shared: &Shared<Q>) {
    let mut anticipation = Anticipation::lingering_if_spare(LINGER);
    loop {
        let (rings, closing) = {
            let state = shared.alarm.lock();
            (state.rings, state.closing)
        };
        // Every lane has its turn, whatever became of the others.
        let moved = QueueKind::ALL.map(|queue| shared.feed(queue, closing));
        if moved.contains(&true) {
            continue;
        }
        if closing {
            return;
        }
        anticipation.wait(|turn| shared.alarm.heard(rings, turn));
    }
}
