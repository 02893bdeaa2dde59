//! wgpu's device: its errors as results, its loss, and waiting for it.
//!
//! wgpu tells of errors by callbacks, or panics where nobody listens. Every call that can fail is made in
//! [`Gpu::guarded`], which gathers the errors of the calling thread; what still panics is caught there. This module must not
//! know buffers, kernels or commands.

use ragtag_hal::Error;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wgpu::{CommandEncoder, ErrorFilter, PollError, PollType, SubmissionIndex};

/// How long one wait lasts before the loss of the device is looked for: some drivers never end the wait. Longer than any
/// submission takes: where a wait runs out while another thread sees the end of the same submission, wgpu 30 panics.
const PATIENCE: Duration = Duration::from_secs(60);

/// What went wrong in wgpu.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Too little memory, for so many bytes where whoever asked says so.
    OutOfMemory { wanted: u64 },
    /// wgpu refuses, or a limit of it was reached: its words.
    Refused(String),
    /// The device is gone: why.
    Lost(String),
}

impl Failure {
    /// With the bytes that were wanted, if it was memory that there was too little of.
    pub(crate) fn wanting(self, wanted: u64) -> Self {
        match self {
            Failure::OutOfMemory { .. } => Failure::OutOfMemory { wanted },
            other => other,
        }
    }

    /// As an error of this call.
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
    /// The call of wgpu's that this thread is in. Whoever listens for a loss hears of it within the call that found it out, and
    /// is not told which that was.
    static CALL: Cell<&'static str> = const { Cell::new("wgpu") };
}

/// Makes a call of this name, which must not panic.
fn named<T>(call: &'static str, make: impl FnOnce() -> T) -> T {
    let before = CALL.replace(call);
    let value = make();
    CALL.set(before);
    value
}

/// What is said with the name of the call in which it was heard.
pub(crate) fn heard(words: &str) -> String {
    format!("{}: {words}", CALL.get())
}

/// wgpu's device and its queue.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    lost: OnceLock<String>,
}

impl Gpu {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        // What is not gathered by a guard has its effect on what is made next, and is found there.
        device.on_uncaptured_error(std::sync::Arc::new(|error| tracing::debug!(%error, "wgpu")));
        Self { device, queue, lost: OnceLock::new() }
    }

    /// Makes calls of wgpu's.
    ///
    /// # Errors
    /// The first that one of them made on this thread; a panic counts as the loss of the device.
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

    /// Submits commands.
    ///
    /// # Errors
    /// If wgpu refuses them, or the device is lost.
    pub(crate) fn submit(&self, encoder: CommandEncoder) -> Result<SubmissionIndex, Failure> {
        named("Queue::submit", || self.guarded(|| self.queue.submit([encoder.finish()])))
    }

    /// Notes that the device is gone.
    pub(crate) fn lose(&self, cause: String) -> Failure {
        Failure::Lost(self.lost.get_or_init(|| cause).clone())
    }

    /// # Errors
    /// [`Failure::Lost`] once the device is.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.lost.get().map_or(Ok(()), |cause| Err(Failure::Lost(cause.clone())))
    }

    /// Waits for a submission, asleep, and has callbacks called of what has ended.
    ///
    /// # Errors
    /// If the device is lost before.
    pub(crate) fn wait(&self, submission: &SubmissionIndex) -> Result<(), Failure> {
        loop {
            self.check()?;
            let poll = PollType::Wait { submission_index: Some(submission.clone()), timeout: Some(PATIENCE) };
            // wgpu panics where the driver says that the device is lost.
            match named("Device::poll", || catch_unwind(AssertUnwindSafe(|| self.device.poll(poll)))) {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(PollError::Timeout)) => {}
                Ok(Err(error)) => return Err(self.lose(error.to_string())),
                Err(panic) => return Err(self.lose(words(panic))),
            }
        }
    }
}

/// What a panic said.
fn words(panic: Box<dyn Any + Send>) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
    said.unwrap_or("wgpu panicked").into()
}

/// The value of a future that is ready, as all of wgpu's own are.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
