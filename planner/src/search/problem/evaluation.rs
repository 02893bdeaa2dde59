//! Predicts the times, the score and the rates of a placement.

use super::{Problem, Run};
use crate::cost::{QueuePart, SharedLink, floor_us, step_us};
use crate::search::grid::SAME;
use crate::search::solver::Costs;
use crate::search::workload_times::Times;
use ragtag_graph::execution::StagePart;
use std::ops::Range;

/// Predictions of the cost model for a placement.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::search) struct Evaluation {
    /// Times of each stage.
    pub stages: Vec<Times>,
    /// Times of the prefill stage, if there is one. The other stages and the transfers then have no times for
    /// prefill chunks.
    pub prefill: Option<Times>,
    /// The devices of the placement, each with the sum of the times of its stages.
    pub devices: Vec<(usize, Times)>,
    /// Times of each transfer to the next stage.
    pub transfers: Vec<Times>,
    /// Busy times of each shared link, summed over all transfers of the placement that use it.
    pub shared: Vec<Times>,
    /// Times of the token return: copying logits to the host, and sending the next tokens to the first stage.
    pub token_return: Times,
    /// Score, in microseconds per request. A smaller score is better.
    pub score_us: f64,
    /// Time per request if prompts and decode steps never overlap, in microseconds.
    pub apart_us: f64,
    /// Value by which the search compares grid points. If the planner simulates plans, this is the larger of
    /// `score_us` and `apart_us`. Otherwise, it is `score_us`. The score assumes that busy times overlap
    /// perfectly, so it favours many small decode micro-batches. `apart_us` is closer to the result of a
    /// simulation.
    pub expected_us: f64,
    /// Decode tokens per second.
    pub decode_tokens_per_s: f64,
    /// Prefill tokens per second when the pipeline is full.
    pub prefill_tokens_per_s: f64,
    /// Time from a request's arrival to its first token in an otherwise empty pipeline, in microseconds.
    pub first_token_us: f64,
    /// Time between two consecutive tokens of a sequence, in microseconds.
    pub token_us: f64,
    /// Fraction of a decode round during which the slowest stage is idle.
    pub decode_idle: f64,
}

impl Evaluation {
    /// Checks the predictions. A comparison with NaN would silently choose a wrong placement.
    fn check(&self) {
        let Self { score_us, apart_us, decode_tokens_per_s, prefill_tokens_per_s, .. } = self;
        let Self { first_token_us, token_us, .. } = self;
        let all = [score_us, apart_us, decode_tokens_per_s, prefill_tokens_per_s, first_token_us, token_us];
        assert!(all.iter().all(|us| (0.0..=f64::MAX).contains(*us)), "invalid predictions: {self:?}");
    }
}

impl Problem<'_> {
    /// Checks that the stages cover all segments exactly once and in order, and that the prefill stage covers
    /// all of them.
    pub fn assert_covered(&self, runs: &[Run], prefill: Option<&Run>) {
        let all = 0..self.lowered.segments.len();
        let ends = [0].into_iter().chain(runs.iter().map(|run| run.segments.end));
        let follows = |(run, end): (&Run, usize)| run.segments.start == end && !run.segments.is_empty();
        let is_covered = runs.iter().zip(ends.clone()).all(follows) && ends.last() == Some(all.end);
        assert!(is_covered, "{runs:?} do not cover the segments {all:?} once and in order");
        assert!(prefill.is_none_or(|run| run.segments == all), "{prefill:?} does not cover {all:?}");
    }

    /// Returns, for each shared link, how long the transfers of a placement occupy it in total.
    fn shared_by(&self, runs: &[Run]) -> Vec<Times> {
        let label = |run: &Run| self.input.devices[run.device].label.as_str();
        let occupied = |shared: &SharedLink| {
            let uses = |pair: &&[Run]| {
                shared.users.iter().any(|(from, to)| *from == label(&pair[0]) && *to == label(&pair[1]))
            };
            self.shared_times(shared) * runs.windows(2).filter(uses).count() as f64
        };
        self.input.links.shared.iter().map(occupied).collect()
    }

    /// Returns the average delay, in microseconds, that each prefill chunk after the first adds to a prompt
    /// of `chunks` chunks. Applies to placements in which devices have several stages. A device must run all
    /// of its stages for every chunk. Other devices process a chunk before the device's first stage and after
    /// its last stage. Chunks do not overtake each other.
    fn chunk_interval_us(&self, runs: &[Run], stages: &[Times], transfers: &[Times], chunks: f64) -> f64 {
        let slowest_stage_us = stages.iter().map(|times| times.chunk_us).fold(0.0, f64::max);
        if chunks <= 1.0 {
            return slowest_stage_us;
        }
        let part_us = |at: usize| stages[at].chunk_us + transfers.get(at).map_or(0.0, |times| times.chunk_us);
        let end_us = |(device, times): &(usize, Times)| {
            let is_here = |run: &Run| run.device == *device;
            let first = runs.iter().position(is_here).expect("the device has a stage");
            let last = runs.iter().rposition(is_here).expect("the device has a stage");
            let before_us: f64 = (0..first).map(part_us).sum();
            let after_us: f64 = (last + 1..runs.len()).map(part_us).sum();
            before_us + chunks * times.chunk_us + after_us
        };
        let busiest_us = device_times(runs.iter(), stages.iter()).iter().map(end_us).fold(0.0, f64::max);
        let sum_us: f64 = (0..runs.len()).map(part_us).sum();
        slowest_stage_us.max((busiest_us - sum_us) / (chunks - 1.0))
    }

    /// Returns the times of a stage. If it streams weights, the device copies the weights of a segment to an
    /// arena while it computes other segments.
    pub fn times(&self, run: &Run) -> Times {
        let parts = self.parts(run);
        let step_us = |computing: &dyn Fn(&Times) -> f64| step_us(&queue_parts(&parts, computing));
        match &parts[..] {
            [(_, times)] => *times,
            _ => Times::of_steps(step_us),
        }
    }

    /// Returns whether copies of weights wait for free arenas, so that the stage is slower than its copies
    /// and its computations alone.
    pub fn waits_for_arenas(&self, run: &Run) -> bool {
        let parts = self.parts(run);
        let floor_us = |computing: &dyn Fn(&Times) -> f64| floor_us(&queue_parts(&parts, computing));
        let (times, floor) = (self.times(run), Times::of_steps(floor_us));
        let used: &[fn(&Times) -> f64] =
            &[|times| times.decode_us, |times| times.chunk_us, |times| times.full_chunk_us];
        !run.streamed.is_empty() && used.iter().any(|of| of(&times) > of(&floor) * (1.0 + SAME))
    }

    /// Returns the parts of a stage: the arena, the time of the copy of the weights, and the times of the
    /// computation.
    fn parts(&self, run: &Run) -> Vec<(QueuePart, Times)> {
        let (device, before) = (&self.input.devices[run.device], &self.before[run.device]);
        let mut once = self.stage_times(run.device);
        let part = |part: StagePart| {
            let bytes = part.arena.map(|_| self.lowered.sizes.streamed_bytes(&[part.segments.start]));
            let copy_us = bytes.map_or(0.0, |bytes| device.host_copy_us(bytes));
            let is_read = run.from_file.contains(&part.segments.start);
            let read_us = bytes.filter(|_| is_read).map_or(0.0, |bytes| device.file_read_us(bytes));
            let computing = before[part.segments.end] - before[part.segments.start];
            let computing = computing + std::mem::take(&mut once);
            (QueuePart { arena: part.arena, read_us, copy_us, compute_us: 0.0 }, computing)
        };
        StagePart::all(run.segments.clone(), &run.streamed, run.arenas()).into_iter().map(part).collect()
    }

    /// Estimates the times of a stage that runs `segments` on `device` and copies weights for `upload_us`
    /// microseconds. Assumes that no copy waits for an arena.
    pub fn estimated_times(&self, device: usize, segments: Range<usize>, upload_us: f64) -> Times {
        let before = &self.before[device];
        let computing = before[segments.end] - before[segments.start] + self.stage_times(device);
        if upload_us > 0.0 { computing.at_least(upload_us) } else { computing }
    }

    /// Predicts the times, the score and the rates of a placement.
    pub fn evaluate(&self, runs: &[Run]) -> Evaluation {
        self.evaluate_with(runs, None)
    }

    /// Predicts the times, the score and the rates of a placement with a prefill stage, if there is one. All
    /// prompts go through the prefill stage.
    pub fn evaluate_with(&self, runs: &[Run], prefill: Option<&Run>) -> Evaluation {
        // A prefill stage is one more part. Only this part has times for prefill chunks.
        let of_path = |times: Times| if prefill.is_some() { times.of_decode() } else { times };
        let stages: Vec<_> = runs.iter().map(|run| of_path(self.times(run))).collect();
        let transfers: Vec<_> =
            runs.windows(2).map(|p| of_path(self.transfer(p[0].device, p[1].device))).collect();
        let prefill_times = prefill.map(|run| self.times(run).of_prefill());
        let of_prefill = |times: fn(&Self, usize) -> Times| {
            prefill.map_or(Times::default(), |run| times(self, run.device).of_prefill())
        };
        let last = runs.last().expect("a placement has a stage");
        let token_return = of_path(self.token_return(last.device)) + of_prefill(Self::token_return);
        let late = runs.iter().map(|run| of_path(self.hand_over(run.device))).sum::<Times>()
            + of_prefill(Self::hand_over);
        let parts = stages.iter().chain(&transfers).chain(&prefill_times).copied();
        let entry = of_path(self.entry(runs[0].device)) + of_prefill(Self::entry);
        let sum: Times = parts.sum::<Times>() + entry + late + token_return;
        let shared: Vec<_> = self.shared_by(runs).into_iter().map(of_path).collect();
        let devices = device_times(runs.iter().chain(prefill), stages.iter().chain(&prefill_times));
        let parts = || devices.iter().map(|(_, times)| times).chain(&transfers).chain(&shared);
        let slowest = |of: fn(&Times) -> f64| parts().map(of).fold(0.0, f64::max);
        let workload_times = &self.workload_times;
        // A micro-batch starts its next decode step only after its previous step has left the pipeline.
        let decode_us = slowest(|t| t.decode_us);
        let round_us = sum.decode_us.max(f64::from(workload_times.decode_groups) * decode_us);
        let costs = workload_times.costs(&sum);
        // The delay that each chunk after the first adds to a prompt of `chunks` chunks.
        let slowest_chunk_us = |chunks: f64| match devices.len() == runs.len() || prefill.is_some() {
            true => slowest(|t| t.chunk_us),
            false => {
                let links = transfers.iter().chain(&shared).map(|times| times.chunk_us);
                links.fold(self.chunk_interval_us(runs, &stages, &transfers, chunks), f64::max)
            }
        };
        let busy = parts().map(|times| workload_times.busy_us(times)).fold(0.0, f64::max);
        let chunk = slowest_chunk_us(workload_times.chunks_in_a_row());
        let score_us = workload_times.score().of(&Costs { busy, chunk, ..costs });
        let apart_us = workload_times.apart_us(&sum, parts().copied());
        let evaluation = Evaluation {
            score_us,
            apart_us,
            expected_us: if self.input.is_tried() { score_us.max(apart_us) } else { score_us },
            decode_tokens_per_s: f64::from(workload_times.sequences) / round_us * 1e6,
            prefill_tokens_per_s: f64::from(workload_times.full_chunk_rows()) / slowest(|t| t.full_chunk_us)
                * 1e6,
            first_token_us: workload_times.first_token_us(&sum, slowest_chunk_us(workload_times.chunks)),
            token_us: round_us,
            decode_idle: 1.0 - f64::from(workload_times.decode_groups) * decode_us / round_us,
            stages,
            prefill: prefill_times,
            devices,
            transfers,
            shared,
            token_return,
        };
        evaluation.check();
        evaluation
    }
}

/// Returns the parts of a stage with one of their times.
fn queue_parts(parts: &[(QueuePart, Times)], of: &dyn Fn(&Times) -> f64) -> Vec<QueuePart> {
    parts.iter().map(|(part, times)| QueuePart { compute_us: of(times), ..*part }).collect()
}

/// Returns the devices that a placement uses, each paired with the sum of its stages' times.
fn device_times<'a>(
    runs: impl Iterator<Item = &'a Run>,
    stages: impl Iterator<Item = &'a Times>,
) -> Vec<(usize, Times)> {
    let mut devices: Vec<(usize, Times)> = Vec::new();
    for (run, &times) in runs.zip(stages) {
        match devices.iter_mut().find(|(device, _)| *device == run.device) {
            Some((_, sum)) => *sum = *sum + times,
            None => devices.push((run.device, times)),
        }
    }
    devices
}
