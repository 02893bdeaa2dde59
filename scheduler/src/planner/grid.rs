//! The search: the solver's placement at a point of the grid, and the points around it.
//!
//! The grid is over the form in which activations cross (both, unless one was asked for or is all that there is), the chunk
//! (the one that was asked for, or those that the model was lowered for) and the number of decode groups, which is that of
//! the decode micro-batches that go round: at most [`POINTS`] points. A placement is exact at its point. The search starts at
//! a point of each form; the best placements of a point are priced at all others, and the point that is cheapest for one of
//! them is solved next, until none is cheaper.
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
use std::sync::{Arc, OnceLock};

/// Most points of the grid.
const POINTS: usize = 64;
/// Most numbers of decode groups.
const GROUPS: usize = 8;
/// Length of a prefill chunk as engines have it unless told otherwise; llama.cpp's `--ubatch-size`.
const USUAL_CHUNK: u32 = 512;
/// Most points that are solved.
const SOLVED: usize = 4;
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

    /// Whether this is to be preferred to another choice, of another point.
    fn is_better_than(&self, other: &Self) -> bool {
        let decode = |choice: &Self| choice.evaluation.decode_tokens_per_s;
        match self.evaluation.expected_us / other.evaluation.expected_us {
            ratio if ratio < 1.0 - SAME => true,
            ratio if ratio <= 1.0 + SAME => decode(self) > decode(other) * (1.0 + SAME),
            _ => false,
        }
    }
}

/// What a search came to.
pub(super) struct Found {
    pub best: Choice,
    /// The best placements with other numbers of stages, at the same point.
    pub others: Vec<Choice>,
    /// No placement at the point of the best scores below this, where that is known.
    pub bound_us: Option<f64>,
    /// Those that were found at other points.
    pub elsewhere: Vec<Choice>,
}

impl Found {
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

    /// The best placement, with these devices among its own; none if none fits.
    pub fn search(&self, required: &[usize]) -> Option<Found> {
        // Where links are slow, placements differ with the boundary more than with anything else: each is started from.
        let start =
            |&boundary: &Boundary| self.starts(boundary).find_map(|point| self.solve(point, required));
        let mut all: Vec<Found> = self.boundaries.iter().filter_map(start).collect();
        let better = |a: usize, b: usize| if all[b].best.is_better_than(&all[a].best) { b } else { a };
        let mut best = (0..all.len()).reduce(better)?;
        while all.len() < SOLVED {
            let own = std::iter::once(&all[best].best).chain(&all[best].others);
            let Some(cheapest) = self.cheapest(&own.map(|choice| choice.runs.as_slice()).collect::<Vec<_>>())
            else {
                break;
            };
            let is_solved = all.iter().any(|found| found.best.point == cheapest.point);
            if is_solved || !cheapest.is_better_than(&all[best].best) {
                break;
            }
            let Some(next) = self.solve(cheapest.point, required) else { break };
            let is_better = next.best.is_better_than(&all[best].best);
            all.push(next);
            if !is_better {
                break;
            }
            best = all.len() - 1;
        }
        let found = all.swap_remove(best);
        let elsewhere = all.iter().flat_map(Found::all).cloned().collect();
        Some(Found { elsewhere, ..found })
    }

    /// A placement at a point; none if it does not fit.
    pub fn priced(&self, point: Point, runs: Vec<Run>) -> Option<Choice> {
        let problem = self.problem(point);
        problem.prove(&runs).is_ok().then(|| Choice::of(problem, runs))
    }

    /// The cheapest of these placements over all points at which it fits.
    pub fn cheapest(&self, placements: &[&[Run]]) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for index in 0..self.points.len() {
            let problem = self.problem_at(index);
            for runs in placements.iter().filter(|runs| problem.prove(runs).is_ok()) {
                let choice = Choice::of(problem, runs.to_vec());
                if best.as_ref().is_none_or(|best| choice.is_better_than(best)) {
                    best = Some(choice);
                }
            }
        }
        best
    }

    /// The best that a rule without a search gives; none if that does not fit.
    pub fn baseline(&self, rule: Baseline) -> Option<Choice> {
        let fits = |runs: &[Run]| self.start().prove(runs).is_ok();
        let placements = baselines::placements(rule, self.input, fits);
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
        let better = |a: Choice, b: Choice| if b.is_better_than(&a) { b } else { a };
        self.boundaries.iter().filter_map(first).reduce(better)
    }

    /// The best placement at a point, with these devices among its own.
    pub fn solve(&self, point: Point, required: &[usize]) -> Option<Found> {
        self.solve_with(point, |instance| instance.required = required.to_vec())
    }

    /// The best placement at a point of the problem with a change.
    pub fn solve_with(&self, point: Point, change: impl FnOnce(&mut Instance)) -> Option<Found> {
        let problem = self.problem(point);
        let mut instance = problem.instance();
        change(&mut instance);
        let solution = solver::solve(&instance);
        let chosen = solution.choose(FEWER_DEVICES)?;
        let choice = |placement: &Placement| Choice::of(problem, runs(placement));
        let others = solution.best_by_stages.iter().flatten().filter(|other| other.stages != chosen.stages);
        Some(Found {
            best: choice(chosen),
            others: others.map(choice).collect(),
            bound_us: Some(solution.bound),
            elsewhere: Vec::new(),
        })
    }
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
