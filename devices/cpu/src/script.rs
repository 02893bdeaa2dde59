//! Execution of the steps of a script.
//!
//! This module knows nothing about threads or queues.

use crate::driver::{Span, Step};
use ragtag_hal::{HostBinding, HostCall, HostFn};
use std::ops::Range;

/// A launch of a CPU kernel.
#[derive(Debug)]
pub(crate) struct Launch {
    function: HostFn,
    /// Memory of the bindings, which the step's spans keep alive.
    bindings: Vec<HostBinding>,
    constants: Vec<u32>,
    grid: [u32; 3],
    groups: u32,
}

impl Launch {
    pub(crate) fn new(function: HostFn, spans: &[Span], constants: Vec<u32>, grid: [u32; 3]) -> Self {
        let binding = |span: &Span| HostBinding::new(pointer(span), span.bytes() as usize);
        let bindings = spans.iter().map(binding).collect();
        Self { function, bindings, constants, grid, groups: grid.into_iter().product() }
    }

    fn run(&self, groups: Range<u32>) {
        let call = HostCall { bindings: &self.bindings, constants: &self.constants, grid: self.grid };
        // SAFETY: `Checked` validated the dispatch against the entry's ABI (number, access and extent of the
        // bindings). The bindings lie inside page-aligned buffers, which the step's spans keep alive. The
        // caller guarantees for each submission that nothing else accesses the bytes that the launch writes.
        // Each group runs once.
        unsafe { (self.function)(&call, groups) }
    }
}

fn pointer(span: &Span) -> *mut u8 {
    span.buffer().pointer().wrapping_add(span.offset() as usize)
}

/// Returns the name of a step for messages: the name of the kernel, or the type of command.
pub(crate) fn name(step: &Step) -> &'static str {
    match step {
        Step::Launch(launch) => launch.abi.name,
        Step::Copy { .. } => "copy",
        Step::Fill { .. } => "fill",
        Step::Upload { .. } => "upload",
        Step::Download { .. } => "download",
    }
}

/// Returns the number of pieces into which threads may divide a step: the number of work groups for a launch,
/// otherwise 1.
pub(crate) fn pieces(step: &Step) -> u32 {
    match step {
        Step::Launch(launch) => launch.code.groups,
        _ => 1,
    }
}

/// Runs a range of a step's pieces.
pub(crate) fn run(step: &Step, pieces: Range<u32>) {
    let (from, to, bytes) = match step {
        Step::Launch(launch) => return launch.code.run(pieces),
        Step::Fill { to, word } => {
            for at in (0..to.bytes() as usize / size_of::<u32>()).map(|index| index * size_of::<u32>()) {
                // SAFETY: these four bytes are in the span, which is inside a live buffer. Nothing else
                // accesses them during the fill (the submission rules).
                unsafe { pointer(to).add(at).cast::<u32>().write_unaligned(*word) }
            }
            return;
        }
        Step::Copy { from, to } => (pointer(from), pointer(to), from.bytes().min(to.bytes()) as usize),
        Step::Upload { from, to, used } => (from.pointer(), pointer(to), from.used_bytes(*used) as usize),
        Step::Download { from, to } => (pointer(from), to.pointer(), to.range().len()),
    };
    // SAFETY: source and destination are inside live memory and have the same length. Ranges of one buffer do
    // not overlap (`Checked`), and the memory of a region never belongs to a buffer. The queue has leased the
    // bytes of a region. Nothing else accesses the bytes of a buffer during the copy (the submission rules).
    unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, bytes) }
}
