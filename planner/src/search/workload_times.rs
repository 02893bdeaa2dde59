//! The micro-batches of a request: their shapes and counts, and the score that follows from their times.
//!
//! This module knows nothing about devices or the search.

use super::PlannerInput;
use super::solver::{Costs, Score};
use crate::cost::BatchShape;
use crate::objective::Mix;
use ragtag_graph::WireType;
use std::iter::Sum;
use std::ops::{Add, Mul, Sub};

/// A point of the search grid. It holds all choices except the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Maximum number of rows in a micro-batch.
    pub chunk: u32,
    /// Number of decode groups.
    pub groups: u32,
    /// Wire type of activations between stages.
    pub wire_type: WireType,
}

/// Times of the micro-batches of a request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// Time of a decode step of one group.
    pub decode_us: f64,
    /// Time of a decode step of a single sequence.
    pub alone_us: f64,
    /// Time of a chunk of the request's prompt, without logits.
    pub chunk_us: f64,
    /// Additional time at the end of a prompt, for the logits of the last row.
    pub prompt_end_us: f64,
    /// Time of a full-length chunk that ends a prompt. Plans report this time.
    pub full_chunk_us: f64,
}

impl Times {
    /// Returns times in which every micro-batch takes `us` microseconds.
    pub fn always(us: f64) -> Self {
        Self { decode_us: us, alone_us: us, chunk_us: us, prompt_end_us: 0.0, full_chunk_us: us }
    }

    /// Returns the times of a stage with several parts. `step_us` gets one of a part's times and returns the
    /// time of a step of the whole stage.
    pub fn of_steps(step_us: impl Fn(&dyn Fn(&Self) -> f64) -> f64) -> Self {
        let chunk_us = step_us(&|times| times.chunk_us);
        Self {
            decode_us: step_us(&|times| times.decode_us),
            alone_us: step_us(&|times| times.alone_us),
            chunk_us,
            prompt_end_us: step_us(&|times| times.chunk_us + times.prompt_end_us) - chunk_us,
            full_chunk_us: step_us(&|times| times.full_chunk_us),
        }
    }

    /// Returns times in which every micro-batch takes at least `us` microseconds.
    pub fn at_least(self, us: f64) -> Self {
        let end_us = (self.chunk_us + self.prompt_end_us).max(us) - self.chunk_us.max(us);
        Self { prompt_end_us: end_us, ..self.with(Self::always(us), f64::max) }
    }

    /// Returns the times of decode steps, and zero for prefill chunks.
    pub fn of_decode(self) -> Self {
        Self { decode_us: self.decode_us, alone_us: self.alone_us, ..Self::default() }
    }

    /// Returns the times of prefill chunks, and zero for decode steps.
    pub fn of_prefill(self) -> Self {
        self - self.of_decode()
    }

    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            decode_us: of(self.decode_us, other.decode_us),
            alone_us: of(self.alone_us, other.alone_us),
            chunk_us: of(self.chunk_us, other.chunk_us),
            prompt_end_us: of(self.prompt_end_us, other.prompt_end_us),
            full_chunk_us: of(self.full_chunk_us, other.full_chunk_us),
        }
    }
}

impl Add for Times {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }
}

impl Sub for Times {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }
}

impl Mul<f64> for Times {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        self.with(self, |a, _| a * factor)
    }
}

impl Sum for Times {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), Add::add)
    }
}

/// Shapes and counts of the micro-batches of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkloadTimes {
    /// Weights of the simple objectives. `None` for throughput alone.
    weights: Option<Mix>,
    /// Number of sequences that share the pipeline.
    pub sequences: u32,
    /// Number of sequences in one decode micro-batch.
    pub decode_rows: u32,
    /// Number of decode micro-batches in flight.
    pub decode_groups: u32,
    /// Number of prompt tokens of a request.
    pub prompt: f64,
    /// Number of prefill chunks of a request. Fractional if the last chunk is short.
    pub chunks: f64,
    /// Number of tokens that a request generates.
    pub generated: f64,
    decode: BatchShape,
    alone: BatchShape,
    chunk: BatchShape,
    full_chunk: BatchShape,
}

impl WorkloadTimes {
    pub fn new(input: &PlannerInput<'_>, context: u32, point: Point) -> Self {
        let sequences = input.objective.sequences(input.limits.sequences);
        let logit_rows = input.limits.logit_rows;
        let decode_rows = sequences.div_ceil(point.groups.max(1)).min(point.chunk).min(logit_rows).max(1);
        let (prompt, generated) = input.workload.within(context);
        let chunk_rows = (prompt.ceil() as u32).clamp(1, point.chunk.max(1));
        let (reading, writing) = (prompt / 2.0, prompt + generated / 2.0);
        let decode = |rows| BatchShape { rows, logit_rows: rows, sequences: rows, positions: writing };
        Self {
            weights: input.objective.weights(),
            sequences,
            decode_rows,
            decode_groups: sequences.div_ceil(decode_rows),
            prompt,
            chunks: prompt / f64::from(chunk_rows),
            generated,
            decode: decode(decode_rows),
            alone: decode(1),
            chunk: BatchShape { rows: chunk_rows, logit_rows: 0, sequences: 1, positions: reading },
            full_chunk: BatchShape { rows: point.chunk, logit_rows: 1, sequences: 1, positions: reading },
        }
    }

    /// Returns the same micro-batches, but with full chunks that consist of the rows of a decode micro-batch and of
    /// `prompt_rows` prompt rows.
    pub fn mixing(&self, prompt_rows: u32) -> Self {
        let BatchShape { rows, logit_rows, sequences, positions } = self.decode;
        let rows = rows.saturating_add(prompt_rows).min(self.full_chunk.rows.max(rows));
        let full_chunk = BatchShape { rows, logit_rows: logit_rows + 1, sequences: sequences + 1, positions };
        Self { full_chunk, ..self.clone() }
    }

    /// Computes the times of all micro-batches. `time_us` returns the time for one shape.
    pub fn times(&self, time_us: impl Fn(&BatchShape) -> f64) -> Times {
        let time_us = |shape: &BatchShape| {
            let us = time_us(shape);
            assert!((0.0..=f64::MAX).contains(&us), "the time of {shape:?} is {us} µs");
            us
        };
        let end = BatchShape { logit_rows: 1, ..self.chunk };
        let chunk_us = time_us(&self.chunk);
        Times {
            decode_us: time_us(&self.decode),
            alone_us: time_us(&self.alone),
            chunk_us,
            prompt_end_us: if self.chunks > 0.0 { time_us(&end) - chunk_us } else { 0.0 },
            full_chunk_us: time_us(&self.full_chunk),
        }
    }

    /// Returns the time per request, in microseconds, during which a part of the pipeline with these times is
    /// busy.
    pub fn busy_us(&self, times: &Times) -> f64 {
        let steps = self.generated / f64::from(self.decode_rows);
        self.chunks * times.chunk_us + times.prompt_end_us + steps * times.decode_us
    }

    /// Returns the part of a prompt's time that adds up over all stages: the time of the first chunk, and the
    /// additional time at the end of the prompt.
    fn filling_us(&self, times: &Times) -> f64 {
        self.chunks.min(1.0) * times.chunk_us + times.prompt_end_us
    }

    /// Returns the number of chunks after the first. The slowest stage or transfer delays each of them.
    fn following(&self) -> f64 {
        self.chunks - self.chunks.min(1.0)
    }

    /// Returns the number of consecutive chunks that the score assumes.
    pub fn chunks_in_a_row(&self) -> f64 {
        match self.weights {
            None => self.chunks * f64::from(self.sequences),
            Some(_) => self.chunks,
        }
    }

    /// Converts times to the solver's costs.
    pub fn costs(&self, times: &Times) -> Costs {
        let filling = self.filling_us(times);
        let time = match self.weights {
            None => filling + self.generated * times.decode_us,
            Some(mix) => {
                (mix.latency + mix.first_token) * filling + mix.latency * self.generated * times.alone_us
            }
        };
        Costs { busy: self.busy_us(times), time, chunk: times.chunk_us }
    }

    /// Returns the formula that the solver uses to compute scores, in microseconds per request.
    pub fn score(&self) -> Score {
        let chunk_weight = self.following();
        let sequences = f64::from(self.sequences);
        match self.weights {
            // Prompts arrive one by one as other requests end. Decode waits while their chunks pass.
            None => Score::Busy { sequences, chunk_weight: self.chunks * sequences - self.chunks.min(1.0) },
            Some(mix) => Score::Sum {
                chunk_weight: (mix.latency + mix.first_token) * chunk_weight,
                busy_weight: mix.throughput,
            },
        }
    }

    /// Returns the time from a request's arrival at an empty pipeline to its first token, in microseconds.
    /// `sum` is the sum of the times of all parts of the pipeline. `slowest_chunk_us` is the chunk time of
    /// the slowest part.
    pub fn first_token_us(&self, sum: &Times, slowest_chunk_us: f64) -> f64 {
        self.filling_us(sum) + self.following() * slowest_chunk_us
    }

    /// Returns the time per request if prompts and decode steps never overlap, in microseconds. `sum` is the
    /// sum of the times of all parts of the pipeline. The slowest part may differ between prefill and decode.
    pub fn apart_us(&self, sum: &Times, parts: impl Iterator<Item = Times>) -> f64 {
        let (mut chunk_us, mut decode_us) = (0.0f64, 0.0f64);
        for times in parts {
            chunk_us = chunk_us.max(times.chunk_us);
            decode_us = decode_us.max(times.decode_us / f64::from(self.decode_rows));
        }
        let round_us = sum.decode_us / f64::from(self.sequences);
        self.chunks * chunk_us + self.generated * decode_us.max(round_us)
    }

    /// Returns the fraction of time for which the busiest device is idle because the pipeline, with `stages`
    /// stages on `devices` devices, fills and drains. Assumes that the prompts of all sequences arrive at
    /// once.
    pub fn bubble(&self, devices: usize, stages: usize) -> f64 {
        let fill = (devices as f64 - 1.0) * devices as f64 / stages.max(1) as f64;
        let chunks = (self.chunks.ceil() * f64::from(self.sequences)).max(1.0);
        fill / (chunks + fill)
    }

    /// Returns the number of rows of a full chunk.
    pub fn full_chunk_rows(&self) -> u32 {
        self.full_chunk.rows
    }
}
