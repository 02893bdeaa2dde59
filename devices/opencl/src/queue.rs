//! A queue of the driver as lanes use it: scripts in, events out, times in the host's clock.
//!
//! OpenCL has user events: a command is enqueued at once and waits for an event that the host completes. They are not used
//! for points of other devices. What has to happen when the other device fails, OpenCL leaves to the driver: Intel's
//! processor runtime frees memory twice when a command has waited for a failed user event and another, or runs commands
//! behind one that failed, and PoCL 3.1 aborts the process when an in-order command without an event stands behind one. And
//! they gain nothing: NVIDIA's driver begins to launch a waiting queue when the event is completed, and then takes as long
//! as it takes to enqueue it.
//!
//! This module must not know ids or points.

use crate::api::{self, Event, Part};
use crate::clock::Clock;
use crate::driver::{OpenCl, Script, Span, Step};
use opencl3::types::cl_event;
use ragtag_hal::lanes::{DriverQueue, Ends};
use ragtag_hal::{Error, Result};
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

    /// Enqueues all steps, to start after some events.
    fn steps(&self, script: &Script, after: &[cl_event]) -> Result<Ends<Event>> {
        let nothing = || Error::invalid("a command that gave no event");
        let (steps, mut recorded) = (script.steps(), script.recording().iter().peekable());
        let (mut at, mut first, mut last) = (0, None, None);
        while at < steps.len() {
            // What the first waits for the others wait for, too.
            let after = if at == 0 { after } else { &[] };
            let recorded = recorded.next_if(|recorded| recorded.steps.start == at);
            let end = recorded.map_or(at + 1, |recorded| recorded.steps.end);
            let wanted = at == 0 || end == steps.len();
            let ends = api::Ends { after, wanted };
            let event = match recorded {
                // SAFETY: as for launches.
                Some(recorded) => unsafe { self.api.play(&recorded.buffer, ends) }?,
                None => enqueue(&self.api, &steps[at], ends)?,
            };
            first = first.or(last.take());
            last = event;
            at = end;
        }
        if steps.is_empty() {
            last = self.api.marker(api::Ends { after, wanted: true })?;
        }
        Ok(Ends { first, last: Arc::new(last.ok_or_else(nothing)?) })
    }
}

fn enqueue(queue: &api::Queue, step: &Step, ends: api::Ends<'_>) -> Result<Option<Event>> {
    match step {
        // SAFETY: `Checked` held the dispatch to the entry's ABI (number, access and extent of the bindings), which says what
        // the kernel touches; the bindings lie inside buffers that the script keeps.
        Step::Launch(launch) => unsafe { queue.launch(&launch.code.kernel, &launch.code.size, ends) },
        Step::Copy { from, to } => queue.copy(part(from), part(to), ends),
        Step::Fill { to, word } => queue.fill(part(to), *word, ends),
        // SAFETY: the bytes lie in the region, which the script keeps; the lane keeps the script until the command has ended.
        Step::Upload { from, to } => unsafe { queue.write(from.pointer(), part(to), ends) },
        // SAFETY: as above; points and reservations keep everything else from these bytes meanwhile.
        Step::Download { from, to } => unsafe { queue.read(part(from), to.pointer(), ends) },
    }
}

/// The bytes of a span, as OpenCL's copies take them.
pub(crate) fn part(span: &Span) -> Part<'_> {
    Part { memory: span.buffer().memory(), offset: span.offset() as usize, bytes: span.bytes() as usize }
}

impl DriverQueue for Queue {
    type Driver = OpenCl;
    type Event = Event;

    /// NVIDIA's driver sometimes crashes in `clReleaseMemObject` a moment after the last event.
    const USES_AFTER_END: bool = true;

    fn enqueue(&self, script: &Arc<Script>, after: &[&Event]) -> Result<Ends<Event>> {
        let ends = self.steps(script, &api::raw(after.iter().copied()))?;
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
