//! A queue of the driver as lanes use it: scripts in, events out, times in the host's clock.
//!
//! OpenCL has user events: a command is enqueued at once and waits for an event that the host completes. They are not used
//! for points of other devices. What has to happen when the other device fails, OpenCL leaves to the driver: Intel's
//! processor runtime frees memory twice when a command has waited for a failed user event and another, or runs commands
//! behind one that failed, and PoCL 3.1 aborts the process when an in-order command without an event stands behind one. And
//! they gain nothing: NVIDIA's driver begins to launch a waiting queue when the event is completed, and then takes as long
//! as it takes to enqueue it.
//!
//! This module must not know buffers, kernels or points.

use crate::api::{self, Event};
use crate::clock::Clock;
use crate::script::Script;
use ragtag_hal::Result;
use ragtag_hal::lanes::{DriverQueue, Ends};
use std::sync::{Arc, Mutex, PoisonError};

/// An in-order queue of the driver.
pub(crate) struct Queue {
    api: Arc<api::Queue>,
    /// The device's, which all its queues share.
    clock: Arc<Mutex<Clock>>,
}

impl Queue {
    pub(crate) fn new(api: Arc<api::Queue>, clock: &Arc<Mutex<Clock>>) -> Self {
        Self { api, clock: Arc::clone(clock) }
    }

    pub(crate) fn api(&self) -> &Arc<api::Queue> {
        &self.api
    }
}

impl DriverQueue for Queue {
    type Script = Script;
    type Event = Event;

    fn enqueue(&self, script: &Arc<Script>, after: &[&Event]) -> Result<Ends<Event>> {
        let ends = script.enqueue(&self.api, &api::raw(after.iter().copied()))?;
        self.api.flush().map(|()| ends)
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.has_passed())
    }

    fn wait(&self, event: &Event) -> Result<()> {
        event.wait()
    }

    /// A driver that measures nothing for some kind of command leaves that one out.
    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let first = ends.first.as_ref().unwrap_or(&ends.last);
        let (start_ns, end_ns) = (first.start_ns().ok()?, ends.last.end_ns().ok()?);
        Some(self.clock.lock().unwrap_or_else(PoisonError::into_inner).host(start_ns, end_ns))
    }

    fn finish(&self) -> Result<()> {
        self.api.finish()
    }
}
