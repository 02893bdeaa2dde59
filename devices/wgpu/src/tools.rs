//! Kernels for two operations that wgpu has no commands for: fills with an arbitrary word, and copies within
//! one buffer.
//!
//! Each launch binds a range that starts at an aligned offset and does not exceed the size limit of a
//! binding. This module does not depend on the encoder.

use crate::driver::{Span, Step, Wgpu};
use crate::probe::Found;
use crate::program::Entry;
use crate::script::padded_bytes;
use ragtag_hal::driver::{self, Driver};
use ragtag_hal::{Access, DeviceFunction, EntryAbi, Error, Result};
use std::sync::{Mutex, PoisonError};

/// Number of words per group.
const GROUP_WORDS: u64 = 1024;

static FILL: EntryAbi = EntryAbi {
    name: "fill",
    bindings: &[Access::Write],
    constants: 3,
    extents: |_, extents| extents.fill(4),
};

static COPY: EntryAbi = EntryAbi {
    name: "copy",
    bindings: &[Access::Read, Access::Write],
    constants: 3,
    extents: |_, extents| extents.fill(4),
};

/// The kernels of a device, which are compiled on first use.
#[derive(Default)]
pub(crate) struct Tools {
    fill: Mutex<Option<Entry>>,
    copy: Mutex<Option<Entry>>,
}

impl Tools {
    /// Appends launches that fill a span with a word.
    ///
    /// # Errors
    /// Returns an error if wgpu rejects the kernel or a bind group.
    pub(crate) fn fill(&self, on: &Wgpu, to: &Span, word: u32, steps: &mut Vec<Step>) -> Result<()> {
        let entry = entry(&self.fill, on, include_str!("fill.wgsl"), &FILL)?;
        let most = piece_bytes(&on.found);
        for offset in (0..to.bytes()).step_by(most as usize) {
            let piece = to.part(offset, most);
            let (bound, first) = bind(&piece, &on.found)?;
            let words = padded_bytes(&piece) / 4;
            steps.push(launch(on, (&entry, &FILL), vec![bound], vec![first, words as u32, word], words)?);
        }
        Ok(())
    }

    /// Appends launches that copy a span to another span of the same buffer. The spans do not overlap.
    ///
    /// # Errors
    /// Returns an error if wgpu rejects the kernel or a bind group.
    pub(crate) fn copy(&self, on: &Wgpu, from: &Span, to: &Span, steps: &mut Vec<Step>) -> Result<()> {
        let entry = entry(&self.copy, on, include_str!("copy.wgsl"), &COPY)?;
        let most = piece_bytes(&on.found);
        for offset in (0..to.bytes()).step_by(most as usize) {
            let piece = to.part(offset, most);
            let (bound_from, first_from) = bind(&from.part(offset, most), &on.found)?;
            let (bound_to, first_to) = bind(&piece, &on.found)?;
            let words = padded_bytes(&piece) / 4;
            let constants = vec![first_from, first_to, words as u32];
            steps.push(launch(on, (&entry, &COPY), vec![bound_from, bound_to], constants, words)?);
        }
        Ok(())
    }
}

/// Returns a launch with enough groups for `words` words.
fn launch(
    on: &Wgpu,
    (entry, abi): (&Entry, &'static EntryAbi),
    spans: Vec<Span>,
    constants: Vec<u32>,
    words: u64,
) -> Result<Step> {
    let code = on.launch(entry, &spans, constants, [words.div_ceil(GROUP_WORDS) as u32, 1, 1])?;
    Ok(Step::Launch(driver::Launch { code, spans, abi }))
}

fn entry(place: &Mutex<Option<Entry>>, on: &Wgpu, text: &str, abi: &'static EntryAbi) -> Result<Entry> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = place.as_ref() {
        return Ok(entry.clone());
    }
    let function = DeviceFunction { name: abi.name.into(), work_group: [256, 1, 1], dynamic_local_bytes: 0 };
    Ok(place.insert(on.programs.get(&on.gpu, &on.found, text, &function, abi)?).clone())
}

/// Returns the maximum number of bytes per launch. It is smaller than the limit of a binding, because the
/// binding starts at an aligned offset, which can lie before the start of the span.
fn piece_bytes(found: &Found) -> u64 {
    let caps = &found.adapter.caps;
    let most = caps.max_binding_bytes.saturating_sub(2 * caps.binding_alignment_bytes);
    // The result is a multiple of the group size, so that only the last piece has a partial group.
    (most - most % (4 * GROUP_WORDS)).max(4 * GROUP_WORDS)
}

/// Extends a span so that it starts at an aligned offset. Returns the extended span, and the index of the
/// original span's first word within it.
fn bind(span: &Span, found: &Found) -> Result<(Span, u32)> {
    let before = span.offset() % found.adapter.caps.binding_alignment_bytes.max(1);
    let bound = Span::new(span.buffer(), span.offset() - before, before + padded_bytes(span));
    let bound = bound.ok_or_else(|| Error::invalid("a span lies outside of its buffer"))?;
    Ok((bound, (before / 4) as u32))
}
