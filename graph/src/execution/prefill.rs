//! The prefill stage: how many of its micro-batches are in flight, and how many KV cache blocks pass from it to
//! the stages that decode.

use ragtag_kernels::params::BLOCK_TOKENS;

/// Maximum number of micro-batches of a prefill stage in flight.
pub const PREFILLS: usize = 2;

/// Returns the number of KV cache blocks that one micro-batch of a prefill stage fills, at most. `chunk_rows`
/// is the maximum number of its rows. Each sequence may begin and end within a block.
pub fn passing_blocks(chunk_rows: u32, sequences: u32) -> u64 {
    u64::from(chunk_rows.div_ceil(BLOCK_TOKENS as u32)) + 2 * u64::from(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_batch_fills_at_most_the_passing_blocks() {
        // A block has 16 positions.
        assert_eq!([(33, 1), (16, 3), (1, 1)].map(|(rows, of)| passing_blocks(rows, of)), [5, 7, 3]);
        assert_eq!(passing_blocks(u32::MAX, u32::MAX), (1 << 28) + 2 * u64::from(u32::MAX));
    }
}
