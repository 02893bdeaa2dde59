//! The search: runs the solver at points of the grid and adds the placements of rules.
//!
//! The grid has three axes:
//! - wire type: both types, unless one was requested or only one is possible
//! - prefill chunk: the requested size, or every size that the model was lowered for
//! - number of decode groups in flight
//!
//! The grid has at most [`POINTS`] points. A placement is exact at its point. The search starts at one point per wire type. The
//! best placements of a point are evaluated at all others, and the cheapest point for one of them is solved
//! next, until none is cheaper. Then all other points are solved for placements that beat the known score.
//! With too many different devices ([`WORK`]) that takes too long: at most [`SOLVED`] points are solved, and
//! the others are only bounded.
//!
//! Credits are not in the grid, because they do not change the predicted times. A placement has one credit
//! for each group or each stage, whichever are more, plus one. More credits serve no more requests
//! (`more_credits_than_a_plan_has_serve_no_more_requests` in the simulator's tests). With fewer, decode steps
//! wait for fewer prefill chunks, but stages may be idle; only simulation can weigh the two (`trial`).
//!
//! Knows nothing about the explanation.

use super::PlannerInput;
use super::baselines::{self, Baseline, EngineDecode};
use super::problem::{Evaluation, Lowered, Problem, Run, device_times};
use super::solver::{self, Instance, Placement};
use super::workload_times::{Point, WorkloadTimes};
use ragtag_graph::{Segment, WireType};
use ragtag_kernels::Activations;
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// Most points of the grid.
const POINTS: usize = 64;
/// Most different numbers of decode groups.
const GROUPS: usize = 8;
/// Default prefill chunk of engines, such as llama.cpp's `--ubatch-size`.
const USUAL_CHUNK: u32 = 512;
/// Most points that are solved in sequence, each because it is cheapest for an earlier result.
const SOLVED: usize = 4;
/// Most cells of the solver's tables, over all points, for which every point is solved. Eight different
/// devices and 80 segments have 170 thousand cells at each point.
const WORK: usize = 12 << 20;
/// Most devices times segments for which unsolved points are bounded.
const BOUNDED: usize = 1 << 13;
/// Most placements that are kept besides the best of each number of stages.
const ELSEWHERE: usize = 24;
/// The plan with the fewest devices is chosen among those within this share of the best.
pub(super) const FEWER_DEVICES: f64 = 0.01;
/// Scores within this share count as equal. Then the faster decode wins.
const SAME: f64 = 5e-3;

/// A placement at a point of the grid, with its predictions.
#[derive(Clone)]
pub(super) struct Choice {
    pub runs: Vec<Run>,
    pub point: Point,
    /// Most micro-batches in flight.
    pub credits: u32,
    pub workload_times: WorkloadTimes,
    pub evaluation: Evaluation,
}

impl Choice {
    fn of(problem: &Problem<'_>, runs: Vec<Run>) -> Self {
        let evaluation = problem.evaluate(&runs);
        let devices = u32::try_from(device_times(&runs, &evaluation.stages).len()).unwrap_or(u32::MAX);
        let usual = problem.point.groups.max(devices).saturating_add(1);
        let credits = problem.input.limits.credits.unwrap_or(usual);
        Self {
            runs,
            point: problem.point,
            credits,
            workload_times: problem.workload_times.clone(),
            evaluation,
        }
    }

    pub fn score_us(&self) -> f64 {
        self.evaluation.score_us
    }

    pub fn expected_us(&self) -> f64 {
        self.evaluation.expected_us
    }
}

fn least_us<'a>(choices: impl Iterator<Item = &'a Choice>) -> f64 {
    choices.map(Choice::expected_us).fold(f64::INFINITY, f64::min)
}

/// Returns the preferred choice. Of those within [`FEWER_DEVICES`] of the best, keeps those with the fewest
/// devices. Of these, keeps those within [`SAME`] of their best. Of these, takes the first with the fastest
/// decode, within [`SAME`].
fn preferred(mut choices: Vec<Choice>) -> Option<Choice> {
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

/// The result at a point.
pub(super) struct Solved {
    /// The best placement for each number of stages that matters.
    pub choices: Vec<Choice>,
    /// Lower bound of the score of all placements, unless a known score is below it.
    pub bound_us: f64,
}

impl Solved {
    /// Returns the preferred choice of this point.
    pub fn best(self) -> Option<Choice> {
        preferred(self.choices)
    }
}

/// The result of a search.
pub(super) struct SearchResult {
    pub best: Choice,
    /// The best placement with each other number of stages.
    pub others: Vec<Choice>,
    /// Lower bound of the score at all points; `None` if some points were skipped.
    pub bound_us: Option<f64>,
    /// Other placements found.
    pub elsewhere: Vec<Choice>,
}

impl SearchResult {
    /// Returns all placements found.
    pub fn all(&self) -> impl Iterator<Item = &Choice> {
        std::iter::once(&self.best).chain(&self.others).chain(&self.elsewhere)
    }
}

/// The problems at all points of the grid, created on demand.
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

    /// Returns the points.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        self.points.iter().map(|(point, _)| *point)
    }

    /// Returns the wire types to choose from.
    pub fn boundaries(&self) -> &'static [WireType] {
        self.boundaries
    }

    /// Returns the segments at a point.
    pub fn segments(&self, point: Point) -> &'a [Segment] {
        let lowered = self.lowered.iter().find(|lowered| lowered.chunk == point.chunk);
        lowered.map_or(self.input.segments, |lowered| lowered.segments)
    }

    fn problem_at(&self, index: usize) -> &Problem<'a> {
        let (point, problem) = &self.points[index];
        let lowered = self.lowered.iter().find(|lowered| lowered.chunk == point.chunk);
        let lowered = lowered.expect("every point has a lowered chunk");
        problem.get_or_init(|| Problem::new(self.input, Arc::clone(lowered), self.context, *point))
    }

    /// Returns the problem at a point of this grid.
    pub fn problem(&self, point: Point) -> &Problem<'a> {
        let index = self.points.iter().position(|(other, _)| *other == point);
        self.problem_at(index.expect("a point of this grid"))
    }

    /// Returns the starting points for a wire type; the search uses the first where anything fits. They have
    /// enough decode groups to keep all devices busy, with the requested chunk first, then others in case it
    /// needs too much memory.
    fn starts(&self, wire_type: WireType) -> impl Iterator<Item = Point> + '_ {
        let most = self.points.iter().map(|(point, _)| point.groups).max().unwrap_or(1);
        self.lowered.iter().map(move |lowered| Point { chunk: lowered.chunk, groups: most, wire_type })
    }

    /// Returns the point whose shortages are reported if nothing fits.
    pub fn start(&self) -> &Problem<'a> {
        self.problem_at(0)
    }

    /// Returns the best placement, or `None` if none fits.
    pub fn search(&self) -> Option<SearchResult> {
        // With slow links, the wire type affects placements most, so start from each.
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

    /// Returns whether there is time to solve every point.
    fn is_quick(&self) -> bool {
        let cells = solver::cells(&self.start().instance());
        cells.is_some_and(|cells| cells.saturating_mul(self.points.len()) <= WORK)
    }

    /// Returns a lower bound of the score at all points, or `None` if that takes too long ([`BOUNDED`]).
    pub fn bound_us(&self) -> Option<f64> {
        if self.input.devices.len().saturating_mul(self.input.segments.len()) > BOUNDED {
            return None;
        }
        let bounds = (0..self.points.len()).into_par_iter();
        bounds.map(|at| solver::bound(&self.problem_at(at).instance())).reduce_with(f64::min)
    }

    /// Returns a placement at a point, or `None` if it does not fit.
    pub fn priced(&self, point: Point, runs: Vec<Run>) -> Option<Choice> {
        let problem = self.problem(point);
        problem.prove(&runs).is_ok().then(|| Choice::of(problem, runs))
    }

    /// Returns the preferred choice of these placements over all points where they fit.
    pub fn cheapest(&self, placements: &[&[Run]]) -> Option<Choice> {
        let at = |index: usize| {
            let problem = self.problem_at(index);
            let fitting = placements.iter().filter(|runs| problem.prove(runs).is_ok());
            fitting.map(|runs| Choice::of(problem, runs.to_vec())).collect::<Vec<_>>()
        };
        preferred((0..self.points.len()).flat_map(at).collect())
    }

    /// Returns the best placement of a rule, or `None` if it does not fit or violates a constraint.
    pub fn baseline(&self, rule: Baseline) -> Option<Choice> {
        let fits = |runs: &[Run]| self.start().prove(runs).is_ok();
        let mut placements = baselines::placements(rule, self.input, fits);
        placements.retain(|runs| self.input.allows(runs));
        self.cheapest(&placements.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Returns a placement with the settings of an engine: chunks of [`USUAL_CHUNK`], or the longest shorter
    /// ones that fit. Only the wire type is chosen by prediction. Returns `None` if it fits at no point.
    pub fn untuned(&self, runs: &[Run], decode: EngineDecode) -> Option<Choice> {
        let groups = match decode {
            EngineDecode::Together => 1,
            EngineDecode::InTurn => u32::try_from(runs.len()).unwrap_or(u32::MAX),
        };
        let mut points: Vec<Point> = self.points().collect();
        // Of numbers of groups that make equal micro-batches, the grid has the smallest.
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

    /// Returns the best placements at a point.
    pub fn solve(&self, point: Point) -> Solved {
        self.solve_with(point, |_| ())
    }

    /// Returns placements that beat a known score or come close to it.
    fn solve_for(&self, point: Point, known_us: f64) -> Solved {
        self.solve_with(point, |instance| instance.known = known_us)
    }

    /// Returns the best placements at a point of a modified problem.
    pub fn solve_with(&self, point: Point, change: impl FnOnce(&mut Instance)) -> Solved {
        let problem = self.problem(point);
        let mut instance = problem.instance();
        change(&mut instance);
        let solution = solver::solve(&instance);
        let choice = |placement: &Placement| Choice::of(problem, runs(placement));
        let choices = solution.best_by_stages.iter().flatten().map(choice).collect();
        Solved { choices, bound_us: solution.bound }
    }
}

impl SearchResult {
    fn of(mut choices: Vec<Choice>, bound_us: Option<f64>) -> Option<Self> {
        let best = preferred(choices.clone())?;
        choices.retain(|choice| choice.runs != best.runs);
        // The sort is stable: of equal ones the first stays.
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
        Some(Self { best, others, bound_us, elsewhere })
    }
}

/// Removes duplicate placements.
fn different<'a>(placements: impl Iterator<Item = &'a Vec<Run>>) -> Vec<&'a [Run]> {
    let mut different: Vec<&[Run]> = Vec::new();
    for runs in placements {
        if !different.contains(&runs.as_slice()) {
            different.push(runs);
        }
    }
    different
}

fn runs(placement: &Placement) -> Vec<Run> {
    let run = |(device, segments): &(usize, std::ops::Range<usize>)| Run {
        device: *device,
        segments: segments.clone(),
    };
    placement.stages.iter().map(run).collect()
}

/// Returns the possible wire types, the smaller one first: the requested one, or all that suit the
/// activations if there is more than one device.
fn boundaries(input: &PlannerInput<'_>) -> &'static [WireType] {
    match input.limits.wire_type {
        Some(WireType::F32) => &[WireType::F32],
        Some(WireType::F16) => &[WireType::F16],
        None if input.limits.activations == Activations::F32 || input.devices.len() == 1 => &[WireType::F32],
        None => &WireType::ALL,
    }
}

/// Returns numbers of decode groups with different group sizes, from one to the most possible stages, at most
/// `numbers` of them.
fn groups(input: &PlannerInput<'_>, context: u32, numbers: usize) -> Vec<u32> {
    if let Some(groups) = input.limits.decode_groups {
        return vec![groups];
    }
    let wire_type = WireType::default();
    let workload_times =
        |groups| WorkloadTimes::new(input, context, Point { chunk: input.limits.chunk, groups, wire_type });
    let most = workload_times(1).sequences.min(u32::try_from(input.devices.len()).unwrap_or(u32::MAX)).max(1);
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
    // Keep the first and the last.
    let step = (different.len() - 1).div_ceil(numbers - 1).max(1);
    let last = different.last().copied();
    let mut kept: Vec<_> = different.into_iter().step_by(step).collect();
    if kept.last().copied() != last {
        kept.extend(last);
    }
    kept
}
