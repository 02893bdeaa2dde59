//! A queue: a thread that takes submissions in order, waits for their points, runs them and moves the timeline.
//!
//! Waiting spins for a few microseconds before it parks, since the next step of a decode is often that near.
//! Small copies skip the thread: if a queue is idle and all points of a submission have passed, it runs on the caller's
//! thread, which takes less time than waking another.
//!
//! This module must not know buffers or kernels, only scripts.

use crate::script::Script;
use crate::team::{SPINS, Team, run_alone, spawn};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::{Duty, Error, Point, Result, Timeline, Timing};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most bytes that are copied on the caller's thread: a few microseconds' worth.
const INLINE_BYTES: usize = 64 << 10;
/// How soon a queue that waits for another device notices that its own device closes.
const CLOSING_PERIOD: Duration = Duration::from_millis(20);
/// Most timings kept for someone to take.
const MAX_TIMINGS: usize = 1 << 16;

/// The timings of a device's queues that nobody has taken yet.
pub(crate) type Timings = Arc<Mutex<Vec<Timing>>>;

/// A point to wait for.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) value: u64,
    /// Of another device. Own points pass or fail as long as the device's threads run; a foreign one may never.
    pub(crate) foreign: bool,
}

impl Wait {
    fn has_passed(&self) -> bool {
        self.timeline.value() >= self.value
    }

    /// Blocks until the point has passed.
    fn block(&self, closing: &AtomicBool) -> Result<()> {
        for _ in 0..SPINS {
            if self.has_passed() {
                return Ok(());
            }
            spin_loop();
        }
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

/// A submission on its way through a queue.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) script: Arc<Script>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) signal: Point,
}

/// What a queue's thread shares with the device.
#[derive(Debug)]
struct Shared {
    timeline: Arc<Timeline>,
    /// Submissions that the thread has dealt with.
    finished: AtomicU64,
    closing: Arc<AtomicBool>,
    timings: Timings,
}

impl Shared {
    fn execute(&self, task: Task, run: impl FnOnce(&Arc<Script>) -> Result<()>) {
        if self.timeline.failure().is_some() {
            return;
        }
        let Task { script, waits, signal } = task;
        let outcome = waits.iter().try_for_each(|wait| wait.block(&self.closing)).and_then(|()| {
            let start_ns = Timing::now_ns();
            run(&script)?;
            self.note(Timing { point: signal, start_ns, end_ns: Timing::now_ns() });
            Ok(())
        });
        // Let go of memory before anyone hears that it is not in use any more.
        drop(script);
        match outcome {
            Ok(()) => self.timeline.advance(signal.value),
            Err(error) => self.timeline.fail(error),
        }
    }

    fn note(&self, timing: Timing) {
        let mut timings = self.timings.lock().unwrap_or_else(PoisonError::into_inner);
        if timings.len() < MAX_TIMINGS {
            timings.push(timing);
        }
    }
}

/// The device's end of a queue. Dropping it waits for the thread, which runs what can still run; set `closing` before,
/// so that it does not wait for other devices.
#[derive(Debug)]
pub(crate) struct Queue {
    shared: Arc<Shared>,
    /// `None` once the queue is being dropped.
    inbox: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Submissions handed to the thread.
    sent: u64,
    /// Whether small copies may run on the caller's thread.
    inline: bool,
}

impl Queue {
    /// Starts the queue of a timeline. Scripts run on `team`, or on the queue's thread alone; small copies then skip it. With
    /// a duty, a team rests after each script, and that counts as the script's time.
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub(crate) fn new(
        name: String,
        timeline: Arc<Timeline>,
        team: Option<(Team, Option<Duty>)>,
        closing: Arc<AtomicBool>,
        timings: Timings,
    ) -> Result<Self> {
        let shared = Arc::new(Shared { timeline, finished: AtomicU64::new(0), closing, timings });
        let (inbox, tasks) = unbounded();
        let inline = team.is_none();
        let theirs = Arc::clone(&shared);
        let thread = spawn(name, move || serve(&theirs, &tasks, team))?;
        Ok(Self { shared, inbox: Some(inbox), thread: Some(thread), sent: 0, inline })
    }

    /// The queue's timeline.
    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.shared.timeline
    }

    /// Enqueues a task, or runs it at once if that is quicker.
    pub(crate) fn submit(&mut self, mut task: Task) {
        task.waits.retain(|wait| !wait.has_passed());
        if self.may_run_inline(&task) {
            self.shared.execute(task, |script| run_alone(script));
            return;
        }
        self.sent += 1;
        let sent = self.inbox.as_ref().map(|inbox| inbox.send(task));
        if !matches!(sent, Some(Ok(()))) {
            self.shared.timeline.fail(Error::Lost { cause: "the queue's thread has ended".into() });
        }
    }

    fn may_run_inline(&self, task: &Task) -> bool {
        self.inline
            && task.waits.is_empty()
            && self.shared.finished.load(Ordering::Acquire) == self.sent
            && task.script.transfer_bytes().is_some_and(|bytes| bytes <= INLINE_BYTES)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of kernels; there is nothing left to report.
            let _ = thread.join();
        }
    }
}

/// The body of a queue's thread.
fn serve(shared: &Shared, tasks: &Receiver<Task>, mut team: Option<(Team, Option<Duty>)>) {
    for task in tasks {
        match &mut team {
            Some((team, None)) => shared.execute(task, |script| team.run(script)),
            Some((team, Some(duty))) => shared.execute(task, |script| {
                let start_ns = Timing::now_ns();
                team.run(script)?;
                duty.rest(Timing::now_ns().saturating_sub(start_ns), &shared.closing);
                Ok(())
            }),
            None => shared.execute(task, |script| run_alone(script)),
        }
        shared.finished.fetch_add(1, Ordering::Release);
    }
}
