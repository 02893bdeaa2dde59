//! Commands with their names resolved to memory and pipelines.
//!
//! A script is made once, when a program is recorded or commands are submitted. It is only read afterwards, and keeps what it
//! names alive. Its command buffer is recorded when it is first enqueued, since small copies may never be, or before that for
//! a program. This module must not know waits or points.

use crate::error::allocation_failure;
use crate::hazards::Use;
use crate::memory::Buffer;
use crate::program::Entry;
use crate::recording::{Recorders, Recording};
use crate::region::Registered;
use ragtag_hal::lanes::{self, Claim, Claims};
use ragtag_hal::{Access, Error, HostRegion, Reservation, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// About what a driver keeps of a step, where it does not say what it has no memory for.
const STEP_BYTES: u64 = 256;

/// Bytes of a buffer.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Span {
    /// `bytes` bytes from `offset` on, or `None` if the buffer does not have them.
    pub(crate) fn new(buffer: &Arc<Buffer>, offset: u64, bytes: u64) -> Option<Self> {
        let inside = offset.checked_add(bytes)? <= buffer.bytes();
        inside.then(|| Self { buffer: Arc::clone(buffer), offset, bytes })
    }

    pub(crate) fn part(&self) -> crate::api::Part<'_> {
        self.buffer.part(self.offset, self.bytes)
    }

    fn is_of(&self, buffer: &Arc<Buffer>) -> bool {
        Arc::ptr_eq(&self.buffer, buffer)
    }

    fn used(&self, writes: bool) -> Use {
        let memory = Arc::as_ptr(&self.buffer) as usize;
        Use { memory, range: self.offset..self.offset + self.bytes, writes }
    }
}

/// Bytes of a registered region.
#[derive(Clone)]
pub(crate) struct HostSpan {
    pub(crate) registered: Arc<Registered>,
    pub(crate) range: Range<usize>,
}

impl HostSpan {
    /// As many bytes as the span on the other side has, from `offset` on, or `None` if the region does not have them.
    pub(crate) fn new(registered: &Arc<Registered>, offset: u64, span: &Span) -> Option<Self> {
        let (start, bytes) = (usize::try_from(offset).ok()?, usize::try_from(span.bytes).ok()?);
        let end = start.checked_add(bytes)?;
        let inside = end <= registered.region().bytes();
        inside.then(|| Self { registered: Arc::clone(registered), range: start..end })
    }

    fn used(&self, writes: bool) -> Use {
        let memory = Arc::as_ptr(self.registered.region()) as usize;
        Use { memory, range: self.range.start as u64..self.range.end as u64, writes }
    }

    fn claim(&self, writes: bool) -> Claim {
        Claim { region: Arc::clone(self.registered.region()), range: self.range.clone(), writes }
    }
}

/// A command, ready to be recorded.
pub(crate) enum Step {
    /// Launch a kernel.
    Launch {
        /// The kernel.
        entry: Arc<Entry>,
        /// Its bindings.
        spans: Vec<Span>,
        /// Its constants.
        constants: Vec<u32>,
        /// Groups.
        grid: [u32; 3],
    },
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
}

impl Step {
    /// What it reads and writes.
    pub(crate) fn uses(&self) -> Vec<Use> {
        match self {
            Step::Launch { entry, spans, .. } => {
                let access = entry.abi.bindings.iter().map(|access| *access != Access::Read);
                spans.iter().zip(access).map(|(span, writes)| span.used(writes)).collect()
            }
            Step::Copy { from, to } => vec![from.used(false), to.used(true)],
            Step::Fill { to, .. } => vec![to.used(true)],
            Step::Upload { from, to } => vec![from.used(false), to.used(true)],
            Step::Download { from, to } => vec![from.used(false), to.used(true)],
        }
    }

    /// The use that it makes of a host region, if any.
    fn claim(&self) -> Option<Claim> {
        match self {
            Step::Upload { from, .. } => Some(from.claim(false)),
            Step::Download { to, .. } => Some(to.claim(true)),
            _ => None,
        }
    }

    /// The copy that the host can make in its stead: from where, to where, how many bytes.
    fn host_copy(&self) -> Option<(*const u8, *mut u8, usize)> {
        match self {
            Step::Upload { from, to } => {
                let to = to.buffer.writable()?.wrapping_add(to.offset as usize);
                Some((from.registered.region_at(&from.range), to, from.range.len()))
            }
            Step::Download { from, to } => {
                let from = from.buffer.readable()?.wrapping_add(from.offset as usize);
                Some((from, to.registered.region_at(&to.range), to.range.len()))
            }
            _ => None,
        }
    }

    fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        match self {
            Step::Launch { spans, .. } => spans.iter().any(|span| span.is_of(buffer)),
            Step::Copy { from, to } => from.is_of(buffer) || to.is_of(buffer),
            Step::Fill { to, .. } | Step::Upload { to, .. } => to.is_of(buffer),
            Step::Download { from, .. } => from.is_of(buffer),
        }
    }
}

/// Steps that take effect in order.
pub(crate) struct Script {
    /// Before the steps, which keep what it names.
    recording: Mutex<Option<Arc<Recording>>>,
    steps: Vec<Step>,
    claims: Claims,
    /// What is copied into shadows before it starts.
    pub(crate) casts: Arc<[HostSpan]>,
    /// What is copied out of shadows when it has ended.
    pub(crate) collects: Arc<[HostSpan]>,
}

impl Script {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let claims = Claims::new(steps.iter().filter_map(Step::claim).collect());
        let shadow = |span: &&HostSpan| span.registered.is_shadow();
        let uploads = steps.iter().filter_map(|step| match step {
            Step::Upload { from, .. } => Some(from),
            _ => None,
        });
        let downloads = steps.iter().filter_map(|step| match step {
            Step::Download { to, .. } => Some(to),
            _ => None,
        });
        Self {
            recording: Mutex::default(),
            claims,
            casts: uploads.filter(shadow).cloned().collect(),
            collects: downloads.filter(shadow).cloned().collect(),
            steps,
        }
    }

    /// The commands as a command buffer; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a size; whatever else has the driver refuse.
    pub(crate) fn recording(&self, recorders: &Arc<Recorders>) -> Result<Option<Arc<Recording>>> {
        if self.steps.is_empty() {
            return Ok(None);
        }
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        if recording.is_none() {
            let made = Recording::new(recorders, &self.steps).map_err(|error| self.refused(error))?;
            *recording = Some(Arc::new(made));
        }
        Ok(recording.clone())
    }

    /// What is to be said where the driver does not take the commands.
    pub(crate) fn refused(&self, error: Error) -> Error {
        allocation_failure(error, self.steps.len().max(1) as u64 * STEP_BYTES, None)
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
