//! Commands with their names resolved to memory and pipelines.
//!
//! A script is made once, when a program is recorded or commands are submitted; launches have their bind groups and constants
//! then. It is only read afterwards, and keeps what it names alive. This module must not know how scripts are encoded.

use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::program::{Entry, FIRST_GROUP_WORDS};
use ragtag_hal::lanes::{self, Claim, Claims};
use ragtag_hal::{HostRegion, Reservation, Result};
use std::ops::Range;
use std::sync::{Arc, Weak};
use wgpu::{BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, ComputePipeline};

/// Bytes of a buffer, up to its end or to a multiple of four.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Span {
    /// `bytes` bytes from `offset` on, or `None` if the buffer does not have them.
    pub(crate) fn new(buffer: &Arc<Buffer>, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= buffer.bytes()).then(|| Self { buffer: Arc::clone(buffer), offset, bytes })
    }

    /// The bytes as words: a part of the last one counts as a whole, which the buffer has.
    pub(crate) fn padded_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
    }

    /// The part from `offset` on, of at most so many bytes.
    pub(crate) fn part(&self, offset: u64, most: u64) -> Self {
        let bytes = most.min(self.bytes.saturating_sub(offset));
        Self { buffer: Arc::clone(&self.buffer), offset: self.offset + offset, bytes }
    }

    fn binding(&self) -> BufferBinding<'_> {
        // A vector of four words more is bound where a kernel's last one is cut short.
        let end = (self.offset + self.bytes).next_multiple_of(16).min(self.buffer.bytes());
        BufferBinding {
            buffer: self.buffer.wgpu(),
            offset: self.offset,
            size: wgpu::BufferSize::new(end - self.offset),
        }
    }
}

/// Bytes of a region, from `offset` on; how many, the span on the other side says.
#[derive(Clone)]
pub(crate) struct HostSpan {
    region: Arc<HostRegion>,
    offset: usize,
    bytes: usize,
}

impl HostSpan {
    /// `None` if the region does not have these bytes.
    pub(crate) fn new(region: &Arc<HostRegion>, offset: u64, span: &Span) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(span.bytes).ok()?);
        (offset.checked_add(bytes)? <= region.bytes()).then(|| Self {
            region: Arc::clone(region),
            offset,
            bytes,
        })
    }

    /// The part from `offset` on, of at most so many bytes.
    pub(crate) fn part(&self, offset: u64, most: u64) -> Self {
        let offset = (offset as usize).min(self.bytes);
        let bytes = (self.bytes - offset).min(usize::try_from(most).unwrap_or(usize::MAX));
        Self { region: Arc::clone(&self.region), offset: self.offset + offset, bytes }
    }

    pub(crate) fn footprint(&self) -> Footprint {
        Footprint { region: Arc::downgrade(&self.region), range: self.range() }
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }

    /// Calls back with the bytes.
    pub(crate) fn read<T>(&self, take: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the bytes lie in the region, which is initialised and lives as long as this. That nobody writes them
        // meanwhile is what points and reservations are for.
        take(unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.offset), self.bytes) })
    }

    /// Writes the bytes.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let count = self.bytes.min(bytes.len());
        // SAFETY: as above; that nobody else touches them meanwhile is what points and reservations are for.
        unsafe {
            let to = self.region.as_ptr().add(self.offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count);
        }
    }
}

/// Which bytes of which region, without a hold on it.
pub(crate) struct Footprint {
    region: Weak<HostRegion>,
    range: Range<usize>,
}

impl Footprint {
    /// Whether a span has some of these bytes.
    pub(crate) fn meets(&self, span: &HostSpan) -> bool {
        let (a, b) = (&self.range, span.range());
        self.region.as_ptr() == Arc::as_ptr(&span.region) && a.start < b.end && b.start < a.end
    }
}

/// A launch of a kernel, in as many parts as the device asks for.
pub(crate) struct Launch {
    pub(crate) pipeline: ComputePipeline,
    pub(crate) bind_group: BindGroup,
    pub(crate) parts: Vec<Part>,
    /// What it is bound to.
    bound: Vec<Span>,
}

/// Part of a launch.
pub(crate) struct Part {
    /// The place of its first group, and the constants.
    pub(crate) immediates: Vec<u8>,
    /// Its groups.
    pub(crate) groups: [u32; 3],
}

impl Launch {
    /// Binds spans and constants to an entry.
    ///
    /// # Errors
    /// If wgpu refuses.
    pub(crate) fn new(
        gpu: &Gpu,
        entry: &Entry,
        spans: Vec<Span>,
        constants: &[u32],
        grid: [u32; 3],
    ) -> Result<Self> {
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(&spans)
            .map(|(binding, span)| BindGroupEntry {
                binding,
                resource: BindingResource::Buffer(span.binding()),
            })
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
            Part { immediates, groups }
        };
        let parts = grid_parts(grid, most).into_iter().map(part).collect();
        Ok(Self { pipeline: entry.pipeline.clone(), bind_group, parts, bound: spans })
    }
}

/// A grid in parts of at most `most` groups along each axis: their first groups and sizes.
fn grid_parts(grid: [u32; 3], most: u32) -> Vec<([u32; 3], [u32; 3])> {
    let most = most.max(1);
    let starts = |axis: usize| (0..grid[axis]).step_by(most as usize);
    let size = |axis: usize, start: u32| most.min(grid[axis] - start);
    let all = starts(2).flat_map(|z| starts(1).flat_map(move |y| starts(0).map(move |x| [x, y, z])));
    all.map(|first| (first, [0, 1, 2].map(|axis| size(axis, first[axis])))).collect()
}

/// A command, ready to be encoded.
pub(crate) enum Step {
    /// Launch a kernel.
    Launch(Launch),
    /// Copy between two buffers.
    Copy {
        /// Read from here.
        from: Span,
        /// Written to here.
        to: Span,
    },
    /// Fill with zeros.
    Clear {
        /// Written to here.
        to: Span,
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
    /// The use that it makes of a host region, if any.
    fn claim(&self) -> Option<Claim> {
        let claim =
            |host: &HostSpan, writes| Claim { region: Arc::clone(&host.region), range: host.range(), writes };
        match self {
            Step::Upload { from, .. } => Some(claim(from, false)),
            Step::Download { to, .. } => Some(claim(to, true)),
            _ => None,
        }
    }

    fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        let is = |span: &Span| Arc::ptr_eq(&span.buffer, buffer);
        match self {
            Step::Launch(launch) => launch.bound.iter().any(is),
            Step::Copy { from, to } => is(from) || is(to),
            Step::Clear { to } | Step::Upload { to, .. } => is(to),
            Step::Download { from, .. } => is(from),
        }
    }
}

/// Steps that take effect in order; cheap to clone.
#[derive(Clone)]
pub(crate) struct Script(Arc<Steps>);

struct Steps {
    steps: Vec<Step>,
    claims: Claims,
}

impl Script {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        let claims = Claims::new(steps.iter().filter_map(Step::claim).collect());
        Self(Arc::new(Steps { steps, claims }))
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.0.steps
    }

    pub(crate) fn uses_buffer(&self, buffer: &Arc<Buffer>) -> bool {
        self.0.steps.iter().any(|step| step.uses_buffer(buffer))
    }

    pub(crate) fn uses_region(&self, wanted: &Arc<HostRegion>) -> bool {
        self.0.claims.uses(wanted)
    }
}

impl lanes::Script for Script {
    fn reserve(&self) -> Result<Vec<Reservation>> {
        self.0.claims.reserve()
    }

    /// Buffers are not in the host's reach.
    fn host_bytes(&self) -> Option<usize> {
        None
    }

    fn run_on_host(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_cut_along_each_axis() {
        assert_eq!(grid_parts([3, 2, 1], 65_535), [([0; 3], [3, 2, 1])]);
        let parts = grid_parts([5, 1, 3], 2);
        let wanted = [
            ([0, 0, 0], [2, 1, 2]),
            ([2, 0, 0], [2, 1, 2]),
            ([4, 0, 0], [1, 1, 2]),
            ([0, 0, 2], [2, 1, 1]),
            ([2, 0, 2], [2, 1, 1]),
            ([4, 0, 2], [1, 1, 1]),
        ];
        assert_eq!(parts, wanted);
        let groups: u32 =
            grid_parts([70_000, 3, 2], 65_535).iter().map(|(_, s)| s.iter().product::<u32>()).sum();
        assert_eq!(groups, 420_000);
        assert_eq!(grid_parts([3, 0, 1], 2), []);
    }
}
