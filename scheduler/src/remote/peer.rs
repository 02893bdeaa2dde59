//! Another host of the pipeline.

use super::Close;
use crate::error::Error;
use crate::message::{RunAddress, RunUrgent};
use ragtag_hal::Timeline;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for the report of a host that closes its streams.
const GRACE: Duration = Duration::from_millis(200);

/// Another host, as all threads with a stream to it see it.
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Whether the host is the coordinator. If it closes a stream, the run has ended.
    pub(crate) is_coordinator: bool,
    /// Label of the device of the host's first stage.
    pub(crate) label: String,
    /// Stages of the host.
    pub(crate) stages: Box<[u32]>,
    /// Timelines that stand for the devices of the host.
    pub(crate) timelines: Vec<Arc<Timeline>>,
    pub(crate) run: RunAddress,
    /// Close the streams to the host.
    pub(crate) closes: Vec<Close>,
    pub(crate) has_ended: AtomicBool,
}

impl Peer {
    /// Ends the run because a stream to the host has failed. Does nothing after [`Peer::end`] or an earlier failure.
    pub(crate) fn lose(&self, cause: &io::Error) {
        match has_closed(cause) && self.is_coordinator {
            true => self.fail(Error::Stopped),
            false => self.fail(self.lost(cause)),
        }
    }

    /// Ends the run like [`Peer::lose`], because the stream of an edge has failed. Waits a little before, because the
    /// control stream may name the cause.
    pub(crate) fn lose_later(&self, cause: &io::Error) {
        let end = Instant::now() + GRACE;
        while !self.is_coordinator && !self.has_ended.load(Ordering::SeqCst) && Instant::now() < end {
            std::thread::sleep(GRACE / 20);
        }
        self.lose(cause);
    }

    /// Returns the error of a stream to the host that has failed.
    pub(crate) fn lost(&self, cause: &io::Error) -> Error {
        let name = &self.name;
        let cause = match cause.kind() {
            _ if has_closed(cause) => format!("{name} has closed the connection"),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("{name} is silent"),
            _ => format!("connection to {name}: {cause}"),
        };
        let cause = ragtag_hal::Error::Lost { cause };
        Error::of_device(self.stages.to_vec(), self.label.clone(), cause)
    }

    /// Returns an error that the host has reported. Labels of its devices begin with its name here. Those of other
    /// hosts have a name already.
    pub(crate) fn named(&self, error: Error) -> Error {
        let label = |device: String| match device.contains('/') {
            true => device,
            false => format!("{}/{device}", self.name),
        };
        match error {
            Error::Stage { stage, device, cause } => Error::Stage { stage, device: label(device), cause },
            Error::Device { stages, device, cause } => Error::Device { stages, device: label(device), cause },
            Error::Memory { stage, device, cause, held_bytes, needed_bytes } => {
                Error::Memory { stage, device: label(device), cause, held_bytes, needed_bytes }
            }
            other => {
                let cause = ragtag_hal::Error::Lost { cause: other.to_string() };
                Error::of_device(self.stages.to_vec(), self.label.clone(), cause)
            }
        }
    }

    /// Ends the run with an error of the host. Does nothing after [`Peer::end`] or an earlier failure.
    pub(crate) fn fail(&self, error: Error) {
        if self.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let lost = ragtag_hal::Error::Lost { cause: error.to_string() };
        self.run.send_urgent(RunUrgent::Failed(error));
        self.timelines.iter().for_each(|timeline| timeline.fail(lost.clone()));
        self.close();
    }

    /// Closes the streams, because the run ends on this host.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.close();
    }

    fn close(&self) {
        self.closes.iter().for_each(|close| close());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns whether the other host has closed a stream.
pub(super) fn has_closed(cause: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(cause.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}
