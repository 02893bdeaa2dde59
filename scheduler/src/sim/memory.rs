//! Simulated memory of stages and rings, whose contents are tracked.
//!
//! A copy or a computation checks its inputs when it starts, and writes its outputs when it ends.

use crate::core::{End, MicroBatch, MicroBatchId, SequenceId};
use crate::sim::device::{Job, Submitted};
use crate::sim::spec::{SimSpec, token_at};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_transfer::{Copy, OtherEnd};
use std::collections::BTreeMap;

/// Bytes of a micro-batch in a ring.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Staged {
    micro_batch: MicroBatchId,
    offset: u64,
    bytes: u64,
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

/// Memory of one stage.
#[derive(Debug)]
struct StageMemory {
    slots: Vec<Slot>,
    /// Sequence and position of the token last written to each cache position.
    cache: Vec<Option<(SequenceId, u32)>>,
}

impl StageMemory {
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
    vocabulary: u32,
    checks_cache: bool,
}

impl Memory {
    pub(super) fn new(spec: &SimSpec) -> Self {
        let blocks = if spec.checked { spec.run.kv_blocks as usize } else { 0 };
        let stage = |stage: &crate::sim::SimStage| StageMemory {
            slots: vec![Slot::default(); stage.slots as usize],
            cache: vec![None; blocks * BLOCK_TOKENS],
        };
        Self {
            stages: spec.stages.iter().map(stage).collect(),
            rings: vec![BTreeMap::new(); spec.stages.len()],
            row_bytes: spec.row_bytes,
            vocabulary: spec.run.vocabulary,
            checks_cache: spec.checked,
        }
    }

    /// Checks the inputs of a submission that starts.
    pub(super) fn start(&mut self, submitted: &Submitted) -> Result<(), String> {
        let (who, stage) = (submitted.job.micro_batch(), submitted.stage);
        match &submitted.job {
            Job::Copy { end: End::Incoming, copy, .. } => self.arrive(stage, who, copy),
            Job::Copy { end: End::Outgoing, copy, .. } => self.leave(stage, who, copy),
            Job::Compute { slot, micro_batch } => self.compute(stage, *slot, micro_batch),
            Job::Logits { slot, .. } => self.stages[stage].slot(*slot)?.check_leaving(who, *slot, 0),
        }
    }

    /// Writes the outputs of a submission that ends.
    pub(super) fn end(&mut self, submitted: &Submitted) -> Result<(), String> {
        let (who, stage) = (submitted.job.micro_batch(), submitted.stage);
        match &submitted.job {
            Job::Copy { end: End::Incoming, copy, .. } => {
                match copy.other {
                    OtherEnd::Ring { start } => drop(self.rings[stage - 1].remove(&start)),
                    OtherEnd::Slot(from) => self.stages[stage - 1].slot(from)?.left += copy.bytes,
                    OtherEnd::None => {}
                }
                self.stages[stage].slot(copy.slot)?.arrived += copy.bytes;
            }
            Job::Copy { end: End::Outgoing, copy, .. } => {
                let Copy { offset, bytes, .. } = *copy;
                match copy.other {
                    OtherEnd::Ring { start } => {
                        let staged = Staged { micro_batch: who, offset, bytes };
                        self.rings[stage].insert(start, staged);
                    }
                    OtherEnd::Slot(to) => self.stages[stage + 1].slot(to)?.arrived += bytes,
                    OtherEnd::None => {}
                }
                let slot = self.stages[stage].slot(copy.slot)?;
                slot.left += bytes;
                if slot.left == slot.total {
                    *slot = Slot::default();
                }
            }
            Job::Compute { slot, .. } => self.stages[stage].slot(*slot)?.computed = true,
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
            if staged != Some(&Staged { micro_batch: who, offset, bytes }) {
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
            OtherEnd::None => slot.check_leaving(who, copy.slot, slot.total),
        }
    }

    fn compute(&mut self, stage: usize, slot: u32, micro_batch: &MicroBatch) -> Result<(), String> {
        let who = micro_batch.id;
        let total = u64::from(micro_batch.rows()) * self.row_bytes;
        let wanted = if stage == 0 { 0 } else { total };
        let memory = self.stages[stage].slot(slot)?;
        if stage == 0 {
            memory.take(who, slot)?;
        }
        if memory.holder != Some(who) || memory.arrived != wanted || memory.computed {
            return Err(format!("{who} computes in slot {slot}, which holds {memory:?}"));
        }
        memory.total = total;
        if self.checks_cache {
            append_and_attend(&mut self.stages[stage].cache, micro_batch, self.vocabulary)?;
        }
        Ok(())
    }
}

/// Appends the positions of a micro-batch to the cache, and checks all positions to which its rows attend.
/// This is the order in which a stage's kernels access the cache.
fn append_and_attend(
    cache: &mut [Option<(SequenceId, u32)>],
    batch: &MicroBatch,
    vocabulary: u32,
) -> Result<(), String> {
    for item in &batch.items {
        let at = |position: u32| {
            let block = item.blocks.get(position as usize / BLOCK_TOKENS).copied();
            block.map(|b| b as usize * BLOCK_TOKENS + position as usize % BLOCK_TOKENS)
        };
        for (position, &token) in (item.first_position..).zip(&item.tokens) {
            if token != token_at(item.sequence.0, position, vocabulary) {
                return Err(format!("token {token} for position {position} of {}", item.sequence));
            }
            let entry = at(position).and_then(|i| cache.get_mut(i));
            *entry.ok_or("a position outside the cache")? = Some((item.sequence, position));
        }
        for position in 0..item.end_position() {
            let found = at(position).and_then(|i| cache.get(i)).copied().flatten();
            if found != Some((item.sequence, position)) {
                return Err(format!("{} attends to position {position} and finds {found:?}", item.sequence));
            }
        }
    }
    Ok(())
}
