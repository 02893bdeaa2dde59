//! Steps of scripts as commands of a list.
//!
//! This module does not depend on events or points.

use crate::api::{Between, CommandList};
use crate::driver::{LevelZero, Span};
use crate::program::Launch;
use ragtag_hal::Result;
use ragtag_hal::driver::Step;
use std::sync::PoisonError;

/// Returns the address of a span, for copies.
fn pointer(span: &Span) -> *mut u8 {
    span.buffer().pointer().wrapping_add(span.offset() as usize)
}

/// Appends a step to a list.
///
/// # Errors
/// Returns the driver's error, or [`Error::Unsupported`](ragtag_hal::Error::Unsupported) for a fill of imported
/// pages of the host.
pub(crate) fn append(list: &CommandList, step: &Step<LevelZero>, between: Between<'_>) -> Result<()> {
    // SAFETY: the script keeps the buffers and regions of all spans alive until it has ended. Until then, points
    // and reservations exclude other access to these bytes. `Checked` validated launches against the entry's
    // ABI: the kernel accesses only its bindings.
    unsafe {
        match step {
            Step::Launch(launch) => {
                let Launch { kernel, arguments, groups } = &launch.code;
                let mut kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
                kernel.bind(arguments)?;
                list.launch(&kernel, *groups, between)
            }
            Step::Copy { from, to } => list.copy(pointer(from), pointer(to), to.bytes() as usize, between),
            Step::Fill { to, word } => {
                let start = to.buffer().on_device()?.wrapping_add(to.offset() as usize);
                list.fill(start, *word, to.bytes() as usize, between)
            }
            Step::Upload { from, to, .. } => {
                list.copy(from.pointer(), pointer(to), to.bytes() as usize, between)
            }
            Step::Download { from, to } => {
                list.copy(pointer(from), to.pointer(), from.bytes() as usize, between)
            }
        }
    }
}
