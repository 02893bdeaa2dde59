//! Predicted against measured: what the cost model says of the very micro-batches that ran, beside what they took, which
//! assumption failed where the two are apart, and what follows for the facts.
//!
//! Pure: plans, facts and reports in, data out. This module must not know how a plan is found or carried out, and no
//! backend.

mod facts;
mod model;
#[cfg(test)]
mod tests;
mod words;

pub use facts::{Alike, facts_from};
pub use model::{Burst, TimeParts};

use crate::actor::StageReport;
use crate::crossing::{Crossed, EdgeReport};
use crate::runtime::PipelineStats;
use crate::trace::{Computed, SizeReport};
use model::Model;
use ragtag_graph::Segment;
use ragtag_planner::cost::{DeviceFacts, Links};
use ragtag_planner::plan::{Place, Plan};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far measured may be from predicted before someone has to say why.
pub const TOLERANCE: f64 = 0.15;

/// What a comparison is made of.
#[derive(Clone, Copy, Debug)]
pub struct Comparand<'a> {
    /// The plan that ran.
    pub plan: &'a Plan,
    /// The model's segments, as they were planned.
    pub segments: &'a [Segment],
    /// Bytes of one row of activations, as stages keep it.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
    /// The facts that predictions come from, the devices of the plan among them.
    pub devices: &'a [DeviceFacts],
    /// The links between them.
    pub links: &'a Links,
}

/// What a pipeline has done since an earlier look at it, as far as comparisons need it.
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

/// A sort of micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Decode steps alone.
    Decode,
    /// With prompt rows.
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

/// A part of the pipeline: what it should have taken and what it took for the micro-batches that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedPart {
    /// What sort of part.
    pub place: Place,
    /// Which, counted from 0: edge `n` leaves stage `n`.
    pub index: usize,
    /// The stage's device; for an edge, where it comes from.
    pub device: String,
    /// Where an edge leads to.
    pub to: Option<String>,
    /// For which micro-batches.
    pub phase: Phase,
    /// How many there were; of a stage without the first of each size, which may have waited for compilation.
    pub micro_batches: u64,
    /// Rows of each on average; 0 for edges.
    pub rows: f64,
    /// Bytes of each on average; 0 for stages.
    pub bytes: f64,
    /// What one should have taken on average, in microseconds.
    pub predicted_us: f64,
    /// What one took on average, in microseconds.
    pub measured_us: f64,
    /// By how much those of one size differ, as a share of what one takes: a standard deviation. `None` for edges, and where
    /// no two of a stage are of one size.
    pub spread: Option<f64>,
    /// How long one waited for a slot of the stage on average, whatever the phase, in microseconds; 0 for edges.
    pub waited_us: f64,
    /// `measured ÷ predicted − 1`.
    pub deviation: f64,
    /// What the prediction is made of.
    pub parts: TimeParts,
    /// Which assumption failed, if the two are further apart than [`TOLERANCE`].
    pub finding: Option<String>,
}

/// The whole pipeline: how fast it should have been and how fast it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedRate {
    /// What ran, as in `pp512`.
    pub what: String,
    /// Which phase it shows.
    pub phase: Phase,
    /// Tokens per second of all sequences together, as predicted.
    pub predicted_tokens_per_s: f64,
    /// The same as measured.
    pub measured_tokens_per_s: f64,
    /// `measured ÷ predicted − 1`.
    pub deviation: f64,
    /// Which assumption failed, if the two are further apart than [`TOLERANCE`].
    pub finding: Option<String>,
}

/// What a plan predicted of a run against what the run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Stages, edges and the return of tokens, as far as they were measured.
    pub parts: Vec<ComparedPart>,
    /// The whole.
    pub rates: Vec<ComparedRate>,
    /// By how much longer than predicted the first decode steps of each size took, in microseconds over all stages. They may
    /// have waited for compilation, and count in `rates` alone.
    pub decode_warm_up_us: f64,
    /// The same of micro-batches with prompt rows.
    pub prefill_warm_up_us: f64,
}

/// By how much one micro-batch may be off, as a share, where none tells.
const UNKNOWN_SPREAD: f64 = 0.25;

impl Comparison {
    /// Compares what a pipeline has done with what the cost model says of it.
    pub fn new(of: &Comparand<'_>, stats: &PipelineStats) -> Self {
        let mut parts = Vec::new();
        let Some(model) = Model::new(of) else { return Self::default() };
        let (mut decode_warm_up_us, mut prefill_warm_up_us) = (0.0, 0.0);
        for (index, report) in stats.stages.iter().enumerate().take(of.plan.stages.len()) {
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

    /// Adds the rate of a run of which all else was compared.
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

    /// What was compared of one part.
    pub fn part(&self, place: Place, index: usize, phase: Phase) -> Option<&ComparedPart> {
        self.parts.iter().find(|p| (p.place, p.index, p.phase) == (place, index, phase))
    }

    /// Which assumptions failed, in words.
    pub fn findings(&self) -> Vec<&str> {
        let parts = self.parts.iter().filter_map(|part| part.finding.as_deref());
        parts.chain(self.rates.iter().filter_map(|rate| rate.finding.as_deref())).collect()
    }

    /// By how much the measured times of stages may be off by chance, as a share: twice the standard error of their means, on
    /// average over their times. Nothing is certain where nothing was measured.
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

    /// The largest deviation of a stage's time, whichever way.
    pub fn largest_stage_deviation(&self) -> f64 {
        let stages = self.parts.iter().filter(|part| part.place == Place::Stage);
        stages.map(|part| part.deviation.abs()).fold(0.0, f64::max)
    }
}

/// How far a measured figure is from a predicted one; 0 where nothing was predicted.
fn deviation(predicted: f64, measured: f64) -> f64 {
    if predicted > 0.0 { measured / predicted - 1.0 } else { 0.0 }
}

fn sizes(report: &StageReport, phase: Phase) -> impl Iterator<Item = &SizeReport> {
    report.sizes.iter().filter(move |size| size.decode == (phase == Phase::Decode))
}

/// By how much longer than predicted the first micro-batches of each size took on a stage, in microseconds.
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
    // Programs are made for sizes, and times are no straight line over all of them: each size is predicted for itself.
    let mut parts = TimeParts::default();
    for size in warm() {
        parts += model.stage(index, &size).times(size.micro_batches as f64 / count);
    }
    let measured_us = busy_ns as f64 / 1e3 / count;
    let part = ComparedPart {
        place: Place::Stage,
        index,
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

/// The standard deviation of micro-batches from the mean of their size, in microseconds.
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
    let Crossed { crossings, bytes, busy_ns } = match phase {
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
    /// The same with how far it is off, and why.
    fn judged(mut self, model: &Model<'_>) -> Self {
        self.deviation = deviation(self.predicted_us, self.measured_us);
        self.finding = words::part_finding(model, &self);
        self
    }
}
