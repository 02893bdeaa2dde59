//! Fills, and copies within a buffer: wgpu has no commands for them, so they are small kernels of this crate's own.
//!
//! They bind whole ranges as far as a binding's alignment and size allow. This module must not know how launches are encoded.

use crate::gpu::Gpu;
use crate::probe::Found;
use crate::program::{Entry, Programs};
use crate::script::{Launch, Span};
use ragtag_hal::{Access, DeviceFunction, EntryAbi, Result};
use std::sync::{Mutex, PoisonError};

/// Words that a group takes.
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

/// The kernels of a device, compiled when they are first wanted.
#[derive(Default)]
pub(crate) struct Tools {
    fill: Mutex<Option<Entry>>,
    copy: Mutex<Option<Entry>>,
}

impl Tools {
    /// Launches that fill a span with a word.
    ///
    /// # Errors
    /// If wgpu refuses.
    pub(crate) fn fill(
        &self,
        gpu: &Gpu,
        found: &Found,
        programs: &Programs,
        to: &Span,
        word: u32,
    ) -> Result<Vec<Launch>> {
        let entry = entry(&self.fill, gpu, found, programs, include_str!("fill.wgsl"), &FILL)?;
        let most = piece_bytes(found);
        let launch = |offset| {
            let (bound, first) = bind(&to.part(offset, most), found);
            let words = to.part(offset, most).padded_bytes() / 4;
            Launch::new(gpu, &entry, vec![bound], &[first, words as u32, word], grid(words))
        };
        (0..to.bytes).step_by(most as usize).map(launch).collect()
    }

    /// Launches that copy a span to another of the same buffer that does not overlap it.
    ///
    /// # Errors
    /// If wgpu refuses.
    pub(crate) fn copy(
        &self,
        gpu: &Gpu,
        found: &Found,
        programs: &Programs,
        from: &Span,
        to: &Span,
    ) -> Result<Vec<Launch>> {
        let entry = entry(&self.copy, gpu, found, programs, include_str!("copy.wgsl"), &COPY)?;
        let most = piece_bytes(found);
        let launch = |offset| {
            let (bound_from, first_from) = bind(&from.part(offset, most), found);
            let (bound_to, first_to) = bind(&to.part(offset, most), found);
            let words = to.part(offset, most).padded_bytes() / 4;
            let constants = [first_from, first_to, words as u32];
            Launch::new(gpu, &entry, vec![bound_from, bound_to], &constants, grid(words))
        };
        (0..to.bytes).step_by(most as usize).map(launch).collect()
    }
}

fn entry(
    place: &Mutex<Option<Entry>>,
    gpu: &Gpu,
    found: &Found,
    programs: &Programs,
    text: &str,
    abi: &'static EntryAbi,
) -> Result<Entry> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = place.as_ref() {
        return Ok(entry.clone());
    }
    let function = DeviceFunction { name: abi.name.into(), work_group: [256, 1, 1], dynamic_local_bytes: 0 };
    Ok(place.insert(programs.get(gpu, found, text, &function, abi)?).clone())
}

/// The most bytes of one launch: with what lies between an aligned offset and the span, a binding.
fn piece_bytes(found: &Found) -> u64 {
    let caps = &found.adapter.caps;
    let most = caps.max_binding_bytes.saturating_sub(2 * caps.binding_alignment_bytes);
    // In whole groups, so that all pieces but the last are.
    (most - most % (4 * GROUP_WORDS)).max(4 * GROUP_WORDS)
}

/// The span from an aligned offset on, and which of its words is the span's first.
fn bind(span: &Span, found: &Found) -> (Span, u32) {
    let before = span.offset % found.adapter.caps.binding_alignment_bytes.max(1);
    let bound = Span {
        buffer: std::sync::Arc::clone(&span.buffer),
        offset: span.offset - before,
        bytes: before + span.padded_bytes(),
    };
    (bound, (before / 4) as u32)
}

fn grid(words: u64) -> [u32; 3] {
    [words.div_ceil(GROUP_WORDS) as u32, 1, 1]
}
