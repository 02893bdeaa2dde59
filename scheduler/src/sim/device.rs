//! Simulated devices: three in-order queues that wait for points, and memory whose contents are tracked.

use crate::core::{MicroBatch, MicroBatchId, Nanoseconds, SequenceId};
use crate::sim::SimSpanKind;
use crate::sim::spec::{SimSpec, SimStage, token_at};
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_transfer::Chunk;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Work of a submission.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Upload { slot: u32, micro_batch: MicroBatchId, chunk: Chunk, last: bool },
    Compute { slot: u32, micro_batch: Arc<MicroBatch> },
    Download { slot: u32, micro_batch: MicroBatchId, chunk: Chunk },
    Logits { slot: u32, micro_batch: Arc<MicroBatch> },
}

impl Job {
    pub(super) fn micro_batch(&self) -> MicroBatchId {
        match self {
            Job::Upload { micro_batch, .. } | Job::Download { micro_batch, .. } => *micro_batch,
            Job::Compute { micro_batch, .. } | Job::Logits { micro_batch, .. } => micro_batch.id,
        }
    }

    pub(super) fn kind(&self) -> SimSpanKind {
        match self {
            Job::Upload { .. } => SimSpanKind::Upload,
            Job::Download { .. } => SimSpanKind::Download,
            Job::Logits { .. } => SimSpanKind::Logits,
            Job::Compute { micro_batch, .. } if micro_batch.decodes_only() => SimSpanKind::Decode,
            Job::Compute { .. } => SimSpanKind::Prefill,
        }
    }

    /// Returns the number of rows that the job computes.
    pub(super) fn rows(&self) -> u32 {
        match self {
            Job::Compute { micro_batch, .. } => micro_batch.rows(),
            Job::Upload { .. } | Job::Download { .. } | Job::Logits { .. } => 0,
        }
    }
}

/// A submission to a simulated queue.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    /// Index of the stage in the pipeline.
    pub(super) stage: usize,
    pub(super) queue: QueueKind,
    pub(super) job: Job,
    pub(super) waits: Vec<Point>,
    pub(super) signal: Point,
}

/// Contents of one ring slot.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Staged {
    micro_batch: MicroBatchId,
    chunk: Chunk,
}

/// The ring between two stages.
#[derive(Debug, Default)]
pub(super) struct RingMemory {
    slots: BTreeMap<u32, Staged>,
}

/// Contents of one slot of a stage.
#[derive(Clone, Debug, Default)]
struct SlotMemory {
    holder: Option<MicroBatchId>,
    /// Bytes of the activation rows of the micro-batch in this slot. Known only after its computation has
    /// started.
    total: u64,
    uploaded: u64,
    computed: bool,
    downloaded: u64,
}

/// Memory of one stage.
#[derive(Debug)]
struct StageMemory {
    spec: SimStage,
    slots: Vec<SlotMemory>,
    /// Sequence and position of the token last written to each cache position.
    cache: Vec<Option<(SequenceId, u32)>>,
}

/// A simulated device with its queues, timelines and memory.
#[derive(Debug)]
pub(super) struct SimDevice {
    /// Memory of the device's stages, by the index of the stage in the pipeline.
    stages: BTreeMap<usize, StageMemory>,
    single_queue: bool,
    /// Hardware queues. A device with a single queue uses only the first.
    queues: [VecDeque<Submitted>; 3],
    running: [bool; 3],
    values: [u64; 3],
    /// Time at which each hardware queue finished its latest submission. `None` if the queue has finished
    /// none.
    ended_ns: [Option<Nanoseconds>; 3],
    /// Cause of the device's failure. `None` while it works.
    pub(super) failure: Option<ragtag_hal::Error>,
    /// Number of submissions so far. `started` is the number of commands that have started.
    pub(super) submitted: u64,
    pub(super) started: u64,
    /// Fixed additional time per submission of each queue. `unsteady_ns` is the maximum random additional
    /// time.
    pub(super) slow_ns: [Nanoseconds; 3],
    pub(super) unsteady_ns: Nanoseconds,
    pub(super) ignores_waits: bool,
    row_bytes: u64,
    logit_row_bytes: u64,
    vocabulary: u32,
    checks_cache: bool,
}

pub(super) fn timeline(device: usize, queue: QueueKind) -> TimelineId {
    TimelineId { device: DeviceId(device as u16), queue }
}

impl SimDevice {
    /// Creates a device that runs `stages`, given by their indices in the pipeline. There must be at least
    /// one.
    pub(super) fn new(stages: &[usize], spec: &SimSpec) -> Self {
        let blocks = if spec.checked { spec.run.kv_blocks as usize } else { 0 };
        let memory = |&stage: &usize| {
            let spec = spec.stages[stage].clone();
            let slots = vec![SlotMemory::default(); spec.slots as usize];
            (stage, StageMemory { slots, cache: vec![None; blocks * BLOCK_TOKENS], spec })
        };
        Self {
            single_queue: stages.iter().any(|&stage| spec.stages[stage].single_queue),
            stages: stages.iter().map(memory).collect(),
            queues: Default::default(),
            running: [false; 3],
            values: [0; 3],
            ended_ns: [None; 3],
            failure: None,
            submitted: 0,
            started: 0,
            slow_ns: [0; 3],
            unsteady_ns: 0,
            ignores_waits: false,
            row_bytes: spec.row_bytes,
            logit_row_bytes: spec.logit_row_bytes,
            vocabulary: spec.run.vocabulary,
            checks_cache: spec.checked,
        }
    }

    pub(super) fn hardware(&self, queue: QueueKind) -> usize {
        if self.single_queue { 0 } else { queue.index() }
    }

    pub(super) fn value(&self, queue: QueueKind) -> u64 {
        self.values[queue.index()]
    }

    pub(super) fn submit(&mut self, submitted: Submitted) {
        let hardware = self.hardware(submitted.queue);
        self.queues[hardware].push_back(submitted);
    }

    /// Returns the submission that a hardware queue can start now, if any. `passed` returns whether a point
    /// has passed.
    pub(super) fn next(&self, hardware: usize, passed: impl Fn(Point) -> bool) -> Option<&Submitted> {
        let idle = self.failure.is_none() && !self.running[hardware];
        let next = self.queues[hardware].front().filter(|_| idle)?;
        (self.ignores_waits || next.waits.iter().all(|&p| passed(p))).then_some(next)
    }

    /// Returns the submission that a hardware queue is executing, if any.
    pub(super) fn running(&self, hardware: usize) -> Option<&Submitted> {
        self.queues[hardware].front().filter(|_| self.running[hardware])
    }

    /// Returns the duration of a submission without random additional time.
    pub(super) fn duration(&self, submitted: &Submitted) -> Nanoseconds {
        self.slow_ns[submitted.queue.index()] + self.job_duration(submitted)
    }

    /// Returns the delay with which `next` starts because its hardware queue was idle until `now`.
    pub(super) fn hand_over(&self, hardware: usize, next: &Submitted, now: Nanoseconds) -> Nanoseconds {
        let rested_ns =
            self.ended_ns[hardware].map_or(Nanoseconds::MAX, |ended_ns| now.saturating_sub(ended_ns));
        match next.job {
            Job::Compute { .. } => self.stages[&next.stage].spec.hand_over_ns.min(rested_ns),
            Job::Upload { .. } | Job::Download { .. } | Job::Logits { .. } => 0,
        }
    }

    fn job_duration(&self, submitted: &Submitted) -> Nanoseconds {
        let spec = &self.stages[&submitted.stage].spec;
        match &submitted.job {
            Job::Upload { chunk, last, .. } => spec.upload.of(*last, chunk.bytes),
            Job::Download { chunk, .. } => spec.download.of(chunk.offset == 0, chunk.bytes),
            Job::Compute { micro_batch, .. } => spec.compute.of(micro_batch),
            Job::Logits { micro_batch, .. } => {
                spec.logits.of(true, u64::from(micro_batch.logit_rows()) * self.logit_row_bytes)
            }
        }
    }

    /// Starts the first submission of a hardware queue and checks its inputs.
    pub(super) fn start(
        &mut self,
        hardware: usize,
        incoming: Option<&RingMemory>,
        outgoing: Option<&RingMemory>,
    ) -> Result<(), String> {
        self.running[hardware] = true;
        let Some(submitted) = self.queues[hardware].front() else { return Err("nothing to start".into()) };
        let (who, first) = (submitted.job.micro_batch(), submitted.stage == 0);
        let Some(stage) = self.stages.get_mut(&submitted.stage) else {
            return Err(format!("{who} is on a device without stage {}", submitted.stage));
        };
        match &submitted.job {
            Job::Upload { slot, chunk, .. } => {
                let memory = &mut stage.slots[*slot as usize];
                if chunk.offset == 0 && memory.holder.replace(who).is_some() {
                    return Err(format!("{who} is uploaded into slot {slot}, which is in use"));
                }
                let staged = incoming.and_then(|ring| ring.slots.get(&chunk.slot));
                if memory.holder != Some(who) || staged != Some(&Staged { micro_batch: who, chunk: *chunk }) {
                    return Err(format!("{who} uploads {chunk:?}, but the ring holds {staged:?}"));
                }
            }
            Job::Compute { slot, micro_batch } => {
                let total = u64::from(micro_batch.rows()) * self.row_bytes;
                let wanted = if first { 0 } else { total };
                let memory = &mut stage.slots[*slot as usize];
                if first && memory.holder.replace(who).is_some() {
                    return Err(format!("{who} computes in slot {slot}, which is in use"));
                }
                if memory.holder != Some(who) || memory.uploaded != wanted || memory.computed {
                    return Err(format!("{who} computes in slot {slot}, which holds {memory:?}"));
                }
                memory.total = total;
                if self.checks_cache {
                    append_and_attend(&mut stage.cache, micro_batch, self.vocabulary)?;
                }
            }
            Job::Download { slot, chunk, .. } => {
                let memory = &stage.slots[*slot as usize];
                if memory.holder != Some(who) || !memory.computed || memory.downloaded != chunk.offset {
                    return Err(format!("{who} downloads {chunk:?} of slot {slot}, which holds {memory:?}"));
                }
                if let Some(staged) = outgoing.and_then(|ring| ring.slots.get(&chunk.slot)) {
                    return Err(format!("{who} overwrites {staged:?} in the ring"));
                }
            }
            Job::Logits { slot, .. } => {
                let memory = &stage.slots[*slot as usize];
                if memory.holder != Some(who) || !memory.computed {
                    return Err(format!("logits of {who} from slot {slot}, which holds {memory:?}"));
                }
            }
        }
        Ok(())
    }

    /// Ends the running submission of a hardware queue: writes its outputs and signals its point.
    pub(super) fn end(
        &mut self,
        hardware: usize,
        now: Nanoseconds,
        incoming: Option<&mut RingMemory>,
        outgoing: Option<&mut RingMemory>,
    ) -> Result<Submitted, String> {
        self.running[hardware] = false;
        self.ended_ns[hardware] = Some(now);
        let Some(submitted) = self.queues[hardware].pop_front() else { return Err("nothing to end".into()) };
        let who = submitted.job.micro_batch();
        let Some(stage) = self.stages.get_mut(&submitted.stage) else { return Err("nothing to end".into()) };
        match &submitted.job {
            Job::Upload { slot, chunk, .. } => {
                if let Some(ring) = incoming {
                    ring.slots.remove(&chunk.slot);
                }
                stage.slots[*slot as usize].uploaded += chunk.bytes;
            }
            Job::Compute { slot, .. } => stage.slots[*slot as usize].computed = true,
            Job::Download { slot, chunk, .. } => {
                if let Some(ring) = outgoing {
                    ring.slots.insert(chunk.slot, Staged { micro_batch: who, chunk: *chunk });
                }
                let memory = &mut stage.slots[*slot as usize];
                memory.downloaded += chunk.bytes;
                if memory.downloaded == memory.total {
                    *memory = SlotMemory::default();
                }
            }
            Job::Logits { slot, .. } => stage.slots[*slot as usize] = SlotMemory::default(),
        }
        let value = &mut self.values[submitted.queue.index()];
        if submitted.signal.value <= *value {
            return Err(format!("{} signalled after {value}", submitted.signal));
        }
        *value = submitted.signal.value;
        Ok(submitted)
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
