//! Cache blocks. Every stage uses the same block ids for its own layers, so all stages share one pool per kind
//! of layer: layers that keep all positions ([`blocks`]), layers with a window ([`rings`]), and recurrent layers
//! ([`states`]).
//!
//! A sequence holds blocks of each kind ([`Holding`]). Each kind answers the same three questions: what a
//! sequence takes to compute further positions, what it leaves behind when it ends, and from which position a
//! later sequence with the same tokens can go on. Blocks that keep all positions are shared, up to any block
//! border, and one later sequence goes on within the last block. A ring is overwritten, so one later sequence
//! can take it over, near the position where it ended. States have snapshots at some borders and behind tails. A prefix is
//! reused up to a position at which every kind can go on.

mod blocks;
mod rings;
mod states;

use blocks::BlockPool;
pub(crate) use blocks::Root;
use ragtag_graph::KvRing;
use ragtag_graph::execution::KvUse;
use ragtag_kernels::params::BLOCK_TOKENS;
use rings::RingPool;
use states::{After, State, StatePool};
use std::sync::Arc;

/// Cache blocks of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// One block per [`BLOCK_TOKENS`] positions, for the layers that keep all positions.
    blocks: Vec<u32>,
    /// The same blocks, as items share them.
    pub(crate) full: Arc<[u32]>,
    /// The blocks of the KV ring. Empty if the model has none.
    ring: Arc<[u32]>,
    /// Slots of the state, if the model has recurrent layers.
    state: Option<State>,
    /// The word of the block table for these slots, as the latest item has it.
    slots: Arc<[u32]>,
    /// Positions before which the state is kept for later sequences that share the prefix up to there.
    snapshots: [Option<u32>; 2],
    /// Number of blocks whose content later sequences can find.
    published: usize,
    /// Index of the first block that was in the ring when the sequence took it over.
    ring_from: usize,
    /// The tokens of the block after the published ones, if the sequence has ended and they do not fill it.
    tail: Option<(Root, Vec<u32>)>,
}

impl Holding {
    /// Returns whether other sequences may hold some of these blocks too.
    pub(crate) fn is_published(&self) -> bool {
        self.published > 0
    }

    /// Notes that the sequence ends after `entered` of its tokens, and that a later one may go on behind them. `tokens`
    /// returns the tokens from a position on.
    pub(crate) fn end<I: Iterator<Item = u32>>(
        &mut self,
        root: Root,
        entered: u32,
        tokens: impl Fn(u32) -> I,
    ) {
        let start = self.published * BLOCK_TOKENS;
        let count = (entered as usize).saturating_sub(start);
        if (1..BLOCK_TOKENS).contains(&count) {
            self.tail = Some((root, tokens(start as u32).take(count).collect()));
        }
    }

    /// Returns the place of a state after `position` positions, if they end with a block that later sequences can find.
    fn border(&self, position: u32) -> Option<After> {
        let count = position as usize / BLOCK_TOKENS;
        let is_border = (position as usize).is_multiple_of(BLOCK_TOKENS) && count <= self.published;
        count.checked_sub(1).filter(|_| is_border).map(|last| After::Block(self.blocks[last]))
    }

    /// Returns the position, after `entered` ones and before `end`, at which a micro-batch must end because the state there is
    /// kept.
    pub(crate) fn next_snapshot(&self, entered: u32, end: u32) -> Option<u32> {
        self.snapshots.into_iter().flatten().filter(|at| (entered + 1..end).contains(at)).min()
    }

    /// Notes that the state before a position is kept, if there is one.
    pub(crate) fn keep_state_at(&mut self, position: u32) {
        self.snapshots[1] = self.state.as_ref().map(|_| position);
    }

    fn share(&mut self) {
        self.full = self.blocks.as_slice().into();
    }
}

/// A prefix in the cache.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    blocks: Vec<u32>,
    /// A block after them, and the number of its positions that belong to the prefix.
    tail: Option<(u32, u32)>,
    /// Block after which a kept ring goes on.
    ring: Option<u32>,
    /// Place of the snapshot with which a state goes on.
    state: Option<After>,
    /// Number of positions whose keys and values are in the cache, if that of the prefix is smaller because of the state.
    known: Option<u32>,
}

impl Hit {
    /// Returns the number of positions of the prefix.
    pub(crate) fn positions(&self) -> u32 {
        (self.blocks.len() * BLOCK_TOKENS) as u32 + self.tail.map_or(0, |(_, positions)| positions)
    }
}

/// The pools of all kinds of layers.
#[derive(Debug)]
pub(crate) struct Pools {
    full: BlockPool,
    rings: RingPool,
    states: StatePool,
}

impl Pools {
    /// Creates pools of free blocks: `blocks` for the layers that keep all positions, and those of `ring`.
    pub(crate) fn new(blocks: u32, ring: Option<KvRing>, kv_use: KvUse) -> Self {
        let (states, rings) = ring.map_or((None, None), |ring| match ring.is_states() {
            true => (Some(ring.total), None),
            false => (None, Some(ring)),
        });
        Self {
            full: BlockPool::new(blocks, kv_use.prefixes),
            rings: RingPool::new(rings),
            states: StatePool::new(states.unwrap_or(0)),
        }
    }

    /// Returns the number of blocks for the layers that keep all positions.
    pub(crate) fn total(&self) -> u32 {
        self.full.total()
    }

    /// Returns the number of blocks, for the layers that keep all positions, that no sequence holds.
    pub(crate) fn free(&self) -> u32 {
        self.full.unused()
    }

    /// Returns how many of them hold the keys and values of earlier sequences.
    pub(crate) fn cached(&self) -> u32 {
        self.full.cached()
    }

    /// Returns the number of blocks of KV rings, or of slots of states, that no sequence holds.
    pub(crate) fn free_ring(&self) -> u32 {
        self.rings.unused() + self.states.unused()
    }

    /// Returns the number of ring blocks, or of slots, of a sequence that fills `count` blocks.
    pub(crate) fn ring_blocks(&self, count: u32) -> u32 {
        self.rings.wanted(count) + u32::from(self.states.exist())
    }

    /// Returns the longest prefix of `tokens` that is in the cache, but not all of them: the last token must be
    /// computed for the next one.
    pub(crate) fn find(&self, root: Root, tokens: impl Iterator<Item = u32> + Clone, count: usize) -> Hit {
        let most = count.saturating_sub(1);
        let mut blocks = self.full.find(root, tokens.clone(), most / BLOCK_TOKENS);
        if self.rings.exist() {
            let at = blocks.iter().rposition(|&block| self.rings.has_after(block));
            blocks.truncate(at.map_or(0, |at| at + 1));
            let ring = blocks.last().copied();
            return Hit { blocks, ring, ..Hit::default() };
        }
        let rest = tokens.take(most).skip(blocks.len() * BLOCK_TOKENS);
        let tail = self.full.find_tail(root, blocks.last().copied(), rest);
        if self.states.exist() {
            self.with_state(blocks, tail)
        } else {
            Hit { blocks, tail, ..Hit::default() }
        }
    }

    /// Returns the longest part of a prefix after which a snapshot goes on. A block is known to end its part.
    fn with_state(&self, mut blocks: Vec<u32>, tail: Option<(u32, u32)>) -> Hit {
        let known = Some((blocks.len() * BLOCK_TOKENS) as u32);
        if let Some((block, common)) = tail
            && self.states.tokens_in_tail(block) == Some(common)
        {
            return Hit { blocks, tail, state: Some(After::Tail(block, common)), ..Hit::default() };
        }
        let at = blocks.iter().rposition(|&block| self.states.has(After::Block(block)));
        blocks.truncate(at.map_or(0, |at| at + 1));
        let state = blocks.last().map(|&block| After::Block(block));
        let known = known.filter(|known| *known > (blocks.len() * BLOCK_TOKENS) as u32);
        Hit { blocks, state, known, ..Hit::default() }
    }

    /// Takes the blocks of a prefix, and the ring of a sequence that fills `count` blocks. Returns `None` if
    /// too few ring blocks are free.
    pub(crate) fn start(&mut self, hit: Hit, count: u32) -> Option<Holding> {
        let Hit { mut blocks, tail, ring, state, known } = hit;
        let state = if self.states.exist() { Some(self.states.take(state)?) } else { None };
        let ring = self.rings.take(self.rings.wanted(count), ring)?;
        blocks.iter().for_each(|&block| self.full.hold(block));
        let published = blocks.len();
        let ring_from = self.rings.first_after(published);
        if let Some((block, _)) = tail {
            self.full.take_tail(block);
            blocks.push(block);
        }
        let full = blocks.as_slice().into();
        let snapshots = [known, None];
        let slots = [].into();
        Some(Holding { full, blocks, ring, state, slots, snapshots, published, ring_from, tail: None })
    }

    /// Notes that rows enter which begin at position `first`. Returns the blocks of the KV ring, or the slots of the state.
    pub(crate) fn enter(&mut self, holding: &mut Holding, first: u32) -> Arc<[u32]> {
        let Some(mut state) = holding.state.take() else { return Arc::clone(&holding.ring) };
        let after = if holding.snapshots.contains(&Some(first)) { holding.border(first) } else { None };
        let word = self.states.enter(&mut state, after);
        holding.state = Some(state);
        if holding.slots[..] != [word] {
            holding.slots = [word].into();
        }
        Arc::clone(&holding.slots)
    }

    /// Lets `holding` have at least `count` blocks, and up to `ahead` more if they hold nothing. Returns
    /// whether there were enough.
    pub(crate) fn grow(&mut self, holding: &mut Holding, count: u32, ahead: u32) -> bool {
        let missing = (count as usize).saturating_sub(holding.blocks.len());
        if missing == 0 {
            return true;
        }
        if self.full.unused() < missing as u32 {
            return false;
        }
        for _ in 0..missing {
            let block = self.full.take(&mut |evicted| {
                self.rings.forget(evicted);
                self.states.forget(evicted);
            });
            holding.blocks.extend(block);
        }
        holding.blocks.extend((0..ahead).map_while(|_| self.full.take_empty()));
        holding.share();
        true
    }

    /// Makes the full blocks of the first `end` positions known to later sequences. `tokens` returns the
    /// token at a position. If another block already has the same content and `swaps` is set, the sequence
    /// goes on with that one. Returns false if it is not set, and no further blocks of the sequence can be
    /// published.
    pub(crate) fn publish(
        &mut self,
        holding: &mut Holding,
        root: Root,
        tokens: impl Fn(usize) -> u32,
        end: u32,
        swaps: bool,
    ) -> bool {
        let mut is_swapped = false;
        while (holding.published + 1) * BLOCK_TOKENS <= end as usize {
            let at = holding.published;
            let content = std::array::from_fn(|i| tokens(at * BLOCK_TOKENS + i));
            let parent = at.checked_sub(1).map(|before| holding.blocks[before]);
            let own = holding.blocks[at];
            let known = self.full.publish(own, root, parent, content);
            if known != own {
                if !swaps {
                    return false;
                }
                self.full.hold(known);
                self.full.give(own);
                holding.blocks[at] = known;
                is_swapped = true;
            }
            holding.published += 1;
        }
        if is_swapped {
            holding.share();
        }
        true
    }

    /// Takes the state of a sequence whose latest rows will not be computed.
    pub(crate) fn drop_state(&mut self, holding: &mut Holding) {
        holding.state.take().into_iter().for_each(|state| self.states.give(state, None));
    }

    /// Returns the blocks of a sequence whose first `entered` positions were computed. The cache keeps those
    /// that were published, and the state.
    pub(crate) fn give(&mut self, holding: &Holding, entered: u32) {
        let published = &holding.blocks[..holding.published];
        let mut after = holding.border(entered);
        if let (Some((root, tokens)), false) = (&holding.tail, self.rings.exist()) {
            let (block, parent) = (holding.blocks[holding.published], published.last().copied());
            self.full.keep_tail(block, *root, parent, tokens, &mut |evicted| self.states.forget(evicted));
            after = Some(After::Tail(block, tokens.len() as u32));
        }
        if let Some(state) = holding.state.clone() {
            self.states.give(state, after);
        }
        self.rings.give(&holding.ring, published, entered, holding.ring_from);
        // The last block is evicted first.
        holding.blocks.iter().rev().for_each(|&block| self.full.give(block));
    }
}

#[cfg(test)]
mod tests;
