//! Commands with their names resolved to memory and functions, and how each is executed.
//!
//! A script is made once, when a program is recorded or commands are submitted, and is only read afterwards; it keeps
//! what it names alive. This module must not know threads or queues.

use crate::memory::Buffer;
use ragtag_hal::{HostBinding, HostCall, HostFn, HostRegion, Result};
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

    fn pointer(&self) -> *mut u8 {
        self.buffer.pointer().wrapping_add(self.offset)
    }
}

/// A launch of a host function.
#[derive(Debug)]
pub(crate) struct Launch {
    name: &'static str,
    function: HostFn,
    bindings: Vec<HostBinding>,
    constants: Vec<u32>,
    grid: [u32; 3],
    groups: u32,
    /// Keeps alive what the bindings point to.
    spans: Vec<Span>,
}

impl Launch {
    pub(crate) fn new(
        name: &'static str,
        function: HostFn,
        spans: Vec<Span>,
        constants: Vec<u32>,
        grid: [u32; 3],
    ) -> Self {
        let bindings = spans.iter().map(|span| HostBinding::new(span.pointer(), span.bytes)).collect();
        let groups = if grid.contains(&0) { 0 } else { grid.into_iter().product() };
        Self { name, function, bindings, constants, grid, groups, spans }
    }

    fn run(&self, groups: Range<u32>) {
        let call = HostCall { bindings: &self.bindings, constants: &self.constants, grid: self.grid };
        // SAFETY: `Checked` held the dispatch to the entry's ABI (number, access and extent of the bindings); the
        // bindings lie inside buffers that `spans` keeps alive, and those are page-aligned. That nothing else touches
        // what the launch writes is the caller's promise with each submission, and groups are handed out once each.
        unsafe { (self.function)(&call, groups) }
    }
}

/// A command, ready to run.
#[derive(Debug)]
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
        /// Read from here …
        region: Arc<HostRegion>,
        /// … from this byte on.
        offset: usize,
        /// Written to here.
        to: Span,
    },
    /// Copy into a host region.
    Download {
        /// Read from here.
        from: Span,
        /// Written to here …
        region: Arc<HostRegion>,
        /// … from this byte on.
        offset: usize,
    },
}

impl Step {
    /// For messages: the kernel's name, or what kind of copy it is.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Step::Launch(launch) => launch.name,
            Step::Copy { .. } => "copy",
            Step::Fill { .. } => "fill",
            Step::Upload { .. } => "upload",
            Step::Download { .. } => "download",
        }
    }

    /// Into how many pieces threads may divide it.
    pub(crate) fn pieces(&self) -> u32 {
        match self {
            Step::Launch(launch) => launch.groups,
            _ => 1,
        }
    }

    /// Runs some of its pieces.
    ///
    /// # Errors
    /// If somebody else uses the bytes of a host region.
    pub(crate) fn run(&self, pieces: Range<u32>) -> Result<()> {
        match self {
            Step::Launch(launch) => launch.run(pieces),
            Step::Copy { from, to } => {
                // SAFETY: both spans are inside live buffers and equally long; they do not overlap (`Checked`), and
                // nobody else touches the bytes meanwhile (the submission rules).
                unsafe {
                    std::ptr::copy_nonoverlapping(from.pointer(), to.pointer(), from.bytes.min(to.bytes))
                }
            }
            Step::Fill { to, word } => {
                for at in (0..to.bytes / size_of::<u32>()).map(|index| index * size_of::<u32>()) {
                    // SAFETY: these four bytes are in the span, which is inside a live buffer; nobody else touches them
                    // meanwhile (the submission rules).
                    unsafe { to.pointer().add(at).cast::<u32>().write_unaligned(*word) }
                }
            }
            Step::Upload { region, offset, to } => {
                let from = region.read(*offset..offset.saturating_add(to.bytes))?;
                // SAFETY: the lease is as long as the span, which is inside a live buffer; a region's memory is never a
                // buffer's. Nobody else touches the span's bytes meanwhile (the submission rules).
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.pointer(), from.len()) }
            }
            Step::Download { from, region, offset } => {
                let mut to = region.write(*offset..offset.saturating_add(from.bytes))?;
                // SAFETY: as for uploads.
                unsafe { std::ptr::copy_nonoverlapping(from.pointer(), to.as_mut_ptr(), to.len()) }
            }
        }
        Ok(())
    }

    fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        let is = |span: &Span| Arc::ptr_eq(&span.buffer, buffer);
        match self {
            Step::Launch(launch) => launch.spans.iter().any(is),
            Step::Copy { from, to } => is(from) || is(to),
            Step::Fill { to, .. } | Step::Upload { to, .. } => is(to),
            Step::Download { from, .. } => is(from),
        }
    }

    fn uses_region(&self, wanted: &Arc<HostRegion>) -> bool {
        match self {
            Step::Upload { region, .. } | Step::Download { region, .. } => Arc::ptr_eq(region, wanted),
            _ => false,
        }
    }
}

/// Steps that take effect in order.
#[derive(Debug)]
pub(crate) struct Script {
    steps: Vec<Step>,
}

impl Script {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether more than one thread can work on it.
    pub(crate) fn is_divisible(&self) -> bool {
        self.steps.iter().any(|step| step.pieces() > 1)
    }

    /// The bytes that it copies, if it does nothing but copy from or to host regions.
    pub(crate) fn transfer_bytes(&self) -> Option<usize> {
        self.steps.iter().try_fold(0usize, |sum, step| match step {
            Step::Upload { to: span, .. } | Step::Download { from: span, .. } => sum.checked_add(span.bytes),
            _ => None,
        })
    }

    pub(crate) fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        self.steps.iter().any(|step| step.uses_buffer(buffer))
    }

    pub(crate) fn uses_region(&self, region: &Arc<HostRegion>) -> bool {
        self.steps.iter().any(|step| step.uses_region(region))
    }
}
