//! Host mirror of a queue's progress: a monotonic value that threads can wait for and subscribe to.
//!
//! A backend advances the mirror on its own threads. Other devices import the mirror and wait for its points.

use crate::error::{Error, Result};
use crate::ids::{Point, TimelineId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Progress of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// All points up to this value have passed.
    pub value: u64,
    /// First failure, if any. After a failure, no later point will pass.
    pub failure: Option<Error>,
}

type Subscriber = Box<dyn Fn(&Progress) + Send>;

struct State {
    failure: Option<Error>,
    subscribers: Vec<Subscriber>,
}

/// A monotonic counter of finished work, and the error that ended it, if any.
pub struct Timeline {
    id: TimelineId,
    value: AtomicU64,
    /// Value of the latest submission that the driver has.
    enqueued: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Timeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timeline").field("id", &self.id).field("value", &self.value()).finish_non_exhaustive()
    }
}

impl Timeline {
    /// Returns a timeline at value 0.
    pub fn new(id: TimelineId) -> Arc<Self> {
        Arc::new(Self {
            id,
            value: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            state: Mutex::new(State { failure: None, subscribers: Vec::new() }),
            changed: Condvar::new(),
        })
    }

    /// Returns the ID.
    pub fn id(&self) -> TimelineId {
        self.id
    }

    /// Returns the value up to which all points have passed.
    pub fn value(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Returns the value of the latest submission that the driver has.
    pub fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    /// Records that the driver has the submission that signals `value`.
    pub fn enqueue(&self, value: u64) {
        self.enqueued.fetch_max(value, Ordering::Release);
    }

    /// Returns the error that ended the timeline.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Advances the timeline to `value` and notifies waiters and subscribers. Does nothing if `value` is not
    /// larger than the current value, or if the timeline has failed.
    pub fn advance(&self, value: u64) {
        let state = self.lock();
        if state.failure.is_none() && value > self.value.load(Ordering::Relaxed) {
            self.value.store(value, Ordering::Release);
            self.announce(state);
        }
    }

    /// Fails the timeline. Points that have not passed will never pass. Errors after the first are ignored.
    pub fn fail(&self, error: Error) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.failure = Some(error);
            self.announce(state);
        }
    }

    /// Calls `subscriber` now and after each later change, on the thread that makes the change (a thread of
    /// the backend or the submitting thread). The subscriber must be quick, must not block and must not call
    /// back into the timeline. For example, it would deadlock if it waited for room in a mailbox that the
    /// same thread empties.
    pub fn subscribe(&self, subscriber: impl Fn(&Progress) + Send + 'static) {
        let mut state = self.lock();
        subscriber(&Progress { value: self.value(), failure: state.failure.clone() });
        state.subscribers.push(Box::new(subscriber));
    }

    /// Blocks until `value` has passed or `timeout` has elapsed. Returns `Ok(false)` on timeout.
    ///
    /// # Errors
    /// Returns [`Error::Poisoned`] if the timeline failed before reaching the value.
    pub fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<bool> {
        if self.value() >= value {
            return Ok(true);
        }
        let deadline = timeout.map(|t| Instant::now() + t);
        let mut state = self.lock();
        loop {
            if self.value() >= value {
                return Ok(true);
            }
            if let Some(cause) = &state.failure {
                let point = Point { timeline: self.id, value };
                return Err(Error::Poisoned { point, cause: Box::new(cause.clone()) });
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn announce(&self, state: MutexGuard<'_, State>) {
        let progress = Progress { value: self.value(), failure: state.failure.clone() };
        for subscriber in &state.subscribers {
            subscriber(&progress);
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, QueueKind};
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const ID: TimelineId = TimelineId { device: DeviceId(1), queue: QueueKind::Compute };

    fn lost() -> Error {
        Error::Lost { cause: "unplugged".into() }
    }

    #[test]
    fn a_timeline_only_moves_forward() {
        let timeline = Timeline::new(ID);
        assert_eq!(timeline.value(), 0);
        assert_eq!(timeline.wait(0, None), Ok(true));
        timeline.advance(3);
        timeline.advance(2);
        assert_eq!(timeline.value(), 3);
        assert_eq!(timeline.wait(3, None), Ok(true));
        assert_eq!(timeline.wait(4, Some(Duration::from_millis(1))), Ok(false));
    }

    #[test]
    fn the_first_failure_ends_a_timeline() {
        let timeline = Timeline::new(ID);
        timeline.advance(2);
        timeline.fail(lost());
        timeline.fail(Error::invalid("later"));
        timeline.advance(5);
        assert_eq!((timeline.value(), timeline.failure()), (2, Some(lost())));
        assert_eq!(timeline.wait(2, None), Ok(true), "what has passed stays passed");
        assert_eq!(timeline.wait(3, None), Err(Error::Poisoned { point: ID.at(3), cause: Box::new(lost()) }));
    }

    #[test]
    fn subscribers_receive_the_current_state_and_every_change() {
        let timeline = Timeline::new(ID);
        timeline.advance(1);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        timeline.subscribe(move |progress| sink.lock().unwrap().push(progress.clone()));
        timeline.advance(1);
        timeline.advance(4);
        timeline.fail(lost());
        timeline.advance(5);
        let at = |value, failure| Progress { value, failure };
        assert_eq!(*heard.lock().unwrap(), [at(1, None), at(4, None), at(4, Some(lost()))]);
    }

    #[test]
    fn threads_wait_for_their_own_points() {
        let timeline = Timeline::new(ID);
        let passed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for value in 1..=8u64 {
                let (timeline, passed) = (&timeline, &passed);
                scope.spawn(move || {
                    assert_eq!(timeline.wait(value, Some(Duration::from_secs(30))), Ok(true));
                    assert!(timeline.value() >= value);
                    passed.fetch_add(1, Ordering::Relaxed);
                });
            }
            for value in 1..=8 {
                timeline.advance(value);
                thread::yield_now();
            }
        });
        assert_eq!(passed.into_inner(), 8);
    }

    #[test]
    fn a_failure_wakes_all_waiters() {
        let timeline = Timeline::new(ID);
        thread::scope(|scope| {
            let waits: Vec<_> = (1..=4u64)
                .map(|value| {
                    let timeline = &timeline;
                    scope.spawn(move || timeline.wait(value, Some(Duration::from_secs(30))))
                })
                .collect();
            timeline.fail(lost());
            for wait in waits {
                assert!(matches!(wait.join().unwrap(), Err(error) if *error.root() == lost()));
            }
        });
    }
}
