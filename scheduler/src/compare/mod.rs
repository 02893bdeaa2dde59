//! Compares predictions with a run. For the micro-batches that ran, this module computes the times that the
//! cost model predicts and compares them with the measured times. If the times deviate by more than
//! [`TOLERANCE`], it names the assumption that is probably wrong. It also corrects the device and link facts.
//!
//! The functions are pure: they take plans, facts and reports, and return data. They do not depend on the
//! search, the execution or the backends.

mod facts;
mod model;
#[cfg(test)]
mod tests;
mod words;

pub use facts::{Alike, facts_from};
pub use model::{Burst, TimeParts};

use crate::actor::StageReport;
use crate::runtime::PipelineStats;
use crate::trace::{Computed, SizeReport};
use crate::transfers::{Crossed, EdgeReport};
use model::Model;
use ragtag_graph::Segment;
use ragtag_planner::cost::{DeviceFacts, Links};
use ragtag_planner::plan::{Place, Plan};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Relative deviation between measured and predicted times above which a comparison reports a finding.
pub const TOLERANCE: f64 = 0.15;

/// Inputs of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Comparand<'a> {
    /// The plan that ran.
    pub plan: &'a Plan,
    /// The model's segments, as lowered for the plan.
    pub segments: &'a [Segment],
    /// Bytes of one row of activations in device memory.
    pub row_bytes: u64,
    /// Bytes that return to the host per sampled row.
    pub return_row_bytes: u64,
    /// Device facts from which times are predicted. They include every device of the plan.
    pub devices: &'a [DeviceFacts],
    /// Links between the devices.
    pub links: &'a Links,
}

/// Returns the increase of a pipeline's counts and times from `before` to `after`. Clears the fields that
/// comparisons ignore.
pub fn since(before: &PipelineStats, after: &PipelineStats) -> PipelineStats {
    let mut stats = after.clone();
    for (stage, before) in stats.stages.iter_mut().zip(&before.stages) {
        stage.prefill = stage.prefill.since(&before.prefill);
        stage.decode = stage.decode.since(&before.decode);
        let counts = &mut stage.counts;
        counts.micro_batches = counts.micro_batches.saturating_sub(before.counts.micro_batches);
        counts.waited_for_slot_ns =
            counts.waited_for_slot_ns.saturating_sub(before.counts.waited_for_slot_ns);
        for size in &mut stage.sizes {
            let same = |other: &&SizeReport| (other.decode, other.rows) == (size.decode, size.rows);
            let Some(before) = before.sizes.iter().find(same) else { continue };
            size.computed = size.computed.since(&before.computed);
            size.warm = size.warm.since(&before.warm);
        }
    }
    for (edge, before) in stats.edges.iter_mut().zip(&before.edges) {
        *edge = edge.since(before);
    }
    stats.token_return = stats.token_return.since(&before.token_return);
    stats
}

/// Kind of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// A micro-batch that contains only decode steps.
    Decode,
    /// A micro-batch with prompt rows.
    Prefill,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        })
    }
}

/// Predicted and measured times of one part of the pipeline (a stage, an edge or the token return) for the
/// micro-batches that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedPart {
    /// Kind of this part.
    pub place: Place,
    /// Index of the stage or edge, from 0. Edge `n` leaves stage `n`. The prefill stage comes after all
    /// other stages.
    pub index: usize,
    /// Whether this part is the plan's prefill stage.
    #[serde(default)]
    pub is_prefill_stage: bool,
    /// Label of the stage's device. For an edge, the label of the source device.
    pub device: String,
    /// Label of the destination device. `None` for a stage.
    pub to: Option<String>,
    /// Kind of the micro-batches.
    pub phase: Phase,
    /// Number of compared micro-batches. For a stage, the first micro-batch of each size does not count,
    /// because its time may include compilation.
    pub micro_batches: u64,
    /// Average rows per micro-batch. The value is 0 for edges.
    pub rows: f64,
    /// Average bytes per micro-batch. The value is 0 for stages.
    pub bytes: f64,
    /// Average predicted time per micro-batch, in microseconds.
    pub predicted_us: f64,
    /// Average measured time per micro-batch, in microseconds.
    pub measured_us: f64,
    /// Relative standard deviation of the times of micro-batches of the same size. `None` for edges, and if
    /// no size occurs twice.
    pub spread: Option<f64>,
    /// Average time that a micro-batch waits for a slot of the stage, in microseconds. It covers prefill and
    /// decode together. The value is 0 for edges.
    pub waited_us: f64,
    /// Relative deviation: `measured ÷ predicted − 1`.
    pub deviation: f64,
    /// Components of the average predicted time.
    pub parts: TimeParts,
    /// Explanation of the deviation, if it exceeds [`TOLERANCE`].
    pub finding: Option<String>,
}

/// Predicted and measured rates of the whole pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedRate {
    /// Name of the workload, for example `pp512`.
    pub what: String,
    /// Kind of the workload's micro-batches.
    pub phase: Phase,
    /// Predicted rate of all sequences together, in tokens per second.
    pub predicted_tokens_per_s: f64,
    /// Measured rate of all sequences together, in tokens per second.
    pub measured_tokens_per_s: f64,
    /// Relative deviation: `measured ÷ predicted − 1`.
    pub deviation: f64,
    /// Explanation of the deviation, if it exceeds [`TOLERANCE`].
    pub finding: Option<String>,
}

/// Comparison of a plan's predictions with a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Comparisons of stages, edges and the token return.
    pub parts: Vec<ComparedPart>,
    /// Comparisons of rates of the whole pipeline.
    pub rates: Vec<ComparedRate>,
    /// Measured minus predicted time of the first decode micro-batch of each size, in microseconds, summed
    /// over all sizes and stages. These times may include compilation, so they affect only `rates`.
    pub decode_warm_up_us: f64,
    /// The same sum as `decode_warm_up_us`, for micro-batches with prompt rows.
    pub prefill_warm_up_us: f64,
}

/// Relative standard deviation that is assumed for the time of one micro-batch if it cannot be computed from
/// the run.
const UNKNOWN_SPREAD: f64 = 0.25;

impl ComparedPart {
    /// Returns the name of a stage, with its device.
    pub fn stage_name(&self) -> String {
        match self.is_prefill_stage {
            true => format!("prefill stage on {}", self.device),
            false => format!("stage {} on {}", self.index, self.device),
        }
    }
}

impl Comparison {
    /// Compares the measured times in `stats` with the times that the cost model predicts.
    pub fn new(of: &Comparand<'_>, stats: &PipelineStats) -> Self {
        let mut parts = Vec::new();
        let Some(model) = Model::new(of) else { return Self::default() };
        let (mut decode_warm_up_us, mut prefill_warm_up_us) = (0.0, 0.0);
        for (index, report) in stats.stages.iter().enumerate().take(model.stages()) {
            for phase in [Phase::Decode, Phase::Prefill] {
                parts.extend(stage(&model, index, report, phase));
            }
            decode_warm_up_us += warm_up_us(&model, index, report, Phase::Decode);
            prefill_warm_up_us += warm_up_us(&model, index, report, Phase::Prefill);
        }
        let edges = stats.edges.iter().enumerate().take(of.plan.edges.len());
        let edges = edges.map(|(index, report)| (Place::Edge, index, report));
        for (place, index, report) in edges.chain([(Place::TokenReturn, 0, &stats.token_return)]) {
            for phase in [Phase::Decode, Phase::Prefill] {
                parts.extend(edge(&model, place, index, report, phase));
            }
        }
        Self { parts, rates: Vec::new(), decode_warm_up_us, prefill_warm_up_us }
    }

    /// Adds the comparison of one rate. `burst` describes the workload. Requires the parts that [`Self::new`]
    /// computes.
    pub fn add_rate(&mut self, of: &Comparand<'_>, burst: &Burst, measured_tokens_per_s: f64) {
        let Some(model) = Model::new(of) else { return };
        let predicted_tokens_per_s = model.tokens_per_s(burst);
        let mut rate = ComparedRate {
            what: burst.to_string(),
            phase: burst.phase(),
            predicted_tokens_per_s,
            measured_tokens_per_s,
            deviation: deviation(predicted_tokens_per_s, measured_tokens_per_s),
            finding: None,
        };
        rate.finding = words::rate_finding(self, of.plan, &rate);
        self.rates.push(rate);
    }

    /// Returns the comparison of one part in one phase, if that part was measured.
    pub fn part(&self, place: Place, index: usize, phase: Phase) -> Option<&ComparedPart> {
        self.parts.iter().find(|p| (p.place, p.index, p.phase) == (place, index, phase))
    }

    /// Returns the explanations of all deviations above [`TOLERANCE`].
    pub fn findings(&self) -> Vec<&str> {
        let parts = self.parts.iter().filter_map(|part| part.finding.as_deref());
        parts.chain(self.rates.iter().filter_map(|rate| rate.finding.as_deref())).collect()
    }

    /// Returns the relative uncertainty of the stages' measured times: twice the standard error of their
    /// means, weighted by the times. It is infinite if nothing was measured.
    pub fn uncertainty(&self) -> f64 {
        let stages = || self.parts.iter().filter(|part| part.place == Place::Stage);
        let total_us = |part: &ComparedPart| part.measured_us * part.micro_batches as f64;
        let error =
            |part: &ComparedPart| part.spread.unwrap_or(UNKNOWN_SPREAD) / (part.micro_batches as f64).sqrt();
        let all_us: f64 = stages().map(total_us).sum();
        if all_us > 0.0 {
            2.0 * stages().map(|part| error(part) * total_us(part)).sum::<f64>() / all_us
        } else {
            f64::INFINITY
        }
    }

    /// Returns the largest absolute relative deviation among the stages.
    pub fn largest_stage_deviation(&self) -> f64 {
        let stages = self.parts.iter().filter(|part| part.place == Place::Stage);
        stages.map(|part| part.deviation.abs()).fold(0.0, f64::max)
    }
}

/// Returns the relative deviation of `measured` from `predicted`, or 0 if there is no prediction.
fn deviation(predicted: f64, measured: f64) -> f64 {
    if predicted > 0.0 { measured / predicted - 1.0 } else { 0.0 }
}

fn sizes(report: &StageReport, phase: Phase) -> impl Iterator<Item = &SizeReport> {
    report.sizes.iter().filter(move |size| size.decode == (phase == Phase::Decode))
}

/// Returns the measured minus the predicted time of the first micro-batch of each size on a stage, in
/// microseconds, summed over the sizes. The result is at least 0.
fn warm_up_us(model: &Model<'_>, index: usize, report: &StageReport, phase: Phase) -> f64 {
    let first = sizes(report, phase).map(|size| size.computed.since(&size.warm));
    let first = first.filter(|first| first.micro_batches > 0);
    let late_us = |first: Computed| {
        let predicted_us = model.stage(index, &first).sum_us() * first.micro_batches as f64;
        first.busy_ns as f64 / 1e3 - predicted_us
    };
    first.map(late_us).sum::<f64>().max(0.0)
}

fn stage(model: &Model<'_>, index: usize, report: &StageReport, phase: Phase) -> Option<ComparedPart> {
    let warm = || sizes(report, phase).map(|size| size.warm).filter(|warm| warm.micro_batches > 0);
    let sum = |of: fn(&Computed) -> u64| warm().map(|warm| of(&warm)).fold(0, u64::saturating_add);
    let (micro_batches, busy_ns) = (sum(|warm| warm.micro_batches), sum(|warm| warm.busy_ns));
    if micro_batches == 0 || busy_ns == 0 {
        return None;
    }
    let (count, counts) = (micro_batches as f64, report.counts);
    // Predict each size separately, because sizes have different programs and times are not linear.
    let mut parts = TimeParts::default();
    for size in warm() {
        parts += model.stage(index, &size).times(size.micro_batches as f64 / count);
    }
    let measured_us = busy_ns as f64 / 1e3 / count;
    let part = ComparedPart {
        place: Place::Stage,
        index,
        is_prefill_stage: index == model.last() + 1,
        device: model.device(index).label.clone(),
        to: None,
        phase,
        micro_batches,
        rows: sum(|warm| warm.rows) as f64 / count,
        bytes: 0.0,
        predicted_us: parts.sum_us(),
        measured_us,
        spread: deviation_us(warm()).map(|us| us / measured_us),
        waited_us: counts.waited_for_slot_ns as f64 / 1e3 / counts.micro_batches.max(1) as f64,
        deviation: 0.0,
        parts,
        finding: None,
    };
    Some(part.judged(model))
}

/// Returns the pooled standard deviation of the time of a micro-batch around the mean of its size, in
/// microseconds. Returns `None` if no size has two micro-batches.
fn deviation_us(sizes: impl Iterator<Item = Computed>) -> Option<f64> {
    let (mut squares, mut free) = (0.0, 0);
    for size in sizes {
        let (count, us) = (size.micro_batches as f64, size.busy_ns as f64 / 1e3);
        squares += (size.busy_us2 as f64 - us * us / count).max(0.0);
        free += size.micro_batches - 1;
    }
    (free > 0).then(|| (squares / free as f64).sqrt())
}

fn edge(
    model: &Model<'_>,
    place: Place,
    index: usize,
    report: &EdgeReport,
    phase: Phase,
) -> Option<ComparedPart> {
    let Crossed { crossings, bytes, busy_ns, .. } = match phase {
        Phase::Decode => report.decode,
        Phase::Prefill => report.prefill,
    };
    if crossings == 0 {
        return None;
    }
    let count = crossings as f64;
    let bytes = bytes as f64 / count;
    let ((device, to), parts) = match place {
        Place::TokenReturn => (model.return_ends(), model.token_return(bytes)),
        _ => (model.edge_ends(index), model.edge(index, bytes)),
    };
    let part = ComparedPart {
        place,
        index,
        is_prefill_stage: false,
        device: device.into(),
        to: Some(to.into()),
        phase,
        micro_batches: crossings,
        rows: 0.0,
        bytes,
        predicted_us: parts.sum_us(),
        measured_us: busy_ns as f64 / 1e3 / count,
        spread: None,
        waited_us: 0.0,
        deviation: 0.0,
        parts,
        finding: None,
    };
    Some(part.judged(model))
}

impl ComparedPart {
    /// Sets the deviation and, if it is large, its explanation.
    fn judged(mut self, model: &Model<'_>) -> Self {
        self.deviation = deviation(self.predicted_us, self.measured_us);
        self.finding = words::part_finding(model, &self);
        self
    }
}
