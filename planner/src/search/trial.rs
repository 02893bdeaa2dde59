//! Simulates the few best placements, and placements chosen by simple rules, under the planned load. The cost
//! model covers only stages and transfers. The simulator runs the scheduler's own code, so it shows how
//! prompts and decode steps delay each other.
//!
//! Each placement is simulated at the grid point at which the cost model predicts its best score. Placements
//! whose throughput is close to the best are tuned. Tuning tries neighbouring grid points first and then
//! fewer credits, as long as throughput improves. A placement with a prefill stage keeps this stage.
//! Placements whose other stages stream weights are not simulated, because trials do not choose streamed
//! segments.
//!
//! This module knows nothing about the search.

use super::baselines::{Baseline, EngineDecode};
use super::grid::{Choice, Grid, SearchResult};
use super::problem::Run;
use super::workload_times::Point;
use super::{PlannerInput, TrialLoad, assemble, chunks};
use rayon::prelude::*;

/// Maximum numbers of placements that are simulated and tuned in one round. Only placements whose rate is
/// within [`NEAR`] of the best are tuned.
const TRIED: Most = Most { trials: 12, tuned: 2 };
/// Limits of a round if there are more than [`MAX_DEVICES`] devices. A long pipeline takes long to simulate,
/// and planning should take less than a second.
const TRIED_OF_MANY: Most = Most { trials: 6, tuned: 1 };
const NEAR: f64 = 0.15;
/// A tuned placement is simulated again for longer if its rate is within this fraction of the best rate.
const FINAL: f64 = 0.05;
/// A neighbouring point is simulated only if its predicted time is longer by at most this fraction.
const HOPELESS: f64 = 0.05;
/// Maximum number of skipped grid points that the planner solves after the trials. It solves a skipped point
/// if the best trial is at that point, but none if there are more than [`MAX_DEVICES`] devices.
const MORE_SOLVED: usize = 2;
const MAX_DEVICES: usize = 12;
/// Number of requests per sequence in a trial, and in the final trial of a placement. If the number of
/// sequences times the number of stages is large, trials have fewer requests ([`WORK`]).
const ROUNDS: u32 = 2;
const FINAL_ROUNDS: u32 = 4;
const WORK: u32 = 128;

/// Maximum relative difference between rates that count as equal.
const SAME: f64 = 1e-3;
/// Numbers of segments by which the planner tries to move a cut between two stages, to balance prefill and
/// decode.
const MOVES: [usize; 4] = [8, 4, 2, 1];

/// Limits of one round of trials.
#[derive(Clone, Copy)]
struct Most {
    trials: usize,
    tuned: usize,
}

/// Summary of the trials, as reported in the reasons of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trials {
    /// Number of placements that were simulated.
    pub placements: usize,
    /// Requests per second of the best placement.
    pub requests_per_s: f64,
}

/// The rate of a simulated choice, in requests per second, and the choice.
type Tried = (f64, Choice);

/// Chooses among the placements that the search found, if the planner simulates them. Trials move segments
/// between stages, but do not choose the streamed ones again.
pub(super) fn choose(grid: &Grid<'_>, mut found: SearchResult) -> (SearchResult, Option<Trials>) {
    let is_tried = grid.input.is_tried() && !found.best.stages_stream();
    let Some((best, trials)) = is_tried.then(|| best(grid, &found)).flatten() else { return (found, None) };
    let predicted = std::mem::replace(&mut found.best, best);
    if found.best.runs != predicted.runs {
        found.others.push(predicted);
    }
    (found, Some(trials))
}

/// Returns the choice that serves the most requests per second in simulation, and a summary of the trials.
/// Among equally fast choices, it prefers one with the fewest stages. Returns `None` if no placement can be
/// simulated.
fn best(grid: &Grid<'_>, found: &SearchResult) -> Option<(Choice, Trials)> {
    let mut solved: Vec<Point> = found.all().map(|choice| choice.point).collect();
    let rules: Vec<Choice> = Baseline::ALL.into_iter().filter_map(|rule| grid.baseline(rule)).collect();
    let mut placements: Vec<Vec<Run>> = Vec::new();
    let found = || found.all().filter(|choice| !choice.stages_stream());
    let resident = || found().filter(|choice| choice.prefill.is_none());
    let mut tried = if grid.input.devices.len() > MAX_DEVICES {
        tried(grid, rules.iter().chain(resident()), TRIED_OF_MANY, &mut placements)
    } else {
        let mut tried = tried(grid, rules.iter(), TRIED, &mut placements);
        tried.extend(self::tried(grid, resident(), TRIED, &mut placements));
        tried
    };
    let with_prefill: Vec<Choice> = found().filter(|choice| choice.prefill.is_some()).cloned().collect();
    placements.extend(with_prefill.iter().map(|choice| choice.runs.clone()));
    let with_prefill = with_prefill.into_iter().filter_map(|choice| rated(grid, choice, ROUNDS));
    tried.extend(with_prefill.map(|tried| tuned_further(grid, tried)));
    for _ in 0..MORE_SOLVED {
        let point = best_of(&tried)?.1.point;
        if solved.contains(&point) || grid.input.devices.len() > MAX_DEVICES {
            break;
        }
        solved.push(point);
        let more = grid.solve(point).choices;
        tried.extend(self::tried(grid, more.iter(), TRIED, &mut placements));
    }
    let near = best_of(&tried)?.0 * (1.0 - FINAL);
    let last = tried.into_par_iter().filter(|(rate, _)| *rate >= near);
    let last = last.filter_map(|(_, choice)| rated(grid, choice, FINAL_ROUNDS));
    let (requests_per_s, choice) = best_of(&last.collect::<Vec<_>>())?.clone();
    Some((choice, Trials { placements: placements.len(), requests_per_s }))
}

fn best_of(tried: &[Tried]) -> Option<&Tried> {
    let most = tried.iter().map(|(rate, _)| *rate).reduce(f64::max)?;
    let near = tried.iter().filter(|(rate, _)| *rate >= most * (1.0 - SAME));
    near.min_by_key(|(_, choice)| choice.runs.len())
}

/// Simulates new placements and their variants with balanced cuts, and tunes the best ones. Adds all
/// simulated placements to `placements`.
fn tried<'a>(
    grid: &Grid<'_>,
    choices: impl Iterator<Item = &'a Choice>,
    most: Most,
    placements: &mut Vec<Vec<Run>>,
) -> Vec<Tried> {
    let different = different(grid, choices, most.trials, placements);
    placements.extend(different.iter().map(|choice| choice.runs.clone()));
    let rated = different.into_par_iter().filter_map(|choice| rated(grid, choice, ROUNDS));
    let mut tried: Vec<Tried> = rated.collect();
    // The sort is stable, so of equal rates the better prediction comes first.
    tried.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let near = tried.first().map_or(0.0, |(rate, _)| *rate) * (1.0 - NEAR);
    tried.retain(|(rate, _)| *rate >= near);
    tried.truncate(most.tuned);
    tried.into_par_iter().map(|tried| tuned_further(grid, tried)).collect()
}

/// Returns the placement of `choice` with the grid point and the number of credits that give the highest rate
/// in simulation.
pub(super) fn tuned(grid: &Grid<'_>, choice: Choice) -> Choice {
    match requests_per_s(grid, &choice, ROUNDS) {
        Some(rate) => tuned_further(grid, (rate, choice)).1,
        None => choice,
    }
}

/// Returns up to `most` distinct placements that are not in `before`, each at the point with the best
/// prediction. The placement with the best prediction comes first.
fn different<'a>(
    grid: &Grid<'_>,
    choices: impl Iterator<Item = &'a Choice>,
    most: usize,
    before: &[Vec<Run>],
) -> Vec<Choice> {
    let mut choices: Vec<Choice> = choices.filter_map(|choice| grid.cheapest(&[&choice.runs])).collect();
    let evened: Vec<Choice> = choices.iter().map(|choice| evened(grid, choice)).collect();
    choices.extend(evened);
    choices.sort_by(|a, b| a.evaluation.expected_us.total_cmp(&b.evaluation.expected_us));
    let mut different: Vec<Choice> = Vec::new();
    for choice in choices {
        let is_new = |runs: &Vec<Run>| *runs != choice.runs;
        if before.iter().chain(different.iter().map(|other| &other.runs)).all(is_new) {
            different.push(choice);
        }
    }
    different.truncate(most);
    different
}

/// Moves cuts between stages as long as this shortens the time of a request whose prompt and decode steps
/// never overlap. The busiest stage alone is a poor guide if one device is fast at prefill and another one at
/// decode.
fn evened(grid: &Grid<'_>, choice: &Choice) -> Choice {
    let mut best = choice.clone();
    for by in MOVES {
        while let Some(better) = moved(&best, by)
            .into_iter()
            .filter(|runs| grid.input.allows(runs))
            .filter_map(|runs| grid.priced(best.point, runs))
            .find(|moved| moved.evaluation.apart_us < best.evaluation.apart_us * (1.0 - SAME))
        {
            best = better;
        }
    }
    best
}

/// Returns all variants of a placement in which one cut is moved by `by` segments.
fn moved(choice: &Choice, by: usize) -> Vec<Vec<Run>> {
    let mut all = Vec::new();
    for cut in 1..choice.runs.len() {
        let (before, after) = (&choice.runs[cut - 1].segments, &choice.runs[cut].segments);
        for at in [after.start.checked_sub(by), after.start.checked_add(by)].into_iter().flatten() {
            if before.start < at && at < after.end {
                let mut runs = choice.runs.clone();
                runs[cut - 1].segments.end = at;
                runs[cut].segments.start = at;
                all.push(runs);
            }
        }
    }
    all
}

/// Tunes a choice as long as its rate in simulation improves. Tries the points that inference engines use,
/// then the neighbours of the best point, then fewer credits.
fn tuned_further(grid: &Grid<'_>, tried: Tried) -> Tried {
    let (mut best, mut seen) = (tried, Vec::new());
    let untuned = EngineDecode::ALL.into_iter().filter_map(|decode| grid.untuned(&best.1.runs, decode));
    let untuned = untuned.filter(|untuned| untuned.point != best.1.point && best.1.prefill.is_none());
    let untuned: Vec<Choice> = untuned.collect();
    if let Some(better) = most_of(grid, &best, untuned) {
        best = better;
    }
    loop {
        seen.push(best.1.point);
        let points: Vec<Point> =
            neighbours(grid, best.1.point).filter(|point| !seen.contains(point)).collect();
        seen.extend(&points);
        let hopeless_us = best.1.evaluation.expected_us * (1.0 + HOPELESS);
        let around = points.into_iter().filter_map(|point| grid.repriced(point, &best.1));
        match most_of(grid, &best, around.filter(|choice| choice.evaluation.expected_us < hopeless_us)) {
            Some(better) => best = better,
            None => break,
        }
    }
    while grid.input.limits.credits.is_none() {
        let fewest = best.1.point.groups + 1;
        let credits = fewest + best.1.credits.saturating_sub(fewest) / 2;
        let fewer = (credits < best.1.credits).then(|| Choice { credits, ..best.1.clone() });
        match most_of(grid, &best, fewer) {
            Some(better) => best = better,
            None => break,
        }
    }
    best
}

/// Simulates `choices` and returns the one with the highest rate, if it beats the rate of `best`.
fn most_of(grid: &Grid<'_>, best: &Tried, choices: impl IntoIterator<Item = Choice>) -> Option<Tried> {
    let choices: Vec<Choice> = choices.into_iter().collect();
    let tried = choices.into_par_iter().filter_map(|choice| rated(grid, choice, ROUNDS));
    let better = tried.filter(|(rate, _)| *rate > best.0 * (1.0 + SAME)).collect::<Vec<_>>();
    better.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b))
}

/// Returns the points that differ from `of` by one step in the number of groups or in the chunk length.
fn neighbours(grid: &Grid<'_>, of: Point) -> impl Iterator<Item = Point> {
    let next_to = |of_point: fn(&Point) -> u32| {
        let here = of_point(&of);
        let others = || grid.points().map(|point| of_point(&point));
        (others().filter(|&other| other < here).max(), others().filter(|&other| other > here).min())
    };
    let groups = next_to(|point| point.groups);
    let chunks = next_to(|point| point.chunk);
    let of_groups = [groups.0, groups.1].into_iter().flatten().map(move |groups| Point { groups, ..of });
    let of_chunks = [chunks.0, chunks.1].into_iter().flatten().map(move |chunk| Point { chunk, ..of });
    of_groups.chain(of_chunks)
}

/// Simulates a choice. Returns `None` if it cannot be simulated.
fn rated(grid: &Grid<'_>, choice: Choice, rounds: u32) -> Option<Tried> {
    Some((requests_per_s(grid, &choice, rounds)?, choice))
}

fn requests_per_s(grid: &Grid<'_>, choice: &Choice, rounds: u32) -> Option<f64> {
    let input: &PlannerInput<'_> = grid.input;
    let sequences = input.limits.sequences;
    let stages = u32::try_from(choice.runs.len()).unwrap_or(u32::MAX);
    let rounds = (WORK * rounds / sequences.saturating_mul(stages).max(1)).clamp(1, rounds);
    let tokens = |count: f64| (count.round() as u32).max(1);
    let load = TrialLoad {
        requests: sequences.checked_mul(rounds)?,
        at_once: sequences,
        prompt_tokens: tokens(choice.workload_times.prompt),
        new_tokens: tokens(choice.workload_times.generated),
    };
    let plan = assemble::plan(grid, choice, Some(chunks::fixed(grid, choice)));
    let rate = (input.trial?)(input, &plan, grid.segments(choice.point), &load)?;
    assert!(rate.is_finite() && rate >= 0.0, "a simulation served {rate} requests/s");
    Some(rate)
}
