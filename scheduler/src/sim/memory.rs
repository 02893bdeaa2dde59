//! Simulated memory of stages and rings, whose contents are tracked.
//!
//! A copy or a computation checks its inputs when it starts, and writes its outputs when it ends.

mod passing;

use crate::core::{End, Item, MicroBatch, MicroBatchId};
use crate::sim::device::{Job, Submitted, Summed};
use crate::sim::request::Prefix;
use crate::sim::spec::{Fault, SimSpec, SimStage};
use ragtag_graph::execution::{PREFILLS, READ_PLACES};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::recurrent::MAX_SLOTS;
use ragtag_transfer::{Copy, OtherEnd, ToSender, TransferId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a micro-batch in a ring.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Staged {
    micro_batch: MicroBatchId,
    offset: u64,
    bytes: u64,
    /// Whether a copy has written wrong bytes.
    wrong: bool,
}

/// Contents of one slot of a stage.
#[derive(Clone, Debug, Default)]
struct Slot {
    holder: Option<MicroBatchId>,
    /// Bytes of the activation rows of the micro-batch in this slot. Known only after its computation has
    /// started.
    total: u64,
    arrived: u64,
    computed: bool,
    left: u64,
    /// Whether wrong bytes have arrived.
    wrong: bool,
}

impl Slot {
    /// Assigns the slot to a micro-batch whose first bytes arrive.
    fn take(&mut self, who: MicroBatchId, slot: u32) -> Result<(), String> {
        match self.holder.replace(who) {
            Some(holder) => Err(format!("{who} arrives in slot {slot}, which {holder} uses")),
            None => Ok(()),
        }
    }

    /// Checks that the slot holds results that may leave from byte `offset` on.
    fn check_leaving(&self, who: MicroBatchId, slot: u32, offset: u64) -> Result<(), String> {
        if self.holder != Some(who) || !self.computed || self.left != offset {
            return Err(format!("{who} leaves slot {slot} from byte {offset} on, which holds {self:?}"));
        }
        Ok(())
    }
}

/// Contents of an arena.
#[derive(Clone, Copy, Debug, Default)]
struct Arena {
    /// Part whose weights the arena holds. `None` while they are copied.
    part: Option<usize>,
    /// Whether a computation reads the weights.
    in_use: bool,
}

/// Place for weights from the model's file.
#[derive(Clone, Copy, Debug, Default)]
struct ReadPlace {
    /// Part whose weights the place holds. `None` while they are read.
    part: Option<usize>,
    /// Whether a copy reads the weights.
    in_use: bool,
}

/// Memory of one stage.
#[derive(Debug)]
struct StageMemory {
    slots: Vec<Slot>,
    /// Arena of each part of the stage.
    parts: Vec<Option<usize>>,
    arenas: Vec<Arena>,
    places: [ReadPlace; READ_PLACES],
    cache: Cache,
    /// Keys and values in the cache whose checksum is not computed.
    unsummed: Option<MicroBatchId>,
    /// Keys and values in the cache whose copies have written wrong bytes.
    wrong: Vec<Arc<MicroBatch>>,
}

/// Keys and values in a place.
#[derive(Clone, Copy, Debug)]
struct Passed {
    micro_batch: MicroBatchId,
    /// Whether a copy has written wrong bytes.
    wrong: bool,
}

/// Keys and values of a position. They depend on all tokens up to it, so sequences with the same prefix have the
/// same ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept {
    position: u32,
    /// The tokens up to this position.
    prefix: Prefix,
    /// Whether the RoPE frequencies are those of long sequences.
    is_long: bool,
}

/// Texts of all sequences, from which the contents of the cache follow.
#[derive(Debug)]
struct Texts {
    /// For each sequence, the prefixes that end at each of its positions.
    prefixes: Vec<Vec<Prefix>>,
    /// Length from which the RoPE frequencies are those of long sequences.
    long_from: Option<u32>,
}

impl Texts {
    fn new(spec: &SimSpec) -> Self {
        let prefixes = (0..).zip(&spec.requests).map(|(sequence, request)| {
            let prefixes =
                request.text(sequence, &spec.run).into_iter().scan(Prefix::EMPTY, |prefix, token| {
                    *prefix = prefix.then(token);
                    Some(*prefix)
                });
            prefixes.collect()
        });
        Self { prefixes: prefixes.collect(), long_from: spec.run.recompute_at }
    }

    /// Returns the keys and values of a position of an item's sequence.
    fn at(&self, item: &Item, position: u32) -> Option<Kept> {
        let prefix = *self.prefixes.get(item.sequence.0 as usize)?.get(position as usize)?;
        let is_long = self.long_from.is_some_and(|from| item.length() >= from);
        Some(Kept { position, prefix, is_long })
    }

    /// Returns the keys and values of a row of an item. Fails if its token is wrong.
    fn computed(&self, item: &Item, position: u32, token: u32) -> Result<Kept, String> {
        let before = match position.checked_sub(1) {
            None => Some(Prefix::EMPTY),
            Some(before) => self.at(item, before).map(|kept| kept.prefix),
        };
        let kept = self.at(item, position).filter(|kept| before.map(|p| p.then(token)) == Some(kept.prefix));
        kept.ok_or_else(|| format!("token {token} for position {position} of {}", item.sequence))
    }
}

/// The KV cache of a layer that keeps all positions, and that of a layer with a window: what was last written to
/// each cache position.
#[derive(Clone, Debug)]
struct Cache {
    full: Vec<Option<Kept>>,
    ring: Vec<Option<Kept>>,
    /// Window of the layer that has one.
    window: Option<u32>,
    /// States of a recurrent layer: the last position that each of them covers.
    states: Option<Vec<Option<Kept>>>,
}

impl StageMemory {
    /// Checks that the weights of `part` are in their arena, and marks the arena as used or unused.
    fn use_arena(&mut self, part: usize, in_use: bool) -> Result<(), String> {
        let Some(arena) = self.parts.get(part).copied().flatten() else { return Ok(()) };
        let arena = &mut self.arenas[arena];
        if arena.part != Some(part) || arena.in_use == in_use {
            return Err(format!("part {part} computes with {arena:?}"));
        }
        arena.in_use = in_use;
        Ok(())
    }

    /// Records that the read of a part's weights starts or ends. Between the two, the place holds no part.
    fn read(&mut self, part: usize, place: usize, ends: bool) -> Result<(), String> {
        let place = &mut self.places[place];
        if place.in_use || ends && place.part.is_some() {
            return Err(format!("the read of part {part} overwrites {place:?}"));
        }
        place.part = ends.then_some(part);
        Ok(())
    }

    /// Records that the copy of a part's weights starts or ends. Between the two, the arena holds no part. If the
    /// weights were read from the model's file, the copy uses their place.
    fn stream(&mut self, part: usize, place: Option<usize>, ends: bool) -> Result<(), String> {
        if let Some(place) = place.map(|place| &mut self.places[place]) {
            if place.part != Some(part) || place.in_use != ends {
                return Err(format!("the weights of part {part} are copied from {place:?}"));
            }
            place.in_use = !ends;
        }
        let arena = self.parts.get(part).copied().flatten();
        let arena = &mut self.arenas[arena.ok_or("resident weights are streamed")?];
        if arena.in_use || ends && arena.part.is_some() {
            return Err(format!("the weights of part {part} overwrite {arena:?}"));
        }
        arena.part = ends.then_some(part);
        Ok(())
    }

    fn slot(&mut self, slot: u32) -> Result<&mut Slot, String> {
        self.slots.get_mut(slot as usize).ok_or_else(|| format!("slot {slot} does not exist"))
    }
}

/// Memory of all stages, and the rings between them.
#[derive(Debug)]
pub(super) struct Memory {
    stages: Vec<StageMemory>,
    /// Contents of the rings by first byte. Ring `n` leads from stage `n` to the next stage.
    rings: Vec<BTreeMap<u64, Staged>>,
    row_bytes: u64,
    /// Texts of all sequences, if accesses to the caches are checked.
    texts: Option<Texts>,
    verified: bool,
    /// Number of copies over each edge, and last of those of keys and values, so far.
    copies: Vec<u64>,
    /// Number of copies from each stage over the peer route so far.
    peer_copies: Vec<u64>,
    /// Faults of copies.
    faults: Vec<Fault>,
    /// Index of the prefill stage, and the stages whose caches it uses.
    prefill: Option<(usize, Vec<usize>)>,
    /// For each part of the prefill stage, the last micro-batch that it has begun to compute.
    prefilled: BTreeMap<usize, MicroBatchId>,
    /// For each place of each passage, the keys and values that are there.
    places: Vec<[Option<Passed>; PREFILLS]>,
    /// Checksums of keys and values that a device has computed and not copied to the host, by stage, passage
    /// and place.
    passed_sums: BTreeMap<(usize, usize, u32), u64>,
    /// Checksums that a device has computed and not copied to the host, by stage, end and slot.
    sums: BTreeMap<(usize, bool, u32), u64>,
}

impl Memory {
    pub(super) fn new(spec: &SimSpec) -> Self {
        let ring = spec.run.kv_ring;
        let blocks = [spec.run.kv_blocks, ring.map_or(0, |ring| ring.total)];
        let [full, ring_blocks] = blocks.map(|blocks| if spec.checked { blocks as usize } else { 0 });
        let empty = |blocks: usize| vec![None; blocks * BLOCK_TOKENS];
        let has_states = ring.is_some_and(|ring| ring.is_states());
        let stage = |stage: &SimStage| StageMemory {
            slots: vec![Slot::default(); stage.slots as usize],
            parts: stage.parts.iter().map(|part| part.arena).collect(),
            arenas: vec![Arena::default(); stage.parts.len()],
            places: Default::default(),
            cache: Cache {
                full: empty(full),
                ring: empty(if has_states { 0 } else { ring_blocks }),
                window: ring.map(|ring| ring.window).filter(|_| !has_states),
                states: has_states.then(|| vec![None; ring_blocks]),
            },
            unsummed: None,
            wrong: Vec::new(),
        };
        Self {
            prefill: spec.prefill.as_ref().map(|prefill| {
                let shares = |(_, stage): &(usize, &SimStage)| stage.device == prefill.stage.device;
                let shared = spec.stages.iter().enumerate().filter(shares).map(|(index, _)| index);
                (spec.stages.len(), shared.collect())
            }),
            prefilled: BTreeMap::new(),
            passed_sums: BTreeMap::new(),
            places: vec![[None; PREFILLS]; spec.prefill.as_ref().map_or(0, |prefill| prefill.passes.len())],
            stages: spec.all().map(stage).collect(),
            rings: vec![BTreeMap::new(); spec.stages.len()],
            row_bytes: spec.row_bytes,
            texts: spec.checked.then(|| Texts::new(spec)),
            verified: spec.verified,
            copies: vec![0; spec.stages.len() + 1],
            peer_copies: vec![0; spec.stages.len()],
            faults: spec.faults.clone(),
            sums: BTreeMap::new(),
        }
    }

    /// Counts a copy over the edge that leaves stage `edge`, or of keys and values from the prefill stage
    /// with this index. Returns whether it writes wrong bytes.
    fn is_wrong(&mut self, edge: usize) -> bool {
        let at = self.copies[edge];
        self.copies[edge] += 1;
        self.faults.iter().any(|fault| match *fault {
            Fault::WrongBytes { stage, first, copies } => {
                stage as usize == edge && (first..first + copies).contains(&at)
            }
            _ => false,
        })
    }

    /// Counts a copy over the peer route. Returns whether the device refuses it.
    pub(super) fn refuses(&mut self, from: usize, end: End, copy: &Copy) -> bool {
        if self.verified || end == End::Incoming || !matches!(copy.other, OtherEnd::Slot(_)) {
            return false;
        }
        let at = self.peer_copies[from];
        self.peer_copies[from] += 1;
        self.faults.iter().any(|fault| match *fault {
            Fault::CopyRefused { stage, first, copies } => {
                stage as usize == from && (first..first + copies).contains(&at)
            }
            _ => false,
        })
    }

    /// Returns the checksum of a slot's activations. Wrong bytes change it.
    fn checksum(&mut self, stage: usize, summed: &Summed) -> Result<u64, String> {
        let Summed { end, transfer, slot, bytes } = *summed;
        let memory = self.stages[stage].slot(slot)?;
        let is_whole = match end {
            End::Incoming => memory.arrived == bytes && !memory.computed,
            End::Outgoing => memory.computed && memory.total == bytes,
        };
        if memory.holder != Some(MicroBatchId(transfer.0)) || !is_whole {
            return Err(format!("a checksum of {transfer} in slot {slot}, which holds {memory:?}"));
        }
        Ok(transfer.0 << 1 | u64::from(end == End::Incoming && memory.wrong))
    }

    /// Takes the checksum that a device has copied to the host.
    pub(super) fn take_sum(&mut self, stage: usize, summed: &Summed) -> Result<u64, String> {
        let place = (stage, summed.end == End::Incoming, summed.slot);
        self.sums.remove(&place).ok_or_else(|| format!("no checksum of {}", summed.transfer))
    }

    /// Records that `stage` requests a transfer again. The transfer then overwrites the slot.
    pub(super) fn discard(&mut self, stage: usize, slot: u32) -> Result<(), String> {
        *self.stages[stage].slot(slot)? = Slot::default();
        Ok(())
    }

    /// Records that `stage` has received the result of a verification. Its slot is then free, or leaves
    /// again.
    pub(super) fn verified(&mut self, stage: usize, message: ToSender) -> Result<(), String> {
        let (transfer, is_over) = match message {
            ToSender::Confirmed(transfer) => (transfer, true),
            ToSender::Again { transfer, .. } => (transfer, false),
            ToSender::Place { .. } | ToSender::Slot(_) | ToSender::Read { .. } => return Ok(()),
        };
        let TransferId(id) = transfer;
        let held = |slot: &&mut Slot| slot.holder == Some(MicroBatchId(id)) && slot.left == slot.total;
        let slot = self.stages[stage].slots.iter_mut().find(held);
        let slot = slot.ok_or_else(|| format!("stage {stage} does not hold the whole {transfer}"))?;
        if is_over {
            *slot = Slot::default();
        }
        slot.left = 0;
        Ok(())
    }

    /// Checks the inputs of a submission that starts.
    pub(super) fn start(&mut self, submitted: &Submitted) -> Result<(), String> {
        let stage = submitted.stage;
        let Some(who) = submitted.job.micro_batch() else { return self.stream(submitted, false) };
        match &submitted.job {
            Job::Copy { end: End::Incoming, copy, .. } => self.arrive(stage, who, copy),
            Job::Copy { end: End::Outgoing, copy, .. } => self.leave(stage, who, copy),
            Job::Stream { .. } | Job::Read { .. } | Job::Refused(_) => Ok(()),
            Job::Compute { slot, micro_batch, part, .. } => {
                self.stages[stage].use_arena(*part, true)?;
                self.compute(stage, *slot, micro_batch, *part)
            }
            Job::Logits { slot, .. } => self.stages[stage].slot(*slot)?.check_leaving(who, *slot, 0),
            Job::Pass { part, passing } => self.pass(*part, passing),
            Job::Keep(passing) => self.keep(stage, passing),
            Job::Checksum(summed) => self.checksum(stage, summed).map(drop),
            Job::ChecksumPassed(passing) => self.checksum_passed(stage, passing).map(drop),
            Job::Sum(_) | Job::SumPassed(..) => Ok(()),
        }
    }

    /// Writes the outputs of a submission that ends.
    pub(super) fn end(&mut self, submitted: &Submitted) -> Result<(), String> {
        let stage = submitted.stage;
        let Some(who) = submitted.job.micro_batch() else { return self.stream(submitted, true) };
        match &submitted.job {
            Job::Copy { end: End::Incoming, copy, .. } => {
                let mut wrong = copy.other != OtherEnd::None && self.is_wrong(stage - 1);
                match copy.other {
                    OtherEnd::Ring { start } => {
                        wrong |= self.rings[stage - 1].remove(&start).is_some_and(|staged| staged.wrong);
                    }
                    OtherEnd::Slot(from) => self.stages[stage - 1].slot(from)?.left += copy.bytes,
                    OtherEnd::None => {}
                }
                let slot = self.stages[stage].slot(copy.slot)?;
                slot.arrived += copy.bytes;
                slot.wrong |= wrong;
            }
            Job::Copy { end: End::Outgoing, copy, .. } => {
                let Copy { offset, bytes, .. } = *copy;
                let wrong = copy.other != OtherEnd::None && self.is_wrong(stage);
                match copy.other {
                    OtherEnd::Ring { start } => {
                        let staged = Staged { micro_batch: who, offset, bytes, wrong };
                        self.rings[stage].insert(start, staged);
                    }
                    OtherEnd::Slot(to) => {
                        let slot = self.stages[stage + 1].slot(to)?;
                        slot.arrived += bytes;
                        slot.wrong |= wrong;
                    }
                    OtherEnd::None => {}
                }
                let verified = self.verified;
                let slot = self.stages[stage].slot(copy.slot)?;
                slot.left += bytes;
                // The slot of a verified transfer stays in use until the transfer is confirmed.
                if slot.left == slot.total && !verified {
                    *slot = Slot::default();
                }
            }
            Job::Checksum(summed) => {
                let sum = self.checksum(stage, summed)?;
                self.sums.insert((stage, summed.end == End::Incoming, summed.slot), sum);
            }
            Job::ChecksumPassed(passing) => {
                let sum = self.checksum_passed(stage, passing)?;
                self.passed_sums.insert((stage, passing.passage, passing.place), sum);
                self.stages[stage].unsummed = None;
            }
            Job::Sum(_) | Job::Stream { .. } | Job::Read { .. } | Job::Refused(_) | Job::SumPassed(..) => {}
            Job::Pass { part, passing } => self.passed(*part, passing)?,
            Job::Keep(passing) => self.kept(stage, passing)?,
            Job::Compute { slot, part, ends, .. } => {
                self.stages[stage].use_arena(*part, false)?;
                let slot = self.stages[stage].slot(*slot)?;
                if *ends {
                    (slot.computed, slot.wrong) = (true, false);
                }
            }
            Job::Logits { slot, .. } => *self.stages[stage].slot(*slot)? = Slot::default(),
        }
        Ok(())
    }

    fn arrive(&mut self, stage: usize, who: MicroBatchId, copy: &Copy) -> Result<(), String> {
        let Copy { slot, offset, bytes, .. } = *copy;
        if let OtherEnd::Slot(from) = copy.other {
            let source = self.stages[stage - 1].slot(from)?;
            source.check_leaving(who, from, offset)?;
            if source.total != bytes {
                return Err(format!("{who} reads {bytes} bytes of {source:?}"));
            }
        }
        if let OtherEnd::Ring { start } = copy.other {
            let staged = self.rings[stage - 1].get(&start);
            let is_right =
                |staged: &&Staged| (staged.micro_batch, staged.offset, staged.bytes) == (who, offset, bytes);
            if staged.filter(is_right).is_none() {
                return Err(format!("{who} reads {copy:?}, but the ring holds {staged:?}"));
            }
        }
        let memory = self.stages[stage].slot(slot)?;
        if copy.other != OtherEnd::None && offset == 0 {
            return memory.take(who, slot);
        }
        if memory.holder != Some(who) || memory.arrived < offset {
            return Err(format!("{copy:?} of {who} into slot {slot}, which holds {memory:?}"));
        }
        Ok(())
    }

    fn leave(&mut self, stage: usize, who: MicroBatchId, copy: &Copy) -> Result<(), String> {
        let slot = self.stages[stage].slot(copy.slot)?;
        match copy.other {
            OtherEnd::Ring { start } => {
                slot.check_leaving(who, copy.slot, copy.offset)?;
                match self.rings[stage].get(&start) {
                    Some(staged) => Err(format!("{who} overwrites {staged:?} in the ring")),
                    None => Ok(()),
                }
            }
            OtherEnd::Slot(to) => {
                slot.check_leaving(who, copy.slot, copy.offset)?;
                self.stages[stage + 1].slot(to)?.take(who, to)
            }
            OtherEnd::None if self.verified => Ok(()),
            OtherEnd::None => slot.check_leaving(who, copy.slot, slot.total),
        }
    }

    fn stream(&mut self, submitted: &Submitted, ends: bool) -> Result<(), String> {
        let stage = &mut self.stages[submitted.stage];
        match submitted.job {
            Job::Stream { part, place } => stage.stream(part, place, ends),
            Job::Read { part, place } => stage.read(part, place, ends),
            _ => Err("work of no micro-batch".into()),
        }
    }

    fn compute(
        &mut self,
        stage: usize,
        slot: u32,
        micro_batch: &MicroBatch,
        part: usize,
    ) -> Result<(), String> {
        let who = micro_batch.id;
        let total = u64::from(micro_batch.rows()) * self.row_bytes;
        let prefills = self.prefill.as_ref().filter(|(prefill, _)| *prefill == stage);
        let is_first = stage == 0 || prefills.is_some();
        let wanted = if is_first { 0 } else { total };
        let verified = self.verified;
        let memory = self.stages[stage].slot(slot)?;
        if is_first && part == 0 {
            memory.take(who, slot)?;
        }
        if verified && memory.wrong {
            return Err(format!("{who} computes with wrong bytes in slot {slot}"));
        }
        if memory.holder != Some(who) || memory.arrived != wanted || memory.computed {
            return Err(format!("{who} computes in slot {slot}, which holds {memory:?}"));
        }
        memory.total = total;
        self.check_verified(stage, micro_batch)?;
        if prefills.is_some() {
            self.prefilled.insert(part, who);
        }
        if part == 0
            && let Some(texts) = &self.texts
        {
            let shared = self.prefill.as_ref().filter(|(prefill, _)| *prefill == stage);
            let caches = shared.iter().flat_map(|(_, shared)| shared.iter().copied()).chain([stage]);
            for at in caches {
                self.stages[at].cache.append(micro_batch, texts)?;
                self.stages[at].cache.attend(micro_batch, texts)?;
                self.stages[at].cache.scan(micro_batch, texts)?;
            }
        }
        Ok(())
    }
}

impl Cache {
    /// Appends the positions of a micro-batch. A stage's kernels do so before they attend.
    fn append(&mut self, batch: &MicroBatch, texts: &Texts) -> Result<(), String> {
        for item in &batch.items {
            for (position, &token) in (item.first_position..).zip(&item.tokens) {
                let kept = texts.computed(item, position, token)?;
                for in_ring in [false, true].into_iter().take(1 + usize::from(self.window.is_some())) {
                    let cache = if in_ring { &mut self.ring } else { &mut self.full };
                    let entry = cache_index(item, position, in_ring).and_then(|i| cache.get_mut(i));
                    *entry.ok_or("a position outside the cache")? = Some(kept);
                }
            }
        }
        Ok(())
    }

    /// Checks all positions to which the rows of a micro-batch attend. In a layer with a window, no such
    /// position may have been overwritten, not even by a later row of the micro-batch.
    fn attend(&self, batch: &MicroBatch, texts: &Texts) -> Result<(), String> {
        for item in &batch.items {
            let first = |window: u32| (item.first_position + 1).saturating_sub(window);
            let kinds = [(&self.full, Some(0), false), (&self.ring, self.window.map(first), true)];
            for (cache, first, in_ring) in kinds {
                for position in first.map_or(0..0, |first| first..item.end_position()) {
                    let at = cache_index(item, position, in_ring);
                    let found = at.and_then(|i| cache.get(i)).copied().flatten();
                    if found.is_none() || found != texts.at(item, position) {
                        let reader = item.sequence;
                        return Err(format!("{reader} attends to position {position} and finds {found:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Cache {
    /// Checks the states from which the rows of a micro-batch go on, and replaces them.
    fn scan(&mut self, batch: &MicroBatch, texts: &Texts) -> Result<(), String> {
        let Some(states) = &mut self.states else { return Ok(()) };
        for item in &batch.items {
            let word = item.ring.first().ok_or("an item without a state")?;
            let [from, to] = [word % MAX_SLOTS, word / MAX_SLOTS].map(|slot| slot as usize);
            let wanted = item.first_position.checked_sub(1).map(|last| texts.at(item, last));
            let found = states.get(from).copied().flatten();
            if let Some(wanted) = wanted
                && (found.is_none() || found != wanted)
            {
                let (reader, at) = (item.sequence, item.first_position);
                return Err(format!("{reader} goes on at position {at} with the state {found:?}"));
            }
            let state = states.get_mut(to).ok_or("a state outside the slots")?;
            *state = texts.at(item, item.end_position() - 1);
        }
        Ok(())
    }
}

/// Returns the index of a position of an item's sequence in the cache.
fn cache_index(item: &Item, position: u32, in_ring: bool) -> Option<usize> {
    let block = item.block(position as usize / BLOCK_TOKENS, in_ring)?;
    Some(block as usize * BLOCK_TOKENS + position as usize % BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{LogitRows, SequenceId, Want};
    use crate::sim::request::SimRequest;
    use std::ops::Range;

    /// Returns a specification with two requests of 100 tokens. The first 20 are the same.
    fn spec() -> SimSpec {
        let mut spec = SimSpec::random(0);
        (spec.run.context, spec.run.vocabulary, spec.run.recompute_at) = (100, 500, None);
        let request = SimRequest { shared_tokens: 20, ..SimRequest::new(0, 100, Want::Logits) };
        spec.requests = vec![request; 2];
        spec
    }

    /// Returns rows of a sequence, with the same blocks in both kinds of layers.
    fn item(spec: &SimSpec, sequence: u64, positions: Range<u32>, blocks: &[u32]) -> Item {
        let tokens = spec.requests[sequence as usize].text(sequence, &spec.run);
        Item {
            sequence: SequenceId(sequence),
            epoch: 0,
            first_position: positions.start,
            prompt_tokens: 0,
            tokens: tokens[positions.start as usize..positions.end as usize].to_vec(),
            blocks: blocks.into(),
            ring: blocks.into(),
            logits: LogitRows::None,
            noise: None,
        }
    }

    /// Appends rows of a sequence to the cache and lets them attend.
    fn compute(spec: &SimSpec, cache: &mut Cache, item: Item) -> Result<(), String> {
        let batch = MicroBatch { id: MicroBatchId(0), credit: 0, items: vec![item] };
        cache.append(&batch, &Texts::new(spec))?;
        cache.attend(&batch, &Texts::new(spec))
    }

    fn cache(window: Option<u32>) -> Cache {
        let empty = |blocks: usize| vec![None; blocks * BLOCK_TOKENS];
        Cache { full: empty(8), ring: empty(3), window, states: None }
    }

    /// Checks that the simulator finds a window in a block that a sequence has overwritten too early.
    #[test]
    fn a_ring_that_is_too_short_loses_a_position_of_a_window() {
        let run = |ring: &[u32]| {
            let (spec, mut cache) = (spec(), cache(Some(14)));
            (0..20).try_for_each(|at| {
                let item = item(&spec, 0, 5 * at..5 * at + 5, &[0, 1, 2, 3, 4, 5, 6, 7]);
                compute(&spec, &mut cache, Item { ring: ring.into(), ..item })
            })
        };
        // The rows of a micro-batch attend to 18 positions.
        assert_eq!(run(&[0, 1, 2]), Ok(()));
        assert!(run(&[0]).unwrap_err().contains("attends to position"));
    }

    #[test]
    fn sequences_share_blocks_with_the_same_prefix_alone() {
        let (spec, mut cache) = (spec(), cache(None));
        let mut run = |sequence, positions, blocks: &[u32]| {
            compute(&spec, &mut cache, item(&spec, sequence, positions, blocks))
        };
        run(0, 0..32, &[0, 1]).unwrap();
        run(1, 16..40, &[0, 2, 3]).unwrap();
        run(0, 32..33, &[0, 1, 4]).unwrap();
        let wrong = run(1, 32..33, &[0, 1, 4]).unwrap_err();
        assert!(wrong.starts_with("sequence 1 attends to position 20 and finds"), "{wrong}");
        // Sequence 1 overwrites block 0.
        run(1, 32..40, &[0, 2, 0]).unwrap_err();
        let stale = run(0, 33..34, &[0, 1, 4]).unwrap_err();
        assert!(stale.starts_with("sequence 0 attends to position 0 and finds"), "{stale}");
    }

    #[test]
    fn other_frequencies_make_other_keys() {
        let (mut spec, mut cache) = (spec(), cache(None));
        spec.run.recompute_at = Some(40);
        let mut run = |positions| compute(&spec, &mut cache, item(&spec, 0, positions, &[0, 1, 2]));
        run(0..39).unwrap();
        run(39..40).unwrap_err();
        run(0..40).unwrap();
    }

    #[test]
    fn a_wrong_token_is_noticed() {
        let spec = spec();
        let item = item(&spec, 0, 7..9, &[0]);
        let computed = |token| Texts::new(&spec).computed(&item, 8, token);
        computed(item.tokens[1]).unwrap();
        assert!(computed(item.tokens[1] + 1).unwrap_err().ends_with("for position 8 of sequence 0"));
    }
}
