//! Predicts the times of the micro-batches that ran, and of a burst of work. This module does not depend on
//! measurements.

use super::{Comparand, Phase};
use crate::trace::Computed;
use ragtag_graph::{Segment, SegmentKind};
use ragtag_kernels::Activations;
use ragtag_planner::cost::{
    BatchShape, BoundaryTime, DeviceFacts, LinkFacts, RunSizes, SegmentKey, SegmentWork, segment_time_us,
    step_us,
};
use ragtag_planner::plan::PrefillStage;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::AddAssign;

/// Components of a predicted time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeParts {
    /// Launches and other overhead of a device, or the latency of an edge.
    pub overhead_us: f64,
    /// Time of memory-bound work.
    pub moving_us: f64,
    /// Time of compute-bound work.
    pub computing_us: f64,
}

impl TimeParts {
    /// Returns the total time, in microseconds.
    pub fn sum_us(&self) -> f64 {
        self.overhead_us + self.moving_us + self.computing_us
    }

    /// Returns the components, each multiplied by `factor`.
    pub fn times(&self, factor: f64) -> Self {
        Self {
            overhead_us: self.overhead_us * factor,
            moving_us: self.moving_us * factor,
            computing_us: self.computing_us * factor,
        }
    }
}

impl AddAssign for TimeParts {
    fn add_assign(&mut self, other: Self) {
        self.overhead_us += other.overhead_us;
        self.moving_us += other.moving_us;
        self.computing_us += other.computing_us;
    }
}

/// Work that is submitted to an idle pipeline all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// Prompts of equal length, without generation.
    Prompts {
        /// Number of tokens in each prompt.
        tokens: u32,
        /// Number of prompts.
        sequences: u32,
    },
    /// Sequences that each process a prompt and then generate tokens.
    Generations {
        /// Number of tokens in each prompt.
        prompt: u32,
        /// Number of new tokens of each sequence.
        tokens: u32,
        /// Number of sequences.
        sequences: u32,
    },
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Burst::Prompts { tokens, .. } => write!(f, "pp{tokens}"),
            Burst::Generations { tokens, .. } => write!(f, "tg{tokens}"),
        }
    }
}

impl Burst {
    pub(super) fn phase(&self) -> Phase {
        match self {
            Burst::Prompts { .. } => Phase::Prefill,
            Burst::Generations { .. } => Phase::Decode,
        }
    }
}

/// Cost model of the plan in a comparison.
pub(super) struct Model<'a> {
    of: Comparand<'a>,
    /// Device facts and segments of each stage. The prefill stage comes last.
    stages: Vec<(&'a DeviceFacts, &'a [Segment])>,
    /// Memory needs of the segments, if a stage streams weights.
    sizes: Option<RunSizes>,
}

impl<'a> Model<'a> {
    /// Creates the cost model. Returns `None` if the plan has no stages, or if a stage has an unknown device
    /// or unknown segments.
    pub(super) fn new(of: &Comparand<'a>) -> Option<Self> {
        let stage = |stage: &'a ragtag_planner::plan::PlanStage| {
            let device = of.devices.iter().find(|device| device.label == stage.device)?;
            Some((device, of.segments.get(stage.segments.range())?))
        };
        let stages: Vec<(&DeviceFacts, &[Segment])> =
            of.plan.all_stages().map(stage).collect::<Option<_>>()?;
        let streams = of.plan.all_stages().any(|stage| !stage.streamed.is_empty());
        let sizes = streams.then(|| RunSizes::new(of.segments));
        (!of.plan.stages.is_empty()).then_some(Self { of: *of, stages, sizes })
    }

    /// Returns the time of a step of a stage that computes for `computing_us` and copies its streamed weights
    /// meanwhile, in microseconds.
    fn step_us(&self, stage: usize, computing_us: f64) -> f64 {
        let planned = self.of.plan.all_stages().nth(stage).filter(|planned| !planned.streamed.is_empty());
        match self.sizes.as_ref().zip(planned) {
            Some((sizes, planned)) => step_us(&planned.queue_parts(sizes, self.device(stage), computing_us)),
            None => computing_us,
        }
    }

    /// Returns the number of stages, including the prefill stage.
    pub(super) fn stages(&self) -> usize {
        self.stages.len()
    }

    /// Returns the index of the last stage of the decode path.
    pub(super) fn last(&self) -> usize {
        self.of.plan.stages.len() - 1
    }

    pub(super) fn device(&self, stage: usize) -> &'a DeviceFacts {
        self.stages[stage].0
    }

    pub(super) fn activations(&self) -> Activations {
        self.of.plan.activations
    }

    pub(super) fn edge_ends(&self, edge: usize) -> (&'a str, &'a str) {
        (&self.device(edge).label, &self.device(edge + 1).label)
    }

    pub(super) fn return_ends(&self) -> (&'a str, &'a str) {
        (&self.device(self.last()).label, &self.device(0).label)
    }

    pub(super) fn link(&self, edge: usize) -> &'a LinkFacts {
        let (from, to) = self.edge_ends(edge);
        self.of.links.between(from, to)
    }

    /// Returns the average predicted time of the micro-batches that a stage computed.
    pub(super) fn stage(&self, stage: usize, computed: &Computed) -> TimeParts {
        let mut parts = self
            .whole_stage(stage, &batches(computed, computed.logit_rows), |kind| kind != SegmentKind::Head);
        parts.overhead_us += self.device(stage).stage_us.value;
        parts += self.wire_type(stage, computed.rows as f64 / computed.micro_batches.max(1) as f64);
        // The head processes only rows that need logits.
        let rows = (computed.logit_rows * computed.micro_batches).checked_div(computed.with_logits);
        if let Some(rows) = rows {
            let head = self.whole_stage(stage, &batches(computed, rows), |kind| kind == SegmentKind::Head);
            parts += head.times(computed.with_logits as f64 / computed.micro_batches as f64);
        }
        // The device computes while it copies streamed weights. Copies that take longer count as moving.
        parts.moving_us += self.step_us(stage, parts.sum_us()) - parts.sum_us();
        parts
    }

    fn whole_stage(
        &self,
        stage: usize,
        batches: &[(f64, BatchShape)],
        which: impl Fn(SegmentKind) -> bool,
    ) -> TimeParts {
        let (device, segments) = self.stages[stage];
        let mut sum = TimeParts::default();
        for segment in segments.iter().filter(|segment| which(segment.kind)) {
            for (weight, batch) in batches.iter().filter(|(weight, _)| *weight > 0.0) {
                sum += segment_parts(segment, device, self.activations(), batch).times(*weight);
            }
        }
        sum
    }

    /// Returns the time that a stage takes to convert `rows` rows to and from the wire type.
    fn wire_type(&self, stage: usize, rows: f64) -> TimeParts {
        let (plan, row_bytes) = (self.of.plan, self.of.row_bytes);
        let BoundaryTime { overhead_us, moving_us } =
            BoundaryTime::new(plan.wire_type, self.device(stage), rows, row_bytes);
        TimeParts { overhead_us, moving_us, computing_us: 0.0 }
    }

    /// Returns the predicted time of a transfer of `bytes` bytes over an edge.
    pub(super) fn edge(&self, edge: usize, bytes: f64) -> TimeParts {
        let link = self.link(edge);
        let moving_us = bytes / link.bandwidth_bytes_per_s.value * 1e6;
        TimeParts { overhead_us: link.latency_us.value, moving_us, computing_us: 0.0 }
    }

    /// Returns the predicted time of the token return for `bytes` bytes of logits.
    pub(super) fn token_return(&self, bytes: f64) -> TimeParts {
        let (last, row_bytes) = (self.device(self.last()), self.of.return_row_bytes);
        let [overhead_us, row_us] = [0, 1].map(|rows| last.token_return(rows, row_bytes).value);
        let moving_us = bytes / row_bytes.max(1) as f64 * (row_us - overhead_us);
        TimeParts { overhead_us, moving_us, computing_us: 0.0 }
    }

    /// Returns the predicted rate of a burst, in tokens per second.
    pub(super) fn tokens_per_s(&self, burst: &Burst) -> f64 {
        match *burst {
            Burst::Prompts { tokens, sequences } => {
                f64::from(tokens) * f64::from(sequences) / self.prompts_us(tokens, sequences) * 1e6
            }
            Burst::Generations { prompt, tokens, sequences } => {
                let rows =
                    sequences.div_ceil(self.of.plan.decode_groups.max(1)).clamp(1, self.of.plan.chunk.max(1));
                let positions = f64::from(prompt) + f64::from(tokens) / 2.0;
                let step = BatchShape { rows, logit_rows: rows, sequences: rows, positions };
                let pass = self.pass(&step);
                let back_us = self.token_return(f64::from(rows) * self.of.return_row_bytes as f64).sum_us();
                let groups = f64::from(sequences.div_ceil(rows));
                let round_us = (pass.sum_us() + back_us).max(groups * pass.slowest_us());
                f64::from(sequences) / round_us * 1e6
            }
        }
    }

    /// Returns the time of `sequences` prompts of `tokens` tokens each, until the last of them has its first token,
    /// in microseconds.
    fn prompts_us(&self, tokens: u32, sequences: u32) -> f64 {
        let plan = self.of.plan;
        let is_long = |stage: &PrefillStage| tokens >= stage.from_tokens;
        let by_prefill_stage = plan.prefill_stage.as_ref().is_some_and(is_long);
        let all = u64::from(tokens) * u64::from(sequences);
        // Micro-batches for the prefill stage have as many rows as possible.
        let chunk = if by_prefill_stage { plan.chunk } else { plan.chunks().rows(all, false) };
        let chunk = u64::from(chunk.max(1));
        let of_rows = |rows: u64| BatchShape {
            rows: rows as u32,
            logit_rows: 0,
            sequences: (rows as u32).div_ceil(tokens.max(1)),
            positions: f64::from(tokens) / 2.0,
        };
        let (full, whole, rest) = ((all / chunk) as f64, of_rows(chunk), of_rows(all % chunk));
        let ends = BatchShape { rows: 0, logit_rows: sequences, sequences, positions: 0.0 };
        let back_us = self.token_return(self.of.return_row_bytes as f64).sum_us();
        if by_prefill_stage {
            // This stage also computes the logits, so no other stage delays the first token.
            let heads_us = self.heads_us(self.last() + 1, &ends);
            return full * self.prefill_pass_us(&whole) + self.prefill_pass_us(&rest) + heads_us + back_us;
        }
        let short = self.pass(&rest);
        let busy_us = if full > 0.0 { self.pass(&whole).repeated_us(full, &short) } else { short.sum_us() };
        busy_us + self.heads_us(self.last(), &ends) + back_us
    }

    /// Returns the times that a micro-batch spends in all stages and edges.
    fn pass(&self, batch: &BatchShape) -> Pass<'a> {
        if batch.rows == 0 {
            return Pass::default();
        }
        let stage = |stage: usize| {
            let wire_type_us = self.wire_type(stage, batch.rows.into()).sum_us();
            (Some(self.device(stage).label.as_str()), self.stage_us(stage, batch, wire_type_us))
        };
        let row_bytes = self.of.plan.wire_type.row_bytes(self.of.row_bytes);
        let bytes = f64::from(batch.rows) * row_bytes as f64;
        let edge = |next: usize| (None, self.edge(next - 1, bytes).sum_us());
        let parts = (0..=self.last())
            .flat_map(|at| (at > 0).then(|| edge(at)).into_iter().chain([stage(at)]))
            .collect();
        // A wake-up delays the micro-batch but keeps no resource busy.
        let late_us = self.stages[..=self.last()].iter().map(|(device, _)| device.hand_over_us.value).sum();
        Pass { late_us, parts }
    }

    /// Returns the time of a micro-batch on a stage, with `more_us` of other work, in microseconds.
    fn stage_us(&self, stage: usize, batch: &BatchShape, more_us: f64) -> f64 {
        let parts = self.whole_stage(stage, &[(1.0, *batch)], |_| true);
        self.step_us(stage, parts.sum_us() + more_us + self.device(stage).stage_us.value)
    }

    /// Returns the time of a micro-batch on the prefill stage, in microseconds. The copies of keys and values
    /// to other devices run behind the computation.
    fn prefill_pass_us(&self, batch: &BatchShape) -> f64 {
        match batch.rows {
            0 => 0.0,
            _ => self.stage_us(self.last() + 1, batch, 0.0),
        }
    }

    /// Returns the additional time that the head of a stage takes at the ends of prompts, in microseconds.
    fn heads_us(&self, stage: usize, batch: &BatchShape) -> f64 {
        self.whole_stage(stage, &[(1.0, *batch)], |kind| kind == SegmentKind::Head).sum_us()
    }
}

/// Times of a micro-batch on its way through the pipeline.
#[derive(Default)]
struct Pass<'a> {
    /// Total delay by wake-ups, in microseconds.
    late_us: f64,
    /// Times of all stages and edges in their order, in microseconds, each with the stage's device.
    parts: Vec<(Option<&'a str>, f64)>,
}

impl Pass<'_> {
    fn sum_us(&self) -> f64 {
        self.late_us + self.parts.iter().map(|(_, us)| us).sum::<f64>()
    }

    /// Returns the time that the part at `at` is busy. For a stage, it is the time of all stages of its
    /// device.
    fn busy_us(&self, at: usize) -> f64 {
        match self.parts.get(at) {
            Some((Some(device), _)) => {
                self.parts.iter().filter(|(other, _)| *other == Some(*device)).map(|(_, us)| us).sum()
            }
            other => other.map_or(0.0, |(_, us)| *us),
        }
    }

    fn slowest_us(&self) -> f64 {
        (0..self.parts.len()).map(|at| self.busy_us(at)).fold(0.0, f64::max)
    }

    /// Returns the time in which `count` of these micro-batches and one like `last` pass through the
    /// pipeline. Each device runs all its stages for each of them. It waits for the first of them to arrive,
    /// and the devices after it wait for the last one.
    fn repeated_us(&self, count: f64, last: &Self) -> f64 {
        let of_part = |at: usize| {
            let device = self.parts[at].0;
            let is_same = |part: &(Option<&str>, f64)| device.is_some() && part.0 == device;
            let from = self.parts.iter().position(is_same).unwrap_or(at);
            let to = self.parts.iter().rposition(is_same).unwrap_or(at);
            let others = self.parts[..from].iter().chain(&self.parts[to + 1..]);
            others.map(|(_, us)| us).sum::<f64>() + count * self.busy_us(at) + last.busy_us(at)
        };
        self.late_us + (0..self.parts.len()).map(of_part).fold(0.0, f64::max)
    }
}

/// Returns two micro-batches whose row counts are the average row count, rounded down and rounded up. The
/// weights are chosen so that the weighted mean of both row counts equals the average.
fn batches(computed: &Computed, logit_rows: u64) -> [(f64, BatchShape); 2] {
    let count = computed.micro_batches as f64;
    let rows = computed.rows as f64 / count;
    let share = |of: u64, rows: f64| of as f64 * rows / computed.rows.max(1) as f64;
    let batch = |rows: f64| BatchShape {
        rows: rows as u32,
        logit_rows: share(logit_rows, rows).round() as u32,
        sequences: share(computed.sequences, rows).round().max(1.0) as u32,
        positions: computed.positions as f64 / computed.rows.max(1) as f64,
    };
    let upper = rows - rows.floor();
    [(1.0 - upper, batch(rows.floor())), (upper, batch(rows.ceil()))]
}

/// Returns the predicted time of a segment, split into components. The launch overhead is one component. The
/// rest counts as memory time or as arithmetic time, whichever limits the segment. A time that comes from a
/// measurement is split in the same way.
fn segment_parts(
    segment: &Segment,
    device: &DeviceFacts,
    activations: Activations,
    batch: &BatchShape,
) -> TimeParts {
    let time_us = segment_time_us(segment, device, activations, batch);
    let overhead_us = device.launch_us.value.min(time_us);
    let rest_us = time_us - overhead_us;
    let key = SegmentKey::from(segment);
    let SegmentWork { bytes, flops } = key.work(&key.point(batch));
    let flops_per_s = match activations {
        Activations::F32 => device.exact_flops_per_s.value,
        Activations::Int8 | Activations::F16 => device.fast_flops_per_s.value,
    };
    if bytes / device.bandwidth_bytes_per_s.value >= flops / flops_per_s {
        TimeParts { overhead_us, moving_us: rest_us, computing_us: 0.0 }
    } else {
        TimeParts { overhead_us, moving_us: 0.0, computing_us: rest_us }
    }
}
