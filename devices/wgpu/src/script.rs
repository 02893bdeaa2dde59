//! Launches with their bind groups and constants, and access to the bytes of spans.
//!
//! This module does not depend on the encoder.

use crate::driver::{HostSpan, Span};
use crate::gpu::Gpu;
use crate::program::{Entry, FIRST_GROUP_WORDS};
use ragtag_hal::driver::{Allocation, grid_parts};
use ragtag_hal::{HostRegion, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};
use wgpu::{BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, ComputePipeline};

/// Returns the size of a span, rounded up to whole words. The rounded span always fits in its buffer.
pub(crate) fn padded_bytes(span: &Span) -> u64 {
    span.bytes().next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
}

fn bytes(span: &Span) -> BufferBinding<'_> {
    // The size is rounded up to four words, because the last access of a kernel may be a vector of four
    // words.
    let end = (span.offset() + span.bytes()).next_multiple_of(16).min(span.buffer().bytes());
    BufferBinding {
        buffer: &span.buffer().0,
        offset: span.offset(),
        size: wgpu::BufferSize::new(end - span.offset()),
    }
}

/// Calls `take` with the bytes of a host span.
pub(crate) fn read<T>(span: &HostSpan, take: impl FnOnce(&[u8]) -> T) -> T {
    // SAFETY: the bytes lie in the region, which is initialised and lives as long as the span. Points and
    // reservations exclude writers during the call.
    take(unsafe { std::slice::from_raw_parts(span.pointer(), span.range().len()) })
}

/// Writes bytes to a host span.
pub(crate) fn write(span: &HostSpan, bytes: &[u8]) {
    let count = span.range().len().min(bytes.len());
    // SAFETY: the bytes lie in the region, as for `read`. Points and reservations exclude all other access
    // during the call.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), span.pointer(), count) }
}

/// A byte range of a host region. It does not keep the region alive.
pub(crate) struct Footprint {
    region: Weak<HostRegion>,
    range: Range<usize>,
}

impl Footprint {
    pub(crate) fn of(span: &HostSpan) -> Self {
        Self { region: Arc::downgrade(&span.registered().region), range: span.range().clone() }
    }

    /// Returns true if a span overlaps the range.
    pub(crate) fn meets(&self, span: &HostSpan) -> bool {
        let (a, b) = (&self.range, span.range());
        let same = self.region.as_ptr() == Arc::as_ptr(&span.registered().region);
        same && a.start < b.end && b.start < a.end
    }
}

/// A launch of a kernel, split into parts that are within the device's limits.
pub(crate) struct Launch {
    pub(crate) pipeline: ComputePipeline,
    pub(crate) bind_group: BindGroup,
    pub(crate) parts: Vec<LaunchPart>,
}

/// One part of a launch.
pub(crate) struct LaunchPart {
    /// Position of the first group of the part, followed by the constants.
    pub(crate) immediates: Vec<u8>,
    /// Number of groups in each dimension.
    pub(crate) groups: [u32; 3],
}

impl Launch {
    /// Creates a launch from an entry, its bindings and its constants.
    ///
    /// # Errors
    /// Returns an error if wgpu rejects the bind group.
    pub(crate) fn new(
        gpu: &Gpu,
        entry: &Entry,
        spans: &[Span],
        constants: &[u32],
        grid: [u32; 3],
    ) -> Result<Self> {
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(spans)
            .map(|(binding, span)| BindGroupEntry { binding, resource: BindingResource::Buffer(bytes(span)) })
            .collect();
        let descriptor = BindGroupDescriptor { label: None, layout: &entry.layout, entries: &entries };
        let bind_group = gpu.guarded(|| gpu.device.create_bind_group(&descriptor));
        let bind_group = bind_group.map_err(|failure| failure.of(entry.name))?;
        let most = gpu.device.limits().max_compute_workgroups_per_dimension;
        let part = |(first, groups): ([u32; 3], [u32; 3])| {
            let words = first.iter().chain(constants).copied();
            let mut immediates: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
            debug_assert!(first.len() == FIRST_GROUP_WORDS && immediates.len() <= entry.immediate_bytes);
            immediates.resize(entry.immediate_bytes, 0);
            LaunchPart { immediates, groups }
        };
        let parts = grid_parts(grid, [most; 3]).map(part).collect();
        Ok(Self { pipeline: entry.pipeline.clone(), bind_group, parts })
    }
}
