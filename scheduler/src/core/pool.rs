//! Blocks of the KV cache. Every stage uses the same block ids for its own layers, so all stages share one
//! pool.

use std::sync::Arc;

/// Pool of free block ids.
#[derive(Debug)]
pub(crate) struct BlockPool {
    free: Vec<u32>,
    total: u32,
}

impl BlockPool {
    /// Creates a pool of the blocks `0..total`. All are free.
    pub(crate) fn new(total: u32) -> Self {
        Self { free: (0..total).rev().collect(), total }
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes `count` blocks. Returns `None` if fewer are free.
    pub(crate) fn take(&mut self, count: u32) -> Option<Arc<[u32]>> {
        let at = self.free.len().checked_sub(count as usize)?;
        Some(self.free.drain(at..).rev().collect())
    }

    /// Returns blocks to the pool.
    pub(crate) fn give(&mut self, blocks: &[u32]) {
        self.free.extend(blocks.iter().rev());
        debug_assert!(self.free.len() <= self.total as usize);
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
        assert_eq!((pool.free(), pool.total()), (5, 5));
    }
}
