//! What the cost model expects of a placement: times of stages and crossings, and what follows for a whole request.
//!
//! This module must not know how placements are found.

use super::search::Run;
use super::{Objective, PlannerInput};
use crate::cost::{MicroBatch, segment_time_us};
use ragtag_graph::SegmentKind;

/// The shapes in which work arrives at a pipeline of a given number of stages, and how much of each makes a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// Sequences that share the pipeline.
    pub sequences: u32,
    /// Sequences of one decode micro-batch.
    pub decode_rows: u32,
    /// Decode micro-batches that go round.
    pub decode_batches: u32,
    /// Prefill chunks of a request; the last may be a part of one.
    pub chunks: f64,
    /// Tokens that a request generates.
    pub generated: f64,
    /// One decode step.
    decode: MicroBatch,
    /// One prefill chunk of this request, no logits wanted.
    chunk: MicroBatch,
    /// A prefill chunk of full length that ends a prompt, as plans report it.
    full_chunk: MicroBatch,
}

impl Pace {
    /// The pace of a pipeline of `stages` stages. Sequences are spread over as many micro-batches as there are stages,
    /// so that each stage has one to work on.
    pub fn new(input: &PlannerInput<'_>, context: u32, stages: usize) -> Self {
        let limits = &input.limits;
        let sequences = match input.objective {
            Objective::Latency => 1,
            Objective::Throughput => limits.sequences,
        };
        let spread = sequences.div_ceil(u32::try_from(stages).unwrap_or(u32::MAX));
        let decode_rows = spread.min(limits.chunk).min(limits.logit_rows);
        let (prompt, generated) =
            (f64::from(input.workload.prompt_tokens), f64::from(input.workload.generated_tokens));
        let scale = (f64::from(context) / (prompt + generated)).min(1.0);
        let (prompt, generated) = (prompt * scale, generated * scale);
        let chunk_rows = (prompt.ceil() as u32).clamp(1, limits.chunk);
        let positions = prompt / 2.0;
        Self {
            sequences,
            decode_rows,
            decode_batches: sequences.div_ceil(decode_rows),
            chunks: prompt / f64::from(chunk_rows),
            generated,
            decode: MicroBatch {
                rows: decode_rows,
                logit_rows: decode_rows,
                sequences: decode_rows,
                positions: prompt + generated / 2.0,
            },
            chunk: MicroBatch { rows: chunk_rows, logit_rows: 0, sequences: 1, positions },
            full_chunk: MicroBatch { rows: limits.chunk, logit_rows: 1, sequences: 1, positions },
        }
    }

    /// Decode steps of this pace's micro-batches that one request accounts for.
    fn decode_share(&self) -> f64 {
        self.generated / f64::from(self.decode_rows)
    }

    /// The least share of time that a stage of prefill stands idle while `stages` stages fill and drain, when all
    /// sequences' prompts arrive at once.
    pub fn bubble(&self, stages: usize) -> f64 {
        let fill = stages as f64 - 1.0;
        let chunks = (self.chunks.ceil() * f64::from(self.sequences)).max(1.0);
        fill / (chunks + fill)
    }
}

/// What a stage or a crossing costs, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    /// One decode micro-batch.
    pub decode_us: f64,
    /// One full prefill chunk that ends a prompt.
    pub prefill_us: f64,
    /// One request, prefill and its share of decode steps.
    pub request_us: f64,
}

/// What the cost model expects of a placement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evaluation {
    /// Each stage.
    pub stages: Vec<Costs>,
    /// Each crossing to the next stage.
    pub crossings: Vec<Costs>,
    /// What the objective makes of it: microseconds per request. Smaller is better.
    pub score_us: f64,
    /// Tokens per second in decode.
    pub decode_tokens_per_s: f64,
    /// Tokens per second in prefill, pipeline full.
    pub prefill_tokens_per_s: f64,
    /// Share of a decode round in which the slowest stage stands idle.
    pub decode_idle: f64,
}

/// Times of all segments on all devices, and of all crossings, at one pace.
pub(super) struct Times<'a> {
    input: &'a PlannerInput<'a>,
    pace: &'a Pace,
    /// For each device the time that a request spends in the segments before each, and before the end.
    request_before: Vec<Vec<f64>>,
    /// For each pair of devices, at `from * devices + to`.
    crossings: Vec<Costs>,
}

impl<'a> Times<'a> {
    pub fn new(input: &'a PlannerInput<'a>, pace: &'a Pace) -> Self {
        let mut times = Self { input, pace, request_before: Vec::new(), crossings: Vec::new() };
        for device in 0..input.devices.len() {
            let mut sum = 0.0;
            let mut before = vec![sum];
            for segment in 0..input.segments.len() {
                sum += times.segment(segment, device).request_us;
                before.push(sum);
            }
            times.request_before.push(before);
        }
        for from in input.devices {
            for to in input.devices {
                let link = input.links.between(&from.label, &to.label);
                let cross = |rows: u32| link.time_us(u64::from(rows).saturating_mul(input.model.row_bytes));
                let decode_us = cross(pace.decode.rows);
                let request_us = pace.chunks * cross(pace.chunk.rows) + pace.decode_share() * decode_us;
                let prefill_us = cross(pace.full_chunk.rows);
                times.crossings.push(Costs { decode_us, prefill_us, request_us });
            }
        }
        times
    }

    fn segment(&self, segment: usize, device: usize) -> Costs {
        let (segment, device) = (&self.input.segments[segment], &self.input.devices[device]);
        let time =
            |batch: &MicroBatch| segment_time_us(segment, device, self.input.limits.activations, batch);
        let decode_us = time(&self.pace.decode);
        // Logits are wanted of the prompt's last row alone.
        let prompt_end_us = match segment.kind {
            SegmentKind::Head if self.pace.chunks > 0.0 => {
                time(&MicroBatch { logit_rows: 1, ..self.pace.chunk })
            }
            _ => 0.0,
        };
        let request_us =
            self.pace.chunks * time(&self.pace.chunk) + prompt_end_us + self.pace.decode_share() * decode_us;
        Costs { decode_us, prefill_us: time(&self.pace.full_chunk), request_us }
    }

    /// Time that a request spends in the segments `first .. end` on a device.
    pub fn request_us(&self, device: usize, first: usize, end: usize) -> f64 {
        self.request_before[device][end] - self.request_before[device][first]
    }

    /// What a crossing between two devices costs.
    pub fn crossing(&self, from: usize, to: usize) -> Costs {
        self.crossings[from * self.input.devices.len() + to]
    }

    /// What to expect of a placement.
    pub fn evaluate(&self, runs: &[Run]) -> Evaluation {
        let stage = |run: &Run| {
            let add = |sum: Costs, segment| {
                let costs = self.segment(segment, run.device);
                Costs {
                    decode_us: sum.decode_us + costs.decode_us,
                    prefill_us: sum.prefill_us + costs.prefill_us,
                    request_us: sum.request_us + costs.request_us,
                }
            };
            run.segments.clone().fold(Costs::default(), add)
        };
        let stages: Vec<_> = runs.iter().map(stage).collect();
        let crossings: Vec<_> = runs.windows(2).map(|p| self.crossing(p[0].device, p[1].device)).collect();
        let (decode_sum, decode_max) = sum_and_max(&stages, &crossings, |c| c.decode_us);
        let (prefill_sum, prefill_max) = sum_and_max(&stages, &crossings, |c| c.prefill_us);
        let (request_sum, request_max) = sum_and_max(&stages, &crossings, |c| c.request_us);
        let pace = self.pace;
        // A micro-batch cannot start its next step before the last one came out at the end of the pipeline.
        let round_us = decode_sum.max(f64::from(pace.decode_batches) * decode_max);
        let score_us = match self.input.objective {
            Objective::Latency => request_sum,
            Objective::Throughput => {
                // With few sequences the pipeline is not full: a request's chunks follow each other, its tokens wait
                // for each other.
                let prefill_us =
                    pace.chunks * prefill_max + (prefill_sum - prefill_max) * pace.chunks.min(1.0);
                let alone_us = prefill_us + pace.generated * decode_sum;
                request_max.max(alone_us / f64::from(pace.sequences))
            }
        };
        Evaluation {
            stages,
            crossings,
            score_us,
            decode_tokens_per_s: f64::from(pace.sequences) / round_us * 1e6,
            prefill_tokens_per_s: f64::from(pace.full_chunk.rows) / prefill_max * 1e6,
            decode_idle: 1.0 - f64::from(pace.decode_batches) * decode_max / round_us,
        }
    }
}

fn sum_and_max(stages: &[Costs], crossings: &[Costs], of: impl Fn(&Costs) -> f64) -> (f64, f64) {
    stages.iter().chain(crossings).map(of).fold((0.0, 0.0), |(sum, max), us| (sum + us, us.max(max)))
}
