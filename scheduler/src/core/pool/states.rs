//! Slots of recurrent states. A sequence has one slot, which always holds the state after its latest rows.
//!
//! Other slots keep *snapshots*: the states after the tokens of a published block, or after those of a tail. A later
//! sequence with the same tokens reads its first state from a snapshot and writes the next one to its own slot, so a
//! snapshot needs no copy and serves many sequences. Only the snapshot behind a tail is taken over, with its tail.

use ragtag_kernels::recurrent::slots_word;
use std::collections::{BTreeMap, HashMap};

/// Place in the cache after which a state goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum After {
    /// All tokens up to the end of a published block.
    Block(u32),
    /// This number of tokens in a tail.
    Tail(u32, u32),
}

/// Slots of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The sequence's own slot.
    slot: u32,
    /// The snapshot that its next rows read, which no other sequence takes over meanwhile.
    snapshot: Option<(u32, After)>,
}

/// Pool of slots.
#[derive(Debug)]
pub(super) struct StatePool {
    total: u32,
    empty: Vec<u32>,
    /// Slots of snapshots and their places. The oldest comes first.
    kept: BTreeMap<u64, (u32, After)>,
    by_place: HashMap<After, u64>,
    /// The snapshot behind the tail in a block.
    tails: HashMap<u32, After>,
    next: u64,
}

impl StatePool {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            empty: (0..total).rev().collect(),
            kept: BTreeMap::new(),
            by_place: HashMap::new(),
            tails: HashMap::new(),
            next: 0,
        }
    }

    /// Returns whether the model has recurrent layers.
    pub(super) fn exist(&self) -> bool {
        self.total > 0
    }

    /// Returns the number of slots that no sequence holds.
    pub(super) fn unused(&self) -> u32 {
        (self.empty.len() + self.kept.len()) as u32
    }

    /// Returns whether there is a snapshot at a place.
    pub(super) fn has(&self, after: After) -> bool {
        self.by_place.contains_key(&after)
    }

    /// Returns the number of tokens in the tail of a block after which a snapshot goes on.
    pub(super) fn tokens_in_tail(&self, block: u32) -> Option<u32> {
        match self.tails.get(&block) {
            Some(After::Tail(_, tokens)) => Some(*tokens),
            _ => None,
        }
    }

    /// Removes the snapshot at a place, and returns its slot.
    fn remove(&mut self, after: After) -> Option<u32> {
        let (slot, _) = self.kept.remove(&self.by_place.remove(&after)?)?;
        if let After::Tail(block, _) = after {
            self.tails.remove(&block);
        }
        Some(slot)
    }

    /// Returns a slot that holds nothing. Gives up the oldest snapshot if there is none.
    fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.empty.pop() {
            return Some(slot);
        }
        let (_, after) = *self.kept.first_key_value()?.1;
        self.remove(after)
    }

    /// Takes a slot for a sequence that goes on with the snapshot at `after`, or starts without a state.
    pub(super) fn take(&mut self, after: Option<After>) -> Option<State> {
        match after {
            Some(after @ After::Tail(..)) => {
                let slot = self.remove(after)?;
                Some(State { slot, snapshot: None })
            }
            Some(after) => {
                let snapshot = self.remove(after)?;
                match self.take_slot() {
                    Some(slot) => Some(State { slot, snapshot: Some((snapshot, after)) }),
                    // The sequence takes the snapshot itself.
                    None => Some(State { slot: snapshot, snapshot: None }),
                }
            }
            None => Some(State { slot: self.take_slot()?, snapshot: None }),
        }
    }

    /// Returns the word for the block table of the next rows of a sequence. Leaves a snapshot of the state before them at
    /// `after`, if a slot is left for it.
    pub(super) fn enter(&mut self, state: &mut State, after: Option<After>) -> u32 {
        if let Some((snapshot, place)) = state.snapshot.take() {
            self.keep(snapshot, place);
            return slots_word(snapshot, state.slot);
        }
        let before = state.slot;
        if let Some(after) = after.filter(|after| !self.has(*after))
            && let Some(slot) = self.take_slot()
        {
            state.slot = slot;
            self.keep(before, after);
        }
        slots_word(before, state.slot)
    }

    /// Keeps a snapshot as the newest one.
    fn keep(&mut self, slot: u32, after: After) {
        if let Some(older) = self.remove(after) {
            self.empty.push(older);
        }
        self.kept.insert(self.next, (slot, after));
        self.by_place.insert(after, self.next);
        if let After::Tail(block, _) = after {
            self.tails.insert(block, after);
        }
        self.next += 1;
    }

    /// Forgets the snapshots after a block, which holds other keys and values from now on.
    pub(super) fn forget(&mut self, block: u32) {
        let tail = self.tails.get(&block).copied();
        for after in [Some(After::Block(block)), tail].into_iter().flatten() {
            self.remove(after).into_iter().for_each(|slot| self.empty.push(slot));
        }
    }

    /// Returns the slots of a sequence. Keeps its state if a later sequence can go on with it.
    pub(super) fn give(&mut self, state: State, after: Option<After>) {
        if let Some((snapshot, place)) = state.snapshot {
            self.keep(snapshot, place);
            return self.free(state.slot);
        }
        match after {
            Some(after) => self.keep(state.slot, after),
            None => self.free(state.slot),
        }
    }

    fn free(&mut self, slot: u32) {
        assert!(!self.empty.contains(&slot), "slot {slot} of the states is returned twice");
        self.empty.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_serves_many_sequences_and_a_tail_one() {
        let mut pool = StatePool::new(4);
        let mut first = pool.take(None).unwrap();
        assert_eq!(pool.enter(&mut first, None), slots_word(0, 0));
        // The rows after a border leave the state before them, and write to another slot.
        assert_eq!(pool.enter(&mut first, Some(After::Block(7))), slots_word(0, 1));
        assert_eq!(pool.enter(&mut first, Some(After::Block(7))), slots_word(1, 1));
        for own in [2, 3] {
            let mut other = pool.take(Some(After::Block(7))).unwrap();
            assert!(!pool.has(After::Block(7)));
            assert_eq!(pool.enter(&mut other, None), slots_word(0, own));
            assert_eq!(pool.enter(&mut other, None), slots_word(own, own));
            assert!(pool.has(After::Block(7)));
            pool.give(other, (own == 2).then_some(After::Tail(9, 3)));
        }
        assert_eq!((pool.unused(), pool.tokens_in_tail(9)), (3, Some(3)));
        let mut taken = pool.take(Some(After::Tail(9, 3))).unwrap();
        assert_eq!(pool.enter(&mut taken, None), slots_word(2, 2));
        assert_eq!(pool.tokens_in_tail(9), None);
        pool.give(taken, None);
        pool.give(first, None);
        assert_eq!(pool.unused(), 4);
    }

    #[test]
    fn sequences_come_before_snapshots() {
        let mut pool = StatePool::new(2);
        let mut first = pool.take(None).unwrap();
        pool.enter(&mut first, Some(After::Block(1)));
        let second = pool.take(None).unwrap();
        assert!(!pool.has(After::Block(1)) && pool.take(None).is_none());
        pool.give(second, Some(After::Block(2)));
        pool.forget(2);
        assert_eq!(pool.unused(), 1);
        // The only slot is that of the snapshot.
        pool.give(first, Some(After::Block(3)));
        let _other = pool.take(None).unwrap();
        let mut third = pool.take(Some(After::Block(3))).unwrap();
        assert_eq!(pool.enter(&mut third, None), slots_word(1, 1));
    }
}
