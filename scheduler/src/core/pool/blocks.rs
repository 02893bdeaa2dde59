//! Blocks of the layers that keep all positions, and the prefixes that they hold.
//!
//! Full blocks form a trie. The key of a block is the block before it and its own tokens, so a prefix is
//! found by its exact content, and no two prefixes are ever confused. A block leaves the trie only when no
//! block follows it, so a key never names a block with other content.

use ragtag_graph::execution::Eviction;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::{BTreeSet, HashMap};

/// Start of a prefix. Prefixes with different roots have different keys and values for the same tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// The RoPE frequencies of short sequences.
    #[default]
    Short,
    /// The RoPE frequencies of long sequences.
    Long,
}

/// Content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Content {
    root: Root,
    /// The block before it. `None` for the first.
    parent: Option<u32>,
    tokens: [u32; BLOCK_TOKENS],
}

/// A block in the trie.
#[derive(Debug)]
struct Published {
    /// Of a tail, only the root and the block before it count: `tails` has its tokens.
    content: Content,
    is_tail: bool,
    /// Number of blocks that follow it.
    children: u32,
    /// Times of its publication and of its last use.
    since: u64,
    used: u64,
    /// Number of sequences that have used it.
    uses: u64,
}

impl Published {
    /// Returns the block's place in the order of eviction.
    fn rank(&self, eviction: Eviction) -> (u64, u64) {
        match eviction {
            Eviction::Lru => (self.used, 0),
            Eviction::Fifo => (self.since, 0),
            Eviction::Lfu => (self.uses, self.used),
        }
    }
}

/// A block that holds the keys and values of fewer tokens than it has room for.
#[derive(Debug)]
struct Tail {
    block: u32,
    tokens: Vec<u32>,
}

#[derive(Debug, Default)]
struct Block {
    /// Number of sequences that hold the block.
    holders: u32,
    published: Option<Box<Published>>,
}

/// Pool of block ids.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// Unused blocks that hold nothing.
    empty: Vec<u32>,
    /// `None` if the cache keeps no prefixes.
    eviction: Option<Eviction>,
    by_content: HashMap<Content, u32>,
    /// The newest tail after each block, or of the first tokens. No sequence holds it.
    tails: HashMap<(Root, Option<u32>), Tail>,
    /// Unused blocks in the trie that no block follows, with their ranks.
    evictable: BTreeSet<((u64, u64), u32)>,
    /// Number of unused blocks in the trie.
    cached: u32,
    /// Counts uses.
    clock: u64,
}

impl BlockPool {
    /// Creates a pool of the blocks `0..total`. All are empty.
    pub(super) fn new(total: u32, eviction: Option<Eviction>) -> Self {
        Self {
            blocks: (0..total).map(|_| Block::default()).collect(),
            empty: (0..total).rev().collect(),
            eviction,
            by_content: HashMap::new(),
            tails: HashMap::new(),
            evictable: BTreeSet::new(),
            cached: 0,
            clock: 0,
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Returns the number of blocks that no sequence holds.
    pub(super) fn unused(&self) -> u32 {
        self.empty.len() as u32 + self.cached
    }

    /// Returns the number of unused blocks in the trie.
    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    /// Takes a block that holds nothing, if any.
    pub(super) fn take_empty(&mut self) -> Option<u32> {
        let block = self.empty.pop()?;
        self.blocks[block as usize].holders = 1;
        Some(block)
    }

    /// Takes an unused block. If all of them are in the trie, evicts one and calls `evicted` with it.
    pub(super) fn take(&mut self, evicted: &mut impl FnMut(u32)) -> Option<u32> {
        if self.empty.is_empty() {
            self.evict(evicted);
        }
        self.take_empty()
    }

    fn evict(&mut self, evicted: &mut impl FnMut(u32)) {
        let Some(&(_, block)) = self.evictable.first() else { return };
        self.withdraw(block);
        self.empty.push(block);
        evicted(block);
    }

    /// Removes an unused block from the trie. No block follows it.
    fn withdraw(&mut self, block: u32) {
        let published = self.blocks[block as usize].published.take();
        let published = published.unwrap_or_else(|| panic!("block {block} is evicted twice"));
        if let Some(eviction) = self.eviction {
            self.evictable.remove(&(published.rank(eviction), block));
        }
        self.cached -= 1;
        let Content { root, parent, .. } = published.content;
        if published.is_tail {
            self.tails.remove(&(root, parent));
        } else {
            self.by_content.remove(&published.content);
        }
        if let Some(parent) = parent {
            self.published(parent).children -= 1;
            self.offer(parent);
        }
    }

    fn published(&mut self, block: u32) -> &mut Published {
        let published = self.blocks[block as usize].published.as_deref_mut();
        published.unwrap_or_else(|| panic!("block {block} left the trie before the blocks that follow it"))
    }

    /// Lets a block be evicted if nothing uses it.
    fn offer(&mut self, block: u32) {
        let Block { holders, published } = &self.blocks[block as usize];
        if let (0, Some(published), Some(eviction)) = (holders, published, self.eviction)
            && published.children == 0
        {
            self.evictable.insert((published.rank(eviction), block));
        }
    }

    /// Returns the blocks in the trie that hold the first tokens, at most `most`.
    pub(super) fn find(&self, root: Root, mut tokens: impl Iterator<Item = u32>, most: usize) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::new();
        while self.eviction.is_some() && found.len() < most {
            let tokens = std::array::from_fn(|_| tokens.next().unwrap_or(0));
            let content = Content { root, parent: found.last().copied(), tokens };
            let Some(&block) = self.by_content.get(&content) else { break };
            found.push(block);
        }
        found
    }

    /// Returns the tail after `parent`, and the number of its tokens that `tokens` begins with. Returns `None` if
    /// there is no such token.
    pub(super) fn find_tail(
        &self,
        root: Root,
        parent: Option<u32>,
        tokens: impl Iterator<Item = u32>,
    ) -> Option<(u32, u32)> {
        let Tail { block, tokens: kept } = self.tails.get(&(root, parent))?;
        let common = kept.iter().zip(tokens).take_while(|(kept, token)| **kept == *token).count();
        (common > 0).then_some((*block, common as u32))
    }

    /// Takes a tail out of the trie. The sequence that holds it may write to it.
    pub(super) fn take_tail(&mut self, block: u32) {
        self.withdraw(block);
        self.blocks[block as usize].holders = 1;
    }

    /// Puts a block with a few tokens into the trie, after the block `parent`. Its only holder gives it next. It
    /// replaces an earlier tail, and calls `evicted` with that block.
    pub(super) fn keep_tail(
        &mut self,
        block: u32,
        root: Root,
        parent: Option<u32>,
        tokens: &[u32],
        evicted: &mut impl FnMut(u32),
    ) {
        if self.eviction.is_none() {
            return;
        }
        if let Some(before) = self.tails.get(&(root, parent)).map(|tail| tail.block) {
            self.withdraw(before);
            self.empty.push(before);
            evicted(before);
        }
        self.tails.insert((root, parent), Tail { block, tokens: tokens.into() });
        self.insert(block, Content { root, parent, tokens: [0; BLOCK_TOKENS] }, true);
    }

    /// Adds a holder to a block in the trie.
    pub(super) fn hold(&mut self, block: u32) {
        let (clock, eviction) = (self.clock, self.eviction);
        self.clock += 1;
        let Block { holders, published } = &mut self.blocks[block as usize];
        let published = published.as_mut().unwrap_or_else(|| panic!("block {block} is not in the trie"));
        if *holders == 0 {
            self.cached -= 1;
            eviction.map(|eviction| self.evictable.remove(&(published.rank(eviction), block)));
        }
        *holders += 1;
        (published.used, published.uses) = (clock, published.uses + 1);
    }

    /// Removes a holder from a block. Without holders, the block is empty unless it is in the trie.
    pub(super) fn give(&mut self, block: u32) {
        let Block { holders, published } = &mut self.blocks[block as usize];
        assert!(*holders > 0, "block {block} of the cache is returned twice");
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        match published {
            None => self.empty.push(block),
            Some(published) => {
                published.used = self.clock;
                self.clock += 1;
                self.cached += 1;
                self.offer(block);
            }
        }
    }

    /// Puts a block into the trie, after the block `parent`. Returns the block in the trie with this content,
    /// which may be another one.
    pub(super) fn publish(
        &mut self,
        block: u32,
        root: Root,
        parent: Option<u32>,
        tokens: [u32; BLOCK_TOKENS],
    ) -> u32 {
        let content = Content { root, parent, tokens };
        if let Some(&known) = self.by_content.get(&content) {
            return known;
        }
        self.by_content.insert(content, block);
        self.insert(block, content, false);
        block
    }

    fn insert(&mut self, block: u32, content: Content, is_tail: bool) {
        let (since, used) = (self.clock, self.clock);
        self.clock += 1;
        let published = Published { content, is_tail, children: 0, since, used, uses: 1 };
        self.blocks[block as usize].published = Some(Box::new(published));
        // The sequence also holds the parent, so it is not among the evictable blocks.
        if let Some(parent) = content.parent {
            self.published(parent).children += 1;
        }
    }
}
