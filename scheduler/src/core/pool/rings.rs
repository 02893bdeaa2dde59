//! Blocks of the layers with a window. A sequence uses the blocks of its ring in turn.
//!
//! The ring of an ended sequence is kept. A later sequence with the same prefix can take it over where it
//! still holds the whole window. A ring is overwritten, so only one sequence can.

use ragtag_graph::KvRing;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A ring that no sequence holds.
#[derive(Debug)]
struct Kept {
    ring: Arc<[u32]>,
    /// Blocks of the layers that keep all positions. A sequence can go on with this ring after each of them.
    after: Vec<u32>,
}

/// Pool of ring blocks.
#[derive(Debug)]
pub(super) struct RingPool {
    shape: Option<KvRing>,
    empty: Vec<u32>,
    /// Whether each block is empty.
    is_empty: Vec<bool>,
    /// Kept rings. The oldest comes first.
    kept: BTreeMap<u64, Kept>,
    /// Number of their blocks.
    kept_blocks: usize,
    /// The kept ring with which a sequence can go on after a block.
    by_block: HashMap<u32, u64>,
    next: u64,
}

impl RingPool {
    pub(super) fn new(shape: Option<KvRing>) -> Self {
        let total = shape.map_or(0, |ring| ring.total);
        Self {
            shape,
            empty: (0..total).rev().collect(),
            is_empty: vec![true; total as usize],
            kept: BTreeMap::new(),
            kept_blocks: 0,
            by_block: HashMap::new(),
            next: 0,
        }
    }

    /// Returns whether the model has layers with a window.
    pub(super) fn exist(&self) -> bool {
        self.shape.is_some()
    }

    /// Returns the number of blocks that no sequence holds.
    pub(super) fn unused(&self) -> u32 {
        (self.empty.len() + self.kept_blocks) as u32
    }

    /// Returns the number of ring blocks of a sequence that fills `count` blocks.
    pub(super) fn wanted(&self, count: u32) -> u32 {
        self.shape.map_or(0, |ring| ring.blocks.min(count))
    }

    /// Returns whether a sequence can go on after `block` with a kept ring.
    pub(super) fn has_after(&self, block: u32) -> bool {
        self.by_block.contains_key(&block)
    }

    /// Takes a ring of `count` blocks: the kept one with which a sequence can go on after the block `after`, or an
    /// empty one. Gives up other kept rings if too few blocks are empty. Returns `None` if too few are unused.
    pub(super) fn take(&mut self, count: u32, after: Option<u32>) -> Option<Arc<[u32]>> {
        let kept = after.and_then(|block| self.by_block.get(&block)).copied();
        let mut ring = kept.and_then(|id| self.forget_kept(id)).map_or(Vec::new(), |ring| ring.to_vec());
        // A ring is shorter than another only if its sequence never filled it.
        while ring.len() > count as usize {
            ring.pop().into_iter().for_each(|block| self.free(&[block]));
        }
        while self.empty.len() < count as usize - ring.len() {
            let Some(&oldest) = self.kept.keys().next() else {
                self.free(&ring);
                return None;
            };
            self.forget_kept(oldest).into_iter().for_each(|ring| self.free(&ring));
        }
        let at = self.empty.len() - (count as usize - ring.len());
        for block in self.empty.drain(at..).rev() {
            self.is_empty[block as usize] = false;
            ring.push(block);
        }
        Some(ring.into())
    }

    /// Removes a kept ring and returns it.
    fn forget_kept(&mut self, id: u64) -> Option<Arc<[u32]>> {
        let Kept { ring, after } = self.kept.remove(&id)?;
        self.kept_blocks -= ring.len();
        for block in after {
            if self.by_block.get(&block) == Some(&id) {
                self.by_block.remove(&block);
            }
        }
        Some(ring)
    }

    /// Forgets that a sequence can go on after `block`, which holds other keys and values from now on.
    pub(super) fn forget(&mut self, block: u32) {
        self.by_block.remove(&block);
    }

    /// Returns the index of the first block to which a sequence attends after its first `border` blocks.
    pub(super) fn first_after(&self, border: usize) -> usize {
        let window = self.shape.map_or(0, |shape| shape.window as usize);
        (border * BLOCK_TOKENS + 1).saturating_sub(window) / BLOCK_TOKENS
    }

    /// Returns the ring of a sequence of `entered` positions, whose full blocks are `published`. When the sequence
    /// took the ring over, it held the blocks from index `from` on. Keeps the ring if a later sequence can go on with
    /// it.
    pub(super) fn give(&mut self, ring: &Arc<[u32]>, published: &[u32], entered: u32, from: usize) {
        let last = (entered as usize).saturating_sub(1) / BLOCK_TOKENS;
        // The block of this index, and those after it, are in the ring.
        let held = (last + 1).saturating_sub(ring.len()).max(from);
        let borders = (1..=published.len()).rev().take_while(|&border| self.first_after(border) >= held);
        let after: Vec<u32> = borders.map(|border| published[border - 1]).collect();
        if after.is_empty() || ring.is_empty() {
            return self.free(ring);
        }
        let id = self.next;
        self.next += 1;
        self.kept_blocks += ring.len();
        self.by_block.extend(after.iter().map(|&block| (block, id)));
        self.kept.insert(id, Kept { ring: Arc::clone(ring), after });
    }

    /// Returns blocks to the pool.
    pub(super) fn free(&mut self, ring: &[u32]) {
        for &block in ring.iter().rev() {
            let was_empty = std::mem::replace(&mut self.is_empty[block as usize], true);
            assert!(!was_empty, "block {block} of the rings is returned twice");
            self.empty.push(block);
        }
    }
}
