//! The search: runs the solver at points of a grid, and also evaluates placements that are chosen by simple
//! rules.
//!
//! The grid has three axes:
//! - wire type: f32 and f16, unless the user requested one or only f32 is possible
//! - prefill chunk: the requested size, or every size for which the model was lowered
//! - number of decode groups in flight
//!
//! The grid has at most [`POINTS`] points. At a given point, the solver finds the best placement. The search
//! first solves one point per wire type, and evaluates the resulting placements at all other points. It then
//! solves the point at which one of these placements has the lowest predicted time, and repeats this until no
//! other point is better. Finally, it solves all remaining points, but only for placements that beat the best
//! score so far.
//!
//! With too many different devices ([`WORK`]), solving all points takes too long. The search then solves at
//! most [`SOLVED`] points, and computes only a lower bound on the score at the other points.
//!
//! The number of credits is not an axis of the grid, because it does not change the predicted times. It is
//! one more than the number of groups or the number of devices, whichever is larger. If devices have several
//! stages, one credit per device suffices: with one more, a prompt of eight chunks passes four devices in a
//! round of five and a round of three, in which a device is idle. More
//! credits do not raise throughput (`more_credits_than_a_plan_has_serve_no_more_requests` in the simulator's
//! tests). With fewer credits, decode steps wait for fewer prefill chunks, but stages may be idle. Only a
//! simulation can weigh these effects (`trial`).
//!
//! This module knows nothing about the explanation.

use super::PlannerInput;
use super::baselines::{self, Baseline, EngineDecode};
use super::problem::{Evaluation, Lowered, Problem, Run};
use super::solver::{self, Instance, Placement};
use super::workload_times::{Point, WorkloadTimes};
use ragtag_graph::execution::PREFILLS;
use ragtag_graph::{Segment, WireType};
use ragtag_kernels::Activations;
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// Maximum number of grid points.
const POINTS: usize = 64;
/// Maximum number of decode group counts on the grid.
const GROUPS: usize = 8;
/// Default prefill chunk length of inference engines, for example llama.cpp's `--ubatch-size`.
const USUAL_CHUNK: u32 = 512;
/// Maximum number of grid points that the search solves one after another. The search always continues at the
/// point where one of the placements found so far has the lowest predicted time.
const SOLVED: usize = 4;
/// Maximum number of solver table cells, summed over all points, for which the search solves every point.
/// Eight different devices and 80 segments need 170 thousand cells per point.
const WORK: usize = 12 << 20;
/// Maximum product of device count and segment count for which the search computes lower bounds at unsolved
/// points.
const BOUNDED: usize = 1 << 13;
/// Maximum number of placements in [`SearchResult::elsewhere`].
const ELSEWHERE: usize = 24;
/// Maximum relative loss in score that the planner accepts for a plan with fewer devices.
pub(super) const FEWER_DEVICES: f64 = 0.01;
/// Maximum relative difference between scores that count as equal. Among plans with equal scores, the planner
/// prefers the one with the faster decode.
pub(super) const SAME: f64 = 5e-3;

/// Maximum relative difference between a score of the solver and the score of the same placement.
const ROUNDING: f64 = 1e-6;

/// A prefill stage.
#[derive(Clone)]
pub(super) struct Prefill {
    /// All segments, on one device. Another device decodes each streamed segment.
    pub run: Run,
    /// Minimum number of tokens of the prompts that the stage computes.
    pub from_tokens: u32,
}

/// A placement at a point of the grid, along with its predictions.
#[derive(Clone)]
pub(super) struct Choice {
    pub runs: Vec<Run>,
    /// Stage that computes long prompts in place of `runs`.
    pub prefill: Option<Prefill>,
    pub point: Point,
    /// Maximum number of micro-batches in flight.
    pub credits: u32,
    pub workload_times: WorkloadTimes,
    pub evaluation: Evaluation,
}

impl Choice {
    /// Returns a placement with its predictions. The caller has checked its memory.
    pub fn of(problem: &Problem<'_>, runs: Vec<Run>) -> Self {
        Self::with_prefill(problem, runs, None)
    }

    /// Returns a placement and a prefill stage, if there is one, with their predictions. The caller has
    /// checked their memory.
    pub fn with_prefill(problem: &Problem<'_>, runs: Vec<Run>, prefill: Option<Prefill>) -> Self {
        let prefill_run = prefill.as_ref().map(|prefill| &prefill.run);
        problem.assert_covered(&runs, prefill_run);
        let evaluation = problem.evaluate_with(&runs, prefill_run);
        let devices = u32::try_from(evaluation.devices.len()).unwrap_or(u32::MAX);
        let groups = problem.point.groups;
        let prefills = if prefill.is_some() { PREFILLS as u32 } else { 0 };
        let takes_turns = runs.len() > evaluation.devices.len();
        let usual = if takes_turns { devices.max(groups + 1) } else { devices.max(groups) + 1 };
        let usual = usual.saturating_add(prefills);
        let limits = &problem.input.limits;
        // Prompts of other sequences need a credit beside the decode groups.
        let least = if limits.sequences > 1 { groups + 1 } else { 1 };
        let credits = limits.credits.map_or(usual, |credits| credits.max(least));
        Self {
            runs,
            prefill,
            point: problem.point,
            credits,
            workload_times: problem.workload_times.clone(),
            evaluation,
        }
    }

    /// Returns whether a stage streams weights. A prefill stage always does.
    pub fn streams(&self) -> bool {
        self.prefill.is_some() || self.stages_stream()
    }

    /// Returns whether a stage other than the prefill stage streams weights.
    pub fn stages_stream(&self) -> bool {
        self.runs.iter().any(|run| !run.streamed.is_empty())
    }

    /// Returns the prefill stage as a run.
    pub fn prefill_run(&self) -> Option<&Run> {
        self.prefill.as_ref().map(|prefill| &prefill.run)
    }

    /// Returns all stages. The prefill stage comes last.
    pub fn all_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().chain(self.prefill_run())
    }

    pub fn score_us(&self) -> f64 {
        self.evaluation.score_us
    }

    pub fn expected_us(&self) -> f64 {
        self.evaluation.expected_us
    }

    /// Returns whether this choice is faster by more than equal scores may differ.
    pub fn is_clearly_faster_than(&self, other: &Self) -> bool {
        self.expected_us() * (1.0 + SAME) < other.expected_us()
    }

    /// Returns whether this choice is faster by more than the loss that fewer devices may cost.
    pub fn is_faster_than(&self, other: &Self) -> bool {
        self.expected_us() * (1.0 + FEWER_DEVICES) < other.expected_us()
    }
}

fn least_us<'a>(choices: impl Iterator<Item = &'a Choice>) -> f64 {
    choices.map(Choice::expected_us).fold(f64::INFINITY, f64::min)
}

/// Selects the preferred choice in three steps. The first step considers the choices that are at most
/// [`FEWER_DEVICES`] worse than the best one, and keeps those with the fewest devices. The second step keeps
/// the choices that are at most [`SAME`] worse than the best remaining one. The third step takes the first
/// choice whose decode rate is within [`SAME`] of the highest.
pub(super) fn preferred(mut choices: Vec<Choice>) -> Option<Choice> {
    let most_us = least_us(choices.iter()) * (1.0 + FEWER_DEVICES);
    choices.retain(|choice| choice.expected_us() <= most_us);
    let fewest = choices.iter().map(|choice| choice.runs.len()).min()?;
    choices.retain(|choice| choice.runs.len() == fewest);
    let most_us = least_us(choices.iter()) * (1.0 + SAME);
    choices.retain(|choice| choice.expected_us() <= most_us);
    let decode = |choice: &Choice| choice.evaluation.decode_tokens_per_s;
    let fastest = choices.iter().map(decode).fold(0.0, f64::max);
    choices.into_iter().find(|choice| decode(choice) * (1.0 + SAME) >= fastest)
}

/// Result of solving the problem at one point.
pub(super) struct Solved {
    /// The best placements, at most one for each number of stages.
    pub choices: Vec<Choice>,
    /// Lower bound on all scores at this point, capped at the known score if the solver was given one.
    pub bound_us: f64,
}

impl Solved {
    /// Returns the preferred choice at this point.
    pub fn best(self) -> Option<Choice> {
        preferred(self.choices)
    }
}

/// Result of a search.
pub(super) struct SearchResult {
    pub best: Choice,
    /// The best placement for each number of stages other than that of `best`.
    pub others: Vec<Choice>,
    /// Lower bound on the score over all points. `None` if it was not computed for some points.
    pub bound_us: Option<f64>,
    /// Other placements that the search found.
    pub elsewhere: Vec<Choice>,
}

impl SearchResult {
    /// Returns all placements that the search found.
    pub fn all(&self) -> impl Iterator<Item = &Choice> {
        std::iter::once(&self.best).chain(&self.others).chain(&self.elsewhere)
    }
}

/// The planning problems at all points of the grid, created on demand.
pub(super) struct Grid<'a> {
    pub input: &'a PlannerInput<'a>,
    pub context: u32,
    lowered: Vec<Arc<Lowered<'a>>>,
    boundaries: &'static [WireType],
    points: Vec<(Point, OnceLock<Problem<'a>>)>,
}

impl<'a> Grid<'a> {
    pub fn new(input: &'a PlannerInput<'a>, context: u32) -> Self {
        let own = (input.limits.chunk, input.segments);
        let chunks = std::iter::once(own).chain(input.other_chunks.iter().copied());
        let lowered: Vec<_> =
            chunks.map(|(chunk, segments)| Arc::new(Lowered::new(chunk, segments))).collect();
        let boundaries = boundaries(input);
        let groups = groups(input, context, (POINTS / (lowered.len() * boundaries.len())).clamp(1, GROUPS));
        let mut points = Vec::new();
        for &wire_type in boundaries {
            for chunk in lowered.iter().map(|lowered| lowered.chunk) {
                let of_groups = groups.iter().map(|&groups| Point { chunk, groups, wire_type });
                points.extend(of_groups.map(|point| (point, OnceLock::new())));
            }
        }
        points.truncate(POINTS);
        Self { input, context, lowered, boundaries, points }
    }

    /// Returns all points of the grid.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        self.points.iter().map(|(point, _)| *point)
    }

    /// Returns the wire types of the grid.
    pub fn boundaries(&self) -> &'static [WireType] {
        self.boundaries
    }

    /// Returns the segments as lowered for the chunk length of a point.
    pub fn segments(&self, point: Point) -> &'a [Segment] {
        self.lowered(point).segments
    }

    fn lowered(&self, point: Point) -> &Arc<Lowered<'a>> {
        let lowered = self.lowered.iter().find(|lowered| lowered.chunk == point.chunk);
        lowered.unwrap_or_else(|| panic!("no segments are lowered for chunks of {}", point.chunk))
    }

    fn problem_at(&self, index: usize) -> &Problem<'a> {
        let (point, problem) = &self.points[index];
        let lowered = || Arc::clone(self.lowered(*point));
        problem.get_or_init(|| Problem::new(self.input, lowered(), self.context, *point))
    }

    /// Returns the problem at a point of this grid.
    pub fn problem(&self, point: Point) -> &Problem<'a> {
        let index = self.points.iter().position(|(other, _)| *other == point);
        self.problem_at(index.expect("a point of this grid"))
    }

    /// Returns the points at which the search starts for a wire type, in order of preference. The search uses
    /// the first point at which a placement fits. All of these points have enough decode groups to keep all
    /// devices busy. The point with the requested chunk comes first, followed by points that may need less
    /// memory.
    pub fn starts(&self, wire_type: WireType) -> impl Iterator<Item = Point> + '_ {
        let most = self.points().map(|point| point.groups).max().expect("a grid has points");
        self.lowered.iter().map(move |lowered| Point { chunk: lowered.chunk, groups: most, wire_type })
    }

    /// Returns the problem for which the planner reports missing memory if nothing fits.
    pub fn start(&self) -> &Problem<'a> {
        self.problem_at(0)
    }

    /// Searches for the best placement. Returns `None` if no placement fits.
    pub fn search(&self) -> Option<SearchResult> {
        // With slow links, the wire type affects placements most. So search from one point per wire type.
        let start = |&wire_type: &WireType| {
            let mut solved = self.starts(wire_type).map(|point| (point, self.solve(point)));
            solved.find(|(_, solved)| !solved.choices.is_empty())
        };
        let mut solved: Vec<(Point, Solved)> = self.boundaries.iter().filter_map(start).collect();
        while solved.len() < SOLVED {
            let all = solved.iter().flat_map(|(_, solved)| &solved.choices);
            let (known_us, runs) = (least_us(all.clone()), different(all.map(|choice| &choice.runs)));
            let Some(next) = self.cheapest(&runs).filter(|next| next.expected_us() < known_us) else { break };
            if solved.iter().any(|(point, _)| *point == next.point) {
                break;
            }
            solved.push((next.point, self.solve(next.point)));
        }
        let rules = Baseline::ALL.into_iter().filter_map(|rule| self.baseline(rule));
        let rules: Vec<Choice> = rules.collect();
        let known_us = least_us(solved.iter().flat_map(|(_, solved)| &solved.choices).chain(&rules));
        let is_solved = |point: &Point| solved.iter().any(|(other, _)| other == point);
        let rest: Vec<Point> = self.points().filter(|point| !is_solved(point)).collect();
        let is_quick = self.is_quick();
        let rest: Vec<Solved> = match is_quick {
            true => rest.into_par_iter().map(|point| self.solve_for(point, known_us)).collect(),
            false => Vec::new(),
        };
        let bounds = solved.iter().map(|(_, solved)| solved).chain(&rest).map(|solved| solved.bound_us);
        let bound_us = is_quick.then(|| bounds.fold(known_us, f64::min));
        let found =
            solved.into_iter().map(|(_, solved)| solved).chain(rest).flat_map(|solved| solved.choices);
        SearchResult::of(found.chain(rules).collect(), bound_us)
    }

    /// Returns whether the solver is fast enough to solve every point.
    fn is_quick(&self) -> bool {
        let cells = solver::cells(&self.start().instance());
        cells.is_some_and(|cells| cells.saturating_mul(self.points.len()) <= WORK)
    }

    /// Returns a lower bound on the score over all points, or `None` if computing it would take too long
    /// ([`BOUNDED`]).
    pub fn bound_us(&self) -> Option<f64> {
        if self.input.devices.len().saturating_mul(self.input.segments.len()) > BOUNDED {
            return None;
        }
        let bounds = (0..self.points.len()).into_par_iter();
        bounds.map(|at| solver::bound(&self.problem_at(at).instance())).reduce_with(f64::min)
    }

    /// Evaluates a placement at a point. Returns `None` if the placement does not fit.
    pub fn priced(&self, point: Point, runs: Vec<Run>) -> Option<Choice> {
        let problem = self.problem(point);
        problem.prove(&runs).is_ok().then(|| Choice::of(problem, runs))
    }

    /// Evaluates the placement of `choice`, including its prefill stage, at a point. Returns `None` if it
    /// does not fit.
    pub fn repriced(&self, point: Point, choice: &Choice) -> Option<Choice> {
        let (problem, runs) = (self.problem(point), choice.runs.clone());
        problem
            .prove_with(&runs, choice.prefill_run())
            .is_ok()
            .then(|| Choice::with_prefill(problem, runs, choice.prefill.clone()))
    }

    /// Returns the preferred combination of one of these placements and a point at which it fits.
    pub fn cheapest(&self, placements: &[&[Run]]) -> Option<Choice> {
        let at = |index: usize| {
            let problem = self.problem_at(index);
            let fitting = placements.iter().filter(|runs| problem.prove(runs).is_ok());
            fitting.map(|runs| Choice::of(problem, runs.to_vec())).collect::<Vec<_>>()
        };
        preferred((0..self.points.len()).flat_map(at).collect())
    }

    /// Returns the best placement that a simple rule produces. Returns `None` if none of the rule's
    /// placements fits and meets the constraints.
    pub fn baseline(&self, rule: Baseline) -> Option<Choice> {
        let fits = |runs: &[Run]| self.start().prove(runs).is_ok();
        let mut placements = baselines::placements(rule, self.input, fits);
        placements.retain(|runs| self.input.allows(runs));
        self.cheapest(&placements.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Returns a placement with the default settings of an inference engine: chunks of [`USUAL_CHUNK`] rows,
    /// or the next shorter length that fits. Only the wire type is chosen by prediction. Returns `None` if
    /// the placement fits at no point.
    pub fn untuned(&self, runs: &[Run], decode: EngineDecode) -> Option<Choice> {
        let groups = match decode {
            EngineDecode::Together => 1,
            EngineDecode::InTurn => u32::try_from(runs.len()).unwrap_or(u32::MAX),
        };
        let mut points: Vec<Point> = self.points().collect();
        // Several group counts can give equal micro-batches. The grid contains the smallest of them.
        points.sort_by_key(|point| {
            let usual = (point.chunk > USUAL_CHUNK, point.chunk.abs_diff(USUAL_CHUNK));
            (point.groups > groups, point.groups.abs_diff(groups), usual)
        });
        let first = |wire_type: &WireType| {
            let mut points = points.iter().filter(|point| point.wire_type == *wire_type);
            points.find_map(|point| self.priced(*point, runs.to_vec()))
        };
        preferred(self.boundaries.iter().filter_map(first).collect())
    }

    /// Returns the best placements at a point, and a bound on their scores.
    pub fn solve(&self, point: Point) -> Solved {
        self.solve_with(point, |_| ())
    }

    /// Solves a point, but only for placements that beat `known_us` or come close to it.
    fn solve_for(&self, point: Point, known_us: f64) -> Solved {
        self.solve_with(point, |instance| instance.known = known_us)
    }

    /// Solves a point after `change` has modified the solver's instance.
    pub fn solve_with(&self, point: Point, change: impl FnOnce(&mut Instance)) -> Solved {
        let problem = self.problem(point);
        let mut instance = problem.instance();
        change(&mut instance);
        let solution = solver::solve(&instance);
        let choice = |placement: &Placement| {
            let choice = Choice::of(problem, runs(placement));
            let (solved_us, score_us, runs) = (placement.score, choice.score_us(), &choice.runs);
            let error = (solved_us - score_us).abs();
            assert!(
                error <= score_us * ROUNDING,
                "{runs:?} scores {score_us} µs, {solved_us} µs in the solver"
            );
            assert!(problem.prove(runs).is_ok(), "the solver's placement exceeds the memory: {runs:?}");
            choice
        };
        let choices = solution.best_by_stages.iter().flatten().map(choice).collect();
        Solved { choices, bound_us: solution.bound }
    }
}

impl SearchResult {
    /// Returns the preferred choice as the best one, and keeps some of the others.
    pub fn of(choices: Vec<Choice>, bound_us: Option<f64>) -> Option<Self> {
        Some(Self::with_best(preferred(choices.clone())?, choices, bound_us))
    }

    /// Returns `best` as the best choice, and keeps some of the others.
    pub fn with_best(best: Choice, mut choices: Vec<Choice>, bound_us: Option<f64>) -> Self {
        choices.retain(|choice| choice.runs != best.runs);
        // The sort is stable, so the first of several equal choices stays first.
        choices.sort_by(|a, b| a.expected_us().total_cmp(&b.expected_us()));
        let (mut others, mut elsewhere): (Vec<Choice>, Vec<Choice>) = Default::default();
        for choice in choices {
            let stages = choice.runs.len();
            let is_known = others.iter().chain(&elsewhere).any(|other| other.runs == choice.runs);
            if stages != best.runs.len() && others.iter().all(|other| other.runs.len() != stages) {
                others.push(choice);
            } else if !is_known && elsewhere.len() < ELSEWHERE {
                elsewhere.push(choice);
            }
        }
        Self { best, others, bound_us, elsewhere }
    }
}

/// Returns the placements without duplicates, in order of first occurrence.
pub(super) fn different<'a>(placements: impl Iterator<Item = &'a Vec<Run>>) -> Vec<&'a [Run]> {
    let mut different: Vec<&[Run]> = Vec::new();
    for runs in placements {
        if !different.contains(&runs.as_slice()) {
            different.push(runs);
        }
    }
    different
}

fn runs(placement: &Placement) -> Vec<Run> {
    let run = |(device, segments): &(usize, std::ops::Range<usize>)| Run::new(*device, segments.clone());
    placement.stages.iter().map(run).collect()
}

/// Returns the wire types to consider, the smaller type first. If the user requested a type, it is the only
/// one. Otherwise, returns all types that the activations allow, or f32 alone if there is only one device.
fn boundaries(input: &PlannerInput<'_>) -> &'static [WireType] {
    match input.limits.wire_type {
        Some(WireType::F32) => &[WireType::F32],
        Some(WireType::F16) => &[WireType::F16],
        None if input.limits.activations == Activations::F32 || input.devices.len() == 1 => &[WireType::F32],
        None => &WireType::ALL,
    }
}

/// Returns at most `numbers` decode group counts, from one to the largest possible number of stages, but at
/// least to two: with two groups, the host samples the tokens of one group while a single device computes the
/// other. If several counts give the same group size, lists only the smallest of them.
fn groups(input: &PlannerInput<'_>, context: u32, numbers: usize) -> Vec<u32> {
    if let Some(groups) = input.limits.decode_groups {
        return vec![groups];
    }
    let wire_type = WireType::default();
    let workload_times =
        |groups| WorkloadTimes::new(input, context, Point { chunk: input.limits.chunk, groups, wire_type });
    let devices = u32::try_from(input.devices.len()).unwrap_or(u32::MAX);
    let most = workload_times(1).sequences.min(devices.max(2)).max(1);
    let mut different: Vec<u32> = Vec::new();
    for groups in 1..=most {
        let rows = workload_times(groups).decode_rows;
        if different.last().is_none_or(|&last| workload_times(last).decode_rows != rows) {
            different.push(groups);
        }
    }
    if numbers == 1 {
        return different.last().copied().into_iter().collect();
    }
    // Keep the first count and the last count.
    let step = (different.len() - 1).div_ceil(numbers - 1).max(1);
    let last = different.last().copied();
    let mut kept: Vec<_> = different.into_iter().step_by(step).collect();
    if kept.last().copied() != last {
        kept.extend(last);
    }
    kept
}
