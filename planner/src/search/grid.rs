//! The search: the solver's placements at the points of the grid, and those of the rules.
//!
//! The grid is over the form in which activations cross (both, unless one was asked for or is all that there is), the chunk
//! (the one that was asked for, or those that the model was lowered for) and the number of decode groups, which is that of
//! the decode micro-batches that go round: at most [`POINTS`] points. A placement is exact at its point. The search starts at
//! a point of each form; the best placements of a point are priced at all others, and the point that is cheapest for one of
//! them is solved next, until none is cheaper. Then all other points are solved for placements that beat what is known. With
//! too many unlike devices ([`WORK`]) that takes too long: no more than [`SOLVED`] points are solved, and the others are
//! bounded at most.
//!
//! Credits are not in the grid, for the cost model sees no difference: a placement has one for each group or each stage,
//! whichever are more, and one on its way. More serve no more requests (`more_credits_than_a_plan_has_serve_no_more_requests`
//! in the simulator's tests); with fewer, decode steps wait for fewer chunks of prompts, and some stages may be without work:
//! which counts for more only simulation says (`trial`).
//!
//! This module must not know how plans are told.

use super::PlannerInput;
use super::baselines::{self, Baseline, EngineDecode};
use super::pace::{Pace, Point};
use super::problem::{Evaluation, Lowered, Problem, Run};
use super::solver::{self, Instance, Placement};
use ragtag_graph::{Boundary, Segment};
use ragtag_kernels::Activations;
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// Most points of the grid.
const POINTS: usize = 64;
/// Most numbers of decode groups.
const GROUPS: usize = 8;
/// Length of a prefill chunk as engines have it unless told otherwise; llama.cpp's `--ubatch-size`.
const USUAL_CHUNK: u32 = 512;
/// Most points that are solved one after the other, each because it is cheapest for what was found before.
const SOLVED: usize = 4;
/// Most cells of the solver's tables, over all points, for which every point is solved. Eight unlike devices and 80
/// segments have 170 thousand cells at each point.
const WORK: usize = 12 << 20;
/// Most devices times segments for which points that are not solved are bounded.
const BOUNDED: usize = 1 << 13;
/// Most placements that are kept besides the best of each number of stages.
const ELSEWHERE: usize = 24;
/// Of plans within this share of the best, the one with the fewest devices is chosen.
pub(super) const FEWER_DEVICES: f64 = 0.01;
/// Scores within this share of each other are the same: then the faster decode decides.
const SAME: f64 = 5e-3;

/// A placement at a point of the grid, with what the cost model expects of it.
#[derive(Clone)]
pub(super) struct Choice {
    pub runs: Vec<Run>,
    pub point: Point,
    /// Micro-batches in flight at most.
    pub credits: u32,
    pub pace: Pace,
    pub evaluation: Evaluation,
}

impl Choice {
    fn of(problem: &Problem<'_>, runs: Vec<Run>) -> Self {
        let evaluation = problem.evaluate(&runs);
        let stages = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        let usual = problem.point.groups.max(stages).saturating_add(1);
        let credits = problem.input.limits.credits.unwrap_or(usual);
        Self { runs, point: problem.point, credits, pace: problem.pace.clone(), evaluation }
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

/// The choice to take: of those within [`FEWER_DEVICES`] of the best, those with the fewest devices; of these, those within
/// [`SAME`] of the best of them; of these, the first one whose decode is as fast as that of any other, within [`SAME`].
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

/// What was found at a point.
pub(super) struct Solved {
    /// The best placement with each number of stages, as far as they matter.
    pub choices: Vec<Choice>,
    /// No placement scores below this, unless a known score is below it.
    pub bound_us: f64,
}

impl Solved {
    /// The choice to take, of one point.
    pub fn best(self) -> Option<Choice> {
        preferred(self.choices)
    }
}

/// What a search came to.
pub(super) struct SearchResult {
    pub best: Choice,
    /// The best placement with each other number of stages.
    pub others: Vec<Choice>,
    /// No placement scores below this at any point; `None` if some points were not looked at.
    pub bound_us: Option<f64>,
    /// Other placements that were found.
    pub elsewhere: Vec<Choice>,
}

impl SearchResult {
    /// All that was found.
    pub fn all(&self) -> impl Iterator<Item = &Choice> {
        std::iter::once(&self.best).chain(&self.others).chain(&self.elsewhere)
    }
}

/// The problem at every point of the grid, made when it is wanted.
pub(super) struct Grid<'a> {
    pub input: &'a PlannerInput<'a>,
    pub context: u32,
    lowered: Vec<Arc<Lowered<'a>>>,
    boundaries: &'static [Boundary],
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
        for &boundary in boundaries {
            for chunk in lowered.iter().map(|lowered| lowered.chunk) {
                let of_groups = groups.iter().map(|&groups| Point { chunk, groups, boundary });
                points.extend(of_groups.map(|point| (point, OnceLock::new())));
            }
        }
        points.truncate(POINTS);
        Self { input, context, lowered, boundaries, points }
    }

    /// Its points.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        self.points.iter().map(|(point, _)| *point)
    }

    /// The forms among which one is chosen in which activations cross.
    pub fn boundaries(&self) -> &'static [Boundary] {
        self.boundaries
    }

    /// The segments as they are at a point.
    pub fn segments(&self, point: Point) -> &'a [Segment] {
        let lowered = self.lowered.iter().find(|lowered| lowered.chunk == point.chunk);
        lowered.map_or(self.input.segments, |lowered| lowered.segments)
    }

    fn problem_at(&self, index: usize) -> &Problem<'a> {
        let (point, problem) = &self.points[index];
        let lowered = self.lowered.iter().find(|lowered| lowered.chunk == point.chunk);
        let lowered = lowered.expect("points are of these chunks");
        problem.get_or_init(|| Problem::new(self.input, Arc::clone(lowered), self.context, *point))
    }

    /// The problem at a point of this grid.
    pub fn problem(&self, point: Point) -> &Problem<'a> {
        let index = self.points.iter().position(|(other, _)| *other == point);
        self.problem_at(index.expect("a point of this grid"))
    }

    /// The points from which a search starts with a boundary, the first at which anything fits: as many decode groups as keep
    /// all devices at work, with the chunk that was asked for and, where that needs too much memory, with others.
    fn starts(&self, boundary: Boundary) -> impl Iterator<Item = Point> + '_ {
        let most = self.points.iter().map(|(point, _)| point.groups).max().unwrap_or(1);
        self.lowered.iter().map(move |lowered| Point { chunk: lowered.chunk, groups: most, boundary })
    }

    /// The point that is asked about when nothing fits.
    pub fn start(&self) -> &Problem<'a> {
        self.problem_at(0)
    }

    /// The best placement; none if none fits.
    pub fn search(&self) -> Option<SearchResult> {
        // Where links are slow, placements differ with the boundary more than with anything else: each is started from.
        let start = |&boundary: &Boundary| {
            let mut solved = self.starts(boundary).map(|point| (point, self.solve(point)));
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

    /// Whether there is time to solve every point.
    fn is_quick(&self) -> bool {
        let cells = solver::cells(&self.start().instance());
        cells.is_some_and(|cells| cells.saturating_mul(self.points.len()) <= WORK)
    }

    /// No placement scores below this at any point; `None` where that takes too long to say ([`BOUNDED`]).
    pub fn bound_us(&self) -> Option<f64> {
        if self.input.devices.len().saturating_mul(self.input.segments.len()) > BOUNDED {
            return None;
        }
        let bounds = (0..self.points.len()).into_par_iter();
        bounds.map(|at| solver::bound(&self.problem_at(at).instance())).reduce_with(f64::min)
    }

    /// A placement at a point; none if it does not fit.
    pub fn priced(&self, point: Point, runs: Vec<Run>) -> Option<Choice> {
        let problem = self.problem(point);
        problem.prove(&runs).is_ok().then(|| Choice::of(problem, runs))
    }

    /// The one of these placements to take, over all points at which it fits.
    pub fn cheapest(&self, placements: &[&[Run]]) -> Option<Choice> {
        let at = |index: usize| {
            let problem = self.problem_at(index);
            let fitting = placements.iter().filter(|runs| problem.prove(runs).is_ok());
            fitting.map(|runs| Choice::of(problem, runs.to_vec())).collect::<Vec<_>>()
        };
        preferred((0..self.points.len()).flat_map(at).collect())
    }

    /// The best that a rule without a search gives; none if that does not fit, or breaks a constraint.
    pub fn baseline(&self, rule: Baseline) -> Option<Choice> {
        let fits = |runs: &[Run]| self.start().prove(runs).is_ok();
        let mut placements = baselines::placements(rule, self.input, fits);
        placements.retain(|runs| self.input.allows(runs));
        self.cheapest(&placements.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// A placement as engines run it: chunks of [`USUAL_CHUNK`] or, where they do not fit, the longest shorter ones. Only the form
    /// in which activations cross is the one that is expected to be better. None if it fits at no point.
    pub fn untuned(&self, runs: &[Run], decode: EngineDecode) -> Option<Choice> {
        let groups = match decode {
            EngineDecode::Together => 1,
            EngineDecode::InTurn => u32::try_from(runs.len()).unwrap_or(u32::MAX),
        };
        let mut points: Vec<Point> = self.points().collect();
        // Of numbers of groups that make the same micro-batches the grid has the smallest.
        points.sort_by_key(|point| {
            let usual = (point.chunk > USUAL_CHUNK, point.chunk.abs_diff(USUAL_CHUNK));
            (point.groups > groups, point.groups.abs_diff(groups), usual)
        });
        let first = |boundary: &Boundary| {
            let mut points = points.iter().filter(|point| point.boundary == *boundary);
            points.find_map(|point| self.priced(*point, runs.to_vec()))
        };
        preferred(self.boundaries.iter().filter_map(first).collect())
    }

    /// The best placements at a point.
    pub fn solve(&self, point: Point) -> Solved {
        self.solve_with(point, |_| ())
    }

    /// Those that beat a known score, or come near it.
    fn solve_for(&self, point: Point, known_us: f64) -> Solved {
        self.solve_with(point, |instance| instance.known = known_us)
    }

    /// The best placements at a point of the problem with a change.
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
        // Stable: of equal ones the first stays.
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

/// Each of the placements once.
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

/// The forms in which activations may cross, the one first that takes less memory: the one that was asked for, or all of
/// their class if they have anywhere to cross to.
fn boundaries(input: &PlannerInput<'_>) -> &'static [Boundary] {
    match input.limits.boundary {
        Some(Boundary::F32) => &[Boundary::F32],
        Some(Boundary::F16) => &[Boundary::F16],
        None if input.limits.activations == Activations::F32 || input.devices.len() == 1 => &[Boundary::F32],
        None => &Boundary::ALL,
    }
}

/// Numbers of decode groups that differ in what a group has: from one to as many as there may be stages, so many numbers at
/// most.
fn groups(input: &PlannerInput<'_>, context: u32, numbers: usize) -> Vec<u32> {
    if let Some(groups) = input.limits.decode_groups {
        return vec![groups];
    }
    let boundary = Boundary::default();
    let pace = |groups| Pace::new(input, context, Point { chunk: input.limits.chunk, groups, boundary });
    let most = pace(1).sequences.min(u32::try_from(input.devices.len()).unwrap_or(u32::MAX)).max(1);
    let mut different: Vec<u32> = Vec::new();
    for groups in 1..=most {
        let rows = pace(groups).decode_rows;
        if different.last().is_none_or(|&last| pace(last).decode_rows != rows) {
            different.push(groups);
        }
    }
    if numbers == 1 {
        return different.last().copied().into_iter().collect();
    }
    // The first and the last among them.
    let step = (different.len() - 1).div_ceil(numbers - 1).max(1);
    let last = different.last().copied();
    let mut kept: Vec<_> = different.into_iter().step_by(step).collect();
    if kept.last().copied() != last {
        kept.extend(last);
    }
    kept
}
