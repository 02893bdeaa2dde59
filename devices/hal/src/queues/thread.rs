//! Threads that can be joined with a deadline.

use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use std::convert::Infallible;
use std::time::Instant;

/// A named thread.
#[derive(Debug)]
pub struct Thread(Receiver<Infallible>);

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
    pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (alive, ended) = bounded(0);
        let body = move || {
            // The sender is dropped when the thread ends, even after a panic.
            let _alive = alive;
            body();
        };
        let spawned = std::thread::Builder::new().name(name).spawn(body);
        let refused = |error| Error::Unsupported { what: format!("starting another thread: {error}") };
        spawned.map(|_| Self(ended)).map_err(refused)
    }

    /// Waits for the thread until the deadline. Returns true if it has ended.
    pub fn ends_before(&self, deadline: Instant) -> bool {
        matches!(self.0.recv_deadline(deadline), Err(RecvTimeoutError::Disconnected))
    }

    /// Waits until the thread ends.
    pub fn end(&self) {
        // The channel carries no messages, so `recv` returns when the thread ends.
        let _ = self.0.recv();
    }
}
