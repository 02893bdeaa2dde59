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

pub use facts::facts_from;
pub use model::{Burst, TimeParts};

use crate::actor::StageReport;
use crate::cost::{DeviceFacts, Links};
use crate::crossing::{Crossed, EdgeReport};
use crate::plan::{Place, Plan};
use crate::runtime::PipelineStats;
use crate::trace::Computed;
use model::Model;
use ragtag_graph::Segment;
use serde::{Deserialize, Serialize};

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

/// A sort of micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Decode steps alone.
    Decode,
    /// With prompt rows.
    Prefill,
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
    /// How many there were.
    pub micro_batches: u64,
    /// Rows of each on average; 0 for edges.
    pub rows: f64,
    /// Bytes of each on average; 0 for stages.
    pub bytes: f64,
    /// What one should have taken on average, in microseconds.
    pub predicted_us: f64,
    /// What one took on average, in microseconds.
    pub measured_us: f64,
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
}

impl Comparison {
    /// Compares what a pipeline has done with what the cost model says of it.
    pub fn new(of: &Comparand<'_>, stats: &PipelineStats) -> Self {
        let mut parts = Vec::new();
        let Some(model) = Model::new(of) else { return Self::default() };
        for (index, report) in stats.stages.iter().enumerate().take(of.plan.stages.len()) {
            for (phase, computed) in [(Phase::Decode, report.decode), (Phase::Prefill, report.prefill)] {
                parts.extend(stage(&model, index, report, phase, &computed));
            }
        }
        let edges = stats.edges.iter().enumerate().take(of.plan.edges.len());
        let edges = edges.map(|(index, report)| (Place::Edge, index, report));
        for (place, index, report) in edges.chain([(Place::TokenReturn, 0, &stats.token_return)]) {
            for phase in [Phase::Decode, Phase::Prefill] {
                parts.extend(edge(&model, place, index, report, phase));
            }
        }
        Self { parts, rates: Vec::new() }
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

fn stage(
    model: &Model<'_>,
    index: usize,
    report: &StageReport,
    phase: Phase,
    computed: &Computed,
) -> Option<ComparedPart> {
    let (count, counts) = (computed.micro_batches as f64, report.counts);
    if computed.micro_batches == 0 || computed.busy_ns == 0 {
        return None;
    }
    // Programs are made for sizes, and times are no straight line over all of them: each size is predicted for itself.
    let mut parts = TimeParts::default();
    for size in report.sizes.iter().filter(|size| size.decode == (phase == Phase::Decode)) {
        parts += model.stage(index, &size.computed).times(size.computed.micro_batches as f64 / count);
    }
    let part = ComparedPart {
        place: Place::Stage,
        index,
        device: model.device(index).label.clone(),
        to: None,
        phase,
        micro_batches: computed.micro_batches,
        rows: computed.rows as f64 / count,
        bytes: 0.0,
        predicted_us: parts.sum_us(),
        measured_us: computed.busy_ns as f64 / 1e3 / count,
        waited_us: counts.waited_for_slot_ns as f64 / 1e3 / counts.micro_batches.max(1) as f64,
        deviation: 0.0,
        parts,
        finding: None,
    };
    Some(part.judged(model))
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

/// How far a measured figure is from a predicted one, for people: a share while it is one that people can picture.
pub fn deviation_in_words(deviation: f64) -> String {
    match deviation + 1.0 {
        ratio if ratio >= 1e4 => "far more".into(),
        ratio if ratio >= 10.0 => format!("× {ratio:.0}"),
        _ => format!("{:+.0} %", deviation * 100.0),
    }
}
