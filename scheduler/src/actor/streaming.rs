//! Layout of a stage's streamed weights in its arenas and in host memory.
//!
//! This module knows no device.

use ragtag_graph::execution::{Arenas, StagePart, arena_buffers};
use ragtag_graph::{CompiledStage, StageBuffer};
use std::ops::Range;

/// Alignment of the streamed weights in host memory, in bytes. Some devices copy faster from aligned memory.
const ALIGNMENT: u64 = 256;

/// The streamed segments of a stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streamed<'a> {
    /// The segments, in ascending order.
    pub(crate) segments: &'a [usize],
    /// Arenas that they share.
    pub(crate) arenas: Arenas,
    /// Those whose weights are read from the model's file.
    pub(crate) from_file: &'a [usize],
}

/// A part of a stage, with its streamed weights.
#[derive(Clone, Debug)]
pub(crate) struct StreamedPart {
    pub(crate) segments: Range<usize>,
    /// Arena of the weights. `None` if the weights are resident.
    pub(crate) arena: Option<usize>,
    /// Index of each streamed weight, and its offset in the part's host memory. `None` if the weight is in
    /// the memory of another device.
    pub(crate) weights: Vec<(usize, Option<u64>)>,
    /// Size of the part's host memory, in bytes.
    pub(crate) bytes: u64,
    /// Whether the weights are read from the model's file. The part then shares its host memory with others.
    pub(crate) is_from_file: bool,
}

/// The parts of a stage and the buffers of its arenas.
#[derive(Clone, Debug)]
pub(crate) struct Streaming {
    pub(crate) parts: Vec<StreamedPart>,
    /// Sizes of the buffers of one arena. Buffer `n` holds the n-th streamed weight of a part.
    buffers: Vec<u64>,
    arenas: usize,
}

impl Streaming {
    /// Lays out the weights of streamed segments. Generated weights stay resident, and so do weights that
    /// several segments read. The weights for which `is_shared` returns true are in the memory of another
    /// device.
    pub(crate) fn new(
        compiled: &CompiledStage,
        streamed: Streamed<'_>,
        is_shared: impl Fn(usize) -> bool,
    ) -> Self {
        let Streamed { segments, arenas, from_file } = streamed;
        let owned = owned_weights(compiled);
        let (mut sizes, mut laid_out) = (Vec::new(), Vec::new());
        for part in StagePart::all(compiled.segments.clone(), segments, arenas) {
            let (mut weights, mut bytes) = (Vec::new(), 0u64);
            let own = owned.iter().filter(|(_, segment)| part.segments.contains(segment));
            let size = |weight: usize| compiled.weights[weight].bytes();
            for &(weight, _) in own.filter(|_| part.arena.is_some()) {
                let offset = (!is_shared(weight)).then_some(bytes);
                weights.push((weight, offset));
                bytes += offset.map_or(0, |_| size(weight).next_multiple_of(ALIGNMENT));
            }
            sizes.push(weights.iter().map(|&(weight, _)| size(weight)).collect::<Vec<_>>());
            let is_from_file = part.arena.is_some() && from_file.contains(&part.segments.start);
            let StagePart { segments, arena } = part;
            laid_out.push(StreamedPart { segments, arena, weights, bytes, is_from_file });
        }
        let buffers = arena_buffers(sizes.iter().map(Vec::as_slice));
        Self { parts: laid_out, buffers, arenas: arenas.count() }
    }

    /// Returns the parts whose weights are read from the model's file, each with its index.
    pub(crate) fn file_parts(&self) -> impl Iterator<Item = (usize, &StreamedPart)> {
        self.parts.iter().enumerate().filter(|(_, part)| part.is_from_file)
    }

    /// Returns the size of a place for weights from the model's file, in bytes. 0 if there are none.
    pub(crate) fn place_bytes(&self) -> u64 {
        self.file_parts().map(|(_, part)| part.bytes).max().unwrap_or(0)
    }

    /// Returns the sizes in bytes of the buffers of all arenas. The buffers of arena 0 come first.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = u64> {
        (0..self.arenas).flat_map(|_| self.buffers.iter().copied())
    }

    /// Returns the buffer of a streamed weight, as an index into [`Streaming::arenas`]. Returns `None` if the
    /// weight is resident.
    pub(crate) fn arena_buffer(&self, weight: usize) -> Option<usize> {
        self.parts.iter().find_map(|part| {
            let at = part.weights.iter().position(|(index, _)| *index == weight)?;
            Some(part.arena? * self.buffers.len() + at)
        })
    }

    /// Returns whether a weight is streamed.
    pub(crate) fn streams(&self, weight: usize) -> bool {
        self.arena_buffer(weight).is_some()
    }
}

/// Returns the weights from the model's files that only the steps of one segment read, each with that
/// segment.
fn owned_weights(compiled: &CompiledStage) -> Vec<(usize, usize)> {
    let mut readers: Vec<Option<Option<usize>>> = vec![None; compiled.weights.len()];
    for step in compiled.programs.iter().flat_map(|program| &program.steps) {
        for slice in &step.slices {
            let StageBuffer::Weight(weight) = slice.buffer else { continue };
            match &mut readers[weight] {
                Some(segment) if *segment != Some(step.segment) => *segment = None,
                reader => *reader = Some(Some(step.segment)),
            }
        }
    }
    let is_from_file = |weight: usize| !compiled.weights[weight].is_generated();
    let owner = |(weight, reader): (usize, Option<Option<usize>>)| Some((weight, reader??));
    readers.into_iter().enumerate().filter_map(owner).filter(|(weight, _)| is_from_file(*weight)).collect()
}
