//! Queues of the coordinator: waiting requests, admission, growth, preemption and pauses.
//!
//! A sequence is admitted if the cache has room for all its tokens, and takes blocks as its rows enter. If no
//! block is left, the youngest sequence is preempted: it loses its blocks, waits again at its former place,
//! and enters again with all its tokens. The oldest sequence is never preempted for another one, so it
//! finishes.

use crate::core::pool::{Hit, Holding};
use crate::core::run::{Actions, RunCore};
use crate::core::sequence::{Place, Prompt, Sequence};
use crate::core::{FinishReason, MicroBatchId, RunAction, SequenceId};
use crate::error::{Error, Refusal, Result};
use ragtag_graph::execution::Reserve;
use ragtag_kernels::params::BLOCK_TOKENS;

/// Number of requests that may be admitted before the first one that waits for memory.
const OVERTAKING: u32 = 32;

/// Number of empty blocks that a growing sequence takes beyond those that it needs if there are plenty, so that its
/// block table changes less often.
const AHEAD: u32 = 3;

/// Result of an attempt to take blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The sequence has the blocks.
    All,
    /// Blocks become free once micro-batches in flight have ended.
    Later,
    /// The sequence itself was preempted.
    Preempted,
}

impl RunCore {
    pub(super) fn submit(&mut self, id: SequenceId, prompt: Prompt, actions: &mut Actions) -> Result<()> {
        if self.sequences.contains_key(&id) {
            return Err(Error::protocol(format!("{id} submitted twice")));
        }
        let (requests, tokens) = (self.waiting.len() as u32, self.waiting_tokens);
        let is_full = requests >= self.shape.limits.requests
            || tokens.saturating_add(prompt.tokens.len() as u64) > self.shape.limits.tokens;
        let (context, vocabulary) = (self.shape.context, self.shape.vocabulary);
        let sequence = match is_full && requests > 0 {
            true => Err(Refusal::Busy { requests, tokens }),
            false => Sequence::new(id, prompt, context, vocabulary, self.pool.total(), self.now),
        };
        match sequence {
            Err(refusal) => actions.push(RunAction::Fail { sequence: id, error: refusal.into() }),
            Ok(mut sequence) => {
                sequence.read_rows(self.shape.has_picks);
                let is_shorter = |at: &u32| sequence.prompt_tokens() < *at;
                sequence.recompute_at = self.shape.recompute_at.filter(is_shorter);
                sequence.shares_prefix &= self.shape.kv_use.prefixes.is_some();
                self.deadlines.extend(sequence.deadline_ns.map(|at| (at, id)));
                self.sequences.insert(id, sequence);
                self.enqueue(id);
            }
        }
        Ok(())
    }

    pub(super) fn sequence(&mut self, id: SequenceId) -> &mut Sequence {
        self.sequences.get_mut(&id).unwrap_or_else(|| panic!("{id} is in a queue but has ended"))
    }

    /// Returns whether the sequence is admitted.
    fn is_admitted(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(|s| s.holding.is_some()) || self.promised.contains_key(&id)
    }

    /// Puts a sequence into the queue to which its state belongs. It is in none.
    pub(super) fn enqueue(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id);
        let sequence = sequence.unwrap_or_else(|| panic!("{id} is queued but has ended"));
        let is_admitted = sequence.holding.is_some() || self.promised.contains_key(&id);
        sequence.place = match () {
            () if sequence.is_paused || sequence.left() == 0 => Place::Nowhere,
            () if !is_admitted => Place::Waiting,
            () if sequence.decodes() => Place::Ready,
            () => Place::Prefilling,
        };
        let (place, rank, tokens) = (sequence.place, sequence.rank, u64::from(sequence.tokens()));
        match place {
            Place::Waiting => {
                self.waiting.insert(rank);
                self.waiting_tokens += tokens;
                self.may_admit = true;
            }
            Place::Prefilling => self.prefilling.push_back(id),
            Place::Ready => self.ready.push_back(id),
            Place::Nowhere => {}
        }
    }

    /// Removes a sequence from its queue, if it is in one.
    pub(super) fn unqueue(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let queue = match std::mem::replace(&mut sequence.place, Place::Nowhere) {
            Place::Waiting => {
                self.waiting.remove(&sequence.rank);
                self.waiting_tokens -= u64::from(sequence.tokens());
                self.may_admit = true;
                return;
            }
            Place::Prefilling => &mut self.prefilling,
            Place::Ready => &mut self.ready,
            Place::Nowhere => return,
        };
        if let Some(at) = queue.iter().position(|other| *other == id) {
            queue.remove(at);
        }
    }

    /// Pauses a sequence, or lets it go on.
    pub(super) fn pause(&mut self, id: SequenceId, is_paused: bool) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|s| s.is_paused != is_paused) else { return };
        let rank = sequence.rank;
        sequence.is_paused = is_paused;
        if self.holders.remove(&(!is_paused, rank)) {
            self.holders.insert((is_paused, rank));
        }
        if is_paused {
            self.unqueue(id);
            self.withdraw(id);
            self.may_admit = true;
        } else {
            self.enqueue(id);
        }
    }

    /// Ends the sequences whose deadline has passed.
    pub(super) fn end_late(&mut self, actions: &mut Actions) {
        while let Some(&(at, id)) = self.deadlines.first().filter(|(at, _)| *at <= self.now) {
            self.deadlines.remove(&(at, id));
            self.unqueue(id);
            self.finish(id, FinishReason::Deadline, actions);
        }
    }

    /// Returns the number of blocks that a sequence needs to be admitted.
    fn needed(&self, sequence: &Sequence) -> u32 {
        match self.shape.kv_use.reserve {
            Reserve::Full => sequence.wanted_blocks,
            Reserve::Grow => {
                (sequence.tokens() + 1).div_ceil(BLOCK_TOKENS as u32).min(sequence.wanted_blocks)
            }
        }
    }

    /// Returns whether a waiting sequence that needs `blocks` blocks fits beside the admitted ones, each of
    /// which may soon need another block.
    fn fits(&self, blocks: u32, ring_blocks: u32) -> bool {
        let (promised, promised_rings) = self.promised_blocks;
        let grows = self.shape.kv_use.reserve == Reserve::Grow;
        let headroom = if grows { self.generating } else { 0 };
        let is_idle = self.holders.is_empty() && self.promised.is_empty();
        let headroom = if is_idle { 0 } else { headroom };
        self.pool.free() >= promised.saturating_add(blocks).saturating_add(headroom)
            && self.pool.free_ring() >= promised_rings.saturating_add(ring_blocks)
    }

    /// Admits waiting sequences in the order of their ranks. Small ones may overtake the first one that waits
    /// for memory, but only [`OVERTAKING`] times, because a stream of them could otherwise starve it.
    pub(super) fn admit(&mut self) {
        if !std::mem::take(&mut self.may_admit) {
            return;
        }
        let mut first: Option<SequenceId> = None;
        let mut next = self.waiting.first().copied();
        let mut looked = 0;
        while let Some(rank @ (_, id)) = next {
            let sequence = &self.sequences[&id];
            let (blocks, rings) = (self.needed(sequence), self.pool.ring_blocks(sequence.wanted_blocks));
            if self.fits(blocks, rings) {
                self.unqueue(id);
                self.promise(id, blocks, rings);
                self.enqueue(id);
                if let Some(first) = first {
                    self.sequence(first).overtaken += 1;
                }
            } else if let Some(&(true, (_, paused))) = self.holders.last()
                && first.is_none()
                && self.retired.is_empty()
                && self.shape.kv_use.reserve == Reserve::Grow
            {
                // A slow reader must not keep others waiting.
                self.preempt(paused);
                continue;
            }
            first = first.or_else(|| (!self.is_admitted(id)).then_some(id));
            looked += u32::from(first.is_some());
            let is_open = first.is_none_or(|first| {
                let may_overtake = self.sequences[&first].overtaken < OVERTAKING && looked < OVERTAKING;
                may_overtake && self.shape.kv_use.reserve == Reserve::Grow
            });
            let after = (std::ops::Bound::Excluded(rank), std::ops::Bound::Unbounded);
            next = self.waiting.range(after).next().copied().filter(|_| is_open);
        }
        self.may_admit = false;
    }

    fn promise(&mut self, id: SequenceId, blocks: u32, rings: u32) {
        self.promised.insert(id, (blocks, rings));
        self.promised_blocks.0 += blocks;
        self.promised_blocks.1 += rings;
        let now = self.now;
        let sequence = self.sequence(id);
        sequence.times.admitted_ns.get_or_insert(now);
        self.generating += u32::from(sequence.generation.is_some());
    }

    /// Takes back the promise to a sequence that holds no blocks yet. It is not admitted any more.
    fn withdraw(&mut self, id: SequenceId) {
        if self.keep_promise(id) {
            self.generating -= u32::from(self.sequences[&id].generation.is_some());
        }
    }

    /// Ends the promise to a sequence. Returns whether there was one.
    fn keep_promise(&mut self, id: SequenceId) -> bool {
        let Some((blocks, rings)) = self.promised.remove(&id) else { return false };
        self.promised_blocks.0 -= blocks;
        self.promised_blocks.1 -= rings;
        self.may_admit = true;
        true
    }

    /// Returns the prefix of a sequence in the cache.
    pub(super) fn find(&self, id: SequenceId) -> Hit {
        let sequence = &self.sequences[&id];
        if !sequence.shares_prefix {
            return Hit::default();
        }
        let root = sequence.root(self.shape.recompute_at);
        self.pool.find(root, sequence.tokens_from(0), sequence.tokens() as usize)
    }

    /// Gives an admitted sequence its first blocks, and those of its prefix in the cache. Returns whether it has
    /// them. Otherwise it waits again.
    pub(super) fn start(&mut self, id: SequenceId, hit: Hit) -> bool {
        let sequence = &self.sequences[&id];
        let (path, hit) = self.path_of(sequence, hit);
        let (positions, wanted) = (hit.positions(), sequence.wanted_blocks);
        let mut started = self.pool.start(hit, wanted);
        if self.shape.kv_use.reserve == Reserve::Full
            && let Some(holding) = &mut started
            && !self.pool.grow(holding, wanted, 0)
        {
            self.pool.give(holding, 0);
            started = None;
        }
        let Some(holding) = started else {
            self.unqueue(id);
            self.withdraw(id);
            self.enqueue(id);
            return false;
        };
        self.keep_promise(id);
        let sequence = self.sequence(id);
        (sequence.holding, sequence.path, sequence.entered) = (Some(holding), path, positions);
        sequence.formed = positions;
        sequence.plan_snapshot();
        sequence.cached_tokens.get_or_insert(positions);
        let key = (sequence.is_paused, sequence.rank);
        self.holders.insert(key);
        true
    }

    /// Lets a sequence have the blocks of its first `positions` positions. Preempts younger sequences if it must.
    pub(super) fn grow(&mut self, id: SequenceId, positions: u32) -> Taken {
        let count = positions.div_ceil(BLOCK_TOKENS as u32);
        loop {
            let spare = self.pool.free().saturating_sub(self.promised_blocks.0);
            let is_plenty = spare / (AHEAD + 1) > self.generating;
            let sequence = self.sequences.get_mut(&id);
            let sequence = sequence.unwrap_or_else(|| panic!("{id} grows but has ended"));
            let holding = sequence.holding.as_mut().unwrap_or_else(|| panic!("{id} grows without blocks"));
            let ahead = if is_plenty { sequence.wanted_blocks.saturating_sub(count).min(AHEAD) } else { 0 };
            if self.pool.grow(holding, count, ahead) {
                return Taken::All;
            }
            if !self.retired.is_empty() {
                return Taken::Later;
            }
            let &(_, (_, youngest)) = self.holders.last().unwrap_or_else(|| panic!("{id} holds no blocks"));
            self.preempt(youngest);
            if youngest == id {
                return Taken::Preempted;
            }
        }
    }

    /// Takes the blocks of a sequence, which waits again and then starts over.
    pub(super) fn preempt(&mut self, id: SequenceId) {
        self.preempted += 1;
        self.sequence(id).preemptions += 1;
        self.restart(id);
    }

    /// Takes the blocks of a sequence, and lets it start over.
    pub(super) fn restart(&mut self, id: SequenceId) {
        self.unqueue(id);
        self.let_go(id);
        self.sequence(id).start_over();
        self.enqueue(id);
    }

    /// Ends the admission of a sequence and frees its cache blocks. Micro-batches in flight may still write to these
    /// blocks. This is safe on one path, because the micro-batches of the next owner enter later and every
    /// stage processes micro-batches in order. With two paths, the blocks become free later.
    pub(super) fn let_go(&mut self, id: SequenceId) {
        if !self.is_admitted(id) {
            return;
        }
        self.keep_promise(id);
        self.may_admit = true;
        let is_apart = self.shape.prefill_from.is_some() && !self.in_flight.is_empty();
        let next = MicroBatchId(self.next_id);
        let recompute_at = self.shape.recompute_at;
        let sequence = self.sequence(id);
        let (generates, formed) = (sequence.generation.is_some(), sequence.formed);
        let is_ahead = sequence.entered > formed;
        let (mut holding, key) = (sequence.holding.take(), (sequence.is_paused, sequence.rank));
        if let Some(holding) = holding.as_mut().filter(|_| sequence.shares_prefix) {
            holding.end(sequence.root(recompute_at), formed, |first| sequence.tokens_from(first));
        }
        if let Some(holding) = holding.as_mut().filter(|_| is_ahead) {
            self.pool.drop_state(holding);
        }
        self.generating -= u32::from(generates);
        self.holders.remove(&key);
        match holding {
            Some(holding) if is_apart => self.retired.push((next, holding, formed)),
            Some(holding) => self.pool.give(&holding, formed),
            None => {}
        }
    }

    /// Frees the blocks of ended sequences that no micro-batch in flight can write to.
    pub(super) fn free_retired(&mut self) {
        let oldest = self.in_flight.front().map(|flight| flight.batch.id);
        let is_free = |until| oldest.is_none_or(|oldest| oldest >= until);
        let freed = self.retired.extract_if(.., |(until, ..)| is_free(*until));
        let freed: Vec<(MicroBatchId, Holding, u32)> = freed.collect();
        self.may_admit |= !freed.is_empty();
        freed.iter().for_each(|(_, holding, formed)| self.pool.give(holding, *formed));
    }
}
