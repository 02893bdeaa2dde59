//! A wrapper of wgpu's device. It turns errors into results, detects device loss, and waits for submissions.
//!
//! wgpu reports errors through callbacks, and panics if no callback is set. Every fallible call runs inside
//! [`Gpu::guarded`], which collects the errors of the calling thread and catches panics. This module does not
//! depend on buffers, kernels or commands.

use ragtag_hal::Error;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wgpu::{CommandEncoder, ErrorFilter, PollError, PollType, SubmissionIndex};

/// Timeout of one wait. After a timeout, Ragtag checks whether the device is lost, because with some drivers
/// the wait would never end. The timeout is longer than any submission, because wgpu 30 panics if one wait
/// times out while another thread observes the end of the same submission.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An error of wgpu.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The device has too little memory. `wanted` is the requested size in bytes, or 0 if it is unknown.
    OutOfMemory { wanted: u64 },
    /// wgpu rejected the call, for example because of a limit. The text is wgpu's message.
    Refused(String),
    /// The device is lost. The text is the cause.
    Lost(String),
}

impl Failure {
    /// Sets the requested size of an out-of-memory error.
    pub(crate) fn wanting(self, wanted: u64) -> Self {
        match self {
            Failure::OutOfMemory { .. } => Failure::OutOfMemory { wanted },
            other => other,
        }
    }

    /// Converts the failure to an error that names the call.
    pub(crate) fn of(self, call: &str) -> Error {
        match self {
            Failure::OutOfMemory { wanted } => Error::OutOfMemory { wanted, free: None },
            Failure::Refused(why) => Error::invalid(format!("{call}: {why}")),
            Failure::Lost(cause) => Error::Lost { cause },
        }
    }
}

impl From<wgpu::Error> for Failure {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => Failure::OutOfMemory { wanted: 0 },
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                Failure::Refused(description)
            }
        }
    }
}

thread_local! {
    /// Name of the wgpu call that this thread is executing. The callback for a lost device runs inside the
    /// call that detects the loss, but does not receive the name of that call.
    static CALL: Cell<&'static str> = const { Cell::new("wgpu") };
}

/// Runs `make`, with `call` as the name of the current wgpu call. `make` must not panic.
fn named<T>(call: &'static str, make: impl FnOnce() -> T) -> T {
    let before = CALL.replace(call);
    let value = make();
    CALL.set(before);
    value
}

/// Prefixes a message with the name of the current call.
pub(crate) fn heard(words: &str) -> String {
    format!("{}: {words}", CALL.get())
}

/// A wgpu device and its queue.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    lost: OnceLock<String>,
}

impl Gpu {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        // An error outside a guard makes the created object invalid. Guarded calls that use the object then
        // report the error.
        device.on_uncaptured_error(std::sync::Arc::new(|error| tracing::debug!(%error, "wgpu")));
        Self { device, queue, lost: OnceLock::new() }
    }

    /// Runs calls to wgpu, and returns their result or error.
    ///
    /// # Errors
    /// Returns the first error that wgpu reports on this thread during the calls. A panic counts as a device
    /// loss.
    pub(crate) fn guarded<T>(&self, calls: impl FnOnce() -> T) -> Result<T, Failure> {
        let filters = [ErrorFilter::Validation, ErrorFilter::Internal, ErrorFilter::OutOfMemory];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let value = catch_unwind(AssertUnwindSafe(calls));
        let errors = scopes.into_iter().rev().filter_map(|scope| ready(scope.pop()).flatten());
        let errors: Vec<wgpu::Error> = errors.collect();
        let value = value.map_err(|panic| self.lose(words(panic)))?;
        match errors.into_iter().next_back() {
            Some(error) => Err(error.into()),
            None => self.check().map(|()| value),
        }
    }

    /// Submits the commands of an encoder.
    ///
    /// # Errors
    /// Returns an error if wgpu rejects the commands or the device is lost.
    pub(crate) fn submit(&self, encoder: CommandEncoder) -> Result<SubmissionIndex, Failure> {
        named("Queue::submit", || self.guarded(|| self.queue.submit([encoder.finish()])))
    }

    /// Records the cause of a device loss and returns the first recorded cause.
    pub(crate) fn lose(&self, cause: String) -> Failure {
        Failure::Lost(self.lost.get_or_init(|| cause).clone())
    }

    /// Checks that the device is not lost.
    ///
    /// # Errors
    /// Returns [`Failure::Lost`] if the device is lost.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.lost.get().map_or(Ok(()), |cause| Err(Failure::Lost(cause.clone())))
    }

    /// Sleeps until a submission has ended. Runs the callbacks of all completed work.
    ///
    /// # Errors
    /// Returns an error if the device is lost before the submission has ended.
    pub(crate) fn wait(&self, submission: &SubmissionIndex) -> Result<(), Failure> {
        loop {
            self.check()?;
            let poll = PollType::Wait { submission_index: Some(submission.clone()), timeout: Some(TIMEOUT) };
            // wgpu panics if the driver reports a lost device.
            match named("Device::poll", || catch_unwind(AssertUnwindSafe(|| self.device.poll(poll)))) {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(PollError::Timeout)) => {}
                Ok(Err(error)) => return Err(self.lose(error.to_string())),
                Err(panic) => return Err(self.lose(words(panic))),
            }
        }
    }
}

/// Returns the message of a panic.
fn words(panic: Box<dyn Any + Send>) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
    said.unwrap_or("wgpu panicked").into()
}

/// Returns the value of a future if it is ready. wgpu's own futures are always ready.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
