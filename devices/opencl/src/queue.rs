//! An implementation of `ragtag-hal`'s queue on top of an OpenCL queue. It enqueues scripts, returns events,
//! and converts times to the host's clock.
//!
//! Ragtag does not use OpenCL's user events for points of other devices. With a user event, a command could
//! be enqueued immediately and would wait until the host completes the event. However, drivers handle failed
//! user events badly:
//! - Intel's CPU runtime double-frees memory after a command has waited for a failed user event and another
//!   event. It may also run commands that wait for a failed event.
//! - PoCL 3.1 aborts the process when an in-order command without an event follows a command that waits for a
//!   failed event.
//!
//! User events would not be faster, either. NVIDIA's driver starts to launch the commands of a waiting queue
//! only when the event is completed. Enqueueing the commands at that time takes just as long.
//!
//! This module does not depend on IDs or points.

use crate::api::{self, BufferPart, Event};
use crate::clock::Clock;
use crate::driver::{OpenCl, Script, Span, Step};
use opencl3::types::cl_event;
use ragtag_hal::queues::{DriverQueue, Ends, Fences};
use ragtag_hal::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// An in-order OpenCL queue.
pub(crate) struct Queue {
    api: Arc<api::Queue>,
    /// Clock of the device, shared by its queues.
    clock: Arc<Mutex<Clock>>,
}

impl Queue {
    pub(crate) fn new(api: Arc<api::Queue>, clock: &Arc<Mutex<Clock>>) -> Self {
        Self { api, clock: Arc::clone(clock) }
    }

    /// Enqueues all steps of a script. The first step waits for the events in `after`.
    fn steps(&self, script: &Script, after: &[cl_event]) -> Result<Ends<Event>> {
        let nothing = || Error::invalid("a command returned no event");
        let (steps, mut recorded) = (script.steps(), script.recording().iter().peekable());
        let (mut at, mut first, mut last) = (0, None, None);
        while at < steps.len() {
            // The queue runs in order, so only the first step needs the wait list.
            let after = if at == 0 { after } else { &[] };
            let recorded = recorded.next_if(|recorded| recorded.steps.start == at);
            let end = recorded.map_or(at + 1, |recorded| recorded.steps.end);
            let wanted = at == 0 || end == steps.len();
            let ends = api::Ends { after, wanted };
            let event = match recorded {
                // SAFETY: the reasoning for launches, below, applies.
                Some(recorded) => unsafe { self.api.play(&recorded.buffer, ends) }?,
                None => enqueue(&self.api, &steps[at], ends).map_err(|error| {
                    if at == 0 && steps[at].is_copy() { error.refusing_copy() } else { error }
                })?,
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
        // SAFETY: `Checked` validated the dispatch against the entry's ABI: the number, access and extent of
        // the bindings. The kernel therefore accesses only its bindings, which lie inside buffers that the
        // script keeps alive.
        Step::Launch(launch) => unsafe { queue.launch(&launch.code.kernel, &launch.code.size, ends) },
        Step::Copy { from, to } => match (host(from), host(to)) {
            // SAFETY: the bytes lie in pages that the script keeps alive until the command has ended.
            (Some(from), None) => unsafe { queue.write(from, part(to)?, ends) },
            // SAFETY: as above. Points exclude all other access to these bytes until the command has ended.
            (None, Some(to)) => unsafe { queue.read(part(from)?, to, ends) },
            _ => queue.copy(part(from)?, part(to)?, ends),
        },
        Step::Fill { to, word } => queue.fill(part(to)?, *word, ends),
        // SAFETY: the bytes lie in the region, which the script keeps alive. The script lives until the
        // command has ended.
        Step::Upload { from, to, used } => unsafe {
            queue.write(from.pointer(), part(&to.part(0, from.used_bytes(*used)))?, ends)
        },
        // SAFETY: as above. Points and reservations exclude all other access to these bytes until the command
        // has ended.
        Step::Download { from, to } => unsafe { queue.read(part(from)?, to.pointer(), ends) },
    }
}

/// Returns the byte range of a span, for copy and fill commands.
///
/// # Errors
/// Returns [`Error::Unsupported`] for imported pages of the host.
pub(crate) fn part(span: &Span) -> Result<BufferPart<'_>> {
    let memory = span.buffer().memory()?;
    Ok(BufferPart { memory, offset: span.offset() as usize, bytes: span.bytes() as usize })
}

/// Returns a pointer to a span of imported pages of the host, or `None` for other memory.
pub(crate) fn host(span: &Span) -> Option<*mut u8> {
    span.buffer().host().map(|start| start.wrapping_add(span.offset() as usize))
}

impl DriverQueue for Queue {
    type Driver = OpenCl;
    type Event = Event;

    /// True, because NVIDIA's driver sometimes crashes if `clReleaseMemObject` is called shortly after the
    /// last event.
    const USES_AFTER_END: bool = true;

    fn enqueue(&self, script: &Arc<Script>, fences: &Fences<'_, Self>) -> Result<Ends<Event>> {
        let ends = self.steps(script, &api::raw(fences.after.iter().copied()))?;
        self.api.flush().map(|()| ends)
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.has_passed())
    }

    fn wait(&self, event: &Event) -> Result<()> {
        event.wait()
    }

    /// Returns the start and end of a script, or `None` if the driver did not measure its first or its last
    /// command.
    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let first = ends.first.as_ref().unwrap_or(&ends.last);
        let (start_ns, end_ns) = (first.start_ns().ok()?, ends.last.end_ns().ok()?);
        Some(self.clock.lock().unwrap_or_else(PoisonError::into_inner).host(start_ns, end_ns))
    }

    fn finish(&self) -> Result<()> {
        self.api.finish()
    }
}
