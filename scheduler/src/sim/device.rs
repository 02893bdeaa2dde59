//! Simulated devices: three in-order queues that wait for points.

use crate::core::{End, MicroBatch, MicroBatchId, Nanoseconds};
use crate::sim::SimSpanKind;
use crate::sim::spec::{SimSpec, SimStage};
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_kernels::picks::RECORD_BYTES;
use ragtag_transfer::{Copy, OtherEnd, TransferId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Work of a submission.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A copy. `last` is true if the whole transfer has arrived or left when the copy ends.
    Copy {
        end: End,
        copy: Copy,
        last: bool,
    },
    /// No work, in place of a refused copy.
    Refused(MicroBatchId),
    /// Copy of a part's weights to their arena, from a place if they were read from the model's file.
    Stream {
        part: usize,
        place: Option<usize>,
    },
    /// Read of a part's weights from the model's file into a place.
    Read {
        part: usize,
        place: usize,
    },
    /// Computation of a part.
    Compute {
        slot: u32,
        micro_batch: Arc<MicroBatch>,
        part: usize,
        ends: bool,
    },
    Logits {
        slot: u32,
        micro_batch: Arc<MicroBatch>,
    },
    /// Copy of the keys and values of a part from the cache to a place.
    Pass {
        part: usize,
        passing: Passing,
    },
    /// Copy of keys and values from a place to the cache.
    Keep(Passing),
    /// Computation of the checksum of keys and values in the cache.
    ChecksumPassed(Passing),
    /// Copy of this checksum to the host. The number is the receiver, as in `StageAction::SumPassed`.
    SumPassed(usize, Passing),
    /// Computation of the checksum of a slot's activations.
    Checksum(Summed),
    /// Copy of the checksum to the host.
    Sum(Summed),
}

/// Keys and values that pass through a place.
#[derive(Clone, Debug)]
pub(super) struct Passing {
    /// Index of the passage.
    pub(super) passage: usize,
    pub(super) place: u32,
    pub(super) micro_batch: Arc<MicroBatch>,
    pub(super) duration_ns: Nanoseconds,
}

/// A slot whose checksum is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summed {
    pub(super) end: End,
    pub(super) transfer: TransferId,
    pub(super) slot: u32,
    pub(super) bytes: u64,
}

impl Job {
    /// Returns the micro-batch. Weights belong to none.
    pub(super) fn micro_batch(&self) -> Option<MicroBatchId> {
        match self {
            Job::Copy { copy, .. } => Some(MicroBatchId(copy.transfer.0)),
            Job::Refused(micro_batch) => Some(*micro_batch),
            Job::Stream { .. } | Job::Read { .. } => None,
            Job::Compute { micro_batch, .. } | Job::Logits { micro_batch, .. } => Some(micro_batch.id),
            Job::Pass { passing, .. }
            | Job::Keep(passing)
            | Job::ChecksumPassed(passing)
            | Job::SumPassed(_, passing) => Some(passing.micro_batch.id),
            Job::Checksum(summed) | Job::Sum(summed) => Some(MicroBatchId(summed.transfer.0)),
        }
    }

    pub(super) fn kind(&self) -> SimSpanKind {
        match self {
            Job::Copy { end: End::Incoming, .. } => SimSpanKind::Upload,
            Job::Copy { end: End::Outgoing, .. } | Job::Refused(_) => SimSpanKind::Download,
            Job::Read { .. } => SimSpanKind::Read,
            Job::Stream { .. } => SimSpanKind::Weights,
            Job::Logits { .. } => SimSpanKind::Logits,
            Job::Pass { .. } | Job::Keep(_) => SimSpanKind::KeysAndValues,
            Job::Checksum(_) | Job::Sum(_) | Job::ChecksumPassed(_) | Job::SumPassed(..) => {
                SimSpanKind::Checksum
            }
            Job::Compute { micro_batch, .. } if micro_batch.decodes_only() => SimSpanKind::Decode,
            Job::Compute { .. } => SimSpanKind::Prefill,
        }
    }

    /// Returns the number of rows that the job computes.
    pub(super) fn rows(&self) -> u32 {
        match self {
            Job::Compute { micro_batch, .. } => micro_batch.rows(),
            _ => 0,
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

/// A simulated device with its queues, timelines and memory.
#[derive(Debug)]
pub(super) struct SimDevice {
    /// The device's stages, by the index of the stage in the pipeline.
    stages: BTreeMap<usize, SimStage>,
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
    logit_row_bytes: u64,
}

pub(super) fn timeline(device: usize, queue: QueueKind) -> TimelineId {
    TimelineId { device: DeviceId(device as u16), queue }
}

impl SimDevice {
    /// Creates a device that runs `stages`, given by their indices in the pipeline. There must be at least
    /// one.
    pub(super) fn new(stages: &[usize], spec: &SimSpec) -> Self {
        let own = || spec.all().enumerate().filter(|(index, _)| stages.contains(index));
        Self {
            single_queue: own().any(|(_, stage)| stage.single_queue),
            stages: own().map(|(index, stage)| (index, stage.clone())).collect(),
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
            logit_row_bytes: spec.logit_row_bytes,
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
            Job::Compute { part: 0, .. } => self.stages[&next.stage].hand_over_ns.min(rested_ns),
            _ => 0,
        }
    }

    fn job_duration(&self, submitted: &Submitted) -> Nanoseconds {
        let spec = &self.stages[&submitted.stage];
        match &submitted.job {
            Job::Copy { end: End::Incoming, copy, last } => spec.upload.of(*last, copy.bytes),
            Job::Copy { copy, .. } if copy.other == OtherEnd::None => 0,
            Job::Refused(_) => 0,
            Job::Copy { copy, .. } => spec.download.of(copy.offset == 0, copy.bytes),
            Job::Stream { part, .. } => spec.parts.get(*part).map_or(0, |part| part.stream_ns),
            Job::Read { part, .. } => spec.parts.get(*part).and_then(|part| part.read_ns).unwrap_or(0),
            Job::Compute { micro_batch, part, .. } => {
                let share = spec.parts.get(*part).map_or(1.0, |part| part.share);
                (spec.compute.of(micro_batch) as f64 * share).round() as Nanoseconds
            }
            Job::Logits { micro_batch, .. } => {
                let whole = micro_batch.whole_rows();
                let picks_bytes = u64::from(micro_batch.logit_rows() - whole) * RECORD_BYTES;
                spec.logits.of(true, u64::from(whole) * self.logit_row_bytes + picks_bytes)
            }
            // A checksum reads the bytes once, like a copy.
            Job::Pass { passing, .. } | Job::Keep(passing) | Job::ChecksumPassed(passing) => {
                passing.duration_ns
            }
            Job::Checksum(summed) => spec.upload.of(true, summed.bytes),
            Job::Sum(_) | Job::SumPassed(..) => spec.download.of(true, 8),
        }
    }

    /// Starts the first submission of a hardware queue and returns it.
    pub(super) fn start(&mut self, hardware: usize) -> Result<&Submitted, String> {
        self.running[hardware] = true;
        self.queues[hardware].front().ok_or_else(|| "nothing to start".into())
    }

    /// Ends the running submission of a hardware queue: signals its point.
    pub(super) fn end(&mut self, hardware: usize, now: Nanoseconds) -> Result<Submitted, String> {
        self.running[hardware] = false;
        self.ended_ns[hardware] = Some(now);
        let Some(submitted) = self.queues[hardware].pop_front() else { return Err("nothing to end".into()) };
        let value = &mut self.values[submitted.queue.index()];
        if submitted.signal.value <= *value {
            return Err(format!("{} signalled after {value}", submitted.signal));
        }
        *value = submitted.signal.value;
        Ok(submitted)
    }
}
