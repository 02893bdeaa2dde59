//! The planner: assigns segments to devices. Pure and deterministic: equal inputs give equal plans.
//!
//! A candidate is a sequence of distinct devices, in any order, with a contiguous run of segments for each. A
//! placement on a single device is also a candidate. `families` adds candidates in which devices have several
//! stages. The planner checks memory before speed. Stages work on different requests at the same time, so the
//! busiest stage limits throughput. The latency of a lone request is the sum of the stage times. `solver`
//! finds the best placement for given micro-batch sizes. `grid` chooses the micro-batch sizes.
//!
//! This module knows nothing about backends, files, the runtime or the simulator.

mod baselines;
mod chunks;
mod explain;
mod families;
mod from_file;
mod grid;
mod hybrid;
mod memory_fit;
mod problem;
mod reasons;
mod solver;
mod streamed;
#[cfg(test)]
mod tests;
mod trial;
mod workload_times;

use crate::cost::{DeviceFacts, LargeBuffer, Links, RunSizes, is_rate};
use crate::objective::{Objective, Workload};
use crate::plan::{
    Chunks, Explanation, HostMemory, PLAN_VERSION, Plan, PlanEdge, PlanModel, PlanPaths, PlanStage,
    PredictedRun, PredictedTimes, PrefillStage, StageMemory, logit_rows,
};
use crate::split::{PartitionError, Span, Split, SplitPart, SplitPrefill};
use crate::streaming::{FEWEST, wrong_arenas, wrong_from_file};
pub use baselines::{Baseline, EngineDecode};
use grid::{Choice, Grid, Prefill, SearchResult};
use problem::{Lowered, Problem, Run};
use ragtag_graph::{Granularity, Segment, WireType};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::{Activations, KvType};
use std::sync::Arc;
use thiserror::Error;
use trial::Trials;
pub use trial::{Trial, TrialLoad};
use workload_times::{Point, Times};

/// Default of the longest context for which the planner streams weights, in positions. A longer cache would
/// displace more weights. The planned request may need a longer context.
const STREAMED_CONTEXT: u32 = 4096;
/// Maximum relative loss in decode rate that the planner accepts for two decode groups in place of one, if
/// the only device is in host memory. The threads that form micro-batches and sample share the cores of a
/// CPU. With two groups, the device computes meanwhile. Calibration times single segments, so the prediction
/// leaves this out: on CPUs with two threads, several groups of 64 sequences were measured 12 to 15 % faster
/// than one.
const OVERLAP: f64 = 0.1;

/// Facts about the model that the planner needs in addition to the segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Display name.
    pub name: String,
    /// Digest of the model file.
    pub digest: String,
    /// Trained context length, in positions.
    pub context: u32,
    /// Bytes of one row of activations in device memory.
    pub row_bytes: u64,
    /// Bytes of one row of logits.
    pub logit_row_bytes: u64,
}

/// Capacity limits and micro-batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Maximum length of a sequence, in positions. Default: the longest context that fits, up to the model's
    /// trained context. If weights must be streamed: up to 4096, or up to the length of the planned request.
    pub context: Option<u32>,
    /// Maximum number of sequences in the pipeline at once.
    pub sequences: u32,
    /// Maximum number of rows in a micro-batch. Also the requested length of a prefill chunk.
    pub chunk: u32,
    /// Maximum number of logit rows in a micro-batch.
    pub logit_rows: u32,
    /// Maximum number of micro-batches that a stage holds at once.
    pub slots: u32,
    /// Number of decode groups. Default: chosen by the planner.
    pub decode_groups: Option<u32>,
    /// Maximum number of micro-batches in flight. Default: chosen by the planner.
    pub credits: Option<u32>,
    /// Element type of the KV cache. The costs in [`PlannerInput::segments`] must be computed for this type.
    pub kv: KvType,
    /// Activation type of matrix products.
    pub activations: Activations,
    /// Wire type of activations. Default: chosen by the planner. With f32 activations it is always f32.
    pub wire_type: Option<WireType>,
    /// Whether the stages verify transfers, which takes memory for checksums.
    pub verified: bool,
}

impl PlanLimits {
    /// Returns the maximum number of logit rows in a micro-batch of at most `chunk` rows. If only the last
    /// row of each sequence needs logits, this number depends on the size of a decode group.
    fn logit_rows_of(&self, groups: u32, chunk: u32) -> u32 {
        match self.logit_rows <= self.sequences {
            true => logit_rows(self.sequences, groups, chunk).min(self.logit_rows),
            false => self.logit_rows.min(chunk),
        }
    }
}

/// A constraint that pins a segment to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Index of the segment.
    pub segment: u32,
    /// Label of the device.
    pub device: String,
}

/// Constraints on a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Pinned segments. Segment 0 is the embedding, and the last segment is the head.
    pub pins: Vec<Pin>,
    /// Labels of excluded devices.
    pub excluded: Vec<String>,
    /// Maximum number of stages.
    pub max_stages: Option<u32>,
}

impl Constraints {
    /// No constraints.
    pub const NONE: &'static Self = &Self { pins: Vec::new(), excluded: Vec::new(), max_stages: None };
}

/// All inputs of the planner.
#[derive(Clone, Copy, Debug)]
pub struct PlannerInput<'a> {
    /// The model.
    pub model: &'a ModelFacts,
    /// The model's segments, in order, lowered for [`PlanLimits::chunk`].
    pub segments: &'a [Segment],
    /// Other prefill chunk lengths to consider, each paired with the segments lowered for that length.
    pub other_chunks: &'a [(u32, &'a [Segment])],
    /// The devices. Among equally good plans, the planner prefers one that uses devices in this order.
    pub devices: &'a [DeviceFacts],
    /// The links between the devices.
    pub links: &'a Links,
    /// Free host memory, in bytes. If `None`, the planner does not check host memory.
    pub host_memory_bytes: Option<u64>,
    /// The objective to minimise.
    pub objective: Objective,
    /// The request that the plan is optimised for.
    pub workload: Workload,
    /// Capacity limits.
    pub limits: PlanLimits,
    /// Constraints on the placement. A user's split may violate them, but it must not use an excluded device.
    pub constraints: &'a Constraints,
    /// Function that simulates a plan. If it is set and the plan serves many sequences, the planner simulates
    /// the few best placements and chooses among them.
    pub trial: Option<Trial>,
    /// Whether the planner considers placements in which devices have several stages.
    pub several_stages: bool,
    /// Whether devices may stream weights from host memory if the model does not fit otherwise.
    pub streaming: bool,
    /// Whether devices may also stream weights from the model's file, if host memory is short.
    pub from_file: bool,
    /// Whether to explain the plan. Evaluating the alternatives for the explanation takes longer than the
    /// search.
    pub explained: bool,
    /// Placement that the user requested. The planner checks it but does not improve it.
    pub split: Option<&'a Split>,
}

impl PlannerInput<'_> {
    /// Returns whether the planner simulates placements. It does so if the objective is throughput, there are
    /// several sequences, a [`Trial`] is set and the user requested no split.
    fn is_tried(&self) -> bool {
        self.trial.is_some()
            && self.split.is_none()
            && self.objective == Objective::Throughput
            && self.limits.sequences > 1
    }

    /// Returns whether the planner may choose streamed segments. If the user's split names the streamed
    /// segments or the prefill stage, the planner does not change them.
    fn may_stream(&self) -> bool {
        let is_open =
            |split: &Split| split.prefill.is_none() && split.parts.iter().all(|part| part.streamed.is_none());
        self.streaming && self.split.is_none_or(is_open)
    }

    /// Returns whether a placement meets the constraints. Does not check memory.
    fn allows(&self, runs: &[Run]) -> bool {
        let Constraints { pins, excluded, max_stages } = self.constraints;
        let label = |run: &Run| &self.devices[run.device].label;
        let holds = |pin: &Pin| {
            let on = runs.iter().find(|run| run.segments.contains(&(pin.segment as usize)));
            on.is_some_and(|run| *label(run) == pin.device)
        };
        max_stages.is_none_or(|most| runs.len() <= most as usize)
            && pins.iter().all(holds)
            && !runs.iter().any(|run| excluded.contains(label(run)))
    }
}

/// Reason why the planner cannot make a plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// There are no devices.
    #[error("there is no device to plan on")]
    NoDevice,
    /// There are no segments.
    #[error("the model has no segment")]
    NoSegment,
    /// A field of a device or link has an invalid value.
    #[error("{of}: invalid {field}")]
    BadFacts {
        /// Name of the device or link.
        of: String,
        /// Name of the field.
        field: &'static str,
    },
    /// A limit or the workload is zero.
    #[error("{what} must be at least 1")]
    BadLimit {
        /// Name of the limit.
        what: &'static str,
    },
    /// A constraint names an unknown segment or device, or contradicts another constraint.
    #[error("the constraints: {what}")]
    BadConstraint {
        /// Problem, as quoted in the error message.
        what: String,
    },
    /// The user's split does not match the model or the devices.
    #[error("the split: {0}")]
    Split(#[from] PartitionError),
    /// Exact (f32) activations are combined with a wire type other than f32.
    #[error("wire type {wire_type} needs --activations int8; exact activations (f32) need wire type f32")]
    ExactBoundary {
        /// Requested wire type.
        wire_type: WireType,
    },
    /// The model does not fit the devices.
    #[error("{}", reasons::does_not_fit(.0))]
    DoesNotFit(Box<DoesNotFit>),
    /// The plan fits the devices, but it needs more host memory than is free.
    #[error("{}", reasons::host_does_not_fit(.0))]
    HostMemory(Box<HostMemory>),
}

/// Memory shortages of the placement that comes closest to fitting.
#[derive(Clone, Debug, PartialEq)]
pub struct DoesNotFit {
    /// Context length at which the placement does not fit, in positions.
    pub context: u32,
    /// Stages that lack memory. Never empty.
    pub shortages: Vec<Shortage>,
    /// Suggestions for the user, as quoted in the error message.
    pub hint: String,
}

/// A stage that does not fit its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Label of the device.
    pub device: String,
    /// Segments of the stage.
    pub segments: Span,
    /// Required and available memory.
    pub memory: StageMemory,
    /// A buffer that exceeds a limit of the device.
    pub too_large: Option<LargeBuffer>,
}

impl Shortage {
    /// Returns the number of missing bytes.
    pub fn missing_bytes(&self) -> u64 {
        self.memory.total.saturating_sub(self.memory.available)
    }
}

/// Makes a plan.
///
/// # Errors
/// Returns [`PlanError::DoesNotFit`], which lists the missing bytes on each device,
/// [`PlanError::HostMemory`], which gives the required and available host memory, or an error that names the
/// invalid input.
pub fn plan(input: &PlannerInput<'_>) -> Result<Plan, PlanError> {
    let in_memory = plan_in_memory(&PlannerInput { from_file: false, ..*input });
    let is_short =
        matches!(&in_memory, Err(PlanError::DoesNotFit(_) | PlanError::HostMemory(_))) && input.may_stream();
    let from_file = (is_short && input.from_file).then(|| from_file::plan(input)).flatten();
    from_file.map_or(in_memory, Ok)
}

/// Returns whether host memory has room for a plan.
fn has_room(plan: &Plan) -> bool {
    let HostMemory { total, available, .. } = plan.host_memory_bytes;
    available.is_none_or(|available| total <= available)
}

/// Makes a plan that keeps all weights in the memory of the devices and of the host.
fn plan_in_memory(input: &PlannerInput<'_>) -> Result<Plan, PlanError> {
    let plan = plan_for_devices(input, true)?;
    if has_room(&plan) {
        return Ok(plan);
    }
    // The pinned copies of streamed weights may be too large where a placement with resident weights fits.
    // Without a prefill stage, there may be fewer of them.
    let streamed = || plan_for_devices(input, false).ok().filter(has_room);
    let resident = || plan_in_memory(&PlannerInput { streaming: false, ..*input }).ok();
    let (has_prefill, memory) = (plan.prefill_stage.is_some(), plan.host_memory_bytes);
    let other = match input.may_stream() {
        true if has_prefill => streamed().or_else(resident),
        true if memory.weights > 0 => resident(),
        _ => None,
    };
    other.ok_or_else(|| PlanError::HostMemory(Box::new(memory)))
}

/// Makes a plan that fits the devices, without checking host memory. The planner adds a prefill stage only if
/// `may_prefill` is set.
fn plan_for_devices(input: &PlannerInput<'_>, may_prefill: bool) -> Result<Plan, PlanError> {
    check(input)?;
    let context = match input.limits.context {
        Some(context) => context,
        None => fitting_context(input)?,
    };
    let grid = Grid::new(input, context);
    let found = match given_runs(input) {
        Some((runs, prefill)) => of_split(&grid, &runs, prefill.as_ref(), may_prefill)?,
        None => searched(&grid, may_prefill).ok_or_else(|| nothing_fits(&grid))?,
    };
    // Trials move segments between stages, but do not choose the streamed ones again.
    let is_tried = input.is_tried() && !found.best.stages_stream();
    let tried = is_tried.then(|| trial::best(&grid, &found)).flatten();
    let (mut found, mut trials) = (found, None);
    if let Some((best, tried)) = tried {
        trials = Some(tried);
        let predicted = std::mem::replace(&mut found.best, best);
        if found.best.runs != predicted.runs {
            found.others.push(predicted);
        }
    }
    if let Some(best) = with_two_groups(&grid, &found.best) {
        found.best = best;
    }
    let plan = assemble(&grid, &found, trials);
    let Some(best) = from_file::with_pinned_copies(&grid, &found.best, &plan.host_memory_bytes) else {
        return Ok(plan);
    };
    found.best = best;
    let pinned = assemble(&grid, &found, None);
    Ok(if has_room(&pinned) { pinned } else { plan })
}

/// Returns the choice with two decode groups in place of one, if the only device is in host memory and the
/// loss is at most [`OVERLAP`].
fn with_two_groups(grid: &Grid<'_>, choice: &Choice) -> Option<Choice> {
    let [device] = grid.input.devices else { return None };
    let point = Point { groups: 2, ..choice.point };
    if !device.in_host_memory || choice.point.groups != 1 || !grid.points().any(|other| other == point) {
        return None;
    }
    let rate = |choice: &Choice| choice.evaluation.decode_tokens_per_s;
    grid.priced(point, choice.runs.clone()).filter(|two| rate(two) * (1.0 + OVERLAP) >= rate(choice))
}

/// Returns the best settings for the placement of the user's split.
fn of_split(
    grid: &Grid<'_>,
    runs: &[Run],
    prefill: Option<&Prefill>,
    may_prefill: bool,
) -> Result<SearchResult, PlanError> {
    // Other choices would be the same placement with other chunks or groups.
    let only = |best| SearchResult { bound_us: None, best, others: Vec::new(), elsewhere: Vec::new() };
    let may_stream = grid.input.may_stream();
    match grid.start().prove_with(runs, prefill.map(|prefill| &prefill.run)) {
        Ok(()) => {
            let best = match prefill {
                Some(prefill) => hybrid::given(grid, runs, prefill),
                None => grid.cheapest(&[runs]),
            };
            let best = best.expect("the placement fits at some point");
            let hybrid = (may_stream && may_prefill).then(|| hybrid::beside(grid, runs)).flatten();
            Ok(only(hybrid.filter(|hybrid| hybrid.is_faster_than(&best)).unwrap_or(best)))
        }
        Err(shortages) => {
            let streamed = may_stream.then(|| streamed::best(grid, &[runs])).flatten();
            streamed.map(|found| only(found.best)).ok_or_else(|| no_fit(grid, shortages))
        }
    }
}

/// Searches all placements. Considers streamed weights only if the model does not fit the devices with memory
/// of their own, and a prefill stage only if `may_prefill` is set. Returns `None` if no placement fits.
fn searched(grid: &Grid<'_>, may_prefill: bool) -> Option<SearchResult> {
    let may_stream = grid.input.may_stream();
    let Some(mut found) = grid.search() else {
        return may_stream.then(|| streamed::search(grid)).flatten();
    };
    if grid.input.several_stages {
        families::add(grid, &mut found);
    }
    if !may_stream || !streamed::is_short_of_memory(grid, &found) {
        return Some(found);
    }
    let hybrid = may_prefill.then(|| hybrid::search(grid)).flatten();
    let found = streamed::instead_of(grid, &found).unwrap_or(found);
    match hybrid.filter(|hybrid| hybrid.is_faster_than(&found.best)) {
        Some(hybrid) => {
            let others = found.all().cloned().collect();
            Some(SearchResult::with_best(hybrid, others, None))
        }
        None => Some(found),
    }
}

/// Makes a plan for comparison. A simple rule chooses its placement. Micro-batch sizes and credits are chosen
/// as in [`plan`], but the plan has no explanation. Returns `None` if the rule's placement does not fit.
///
/// # Errors
/// Returns the same errors as [`plan`], except that a placement that does not fit is not an error.
pub fn baseline(input: &PlannerInput<'_>, rule: Baseline) -> Result<Option<Plan>, PlanError> {
    of_rule(input, rule, |grid, choice| {
        let choice = if input.is_tried() { trial::tuned(grid, choice) } else { choice };
        let chunks = chunks::fixed(grid, &choice);
        Some((choice, Some(chunks)))
    })
}

/// Makes a plan for comparison. A simple rule chooses its placement, and all other settings are the fixed
/// defaults of an inference engine. Prefill chunks have 512 rows, or the next shorter length that fits.
/// `decode` determines the number of decode groups, which is at most one per sequence. The maximum number of
/// micro-batches in flight is the number of stages plus one. Returns `None` if the placement does not fit.
///
/// # Errors
/// Returns the same errors as [`baseline`].
pub fn untuned_baseline(
    input: &PlannerInput<'_>,
    rule: Baseline,
    decode: EngineDecode,
) -> Result<Option<Plan>, PlanError> {
    of_rule(input, rule, |grid, choice| Some((grid.untuned(&choice.runs, decode)?, None)))
}

fn of_rule(
    input: &PlannerInput<'_>,
    rule: Baseline,
    then: impl FnOnce(&Grid<'_>, Choice) -> Option<(Choice, Option<Chunks>)>,
) -> Result<Option<Plan>, PlanError> {
    check(input)?;
    let context = match input.limits.context {
        Some(context) => context,
        None => fitting_context(input)?,
    };
    let grid = Grid::new(input, context);
    let choice = grid.baseline(rule).and_then(|choice| then(&grid, choice));
    let plan = |(choice, chunks): (Choice, _)| Plan {
        chunks,
        ..assemble_choice(&grid, &choice, Explanation::default(), Vec::new())
    };
    Ok(choice.map(plan))
}

/// Returns the longest context that fits: the model's trained context, or a shorter multiple of the KV cache
/// block size. If weights must be streamed, returns the default context. Ignores [`PlanLimits::context`].
///
/// # Errors
/// Returns the same errors as [`plan`], and [`PlanError::DoesNotFit`] if not even one cache block fits.
pub fn largest_context(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    check(input)?;
    fitting_context(input)
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
    for shared in &input.links.shared {
        if !is_rate(shared.bandwidth_bytes_per_s.value) {
            return Err(PlanError::BadFacts { of: shared.name.clone(), field: "bandwidth_bytes_per_s" });
        }
    }
    for (from, to, link) in &input.links.known {
        if let Some(field) = link.nonsense() {
            return Err(PlanError::BadFacts { of: format!("the link from {from} to {to}"), field });
        }
    }
    if let Some(field) = input.links.other.nonsense() {
        return Err(PlanError::BadFacts { of: "the default link".into(), field });
    }
    let limits = &input.limits;
    let at_least_one = [
        ("the context", limits.context.unwrap_or(input.model.context)),
        ("the number of sequences", limits.sequences),
        ("the chunk", limits.chunk),
        ("the number of logit rows", limits.logit_rows),
        ("the number of slots", limits.slots),
        ("the number of decode groups", limits.decode_groups.unwrap_or(1)),
        ("the number of credits", limits.credits.unwrap_or(1)),
        (
            "the workload's tokens",
            input.workload.prompt_tokens.saturating_add(input.workload.generated_tokens),
        ),
    ];
    if let Some((what, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
        return Err(PlanError::BadLimit { what });
    }
    for (chunk, segments) in input.other_chunks {
        if *chunk == 0 || segments.len() != input.segments.len() {
            return Err(PlanError::BadLimit { what: "every chunk" });
        }
    }
    if let Some(wire_type) = limits.wire_type
        && wire_type != WireType::F32
        && limits.activations == Activations::F32
    {
        return Err(PlanError::ExactBoundary { wire_type });
    }
    check_objective(input.objective)?;
    check_constraints(input)?;
    if let Some(split) = input.split {
        let labels: Vec<_> = input.devices.iter().map(|d| d.label.as_str()).collect();
        split.check(u32::try_from(input.segments.len()).unwrap_or(u32::MAX), &labels)?;
    }
    check_streamed(input)
}

/// Checks the streamed segments and the prefill stage of the user's split.
fn check_streamed(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    let Some(Split { parts, prefill }) = input.split else { return Ok(()) };
    let of_parts = parts.iter().filter_map(|part| {
        let streamed = part.streamed.as_ref().filter(|of| !of.is_empty())?;
        Some((&part.device, part.span.range(), streamed, part.arenas))
    });
    let wrong_files = |part: &SplitPart| {
        let what = wrong_from_file(part.streamed.as_deref().unwrap_or_default(), &part.from_file)?;
        Some(format!("{}: {what}", part.device))
    };
    if let Some(what) = parts.iter().find_map(wrong_files) {
        return Err(PlanError::BadConstraint { what });
    }
    let of_prefill = prefill.iter().map(|of| (&of.device, 0..input.segments.len(), &of.streamed, of.arenas));
    let all: Vec<_> = of_parts.chain(of_prefill).collect();
    if all.is_empty() {
        return Ok(());
    }
    let wrong = |what: String| Err(PlanError::BadConstraint { what });
    let sizes = RunSizes::new(input.segments);
    for (device, segments, streamed, arenas) in all {
        let streamable = sizes.streamable(segments);
        let is_streamable = |segment: &u32| streamable.contains(&(*segment as usize));
        if let Some(segment) = streamed.iter().find(|segment| !is_streamable(segment)) {
            return wrong(format!("segment {segment} on {device} cannot be streamed"));
        }
        if streamed.len() < FEWEST || streamed.windows(2).any(|pair| pair[0] >= pair[1]) {
            return wrong(format!("the streamed segments on {device} must be at least {FEWEST} in order"));
        }
        if let Some(what) = arenas.and_then(|count| wrong_arenas(streamed.len(), count as usize)) {
            return wrong(format!("{device}: {what}"));
        }
    }
    let Some(SplitPrefill { device, streamed, .. }) = prefill else { return Ok(()) };
    if input.devices.iter().all(|known| known.label != *device) {
        return wrong(format!("there is no device {device}"));
    }
    let own = || parts.iter().filter(|part| part.device == *device);
    let decodes = |at: &&u32| own().any(|part| part.span.range().contains(&(**at as usize)));
    match streamed.iter().find(decodes) {
        Some(at) => wrong(format!("{device} decodes segment {at}, so its prefill stage cannot stream it")),
        None if own().any(|part| part.streamed.as_ref().is_some_and(|of| !of.is_empty())) => {
            wrong(format!("the stages of {device} stream weights, so it cannot have a prefill stage"))
        }
        None => Ok(()),
    }
}

fn check_objective(objective: Objective) -> Result<(), PlanError> {
    let Objective::Mix(mix) = objective else { return Ok(()) };
    let weights = [mix.latency, mix.throughput, mix.first_token];
    let is_weight = |weight: &f64| (0.0..=crate::objective::MAX_WEIGHT).contains(weight);
    if weights.iter().all(is_weight) && weights.iter().any(|weight| *weight > 0.0) {
        return Ok(());
    }
    Err(PlanError::BadConstraint {
        what: "the weights of a mixed objective must be from 0 to 1e9, and one of them more than 0".into(),
    })
}

fn check_constraints(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    let wrong = |what: String| Err(PlanError::BadConstraint { what });
    let Constraints { pins, excluded, max_stages } = input.constraints;
    let known = |label: &str| input.devices.iter().any(|device| device.label == label);
    let names = || input.devices.iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(", ");
    for label in pins.iter().map(|pin| &pin.device).chain(excluded) {
        if !known(label) {
            return wrong(format!("there is no device {label} (devices: {})", names()));
        }
    }
    for (at, pin) in pins.iter().enumerate() {
        let last = input.segments.len() - 1;
        if pin.segment as usize > last {
            return wrong(format!("segment {} is pinned, but the last segment is {last}", pin.segment));
        }
        if excluded.contains(&pin.device) {
            return wrong(format!("segment {} is pinned to {}, which is excluded", pin.segment, pin.device));
        }
        let other =
            pins[..at].iter().find(|other| other.segment == pin.segment && other.device != pin.device);
        if let Some(other) = other {
            return wrong(format!(
                "segment {} is pinned to {} and to {}",
                pin.segment, other.device, pin.device
            ));
        }
    }
    let mut parts = input.split.iter().flat_map(|split| &split.parts);
    if let Some(part) = parts.find(|part| excluded.contains(&part.device)) {
        return wrong(format!("the split names {}, which is excluded", part.device));
    }
    if input.devices.iter().all(|device| excluded.contains(&device.label)) {
        return wrong("every device is excluded".into());
    }
    if *max_stages == Some(0) {
        return wrong("at most 0 stages".into());
    }
    Ok(())
}

/// Converts the user's split to runs and a prefill stage. The split must have passed `check`.
fn given_runs(input: &PlannerInput<'_>) -> Option<(Vec<Run>, Option<Prefill>)> {
    let Split { parts, prefill } = input.split?;
    let run = |label: &str, segments, streamed: &[u32], arenas: Option<u32>| {
        let device = input.devices.iter().position(|device| device.label == label)?;
        let streamed = streamed.iter().map(|&segment| segment as usize).collect();
        let arenas = arenas.map_or(0, |count| count as usize);
        Some(Run::new(device, segments).streaming(streamed, arenas))
    };
    let part = |part: &SplitPart| {
        let streamed = part.streamed.as_deref().unwrap_or_default();
        let from_file = part.from_file.iter().map(|&segment| segment as usize).collect();
        Some(Run { from_file, ..run(&part.device, part.span.range(), streamed, part.arenas)? })
    };
    let prefill = prefill.as_ref().and_then(|SplitPrefill { device, streamed, arenas, from_tokens }| {
        let run = run(device, 0..input.segments.len(), streamed, *arenas)?;
        Some(Prefill { run, from_tokens: *from_tokens })
    });
    Some((parts.iter().map(part).collect::<Option<_>>()?, prefill))
}

/// Returns whether the user's split fits at this context. Without a split, returns whether any placement
/// fits. If `streaming` is set, stages may stream weights.
fn fits(input: &PlannerInput<'_>, lowered: &Arc<Lowered<'_>>, context: u32, streaming: bool) -> bool {
    let wire_type = input.limits.wire_type.unwrap_or_default();
    let point = Point { chunk: input.limits.chunk, groups: 1, wire_type };
    let problem = Problem::new(input, Arc::clone(lowered), context, point);
    match given_runs(input) {
        Some((runs, _)) if streaming => streamed::streamed(&problem, &runs, 0).is_some(),
        Some((runs, prefill)) => problem.prove_with(&runs, prefill.as_ref().map(|p| &p.run)).is_ok(),
        None if streaming => streamed::fits(&problem),
        None => memory_fit::fits(&problem.instance()),
    }
}

fn fitting_context(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    let whole = input.model.context;
    let lowered = Arc::new(Lowered::new(input.limits.chunk, input.segments));
    let resident = longest_context(whole, |context| fits(input, &lowered, context, false));
    if let Some(context) = resident {
        return Ok(context);
    }
    let Workload { prompt_tokens, generated_tokens } = input.workload;
    let usual = STREAMED_CONTEXT.max(prompt_tokens.saturating_add(generated_tokens)).min(whole);
    let streamed = || longest_context(usual, |context| fits(input, &lowered, context, true));
    input.may_stream().then(streamed).flatten().ok_or_else(|| {
        let grid = Grid::new(input, (BLOCK_TOKENS as u32).min(whole));
        match given_runs(input) {
            Some((runs, prefill)) => {
                let proof = grid.start().prove_with(&runs, prefill.as_ref().map(|prefill| &prefill.run));
                no_fit(&grid, proof.err().unwrap_or_default())
            }
            None => nothing_fits(&grid),
        }
    })
}

/// Returns the longest context that fits: `whole`, or a shorter multiple of the KV cache block size.
fn longest_context(whole: u32, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let block = BLOCK_TOKENS as u32;
    if fits(whole) {
        return Some(whole);
    }
    if !fits(block.min(whole)) {
        return None;
    }
    // Memory grows with the context, so bisect. `low` blocks fit and `high` blocks do not.
    let (mut low, mut high) = (1, whole.div_ceil(block));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle * block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((low * block).min(whole))
}

/// Returns the error for a search that found no placement: either the devices lack memory, or the constraints
/// conflict.
fn nothing_fits(grid: &Grid<'_>) -> PlanError {
    match memory_fit::closest(grid.start()) {
        shortages if shortages.is_empty() => {
            PlanError::BadConstraint { what: "no placement that fits meets all of them".into() }
        }
        shortages => no_fit(grid, shortages),
    }
}

fn no_fit(grid: &Grid<'_>, shortages: Vec<Shortage>) -> PlanError {
    let (input, context, block) = (grid.input, grid.context, BLOCK_TOKENS as u32);
    let shorter = (context > block).then(|| fitting_context(input).ok()).flatten();
    let hint = reasons::hint(input, shorter.filter(|c| *c < context), with_streaming(grid, &shortages));
    PlanError::DoesNotFit(Box::new(DoesNotFit { context, shortages, hint }))
}

/// Returns the label of the device that lacks memory for the whole model, and the memory with which it could
/// stream the model's weights.
fn with_streaming<'a>(grid: &Grid<'a>, shortages: &[Shortage]) -> Option<(&'a str, u64)> {
    let [shortage] = shortages else { return None };
    let is_whole = shortage.segments.range().len() == grid.input.segments.len();
    let device = grid.input.devices.iter().position(|device| device.label == shortage.device)?;
    let may_stream = is_whole && shortage.too_large.is_none() && grid.input.may_stream();
    let bytes = may_stream.then(|| streamed::smallest_bytes(grid.start(), device)).flatten()?;
    (bytes > shortage.memory.available).then_some((grid.input.devices[device].label.as_str(), bytes))
}

fn assemble(grid: &Grid<'_>, found: &SearchResult, trials: Option<Trials>) -> Plan {
    let plan = |explanation, reasons| {
        let plan = assemble_choice(grid, &found.best, explanation, reasons);
        with_chunks(grid, &found.best, plan, chunks::by_prompt(grid, &found.best))
    };
    if !grid.input.explained {
        return plan(Explanation::default(), Vec::new());
    }
    let explanation = explain::explanation(grid, found);
    let mut reasons = reasons::reasons(grid, &found.best, &explanation);
    // Insert the result of the trials after the prediction.
    let skipped = grid.input.is_tried() && found.best.stages_stream();
    reasons.splice(4..4, trials.map(reasons::trials).or_else(|| skipped.then(reasons::no_trials)));
    plan(explanation, reasons)
}

/// Returns the host memory that a choice needs. `memories` lists the device memory of all its stages.
fn host_memory(problem: &Problem<'_>, chosen: &Choice, memories: &[StageMemory]) -> HostMemory {
    let (input, shape) = (problem.input, &problem.shape);
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let logits = shape.logits_bytes().saturating_mul(u64::from(chosen.credits));
    let staging = sum(&mut memories.iter().map(|memory| memory.staging));
    let slots = u64::from(shape.slots).saturating_mul(memories.len() as u64);
    let checksums = shape.checksum_bytes().saturating_mul(memories.len() as u64);
    let receivers =
        chosen.runs.iter().filter(|run| chosen.prefill_run().is_some_and(|of| of.device != run.device));
    let passing_sums = sum(&mut receivers.map(|run| problem.passing_sum_bytes(run).saturating_mul(2)));
    let checksums = checksums.saturating_add(passing_sums);
    let parameters = shape.params_bytes().saturating_mul(slots).saturating_add(checksums);
    let in_host = chosen.all_runs().zip(memories).filter(|(run, _)| input.devices[run.device].in_host_memory);
    let devices = sum(&mut in_host.map(|(_, memory)| memory.total));
    let streamed = sum(&mut chosen.all_runs().map(|run| run.pinned_bytes(&problem.lowered.sizes)));
    let shared = chosen.prefill_run().map_or(0, |prefill| problem.shared_bytes(&chosen.runs, prefill));
    let weights = streamed.saturating_sub(shared);
    let kv = chosen.prefill_run().map_or(0, |prefill| problem.passing_bytes(&chosen.runs, prefill));
    let total = sum(&mut [logits, staging, parameters, devices, weights, kv].into_iter());
    let available = input.host_memory_bytes;
    HostMemory { logits, staging, parameters, devices, weights, kv, total, available }
}

/// Sets the plan's prefill chunks, and recomputes the plan's memory needs for the longest of them.
fn with_chunks(grid: &Grid<'_>, chosen: &Choice, plan: Plan, chunks: Chunks) -> Plan {
    let chunk = chunks.most_rows().max(chosen.point.chunk);
    let problem = grid.problem(Point { chunk, ..chosen.point });
    let memories = problem.memories_with(&chosen.runs, chosen.prefill_run());
    let mut plan = Plan { chunk, chunks: Some(chunks), ..plan };
    plan.host_memory_bytes = host_memory(problem, chosen, &memories);
    let prefill = plan.prefill_stage.iter_mut().map(|prefill| &mut prefill.stage);
    let stages = plan.stages.iter_mut().chain(prefill);
    stages.zip(memories).for_each(|(stage, memory)| stage.memory_bytes = memory);
    plan
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn predicted(times: &Times) -> PredictedTimes {
    PredictedTimes { decode_us: tenths(times.decode_us), prefill_us: tenths(times.full_chunk_us) }
}

fn assemble_choice(grid: &Grid<'_>, chosen: &Choice, explanation: Explanation, reasons: Vec<String>) -> Plan {
    let (input, problem) = (grid.input, grid.problem(chosen.point));
    let evaluation = &chosen.evaluation;
    let stage = |((run, memory_bytes), times): ((&Run, StageMemory), &Times)| PlanStage {
        device: input.devices[run.device].label.clone(),
        segments: run.span(),
        streamed: run.streamed.iter().map(|&segment| segment as u32).collect(),
        arenas: run.arenas.map(|count| count as u32),
        from_file: run.from_file.iter().map(|&segment| segment as u32).collect(),
        memory_bytes,
        predicted: predicted(times),
    };
    let edge = |(pair, times): (&[Run], &Times)| {
        (problem.link(pair[0].device, pair[1].device).routes.clone(), predicted(times))
    };
    let memories = problem.memories_with(&chosen.runs, chosen.prefill_run());
    let host_memory_bytes = host_memory(problem, chosen, &memories);
    let times = evaluation.stages.iter().chain(&evaluation.prefill);
    let mut stages: Vec<_> = chosen.all_runs().zip(memories).zip(times).map(stage).collect();
    let from_tokens = chosen.prefill.as_ref().map(|prefill| prefill.from_tokens);
    let prefill_stage =
        from_tokens.and_then(|from_tokens| Some(PrefillStage { stage: stages.pop()?, from_tokens }));
    Plan {
        ragtag_plan: PLAN_VERSION,
        model: PlanModel {
            name: input.model.name.clone(),
            digest: input.model.digest.clone(),
            segments: u32::try_from(input.segments.len()).unwrap_or(u32::MAX),
            granularity: Granularity::of(input.segments),
        },
        objective: input.objective,
        workload: input.workload,
        device_options: None,
        context: grid.context,
        sequences: input.limits.sequences,
        chunk: chosen.point.chunk,
        chunks: None,
        decode_rows: chosen.workload_times.decode_rows,
        decode_groups: chosen.point.groups,
        credits: chosen.credits,
        slots: input.limits.slots,
        kv: input.limits.kv,
        activations: input.limits.activations,
        wire_type: chosen.point.wire_type,
        family: families::family(&chosen.runs, Granularity::of(input.segments)),
        prefill_stage,
        host_memory_bytes,
        paths: PlanPaths::through(stages.len()),
        stages,
        edges: PlanEdge::between(chosen.runs.windows(2).zip(&evaluation.transfers).map(edge)),
        token_return: predicted(&evaluation.token_return),
        predicted: PredictedRun {
            decode_tokens_per_s: tenths(evaluation.decode_tokens_per_s),
            prefill_tokens_per_s: tenths(evaluation.prefill_tokens_per_s),
            prefill_rows: chosen.point.chunk,
            first_token_us: tenths(evaluation.first_token_us),
            token_us: tenths(evaluation.token_us),
        },
        explanation,
        reasons,
    }
}
