//! The planner: which device runs which segments. Pure and deterministic: the same facts give the same plan.
//!
//! Every candidate is a contiguous split over an ordered subsequence of the devices, one device alone included, and its
//! memory is proved before its speed counts. The stages of a request overlap with those of others, so throughput is
//! bounded by the busiest stage; one request alone takes the sum of its stages.
//!
//! This module must not know backends, files or the runtime: devices and links are figures, segments are costs.

mod evaluate;
mod explain;
mod search;
#[cfg(test)]
mod tests;

use crate::cost::{DeviceFacts, Links, RunSizes, StageShape};
use crate::plan::{PLAN_VERSION, Plan, PlanModel, PlanStage, PredictedRun, PredictedStage, StageMemory};
use crate::split::{PartitionError, Span, Split};
use evaluate::{Evaluation, Pace, Times};
use ragtag_graph::Segment;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::{Activations, KvType};
use search::{Run, Search};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the planner minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// The time of one sequence alone: the sum over the stages and crossings.
    Latency,
    /// The time per request with the pipeline full: the busiest stage or crossing.
    Throughput,
}

/// The request that is planned for: it weighs prefill against decode. A request longer than the context is scaled down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
}

impl Default for Workload {
    /// 512 tokens in, 128 out: what benchmarks of engines commonly take.
    fn default() -> Self {
        Self { prompt_tokens: 512, generated_tokens: 128 }
    }
}

/// What the planner knows of the model besides its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Name, for people.
    pub name: String,
    /// Digest of its file.
    pub digest: String,
    /// Positions that it was trained for.
    pub context: u32,
    /// Bytes of one row of activations between stages.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
}

/// What must fit, and in what shape work arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Longest sequence, in positions; by default what fits, up to the model's own context.
    pub context: Option<u32>,
    /// Sequences alive at once.
    pub sequences: u32,
    /// Most rows of a micro-batch; the length of a prefill chunk.
    pub chunk: u32,
    /// Most logit rows of a micro-batch.
    pub logit_rows: u32,
    /// Micro-batches that a stage holds at once.
    pub slots: u32,
    /// How keys and values are kept; the segments' costs are for this type.
    pub kv: KvType,
    /// How activations enter matrix products.
    pub activations: Activations,
}

/// All that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct PlannerInput<'a> {
    /// The model.
    pub model: &'a ModelFacts,
    /// Its segments, in order.
    pub segments: &'a [Segment],
    /// The devices, in the order in which a pipeline may run through them.
    pub devices: &'a [DeviceFacts],
    /// The links between them.
    pub links: &'a Links,
    /// What to minimise.
    pub objective: Objective,
    /// The request to plan for.
    pub workload: Workload,
    /// What must fit.
    pub limits: PlanLimits,
    /// The user's placement, if there is one: checked and proved, not improved.
    pub split: Option<&'a Split>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// Nothing to plan on.
    #[error("there is no device to plan on")]
    NoDevice,
    /// Nothing to plan for.
    #[error("the model has no segment")]
    NoSegment,
    /// A figure of a device or link that cannot be.
    #[error("{of}: its {field} makes no sense")]
    BadFacts {
        /// The device or link.
        of: String,
        /// Which figure.
        field: &'static str,
    },
    /// A limit or workload that allows nothing.
    #[error("{what} must be at least 1")]
    BadLimit {
        /// Which.
        what: &'static str,
    },
    /// The user's split does not suit the model or the devices.
    #[error("the split: {0}")]
    Split(#[from] PartitionError),
    /// It fits nowhere.
    #[error("{}", explain::does_not_fit(.0))]
    DoesNotFit(Box<DoesNotFit>),
}

/// What is missing, and where, under the placement that comes closest to fitting.
#[derive(Clone, Debug, PartialEq)]
pub struct DoesNotFit {
    /// The context at which it does not fit.
    pub context: u32,
    /// The stages that lack memory; at least one.
    pub shortages: Vec<Shortage>,
    /// What might help.
    pub hint: String,
}

/// A stage that needs more than its device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The device.
    pub device: String,
    /// The segments.
    pub segments: Span,
    /// What the stage needs and what there is.
    pub memory: StageMemory,
}

impl Shortage {
    /// Bytes that the device lacks.
    pub fn missing_bytes(&self) -> u64 {
        self.memory.total - self.memory.available
    }
}

/// Makes the plan.
///
/// # Errors
/// [`PlanError::DoesNotFit`] names the bytes that are missing and on which device; the other errors name the input that
/// is wrong.
pub fn plan(input: &PlannerInput<'_>) -> Result<Plan, PlanError> {
    check(input)?;
    let sizes = RunSizes::new(input.segments);
    let context = match input.limits.context {
        Some(context) => context,
        None => fitting_context(input, &sizes)?,
    };
    let search = Search::new(input, &sizes, context);
    let chosen = match given_runs(input) {
        Some(runs) => {
            search.prove(&runs).map_err(|shortages| no_fit(input, &sizes, context, shortages))?;
            Choice::of(&search, runs)
        }
        None => search.choose(None).ok_or_else(|| no_fit(input, &sizes, context, search.closest()))?,
    };
    let reasons = explain::reasons(&search, &chosen);
    Ok(assemble(&search, &chosen, reasons))
}

/// The longest context that fits, up to the model's own: a multiple of the cache's block, or the model's context itself.
/// [`PlanLimits::context`] is ignored.
///
/// # Errors
/// As [`plan`]; [`PlanError::DoesNotFit`] if not even one block of positions fits.
pub fn largest_context(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    check(input)?;
    fitting_context(input, &RunSizes::new(input.segments))
}

/// A placement with what the cost model expects of it.
struct Choice {
    runs: Vec<Run>,
    pace: Pace,
    evaluation: Evaluation,
}

impl Choice {
    fn of(search: &Search<'_>, runs: Vec<Run>) -> Self {
        let pace = Pace::new(search.input, search.shape.context, runs.len());
        let evaluation = Times::new(search.input, &pace).evaluate(&runs);
        Self { runs, pace, evaluation }
    }
}

fn check(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    if input.devices.is_empty() {
        return Err(PlanError::NoDevice);
    }
    if input.segments.is_empty() {
        return Err(PlanError::NoSegment);
    }
    for (at, device) in input.devices.iter().enumerate() {
        let twice = input.devices[..at].iter().any(|other| other.label == device.label);
        if let Some(field) = device.nonsense().or(twice.then_some("label (used twice)")) {
            return Err(PlanError::BadFacts { of: device.label.clone(), field });
        }
    }
    for (from, to, link) in &input.links.known {
        if let Some(field) = link.nonsense() {
            return Err(PlanError::BadFacts { of: format!("the link from {from} to {to}"), field });
        }
    }
    if let Some(field) = input.links.other.nonsense() {
        return Err(PlanError::BadFacts { of: "the links that are not known".into(), field });
    }
    let limits = &input.limits;
    let at_least_one = [
        ("the context", limits.context.unwrap_or(input.model.context)),
        ("the number of sequences", limits.sequences),
        ("the chunk", limits.chunk),
        ("the number of logit rows", limits.logit_rows),
        ("the number of slots", limits.slots),
        (
            "the workload's tokens",
            input.workload.prompt_tokens.saturating_add(input.workload.generated_tokens),
        ),
    ];
    if let Some((what, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
        return Err(PlanError::BadLimit { what });
    }
    if let Some(split) = input.split {
        let labels: Vec<_> = input.devices.iter().map(|d| d.label.as_str()).collect();
        split.check(u32::try_from(input.segments.len()).unwrap_or(u32::MAX), &labels)?;
    }
    Ok(())
}

/// The user's split as runs of segments on devices, after `check`.
fn given_runs(input: &PlannerInput<'_>) -> Option<Vec<Run>> {
    let device = |label: &str| input.devices.iter().position(|d| d.label == label);
    input
        .split?
        .parts
        .iter()
        .map(|p| Some(Run { device: device(&p.device)?, segments: p.span.range() }))
        .collect()
}

/// Whether some placement (the user's, if there is one) fits at this context; if not, what it lacks.
fn fits(input: &PlannerInput<'_>, sizes: &RunSizes, context: u32) -> Result<(), Vec<Shortage>> {
    let search = Search::new(input, sizes, context);
    match given_runs(input) {
        Some(runs) => search.prove(&runs),
        None => match search.closest() {
            shortages if shortages.is_empty() => Ok(()),
            shortages => Err(shortages),
        },
    }
}

fn fitting_context(input: &PlannerInput<'_>, sizes: &RunSizes) -> Result<u32, PlanError> {
    let whole = input.model.context;
    if fits(input, sizes, whole).is_ok() {
        return Ok(whole);
    }
    let block = BLOCK_TOKENS as u32;
    let smallest = block.min(whole);
    fits(input, sizes, smallest).map_err(|shortages| no_fit(input, sizes, smallest, shortages))?;
    // Memory grows with the context, so what fits is found by halving: `low` blocks fit, `high` do not.
    let (mut low, mut high) = (1, whole.div_ceil(block));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(input, sizes, middle * block).is_ok() {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((low * block).min(whole))
}

fn no_fit(input: &PlannerInput<'_>, sizes: &RunSizes, context: u32, shortages: Vec<Shortage>) -> PlanError {
    let block = BLOCK_TOKENS as u32;
    let shorter = (context > block).then(|| fitting_context(input, sizes).ok()).flatten();
    let hint = explain::hint(input, shorter.filter(|c| *c < context));
    PlanError::DoesNotFit(Box::new(DoesNotFit { context, shortages, hint }))
}

fn assemble(search: &Search<'_>, chosen: &Choice, reasons: Vec<String>) -> Plan {
    let Search { input, shape, .. } = search;
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    let stage = |(at, run): (usize, &Run)| {
        let costs = &chosen.evaluation.stages[at];
        PlanStage {
            device: input.devices[run.device].label.clone(),
            segments: run.span(),
            memory_bytes: search.memory(run, at.checked_sub(1).map(|before| chosen.runs[before].device)),
            predicted: PredictedStage {
                decode_us: tenths(costs.decode_us),
                prefill_us: tenths(costs.prefill_us),
            },
        }
    };
    let StageShape { context, sequences, rows, slots, .. } = *shape;
    Plan {
        ragtag_plan: PLAN_VERSION,
        model: PlanModel {
            name: input.model.name.clone(),
            digest: input.model.digest.clone(),
            segments: u32::try_from(input.segments.len()).unwrap_or(u32::MAX),
        },
        context,
        sequences,
        chunk: rows,
        decode_rows: chosen.pace.decode_rows,
        slots,
        kv: input.limits.kv,
        activations: input.limits.activations,
        stages: chosen.runs.iter().enumerate().map(stage).collect(),
        routes: chosen
            .runs
            .windows(2)
            .map(|pair| search.link(pair[0].device, pair[1].device).route)
            .collect(),
        predicted: PredictedRun {
            decode_tokens_per_s: tenths(chosen.evaluation.decode_tokens_per_s),
            prefill_tokens_per_s: tenths(chosen.evaluation.prefill_tokens_per_s),
        },
        reasons,
    }
}
