//! KV rings: the cache blocks of layers that attend to a window of positions.
//!
//! A sequence uses the blocks of its ring in turn, so it overwrites the keys and values that lie before every
//! later window. Block tables list the blocks in this order, and the window hides the overwritten positions.
//! Therefore kernels need not know about KV rings.

use ragtag_kernels::params::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};

/// Cache blocks of all layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvRing {
    /// Number of positions to which a row attends, including its own.
    pub window: u32,
    /// Maximum number of blocks of a sequence.
    pub blocks: u32,
    /// Number of blocks of all sequences.
    pub total: u32,
}

impl KvRing {
    /// Returns the ring of the layers with a window of `window` positions, for `sequences` sequences of up to
    /// `context` positions and micro-batches of up to `rows` rows. Returns `None` without a window, or if a
    /// ring is as long as a sequence at the full context.
    pub fn new(window: Option<u32>, context: u32, rows: u32, sequences: u32) -> Option<Self> {
        let window = window?;
        let blocks = Self::needed_blocks(window, rows);
        let is_shorter = blocks < u64::from(context.div_ceil(BLOCK_TOKENS as u32));
        let blocks = u32::try_from(blocks).ok().filter(|_| is_shorter)?;
        Some(Self { window, blocks, total: blocks.saturating_mul(sequences) })
    }

    /// Returns whether the ring is long enough for micro-batches of up to `rows` rows.
    pub fn holds(&self, rows: u32) -> bool {
        self.window > 0 && u64::from(self.blocks) >= Self::needed_blocks(self.window, rows)
    }

    /// Returns the largest number of blocks that hold the positions to which a micro-batch attends. The
    /// positions of its last row are in the cache before its first row attends to its window.
    fn needed_blocks(window: u32, rows: u32) -> u64 {
        let positions = (u64::from(window) + u64::from(rows)).saturating_sub(1);
        positions.saturating_sub(1).div_ceil(BLOCK_TOKENS as u64) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_holds_the_windows_of_a_micro_batch_at_any_position() {
        for (window, rows) in [(1, 1), (1, 16), (2, 1), (16, 1), (17, 1), (5, 12), (5, 13), (33, 7)] {
            let ring = KvRing::new(Some(window), 1000, rows, 3).unwrap();
            let blocks = |first: u32| {
                let start = (first + 1).saturating_sub(window);
                (first + rows - 1) / 16 - start / 16 + 1
            };
            assert_eq!(ring.blocks, (0..200).map(blocks).max().unwrap(), "window {window}, {rows} rows");
            assert_eq!(ring.total, 3 * ring.blocks);
            assert!(ring.holds(rows) && !ring.holds(rows + 16));
        }
    }

    #[test]
    fn without_a_short_window_there_is_no_ring() {
        assert_eq!(KvRing::new(None, 1000, 1, 1), None);
        // 64 positions and one row can span 5 blocks.
        assert_eq!(KvRing::new(Some(64), 80, 2, 1), None);
        assert_eq!(KvRing::new(Some(64), 81, 2, 1).unwrap().blocks, 5);
        assert_eq!(KvRing::new(Some(u32::MAX), u32::MAX, u32::MAX, u32::MAX), None);
    }
}
