//! Pending results of operators.

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

/// Result of an operator that may still be running. Callers can block on it or await it. Awaiting it does not
/// block an executor thread, because a separate thread wakes the task. Dropping the result does not cancel
/// the work.
#[must_use = "the device may fail"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    point: u64,
    result: Option<Deferred<T>>,
}

enum Deferred<T> {
    /// The result. It is valid once the work has ended.
    Queued(T),
    /// Function that creates the result from the device's output.
    After(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    pub(super) fn queued_at(shared: &Arc<Shared>, point: u64, result: T) -> Self {
        Self { shared: Arc::clone(shared), point, result: Some(Deferred::Queued(result)) }
    }

    pub(super) fn after(
        shared: &Arc<Shared>,
        point: u64,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self { shared: Arc::clone(shared), point, result: Some(Deferred::After(Box::new(make))) }
    }

    /// Blocks until the result is ready.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn wait(mut self) -> Result<T> {
        self.shared.timeline().wait(self.point, None)?;
        self.take()
    }

    fn take(&mut self) -> Result<T> {
        match self.result.take() {
            Some(Deferred::Queued(result)) => Ok(result),
            Some(Deferred::After(make)) => make(),
            None => unreachable!("a result is taken once"),
        }
    }
}

impl Pending<Tensor> {
    /// Returns the tensor before its values are computed. Other operators can use it at once, because the
    /// device runs them after the work that computes the tensor.
    pub fn queued(&self) -> &Tensor {
        match &self.result {
            Some(Deferred::Queued(tensor)) => tensor,
            _ => unreachable!("operators make their tensors before they run"),
        }
    }
}

// No field is pinned: the box is moved out before it is called.
impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let timeline = Arc::clone(self.shared.timeline());
        let has_ended = || timeline.value() >= self.point || timeline.failure().is_some();
        if !has_ended() {
            self.shared.wakers().register(self.point, context.waker());
            // Progress made after the first check and before the registration woke no task, so this checks
            // again.
            if !has_ended() {
                return Poll::Pending;
            }
        }
        let outcome = timeline.wait(self.point, None).map_err(Into::into);
        Poll::Ready(outcome.and_then(|_| self.take()))
    }
}

/// Tasks that wait for points on a timeline. A separate thread wakes them: the thread that reports progress
/// holds the timeline's lock, and a woken task may end at once and drop its tensors and the device.
pub(super) struct Wakers {
    waiting: Mutex<Vec<(u64, Waker)>>,
    due: Sender<Waker>,
}

impl Wakers {
    /// Starts the thread that wakes tasks. It ends when the value is dropped.
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

    /// Wakes the tasks whose points have passed. If the timeline has failed, wakes all tasks.
    pub(super) fn wake(&self, progress: &Progress) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |point: u64| point <= progress.value || progress.failure.is_some();
        for (_, waker) in waiting.extract_if(.., |(point, _)| is_due(*point)) {
            // The thread lives as long as the wakers.
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
