//! Commands with IDs resolved to memory and kernels.
//!
//! A script is created when a program is recorded or commands are submitted. It is immutable, and keeps its
//! buffers, regions and kernels alive. This module knows nothing about waits or points.

use super::{Allocation, Driver};
use crate::command::EntryAbi;
use crate::error::Result;
use crate::queues::{Claim, Claims};
use crate::region::{HostRegion, Reservation};
use std::ops::Range;
use std::sync::Arc;

/// A range of bytes of a buffer.
#[derive(Debug)]
pub struct Span<B> {
    buffer: Arc<B>,
    offset: u64,
    bytes: u64,
}

impl<B> Clone for Span<B> {
    fn clone(&self) -> Self {
        Self { buffer: Arc::clone(&self.buffer), ..*self }
    }
}

impl<B: Allocation> Span<B> {
    /// Returns the span of `bytes` bytes that starts at `offset`, or `None` if the buffer is too short.
    pub fn new(buffer: &Arc<B>, offset: u64, bytes: u64) -> Option<Self> {
        let fits = offset.checked_add(bytes)? <= buffer.bytes();
        fits.then(|| Self { buffer: Arc::clone(buffer), offset, bytes })
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &Arc<B> {
        &self.buffer
    }

    /// Returns the offset of the first byte in the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the part of the span that starts at `offset`, with at most `most` bytes.
    pub fn part(&self, offset: u64, most: u64) -> Self {
        let offset = offset.min(self.bytes);
        let bytes = most.min(self.bytes - offset);
        Self { buffer: Arc::clone(&self.buffer), offset: self.offset + offset, bytes }
    }

    fn is_of(&self, buffer: &Arc<B>) -> bool {
        Arc::ptr_eq(&self.buffer, buffer)
    }
}

/// A registered region.
#[derive(Debug)]
pub struct Registered<R> {
    /// Driver state of the region. It is dropped before the region.
    pub hold: R,
    /// The region.
    pub region: Arc<HostRegion>,
}

/// A range of bytes of a registered region.
#[derive(Debug)]
pub struct HostSpan<R> {
    registered: Arc<Registered<R>>,
    range: Range<usize>,
}

impl<R> Clone for HostSpan<R> {
    fn clone(&self) -> Self {
        Self { registered: Arc::clone(&self.registered), range: self.range.clone() }
    }
}

impl<R> HostSpan<R> {
    /// Returns the span of `bytes` bytes that starts at `offset`, or `None` if the region is too short.
    pub fn new(registered: &Arc<Registered<R>>, offset: u64, bytes: u64) -> Option<Self> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        let fits = end <= registered.region.bytes();
        fits.then(|| Self { registered: Arc::clone(registered), range: start..end })
    }

    /// Returns the registered region.
    pub fn registered(&self) -> &Arc<Registered<R>> {
        &self.registered
    }

    /// Returns the range of bytes in the region.
    pub fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Returns a pointer to the first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.registered.region.as_ptr().wrapping_add(self.range.start)
    }

    /// Returns the part of the span that starts at `offset`, with at most `most` bytes.
    pub fn part(&self, offset: u64, most: u64) -> Self {
        let start = self.range.start + (offset as usize).min(self.range.len());
        let bytes = (self.range.end - start).min(usize::try_from(most).unwrap_or(usize::MAX));
        Self { registered: Arc::clone(&self.registered), range: start..start + bytes }
    }

    /// Returns the number of bytes to copy. If `used` is set, the word at this index holds the number of words
    /// to copy, at most those of the span.
    pub fn used_bytes(&self, used: Option<u32>) -> u64 {
        let at = |word: u32| self.range.start + word as usize * 4;
        let word = used.and_then(|word| self.registered.region.read(at(word)..at(word) + 4).ok());
        let words = word.and_then(|bytes| Some(u32::from_ne_bytes(*bytes.first_chunk()?)));
        let most = self.range.len() as u64;
        words.map_or(most, |words| (u64::from(words) * 4).clamp(most.min(4), most))
    }

    fn claim(&self, writes: bool) -> Claim {
        Claim { region: Arc::clone(&self.registered.region), range: self.range.clone(), writes }
    }
}

/// A launch of a kernel.
pub struct Launch<D: Driver> {
    /// Driver state of the launch. It is dropped before the spans.
    pub code: D::Launch,
    /// Bindings in the ABI's order.
    pub spans: Vec<Span<D::Buffer>>,
    /// Interface of the entry.
    pub abi: &'static EntryAbi,
}

/// Splits a grid into parts that have at most `most` groups along each axis. Yields the first group and the
/// size of each part.
pub fn grid_parts(grid: [u32; 3], most: [u32; 3]) -> impl Iterator<Item = ([u32; 3], [u32; 3])> {
    let [x, y, z] = [0, 1, 2].map(|axis| {
        let (all, most) = (grid[axis], most[axis].max(1));
        move || (0..all).step_by(most as usize).map(move |first| (first, most.min(all - first)))
    });
    z().flat_map(move |(z, depth)| {
        y().flat_map(move |(y, height)| x().map(move |(x, width)| ([x, y, z], [width, height, depth])))
    })
}

/// A command with resolved arguments. Source and destination of a copy have equal lengths.
pub enum Step<D: Driver> {
    /// A kernel launch over a non-empty grid.
    Launch(Launch<D>),
    /// A copy between buffers.
    Copy {
        /// Source.
        from: Span<D::Buffer>,
        /// Destination.
        to: Span<D::Buffer>,
    },
    /// A fill with a 32-bit word.
    Fill {
        /// Destination.
        to: Span<D::Buffer>,
        /// The word.
        word: u32,
    },
    /// A copy from a host region.
    Upload {
        /// Source.
        from: HostSpan<D::Region>,
        /// Destination.
        to: Span<D::Buffer>,
        /// Index of the word of the source that holds the number of used words, if the copy may end after
        /// these.
        used: Option<u32>,
    },
    /// A copy into a host region.
    Download {
        /// Source.
        from: Span<D::Buffer>,
        /// Destination.
        to: HostSpan<D::Region>,
    },
}

impl<D: Driver> Step<D> {
    /// Returns whether the step copies bytes.
    pub fn is_copy(&self) -> bool {
        matches!(self, Step::Copy { .. } | Step::Upload { .. } | Step::Download { .. })
    }

    /// Returns the range of a host region that the step uses, if any.
    fn claim(&self) -> Option<Claim> {
        match self {
            Step::Upload { from, .. } => Some(from.claim(false)),
            Step::Download { to, .. } => Some(to.claim(true)),
            _ => None,
        }
    }

    /// Returns the source, destination and length of a copy that the host can perform. Returns `None` for
    /// other steps.
    fn host_copy(&self) -> Option<(*const u8, *mut u8, usize)> {
        match self {
            Step::Upload { from, to, used } => {
                let pointer = to.buffer.writable()?.wrapping_add(to.offset as usize);
                Some((from.pointer(), pointer, from.used_bytes(*used) as usize))
            }
            Step::Download { from, to } => {
                let pointer = from.buffer.readable()?.wrapping_add(from.offset as usize);
                Some((pointer, to.pointer(), to.range.len()))
            }
            _ => None,
        }
    }

    fn uses_buffer(&self, buffer: &Arc<D::Buffer>) -> bool {
        match self {
            Step::Launch(launch) => launch.spans.iter().any(|span| span.is_of(buffer)),
            Step::Copy { from, to } => from.is_of(buffer) || to.is_of(buffer),
            Step::Fill { to, .. } | Step::Upload { to, .. } => to.is_of(buffer),
            Step::Download { from, .. } => from.is_of(buffer),
        }
    }
}

/// Steps that take effect in order, and the state that the driver keeps for them.
pub struct Script<D: Driver> {
    recording: D::Recording,
    steps: Vec<Step<D>>,
    claims: Claims,
}

impl<D: Driver> Script<D> {
    /// Creates a script, and lets the driver prepare its steps for the queues.
    ///
    /// # Errors
    /// Returns an error if a driver call fails.
    pub(super) fn new(driver: &D, steps: Vec<Step<D>>, program: bool) -> Result<Self> {
        let claims = Claims::new(steps.iter().filter_map(Step::claim).collect());
        Ok(Self { recording: driver.prepare(&steps, program)?, steps, claims })
    }

    /// Returns the driver state of the script.
    pub fn recording(&self) -> &D::Recording {
        &self.recording
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Step<D>] {
        &self.steps
    }

    pub(super) fn uses_buffer(&self, buffer: &Arc<D::Buffer>) -> bool {
        self.steps.iter().any(|step| step.uses_buffer(buffer))
    }

    pub(super) fn uses_region(&self, region: &Arc<HostRegion>) -> bool {
        self.claims.uses(region)
    }

    /// Leases the ranges of host regions that the script uses.
    ///
    /// # Errors
    /// Returns an error if another lease conflicts with one of the ranges.
    pub(crate) fn reserve(&self) -> Result<Vec<Reservation>> {
        self.claims.reserve()
    }

    /// Returns the number of bytes that the script copies if the host can perform all of its steps. Returns
    /// `None` otherwise.
    pub(crate) fn host_bytes(&self) -> Option<usize> {
        self.steps.iter().try_fold(0usize, |sum, step| sum.checked_add(step.host_copy()?.2))
    }

    /// Executes the copies on the host.
    ///
    /// # Errors
    /// Returns an error if a host-region range that the script uses conflicts with an existing lease.
    pub(crate) fn run_on_host(&self) -> Result<()> {
        let _reserved = self.claims.reserve()?;
        for (from, to, bytes) in self.steps.iter().filter_map(Step::host_copy) {
            // SAFETY: source and destination are inside live memory and have the same length. The memory of a
            // region never belongs to a buffer, so they do not overlap. The range of the region is leased.
            // The caller guarantees for each submission that nothing else accesses the buffer during the
            // copy.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
        }
        Ok(())
    }
}
