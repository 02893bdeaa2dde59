//! Placements with a prefill stage, for models that do not fit the devices with memory of their own. A GPU
//! and a device in host memory decode. The GPU computes long prompts alone, and streams the weights of the
//! segments that the other device decodes.
//!
//! The search gives the GPU as many segments as fit beside the prefill stage, at every point of the grid. If
//! copies wait for arenas, it also tries more arenas, although fewer segments may then fit. It also tries the
//! placements in which the other device has feed-forward halves or pinned segments alone. Finally, it lets the
//! devices take turns: the prefill stage then copies weights while it computes the GPU's own segments.
//!
//! This module knows nothing about the explanation.

use super::families;
use super::grid::{Choice, FEWER_DEVICES, Grid, Prefill, SAME, preferred};
use super::problem::{Problem, Run};
use super::streamed::{device_may_stream, with_longest_chunk, with_more_arenas};
use super::workload_times::Point;
use super::{Constraints, PlannerInput};
use crate::cost::DeviceFacts;
use crate::objective::Workload;
use ragtag_graph::execution::FEWEST;
use rayon::prelude::*;

/// Shortest prompt for which the prefill stage is compared with the other stages, in tokens.
const SHORTEST: u32 = 16;

/// A placement and its prefill stage.
type Placed = (Vec<Run>, Run);

/// Searches for the best placement on a GPU and a device in host memory, with a prefill stage on the GPU.
/// Returns `None` if the search finds none that fits.
pub(super) fn search(grid: &Grid<'_>) -> Option<Choice> {
    let input = grid.input;
    let is_allowed = |device: &usize| !input.constraints.excluded.contains(&input.devices[*device].label);
    let devices = || (0..input.devices.len()).filter(is_allowed);
    let in_host = |device: &usize| input.devices[*device].in_host_memory;
    let orders = devices().filter(|device| !in_host(device)).flat_map(|gpu| {
        devices().filter(in_host).flat_map(move |host| [true, false].map(|gpu_first| (gpu, host, gpu_first)))
    });
    let orders: Vec<_> = orders.collect();
    let one_each = at_all_points(grid, |problem| {
        let of_order = |&(gpu, host, gpu_first): &_| {
            fastest(problem, |most| longest(problem, gpu, host, gpu_first, most))
        };
        orders.iter().filter_map(of_order).filter(|choice| input.allows(&choice.runs)).collect()
    });
    if !input.several_stages {
        return starting(grid, best(&one_each)?);
    }
    let apart = beside_some(grid, &families::independent(input));
    let best = match (best(&one_each), apart) {
        (Some(best), Some(apart)) if !families::gains(&apart, &best) => best,
        (best, apart) => apart.or(best)?,
    };
    starting(grid, in_turns(grid, &one_each, best))
}

/// Returns the variant of the choices in which the devices take as many turns as clearly shorten long prompts,
/// or `best`. The planned request may become slower by the loss that a plan with fewer devices may have.
fn in_turns(grid: &Grid<'_>, one_each: &[Choice], best: Choice) -> Choice {
    let most_us = best.expected_us() * (1.0 + FEWER_DEVICES);
    let variants = |choice: &Choice| {
        let problem = grid.problem(choice.point);
        let gpu = choice.prefill_run().map(|run| run.device);
        let turns = families::interleaved(&choice.runs).into_iter();
        let fitting = turns
            .filter(|runs| grid.input.allows(runs))
            .filter_map(|runs| fastest(problem, |most| placed_beside(problem, &runs, gpu?, most)));
        fitting.filter(|choice| choice.expected_us() <= most_us).collect::<Vec<_>>()
    };
    let mut turns: Vec<Choice> = one_each.par_iter().flat_map_iter(variants).collect();
    let row_us = |choice: &Choice| {
        let full_us = choice.evaluation.prefill.map_or(f64::INFINITY, |times| times.full_chunk_us);
        full_us / f64::from(choice.point.chunk)
    };
    turns.sort_by(|a, b| a.runs.len().cmp(&b.runs.len()).then(row_us(a).total_cmp(&row_us(b))));
    let gains = |more: &Choice, than: &Choice| row_us(more) < row_us(than) * (1.0 - families::GAIN);
    turns.into_iter().fold(best, |best, more| if gains(&more, &best) { more } else { best })
}

/// Returns the best choice that adds a prefill stage to the placement `runs`. Returns `None` if no device of
/// the placement is in host memory, or if no prefill stage fits.
pub(super) fn beside(grid: &Grid<'_>, runs: &[Run]) -> Option<Choice> {
    beside_some(grid, &[runs.to_vec()]).and_then(|choice| starting(grid, choice))
}

/// Returns the best choice that adds a prefill stage to one of `placements`.
fn beside_some(grid: &Grid<'_>, placements: &[Vec<Run>]) -> Option<Choice> {
    let streaming: Vec<_> =
        placements.iter().map(|runs| (runs, streaming_devices(grid.input, runs))).collect();
    let choices = at_all_points(grid, |problem| {
        let of_device =
            |runs: &[Run], device| fastest(problem, |most| placed_beside(problem, runs, device, most));
        let of_placement = |(runs, devices): &(&Vec<Run>, Vec<usize>)| {
            devices.iter().filter_map(|device| of_device(runs, *device)).collect::<Vec<_>>()
        };
        streaming.iter().flat_map(of_placement).collect()
    });
    best(&choices)
}

/// Returns the devices of a placement that may stream the weights of another one in host memory.
fn streaming_devices(input: &PlannerInput<'_>, runs: &[Run]) -> Vec<usize> {
    let in_host = |run: &Run| input.devices[run.device].in_host_memory;
    let mut devices: Vec<usize> = runs.iter().map(|run| run.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.retain(|&device| {
        device_may_stream(input, device) && runs.iter().any(|run| run.device != device && in_host(run))
    });
    devices
}

/// Returns the placement `runs` with the prefill stage that has the most arenas up to `most`, if it fits.
fn placed_beside(problem: &Problem<'_>, runs: &[Run], device: usize, most: usize) -> Option<Placed> {
    let placed = (runs.to_vec(), prefill_run(problem, runs, device, most)?);
    fits(problem, &placed).then_some(placed)
}

/// Returns the best choice with the prefill stage that the user's split names. Returns `None` if it does not
/// fit.
pub(super) fn given(grid: &Grid<'_>, runs: &[Run], prefill: &Prefill) -> Option<Choice> {
    let placed = (runs.to_vec(), prefill.run.clone());
    let fitting = grid.points().map(|point| grid.problem(point)).filter(|problem| fits(problem, &placed));
    let choice = |problem| Choice::with_prefill(problem, runs.to_vec(), Some(prefill.clone()));
    preferred(fitting.map(choice).collect())
}

fn fits(problem: &Problem<'_>, (runs, prefill): &Placed) -> bool {
    problem.shape.state_bytes == 0 && problem.prove_with(runs, Some(prefill)).is_ok()
}

/// Returns the fastest of the placements that `placed` returns for numbers of arenas. The prefill stage of
/// each has the most arenas up to the given number, or the fewest. With equal decode stages, the time of the
/// prefill stage decides. Of equally fast placements, returns the one with the fewest arenas.
fn fastest(problem: &Problem<'_>, placed: impl Fn(usize) -> Option<Placed>) -> Option<Choice> {
    let choice =
        |(runs, run)| Choice::with_prefill(problem, runs, Some(Prefill { run, from_tokens: SHORTEST }));
    let prefill_us =
        |choice: &Choice| choice.evaluation.prefill.map_or(0.0, |times| times.chunk_us + times.full_chunk_us);
    let is_faster = |more: &Choice, best: &Choice| match more.runs == best.runs {
        true => prefill_us(more) * (1.0 + SAME) < prefill_us(best),
        false => more.is_clearly_faster_than(best),
    };
    let waits = |choice: &Choice| choice.prefill_run().is_some_and(|run| problem.waits_for_arenas(run));
    with_more_arenas(|most| placed(most).map(choice), waits, is_faster)
}

/// Returns the choices that `choices` returns for each point of the grid.
fn at_all_points(grid: &Grid<'_>, choices: impl Fn(&Problem<'_>) -> Vec<Choice> + Sync) -> Vec<Choice> {
    let at = |point: Point| choices(grid.problem(point));
    let points: Vec<Point> = grid.points().collect();
    points.into_par_iter().flat_map_iter(at).collect()
}

/// Returns the best choice. Returns `None` if there are none.
fn best(choices: &[Choice]) -> Option<Choice> {
    Some(with_longest_chunk(choices, &preferred(choices.to_vec())?))
}

/// Sets the length of the prompts from which the choice's prefill stage computes them. Returns `None` if the
/// stage is slower for the planned request.
fn starting(grid: &Grid<'_>, mut choice: Choice) -> Option<Choice> {
    let from_tokens = from_tokens(grid, &choice)?;
    choice.prefill.iter_mut().for_each(|prefill| prefill.from_tokens = from_tokens);
    (f64::from(from_tokens) <= choice.workload_times.prompt.ceil()).then_some(choice)
}

/// Returns the prefill stage on `device` beside the placement `runs`. It streams all segments of other
/// devices that can be streamed, through the most arenas up to `most`, and holds the others. Returns `None`
/// if there are too few, if a stage on the device streams weights, or if the constraints forbid the stage. Segments
/// that are pinned to a device in host memory may be streamed from there.
fn prefill_run(problem: &Problem<'_>, runs: &[Run], device: usize, most: usize) -> Option<Run> {
    if problem.shape.state_bytes > 0 {
        // Only keys and values pass from a prefill stage to the others.
        return None;
    }
    // The stage computes all segments, and is one more stage.
    let Constraints { pins, max_stages, .. } = problem.input.constraints;
    let may_compute =
        |of_pin: &DeviceFacts| of_pin.in_host_memory || of_pin.label == problem.input.devices[device].label;
    let pinned = |label: &String| problem.input.devices.iter().find(|of_pin| of_pin.label == *label);
    if pins.iter().any(|pin| !pinned(&pin.device).is_some_and(may_compute))
        || max_stages.is_some_and(|most| most as usize <= runs.len())
    {
        return None;
    }
    let (own, others): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.device == device);
    let sizes = &problem.lowered.sizes;
    let streamed: Vec<usize> = others.iter().flat_map(|run| sizes.streamable(run.segments.clone())).collect();
    let is_possible = streamed.len() >= FEWEST && own.iter().all(|run| run.streamed.is_empty());
    let whole = 0..problem.lowered.segments.len();
    is_possible.then(|| Run::new(device, whole).streaming(streamed, most))
}

/// Returns the placement with the most segments on `gpu` that fit beside the prefill stage with the most
/// arenas up to `most`. `host` has the other segments. Returns `None` if no such placement fits.
fn longest(problem: &Problem<'_>, gpu: usize, host: usize, gpu_first: bool, most: usize) -> Option<Placed> {
    let segments = problem.lowered.segments.len();
    let placed = |length: usize| {
        let runs = match gpu_first {
            true => vec![Run::new(gpu, 0..length), Run::new(host, length..segments)],
            false => vec![Run::new(host, 0..segments - length), Run::new(gpu, segments - length..segments)],
        };
        let prefill = prefill_run(problem, &runs, gpu, most)?;
        Some((runs, prefill))
    };
    let fits_gpu = |length: usize| {
        let label = &problem.input.devices[gpu].label;
        placed(length).is_some_and(|(runs, prefill)| {
            let shortages = problem.prove_with(&runs, Some(&prefill)).err().unwrap_or_default();
            shortages.iter().all(|shortage| shortage.device != *label)
        })
    };
    let (mut low, mut high) = (0, segments);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits_gpu(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    // An even number of streamed segments needs one arena less, so a longer run may fit where a shorter one
    // does not.
    let longer = (low + 1..segments).take(2).rfind(|&length| fits_gpu(length));
    let length = longer.unwrap_or(low);
    (length > 0).then(|| placed(length)).flatten().filter(|placed| fits(problem, placed))
}

/// Returns the smallest prompt length from which the prefill stage of `choice` computes all longer prompts,
/// up to the chunk, sooner than its other stages. Returns `None` if it does not compute a full chunk sooner.
fn from_tokens(grid: &Grid<'_>, choice: &Choice) -> Option<u32> {
    let problem = grid.problem(choice.point);
    let is_sooner = |&tokens: &u32| {
        let workload = Workload { prompt_tokens: tokens, generated_tokens: 0 };
        let input = PlannerInput { workload, ..*grid.input };
        let problem = problem.of_input(&input);
        let with = problem.evaluate_with(&choice.runs, choice.prefill_run());
        with.first_token_us < problem.evaluate(&choice.runs).first_token_us
    };
    let longest = choice.point.chunk.min(grid.context);
    let doubled = std::iter::successors(Some(SHORTEST), |tokens| tokens.checked_mul(2));
    let lengths = doubled.flat_map(|tokens| [tokens, tokens.saturating_add(tokens / 2)]);
    let mut lengths: Vec<u32> = lengths.take_while(|&tokens| tokens < longest).collect();
    lengths.push(longest);
    lengths.into_iter().rev().take_while(is_sooner).last()
}
