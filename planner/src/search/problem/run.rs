//! A stage as a run of segments on a device.

use crate::cost::{RunSizes, Streamed};
use crate::split::Span;
use ragtag_graph::execution::Arenas;
use std::ops::Range;

/// A contiguous, non-empty run of segments on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::search) struct Run {
    /// Index of the device.
    pub device: usize,
    /// The segments.
    pub segments: Range<usize>,
    /// Streamed segments, in ascending order.
    pub streamed: Vec<usize>,
    /// Number of arenas that the streamed segments share. `None` stands for the fewest.
    pub arenas: Option<usize>,
    /// Streamed segments that are read from the model's file, in ascending order.
    pub from_file: Vec<usize>,
}

impl Run {
    /// Returns a run whose weights are all resident.
    pub fn new(device: usize, segments: Range<usize>) -> Self {
        Self { device, segments, streamed: Vec::new(), arenas: None, from_file: Vec::new() }
    }

    /// Returns a run with these streamed segments, which share the most arenas up to `most`.
    pub fn streaming(self, streamed: Vec<usize>, most: usize) -> Self {
        let arenas = Some(Arenas::at_most(streamed.len(), most).count());
        Self { arenas: arenas.filter(|_| !streamed.is_empty()), streamed, ..self }
    }

    /// Returns the arenas of the streamed segments.
    pub fn arenas(&self) -> Arenas {
        Arenas::at_most(self.streamed.len(), self.arenas.unwrap_or(0))
    }

    /// Returns the streamed segments that the device copies for each micro-batch.
    pub fn copied(&self) -> &[usize] {
        &self.streamed[..self.arenas().copied()]
    }

    /// Returns the host memory for the weights of the streamed segments, in bytes: pinned copies, and the
    /// places for reads from the model's file.
    pub fn pinned_bytes(&self, sizes: &RunSizes) -> u64 {
        let pinned = self.streamed.iter().copied().filter(|segment| !self.from_file.contains(segment));
        let pinned: Vec<usize> = pinned.collect();
        sizes.streamed_bytes(&pinned).saturating_add(sizes.reading_bytes(&self.from_file))
    }

    pub(super) fn streamed(&self) -> Streamed<'_> {
        Streamed { segments: &self.streamed, arenas: self.arenas().count() }
    }

    pub fn span(&self) -> Span {
        let number = |at: usize| u32::try_from(at).expect("a model has fewer than 2^32 segments");
        Span::new(number(self.segments.start), number(self.segments.end - 1))
            .expect("a run has at least one segment")
    }
}
