//! Blocks of the KV cache. Every stage uses the same block ids for its own layers, so all stages share one
//! pool per kind of layer: layers that keep all positions, and layers with a window.

use ragtag_graph::KvRing;
use std::sync::Arc;

/// Cache blocks of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// One block per [`BLOCK_TOKENS`](ragtag_kernels::params::BLOCK_TOKENS) positions, for the layers that
    /// keep all positions.
    pub(crate) full: Arc<[u32]>,
    /// The blocks of the KV ring. Empty if the model has none.
    pub(crate) ring: Arc<[u32]>,
}

/// The pools of all kinds of layers.
#[derive(Debug)]
pub(crate) struct Pools {
    full: BlockPool,
    ring: BlockPool,
    /// Maximum number of blocks of a KV ring.
    ring_blocks: u32,
}

impl Pools {
    /// Creates pools of free blocks: `blocks` for the layers that keep all positions, and those of `ring`.
    pub(crate) fn new(blocks: u32, ring: Option<KvRing>) -> Self {
        let (ring_blocks, total) = ring.map_or((0, 0), |ring| (ring.blocks, ring.total));
        Self { full: BlockPool::new(blocks), ring: BlockPool::new(total), ring_blocks }
    }

    /// Returns the number of blocks for the layers that keep all positions.
    pub(crate) fn total(&self) -> u32 {
        self.full.is_free.len() as u32
    }

    /// Returns the number of free blocks for the layers that keep all positions.
    pub(crate) fn free(&self) -> u32 {
        self.full.free()
    }

    /// Returns the number of free blocks of KV rings.
    pub(crate) fn free_ring(&self) -> u32 {
        self.ring.free()
    }

    /// Takes the blocks of a sequence that fills `count` blocks. A KV ring has at most as many. Returns `None`
    /// if one of the pools has too few.
    pub(crate) fn take(&mut self, count: u32) -> Option<Blocks> {
        let full = self.full.take(count)?;
        match self.ring.take(count.min(self.ring_blocks)) {
            Some(ring) => Some(Blocks { full, ring }),
            None => {
                self.full.give(&full);
                None
            }
        }
    }

    /// Returns blocks to the pools.
    pub(crate) fn give(&mut self, blocks: &Blocks) {
        self.full.give(&blocks.full);
        self.ring.give(&blocks.ring);
    }
}

/// Pool of free block ids.
#[derive(Debug)]
struct BlockPool {
    free: Vec<u32>,
    /// Whether each block is free.
    is_free: Vec<bool>,
}

impl BlockPool {
    /// Creates a pool of the blocks `0..total`. All are free.
    fn new(total: u32) -> Self {
        Self { free: (0..total).rev().collect(), is_free: vec![true; total as usize] }
    }

    fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes `count` blocks. Returns `None` if fewer are free.
    fn take(&mut self, count: u32) -> Option<Arc<[u32]>> {
        let at = self.free.len().checked_sub(count as usize)?;
        self.free[at..].iter().for_each(|&block| self.is_free[block as usize] = false);
        Some(self.free.drain(at..).rev().collect())
    }

    /// Returns blocks to the pool.
    fn give(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            let was_free = std::mem::replace(&mut self.is_free[block as usize], true);
            assert!(!was_free, "block {block} of the cache is returned twice");
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lent_once_and_come_back() {
        let mut pool = BlockPool::new(5);
        let a = pool.take(3).unwrap();
        let b = pool.take(2).unwrap();
        assert!(pool.take(1).is_none());
        assert_eq!(pool.take(0).unwrap().len(), 0);
        let mut all: Vec<u32> = a.iter().chain(b.iter()).copied().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        pool.give(&a);
        pool.give(&b);
        assert_eq!(pool.free(), 5);
    }

    #[test]
    #[should_panic(expected = "block 2 of the cache is returned twice")]
    fn a_block_that_is_returned_twice_is_a_defect() {
        let mut pool = BlockPool::new(3);
        let all = pool.take(3).unwrap();
        pool.give(&all);
        pool.give(&all);
    }

    #[test]
    fn a_sequence_takes_blocks_of_both_kinds_or_none() {
        let ring = KvRing { window: 10, blocks: 2, total: 4 };
        let mut pools = Pools::new(9, Some(ring));
        let long = pools.take(5).unwrap();
        assert_eq!((long.full.len(), long.ring.len()), (5, 2));
        let short = pools.take(1).unwrap();
        assert_eq!((short.full.len(), short.ring.len()), (1, 1));
        // One block of a KV ring is left.
        assert!(pools.take(2).is_none());
        assert_eq!((pools.free(), pools.free_ring()), (3, 1));
        pools.give(&long);
        assert_eq!(pools.take(3).unwrap().ring.len(), 2);
        pools.give(&short);
        assert_eq!((pools.free(), pools.free_ring()), (6, 2));
        let mut plain = Pools::new(3, None);
        assert_eq!(plain.take(3).unwrap().ring.len(), 0);
    }
}
