//! Memory of layers that do not keep all positions: the cache blocks of layers that attend to a window of positions (KV
//! rings), and the states of recurrent layers. A model has one of the two at most.
//!
//! A sequence uses the blocks of its ring in turn, so it overwrites the keys and values that lie before every
//! later window. Block tables list the blocks in this order, and the window hides the overwritten positions.
//! Therefore kernels need not know about KV rings. The positions of a chunk to which a token attends lie in a window of the
//! chunk's size, so layers with chunks have the same rings.
//!
//! A state has a fixed size, and its block is a *slot*. A sequence has one slot. Further slots keep snapshots, from which later
//! sequences go on.

use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::recurrent::MAX_SLOTS;
use serde::{Deserialize, Serialize};

/// Bytes of snapshots of states for which there are slots besides those of running sequences.
const SNAPSHOT_BYTES: u64 = 1 << 30;
/// Least and largest number of these slots.
const SNAPSHOTS: (u64, u64) = (3, 64);

/// Cache blocks of all layers with a window, or slots of all recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvRing {
    /// Number of positions to which a row attends, including its own. 0 stands for states.
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

    /// Returns the slots of states for `sequences` sequences. The state of a sequence takes `bytes` bytes in all layers.
    /// Returns `None` if the model has no states.
    pub fn of_states(bytes: u64, sequences: u32) -> Option<Self> {
        let snapshots = (SNAPSHOT_BYTES.checked_div(bytes)?).clamp(SNAPSHOTS.0, SNAPSHOTS.1);
        let total = u64::from(sequences).saturating_add(snapshots).min(u64::from(MAX_SLOTS) - 1);
        Some(Self { window: 0, blocks: 1, total: total as u32 })
    }

    /// Returns whether the blocks are slots of states.
    pub fn is_states(&self) -> bool {
        self.window == 0 && self.blocks == 1
    }

    /// Returns whether the ring is long enough for micro-batches of up to `rows` rows.
    pub fn holds(&self, rows: u32) -> bool {
        self.is_states()
            || self.window > 0 && u64::from(self.blocks) >= Self::needed_blocks(self.window, rows)
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
    fn states_have_slots_for_snapshots() {
        assert_eq!(KvRing::of_states(0, 4), None);
        let totals = [1, 20 << 20, 300 << 20].map(|bytes| KvRing::of_states(bytes, 4).unwrap().total);
        assert_eq!(totals, [68, 55, 7]);
        assert_eq!(KvRing::of_states(1, u32::MAX).unwrap().total, MAX_SLOTS - 1);
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
