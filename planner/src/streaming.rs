//! Weight streaming: how the streamed segments of a stage share device memory.
//!
//! A streamed segment's weights stay in host memory. They are copied to an *arena* on the device before each
//! computation of the segment. Neighbouring streamed segments use different arenas, and so do the last and
//! the first one. While the device computes one segment, it can therefore copy the weights of the next one,
//! also from one micro-batch to the next.
//!
//! This module knows neither sizes nor times.

use ragtag_kernels::params::BLOCK_TOKENS;
use std::ops::Range;

/// Minimum number of streamed segments of a stage. With fewer, each segment would keep an arena of its own and
/// save no memory.
pub const FEWEST: usize = 4;

/// Maximum number of micro-batches of a prefill stage in flight.
pub const PREFILLS: usize = 2;

/// Returns the number of KV cache blocks that one micro-batch of a prefill stage fills, at most. `chunk_rows` is
/// the maximum number of its rows. Each sequence may begin and end within a block.
pub fn passing_blocks(chunk_rows: u32, sequences: u32) -> u64 {
    u64::from(chunk_rows.div_ceil(BLOCK_TOKENS as u32)) + 2 * u64::from(sequences)
}

/// Returns the number of arenas that `streamed` segments share.
pub fn arena_count(streamed: usize) -> usize {
    match streamed {
        0 => 0,
        even if even % 2 == 0 => 2,
        _ => 3,
    }
}

/// Returns the arena of the streamed segment at `index`, for a stage with `streamed` of them.
pub fn arena_of(index: usize, streamed: usize) -> usize {
    // With an odd number, the last segment would follow the first one in the same arena.
    if streamed % 2 == 1 && index + 1 == streamed { 2 } else { index % 2 }
}

/// Consecutive segments of a stage that one program computes: a streamed segment, or a run of resident ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePart {
    /// The segments.
    pub segments: Range<usize>,
    /// Arena of the weights, if the part is a streamed segment.
    pub arena: Option<usize>,
}

/// Divides the segments of a stage into parts. `streamed` lists its streamed segments in ascending order.
pub fn parts(segments: Range<usize>, streamed: &[usize]) -> Vec<StagePart> {
    let mut parts = Vec::new();
    let mut at = segments.start;
    let resident = |range: Range<usize>, parts: &mut Vec<StagePart>| {
        if !range.is_empty() {
            parts.push(StagePart { segments: range, arena: None });
        }
    };
    for (index, &segment) in streamed.iter().enumerate() {
        resident(at..segment, &mut parts);
        let arena = Some(arena_of(index, streamed.len()));
        parts.push(StagePart { segments: segment..segment + 1, arena });
        at = segment + 1;
    }
    resident(at..segments.end, &mut parts);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_arena_is_used_twice_in_a_row() {
        for streamed in FEWEST..40 {
            let arenas: Vec<_> = (0..streamed).map(|index| arena_of(index, streamed)).collect();
            let next = arenas.iter().cycle().skip(1);
            assert!(arenas.iter().zip(next).all(|(one, other)| one != other), "{arenas:?}");
            assert_eq!(arenas.iter().max().map(|most| most + 1), Some(arena_count(streamed)));
        }
        assert_eq!(arena_count(0), 0);
    }

    #[test]
    fn a_micro_batch_fills_at_most_the_passing_blocks() {
        // A block has 16 positions.
        assert_eq!([(33, 1), (16, 3), (1, 1)].map(|(rows, of)| passing_blocks(rows, of)), [5, 7, 3]);
        assert_eq!(passing_blocks(u32::MAX, u32::MAX), (1 << 28) + 2 * u64::from(u32::MAX));
    }

    #[test]
    fn parts_cover_the_segments_in_order() {
        let part = |segments, arena| StagePart { segments, arena };
        let expected = [part(2..4, None), part(4..5, Some(0)), part(5..6, Some(1)), part(6..8, None)];
        assert_eq!(parts(2..8, &[4, 5]), expected);
        let all = [part(1..2, Some(0)), part(2..3, Some(1)), part(3..4, Some(2))];
        assert_eq!(parts(1..4, &[1, 2, 3]), all);
        assert_eq!(parts(0..3, &[]), [part(0..3, None)]);
    }
}
