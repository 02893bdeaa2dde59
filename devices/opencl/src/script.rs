//! Commands with their names resolved to memory and kernels, and how each is given to a queue.
//!
//! A script is made once, when a program is recorded or commands are submitted; kernels have all their arguments then. It
//! is only read afterwards, and keeps what it names alive. This module must not know waits or points.

use crate::api::{self, Event, Kernel, Part, Range3};
use crate::context::Pin;
use crate::memory::Buffer;
use crate::program::Entry;
use crate::recording::Recording;
use opencl3::types::cl_event;
use ragtag_hal::lanes::{self, Claim, Claims, Ends};
use ragtag_hal::{HostRegion, Reservation, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

impl Span {
    /// `bytes` bytes from `offset` on, or `None` if the buffer does not have them.
    pub(crate) fn new(buffer: &Arc<Buffer>, offset: u64, bytes: u64) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        (offset.checked_add(bytes)? <= buffer.bytes()).then(|| Self {
            buffer: Arc::clone(buffer),
            offset,
            bytes,
        })
    }

    pub(crate) fn part(&self) -> Part<'_> {
        Part { memory: self.buffer.memory(), offset: self.offset, bytes: self.bytes }
    }

    /// The first byte as the host addresses it, where it does.
    fn host_pointer(&self) -> Option<*mut u8> {
        self.buffer.host_pointer().map(|pointer| pointer.wrapping_add(self.offset))
    }
}

/// A region that the device knows.
pub(crate) struct Registered {
    pub(crate) region: Arc<HostRegion>,
    /// Where pinning makes copies faster.
    pub(crate) _pin: Option<Arc<Pin>>,
}

/// Bytes of a registered region, from `offset` on; how many, the span on the other side says.
#[derive(Clone)]
pub(crate) struct HostSpan {
    registered: Arc<Registered>,
    offset: usize,
    bytes: usize,
}

impl HostSpan {
    /// `None` if the region does not have these bytes.
    pub(crate) fn new(registered: &Arc<Registered>, offset: u64, span: &Span) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(span.bytes)? <= registered.region.bytes()).then(|| Self {
            registered: Arc::clone(registered),
            offset,
            bytes: span.bytes,
        })
    }

    fn pointer(&self) -> *mut u8 {
        self.registered.region.as_ptr().wrapping_add(self.offset)
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }
}

/// A launch of a kernel.
#[derive(Debug)]
pub(crate) struct Launch {
    kernel: Kernel,
    size: Range3,
    /// What it is bound to, kept as long as the kernel.
    bound: Vec<Span>,
}

impl Launch {
    /// Binds spans and constants to an entry.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn new(entry: &Entry, spans: Vec<Span>, constants: &[u32], grid: [u32; 3]) -> Result<Self> {
        let mut kernel = entry.kernel()?;
        for (at, span) in spans.iter().enumerate() {
            let part = span.buffer.part(span.offset)?;
            kernel.set_memory(at, part.as_deref().unwrap_or_else(|| span.buffer.memory()))?;
        }
        for (at, word) in (spans.len()..).zip(constants) {
            kernel.set_word(at, *word)?;
        }
        let local = entry.work_group;
        let global = [0, 1, 2].map(|axis| grid[axis] as usize * local[axis]);
        Ok(Self { kernel, size: Range3 { global, local }, bound: spans })
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn size(&self) -> &Range3 {
        &self.size
    }
}

/// A command, ready to be enqueued.
pub(crate) enum Step {
    /// Launch a kernel.
    Launch(Launch),
    /// Copy between buffers.
    Copy {
        /// Read from here.
        from: Span,
        /// Written to here.
        to: Span,
    },
    /// Fill with a word.
    Fill {
        /// Written to here.
        to: Span,
        /// The word.
        word: u32,
    },
    /// Copy out of a host region.
    Upload {
        /// Read from here.
        from: HostSpan,
        /// Written to here.
        to: Span,
    },
    /// Copy into a host region.
    Download {
        /// Read from here.
        from: Span,
        /// Written to here.
        to: HostSpan,
    },
    /// Several of the others, recorded.
    Recorded(Recording),
}

impl Step {
    fn enqueue(&self, queue: &api::Queue, after: &[cl_event], wanted: bool) -> Result<Option<Event>> {
        match self {
            // SAFETY: `Checked` held the dispatch to the entry's ABI (number, access and extent of the bindings), which
            // says what the kernel touches; the bindings lie inside buffers that the script keeps.
            Step::Launch(launch) => unsafe { queue.launch(&launch.kernel, &launch.size, after, wanted) },
            Step::Copy { from, to } => queue.copy(from.part(), to.part(), after, wanted),
            Step::Fill { to, word } => queue.fill(to.part(), *word, after, wanted),
            // SAFETY: the bytes lie in the region, which the script keeps; whoever submits keeps the script until the
            // command has ended.
            Step::Upload { from, to } => unsafe { queue.write(from.pointer(), to.part(), after, wanted) },
            // SAFETY: as above; that nobody else touches the bytes meanwhile is what points and reservations are for.
            Step::Download { from, to } => unsafe { queue.read(from.part(), to.pointer(), after, wanted) },
            // SAFETY: as for launches.
            Step::Recorded(recording) => unsafe { queue.play(recording.buffer(), after, wanted) },
        }
    }

    /// The use that it makes of a host region, if any.
    fn claim(&self) -> Option<Claim> {
        let claim = |host: &HostSpan, writes| Claim {
            region: Arc::clone(&host.registered.region),
            range: host.range(),
            writes,
        };
        match self {
            Step::Upload { from, .. } => Some(claim(from, false)),
            Step::Download { to, .. } => Some(claim(to, true)),
            _ => None,
        }
    }

    /// The copy that the host can make in its stead: from where, to where, how many bytes.
    fn host_copy(&self) -> Option<(*const u8, *mut u8, usize)> {
        match self {
            Step::Upload { from, to } => Some((from.pointer(), to.host_pointer()?, to.bytes)),
            Step::Download { from, to } => Some((from.host_pointer()?, to.pointer(), from.bytes)),
            _ => None,
        }
    }

    fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        let is = |span: &Span| Arc::ptr_eq(&span.buffer, buffer);
        match self {
            Step::Launch(launch) => launch.bound.iter().any(is),
            Step::Copy { from, to } => is(from) || is(to),
            Step::Fill { to, .. } | Step::Upload { to, .. } => is(to),
            Step::Download { from, .. } => is(from),
            Step::Recorded(recording) => recording.steps().iter().any(|step| step.uses_buffer(buffer)),
        }
    }
}

/// Steps that take effect in order.
pub(crate) struct Script {
    steps: Vec<Step>,
    claims: Claims,
}

impl Script {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let claims = Claims::new(steps.iter().filter_map(Step::claim).collect());
        Self { steps, claims }
    }

    /// Enqueues all steps on an in-order queue, to start after some events.
    ///
    /// # Errors
    /// If the driver refuses; some of the steps may be under way then.
    pub(crate) fn enqueue(&self, queue: &api::Queue, after: &[cl_event]) -> Result<Ends<Event>> {
        let nothing = || ragtag_hal::Error::invalid("a command that gave no event");
        let Some((last, before)) = self.steps.split_last() else {
            let marker = queue.marker(after, true)?.ok_or_else(nothing)?;
            return Ok(Ends { first: None, last: Arc::new(marker) });
        };
        let mut first = None;
        for (at, step) in before.iter().enumerate() {
            // What the first waits for the others wait for, too.
            let after = if at == 0 { after } else { &[] };
            first = step.enqueue(queue, after, at == 0)?.or(first);
        }
        let after = if before.is_empty() { after } else { &[] };
        let last = last.enqueue(queue, after, true)?.ok_or_else(nothing)?;
        Ok(Ends { first, last: Arc::new(last) })
    }

    pub(crate) fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        self.steps.iter().any(|step| step.uses_buffer(buffer))
    }

    pub(crate) fn uses_region(&self, wanted: &Arc<HostRegion>) -> bool {
        self.claims.uses(wanted)
    }
}

impl lanes::Script for Script {
    fn reserve(&self) -> Result<Vec<Reservation>> {
        self.claims.reserve()
    }

    fn host_bytes(&self) -> Option<usize> {
        self.steps.iter().try_fold(0usize, |sum, step| sum.checked_add(step.host_copy()?.2))
    }

    fn run_on_host(&self) -> Result<()> {
        let _reserved = self.claims.reserve()?;
        for (from, to, bytes) in self.steps.iter().filter_map(Step::host_copy) {
            // SAFETY: both ends are inside live memory and equally long; a region's memory is never a buffer's. The region
            // is reserved; that nobody touches the buffer meanwhile is the caller's promise with each submission.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
        }
        Ok(())
    }
}
