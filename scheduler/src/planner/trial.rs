//! Placements tried in simulation: the few that the cost model likes best, and those of the rules, under the load that is
//! planned for. The cost model knows stages and crossings; how micro-batches of prompts and of decode steps get in each other's
//! way, only the scheduler's own code knows.
//!
//! This module must not know how placements are found.

use super::baselines::Baseline;
use super::grid::{Choice, Found, Grid};
use super::problem::Run;
use super::{PlannerInput, assemble_choice};
use crate::plan::Explanation;
use crate::sim::{Arrivals, DrawnLoad, Lengths, SimSpec, SimSummary, simulate};
use rayon::prelude::*;

/// Most placements that are tried.
const TRIALS: usize = 16;
/// Rounds of all sequences that a trial takes at most; of long pipelines fewer, so that requests times stages stay below
/// [`WORK`].
const ROUNDS: u32 = 4;
const WORK: u32 = 512;

/// Rates within this share of each other are the same.
const SAME: f64 = 1e-3;
/// How far cuts are moved to make prompts and decode steps even.
const MOVES: [usize; 4] = [8, 4, 2, 1];

/// What was tried, for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// How many placements.
    pub placements: usize,
    /// Requests a second of the best.
    pub requests_per_s: f64,
}

/// The placement that serves most requests a second in simulation; of equal ones the one with the fewest devices, then the one
/// that the cost model likes best. Nothing if none can be simulated.
pub(super) fn best(grid: &Grid<'_>, found: &Found) -> Option<(Choice, Trial)> {
    let mut choices: Vec<Choice> = std::iter::once(&found.best).chain(&found.others).cloned().collect();
    choices.extend(Baseline::ALL.into_iter().filter_map(|rule| grid.baseline(rule)));
    let evened: Vec<Choice> = choices.iter().map(|choice| evened(grid, choice)).collect();
    choices.extend(evened);
    choices.sort_by(|a, b| a.score_us().total_cmp(&b.score_us()));
    let mut different: Vec<Choice> = Vec::new();
    for choice in choices {
        if different.iter().all(|other| other.runs != choice.runs) {
            different.push(choice);
        }
    }
    different.truncate(TRIALS);
    let tried = |choice: Choice| Some((requests_per_s(grid, &choice)?, choice));
    let tried: Vec<(f64, Choice)> = different.into_par_iter().filter_map(tried).collect();
    let most = tried.iter().map(|(rate, _)| *rate).reduce(f64::max)?;
    let trial = Trial { placements: tried.len(), requests_per_s: most };
    let near = tried.into_iter().filter(|(rate, _)| *rate >= most * (1.0 - SAME));
    let (_, choice) = near.min_by_key(|(_, choice)| choice.runs.len())?;
    Some((choice, trial))
}

/// The placement with its cuts moved as long as that makes a request shorter if prompts and decode steps never overlap. Where
/// one device is good at prompts and another at decode, the busiest stage alone says too little.
fn evened(grid: &Grid<'_>, choice: &Choice) -> Choice {
    let mut best = choice.clone();
    for by in MOVES {
        while let Some(better) = moved(&best, by)
            .into_iter()
            .filter_map(|runs| grid.priced(best.point, runs))
            .find(|moved| moved.evaluation.apart_us < best.evaluation.apart_us * (1.0 - SAME))
        {
            best = better;
        }
    }
    best
}

/// The placements with one cut moved by so many segments.
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

fn requests_per_s(grid: &Grid<'_>, choice: &Choice) -> Option<f64> {
    let input: &PlannerInput<'_> = grid.input;
    let sequences = input.limits.sequences;
    let stages = u32::try_from(choice.runs.len()).unwrap_or(u32::MAX);
    let rounds = (WORK / sequences.saturating_mul(stages).max(1)).clamp(1, ROUNDS);
    let tokens = |count: f64| Lengths::Fixed((count.round() as u32).max(1));
    let load = DrawnLoad {
        requests: sequences.checked_mul(rounds)?,
        arrivals: Arrivals::Closed { at_once: sequences },
        prompt_tokens: tokens(choice.pace.prompt),
        new_tokens: tokens(choice.pace.generated),
        seed: 1,
    };
    let plan = assemble_choice(grid, choice, Explanation::default(), Vec::new());
    let (segments, load) = (grid.segments(choice.point), load.draw().ok()?);
    let spec = SimSpec::of_plan(&plan, input.model, segments, input.devices, input.links, &load).ok()?;
    let report = simulate(&spec).ok()?;
    Some(SimSummary::new(&spec, report).requests_per_s)
}
