//! What an operator returns: its result, once the device has come so far.

use super::device::Shared;
use super::error::{Error, Result};
use super::tensor::Tensor;
use ragtag_hal::Progress;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// A result that its device is working on. It can be waited for, or awaited: then a thread beside the device wakes the
/// task, and no thread of an executor is held. Dropped, it runs all the same.
#[must_use = "the device may fail"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    point: u64,
    result: Option<Outcome<T>>,
}

enum Outcome<T> {
    /// There is already what it will be in.
    Queued(T),
    /// Made of what the device leaves.
    After(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    pub(super) fn queued_at(shared: &Arc<Shared>, point: u64, result: T) -> Self {
        Self { shared: Arc::clone(shared), point, result: Some(Outcome::Queued(result)) }
    }

    pub(super) fn after(
        shared: &Arc<Shared>,
        point: u64,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self { shared: Arc::clone(shared), point, result: Some(Outcome::After(Box::new(make))) }
    }

    /// Blocks until the device has come so far.
    ///
    /// # Errors
    /// What the device failed with.
    pub fn wait(mut self) -> Result<T> {
        self.shared.timeline().wait(self.point, None)?;
        self.take()
    }

    fn take(&mut self) -> Result<T> {
        match self.result.take() {
            Some(Outcome::Queued(result)) => Ok(result),
            Some(Outcome::After(make)) => make(),
            None => unreachable!("a result is taken once"),
        }
    }
}

impl Pending<Tensor> {
    /// The tensor before it has its values: operators on it are queued behind what makes them.
    pub fn queued(&self) -> &Tensor {
        match &self.result {
            Some(Outcome::Queued(tensor)) => tensor,
            _ => unreachable!("operators make their tensors before they run"),
        }
    }
}

// Nothing in it is pinned: the box is moved out before it is called.
impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let timeline = Arc::clone(self.shared.timeline());
        let has_ended = || timeline.value() >= self.point || timeline.failure().is_some();
        if !has_ended() {
            self.shared.wakers().register(self.point, context.waker());
            // What happened in between has woken nobody.
            if !has_ended() {
                return Poll::Pending;
            }
        }
        let outcome = timeline.wait(self.point, None).map_err(Into::into);
        Poll::Ready(outcome.and_then(|_| self.take()))
    }
}

/// The tasks that wait for points of a timeline. A thread of their own wakes them: whoever tells of progress holds the timeline,
/// and a task that is woken may end there and then, its tensors and the device with it.
pub(super) struct Wakers {
    waiting: Mutex<Vec<(u64, Waker)>>,
    due: Sender<Waker>,
}

impl Wakers {
    /// Starts the thread, which ends when nobody has the wakers any more.
    pub(super) fn new() -> Result<Arc<Self>> {
        let (due, woken) = channel();
        let wake = move || woken.into_iter().for_each(Waker::wake);
        let thread = thread::Builder::new().name("compute-wakers".into()).spawn(wake);
        thread.map_err(|error| Error::Open(error.to_string()))?;
        Ok(Arc::new(Self { waiting: Mutex::default(), due }))
    }

    fn register(&self, point: u64, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|(p, w)| *p == point && w.will_wake(waker)) {
            waiting.push((point, waker.clone()));
        }
    }

    /// Wakes those whose points have passed, or all if no other will.
    pub(super) fn wake(&self, progress: &Progress) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |point: u64| point <= progress.value || progress.failure.is_some();
        for (_, waker) in waiting.extract_if(.., |(point, _)| is_due(*point)) {
            // The thread is there as long as the wakers are.
            let _ = self.due.send(waker);
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.shared.timeline().value() >= self.point { "done" } else { "queued" };
        write!(f, "Pending({state} on {})", self.shared.adapter().label())
    }
}
