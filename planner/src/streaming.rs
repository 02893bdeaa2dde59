//! Weight streaming: how the streamed segments of a stage share device memory.
//!
//! A streamed segment's weights stay in host memory. They are copied to an *arena* on the device before each
//! computation of the segment. Neighbouring streamed segments use different arenas, and so do the last and
//! the first one. While the device computes one segment, it can therefore copy the weights of the next one,
//! also from one micro-batch to the next.
//!
//! This module knows neither sizes nor times.

/// Minimum number of streamed segments of a stage. A single one would keep its arena, like a resident
/// segment.
pub const FEWEST: usize = 2;

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
}
