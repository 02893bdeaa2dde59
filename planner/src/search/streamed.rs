//! Placements with streamed weights, for models that do not fit with resident weights.
//!
//! The search estimates the memory and the times of every run of segments on every device. By dynamic
//! programming, it finds placements on the devices in a few orders. It then determines the exact streamed
//! segments of these placements at every point of the grid, and takes the best result. A stage streams as few
//! segments as possible, spread evenly over its blocks. If copies wait for arenas, the search also tries more
//! arenas, although the stage may then have to stream more segments.
//!
//! This module knows nothing about the explanation.

use super::PlannerInput;
use super::baselines::{self, Baseline};
use super::grid::{Choice, FEWER_DEVICES, Grid, SearchResult, different, preferred};
use super::memory_fit;
use super::problem::{Problem, Run};
use super::solver::Costs;
use super::workload_times::Point;
use crate::cost::{FigureSource, RunSizes, Streamed};
use ragtag_graph::execution::{Arenas, FEWEST, MAX_ARENAS, arena_buffers};
use ragtag_hal::pool::class_bytes;
use rayon::prelude::*;
use std::cmp::Reverse;

/// Maximum product of device count and segment count for which the search uses dynamic programming.
/// Otherwise, it considers only the placements of simple rules.
const SEARCHED: usize = 4096;

/// Searches for the best placement with streamed weights. Returns `None` if the search finds none that fits.
pub(super) fn search(grid: &Grid<'_>) -> Option<SearchResult> {
    let starts: Vec<Point> = grid.starts(grid.boundaries()[0]).collect();
    let placements = starts.into_par_iter().flat_map_iter(|point| placements(grid.problem(point)));
    let placements: Vec<Vec<Run>> = placements.collect();
    best(grid, &different(placements.iter()))
}

/// Returns whether the resident placement in `found` uses devices in host memory because the model does not
/// fit the other devices.
pub(super) fn is_short_of_memory(grid: &Grid<'_>, found: &SearchResult) -> bool {
    let in_host = |device: usize| grid.input.devices[device].in_host_memory;
    let uses_host = found.best.runs.iter().any(|run| in_host(run.device));
    if !uses_host || (0..grid.input.devices.len()).all(in_host) {
        return false;
    }
    let mut instance = grid.start().instance();
    instance.excluded.iter_mut().enumerate().for_each(|(device, excluded)| *excluded |= in_host(device));
    !memory_fit::fits(&instance)
}

/// Returns the best placement with streamed weights if it is faster than the best one in `found`.
pub(super) fn instead_of(grid: &Grid<'_>, found: &SearchResult) -> Option<SearchResult> {
    let streamed = search(grid)?;
    streamed.best.is_faster_than(&found.best).then(|| {
        let choices = streamed.all().chain(found.all()).cloned().collect();
        SearchResult::with_best(streamed.best.clone(), choices, None)
    })
}

/// Returns the best of `placements` over all points, with the fewest streamed segments at each point. Returns
/// `None` if none of them fits at any point.
pub(super) fn best(grid: &Grid<'_>, placements: &[&[Run]]) -> Option<SearchResult> {
    let at = |point: Point| {
        let problem = grid.problem(point);
        placements.iter().filter_map(|runs| fastest(problem, runs)).collect::<Vec<_>>()
    };
    let points: Vec<Point> = grid.points().collect();
    let choices: Vec<Choice> = points.into_par_iter().flat_map_iter(at).collect();
    let best = preferred(choices.clone())?;
    let longest = if best.streams() { with_longest_chunk(&choices, &best) } else { best };
    Some(SearchResult::with_best(longest, choices, None))
}

/// Returns the choice with the longest chunk among those that are about as good as `best` and have as many
/// stages. Every chunk of a prompt copies the weights again, so prompts that are longer than the planned one
/// need a long chunk.
pub(super) fn with_longest_chunk(choices: &[Choice], best: &Choice) -> Choice {
    let least_us = choices.iter().map(Choice::expected_us).fold(f64::INFINITY, f64::min);
    let is_near = |choice: &&Choice| {
        choice.runs.len() == best.runs.len() && choice.expected_us() <= least_us * (1.0 + FEWER_DEVICES)
    };
    let longest = choices.iter().filter(is_near).max_by(|a, b| {
        let by_chunk = a.point.chunk.cmp(&b.point.chunk);
        by_chunk.then(b.expected_us().total_cmp(&a.expected_us()))
    });
    longest.unwrap_or(best).clone()
}

/// Returns whether the search finds a placement that fits at the problem's point.
pub(super) fn fits(problem: &Problem<'_>) -> bool {
    placements(problem).iter().any(|runs| streamed(problem, runs, 0).is_some())
}

/// Returns the fastest choice with the fewest streamed segments with which a placement fits, among all
/// numbers of arenas. Of equally fast choices, returns the one with the fewest arenas. Returns `None` if the
/// placement does not fit.
fn fastest(problem: &Problem<'_>, runs: &[Run]) -> Option<Choice> {
    let choice = |most| streamed(problem, runs, most).map(|runs| Choice::of(problem, runs));
    let waits = |choice: &Choice| choice.runs.iter().any(|run| problem.waits_for_arenas(run));
    with_more_arenas(choice, waits, Choice::is_clearly_faster_than)
}

/// Returns the fastest of the choices that `choice` returns for maximum numbers of arenas, from 0 on. Tries
/// more arenas as long as copies wait for them.
pub(super) fn with_more_arenas(
    choice: impl Fn(usize) -> Option<Choice>,
    waits: impl Fn(&Choice) -> bool,
    is_faster: impl Fn(&Choice, &Choice) -> bool,
) -> Option<Choice> {
    let mut best = choice(0)?;
    for most in 3..=MAX_ARENAS {
        if !waits(&best) {
            break;
        }
        if let Some(more) = choice(most).filter(|more| is_faster(more, &best)) {
            best = more;
        }
    }
    Some(best)
}

/// Returns a placement with the fewest streamed segments with which it fits, or `None` if it does not fit
/// with any number of them. The segments of a stage share the most arenas up to `most`, or the fewest. If a
/// device has several stages, the stage with the most resident segments streams the next one.
pub(super) fn streamed(problem: &Problem<'_>, runs: &[Run], most: usize) -> Option<Vec<Run>> {
    let sizes = &problem.lowered.sizes;
    let mut runs: Vec<Run> = runs.iter().map(|run| Run::new(run.device, run.segments.clone())).collect();
    let streamable: Vec<Vec<usize>> = runs.iter().map(|run| streamable(problem, run)).collect();
    loop {
        let memories = problem.memories_with(&runs, None);
        let lacking = runs.iter().zip(&memories).find(|(_, memory)| memory.total > memory.available);
        let Some((run, memory)) = lacking else { return problem.prove(&runs).is_ok().then_some(runs) };
        let (device, missing) = (run.device, memory.total - memory.available);
        let stages: Vec<usize> = (0..runs.len()).filter(|&at| runs[at].device == device).collect();
        let resident = |at: &usize| match streamable[*at].len() {
            count if count < FEWEST => 0,
            count => count - runs[*at].streamed.len(),
        };
        let at = stages.iter().copied().max_by_key(resident).filter(|at| resident(at) > 0)?;
        let (of_stage, run) = (&streamable[at], &runs[at]);
        let is_first = run.streamed.is_empty();
        let least = if is_first && stages.len() == 1 { least(sizes, of_stage, missing) } else { FEWEST };
        let count = least.max(run.streamed.len() + 1);
        if count > of_stage.len() {
            return None;
        }
        let mut run = run.clone().streaming(spread(of_stage, count), most);
        if problem.input.from_file {
            run.from_file.clone_from(&run.streamed);
        }
        runs[at] = run;
    }
}

/// Returns the smallest device memory with which a device could run the whole model with streamed weights.
/// Returns `None` if it could not stream any, or if a buffer is too large.
pub(super) fn smallest_bytes(problem: &Problem<'_>, device: usize) -> Option<u64> {
    let whole = Run::new(device, 0..problem.lowered.segments.len());
    let streamable = streamable(problem, &whole);
    let total = |count: usize| {
        let run = whole.clone().streaming(spread(&streamable, count), 0);
        problem.memory(&run, None).total
    };
    (FEWEST..=streamable.len()).map(total).min()
}

/// Returns the segments of a run that its device may stream.
fn streamable(problem: &Problem<'_>, run: &Run) -> Vec<usize> {
    match device_may_stream(problem.input, run.device) {
        true => problem.lowered.sizes.streamable(run.segments.clone()),
        false => Vec::new(),
    }
}

/// Returns whether a device may stream weights. A device in host memory saves no memory by copies of them, so it
/// streams from host memory only if the user limits its memory and the host has room for the copies.
pub(super) fn device_may_stream(input: &PlannerInput<'_>, device: usize) -> bool {
    let device = &input.devices[device];
    let is_limited = device.memory_source == FigureSource::User && input.host_memory_bytes.is_some();
    !device.in_host_memory || is_limited || input.from_file
}

/// Returns a lower bound on the number of streamed segments that free `missing` bytes. Each of them frees at
/// most the size of the largest one, and the stage has at least two arenas.
fn least(sizes: &RunSizes, streamable: &[usize], missing: u64) -> usize {
    let bytes = || streamable.iter().map(|&segment| sizes.resident_bytes(segment));
    let (smallest, largest) = (bytes().fold(u64::MAX, u64::min), bytes().fold(1, u64::max));
    let least = missing.saturating_add(smallest.saturating_mul(2)).div_ceil(largest);
    usize::try_from(least).unwrap_or(usize::MAX).max(FEWEST)
}

/// Returns `count` of the segments, at equal distances.
pub(super) fn spread(segments: &[usize], count: usize) -> Vec<usize> {
    (0..count).map(|at| segments[(2 * at + 1) * segments.len() / (2 * count)]).collect()
}

/// Returns placements that are worth an exact evaluation and meet the constraints.
fn placements(problem: &Problem<'_>) -> Vec<Vec<Run>> {
    let input = problem.input;
    let rules = [Baseline::BestSingle, Baseline::EvenLayers, Baseline::ByMemory, Baseline::ByFlops];
    let by_rule = |rule| baselines::placements(rule, input, |_| false);
    let mut all: Vec<Vec<Run>> = rules.into_iter().flat_map(by_rule).collect();
    if input.devices.len() * input.segments.len() <= SEARCHED {
        let costs: Vec<_> = (0..input.devices.len()).map(|device| run_costs(problem, device)).collect();
        let sum = |so_far: f64, costs: &Costs| so_far + costs.time;
        let busiest = |so_far: f64, costs: &Costs| so_far.max(costs.busy);
        for order in orders(input) {
            all.extend(along(problem, &costs, &order, sum));
            all.extend(along(problem, &costs, &order, busiest));
        }
    }
    all.retain(|runs| input.allows(runs));
    all
}

/// Returns the orders of the devices in which the search places segments: the given one, by memory, and by
/// pinned segments. If the number of stages is limited, prefers pinned devices and those with more memory.
fn orders(input: &PlannerInput<'_>) -> Vec<Vec<usize>> {
    let constraints = input.constraints;
    let label = |device: usize| &input.devices[device].label;
    let memory = |device: &usize| Reverse(input.devices[*device].memory_bytes);
    let pinned = |device: &usize| {
        let pins = constraints.pins.iter().filter(|pin| pin.device == *label(*device));
        pins.map(|pin| pin.segment as usize).min()
    };
    let mut given: Vec<usize> =
        (0..input.devices.len()).filter(|&device| !constraints.excluded.contains(label(device))).collect();
    given.sort_by_key(|device| (pinned(device).is_none(), memory(device)));
    given.truncate(constraints.max_stages.map_or(usize::MAX, |most| most as usize));
    given.sort_unstable();
    let (mut by_memory, mut by_pin) = (given.clone(), given.clone());
    by_memory.sort_by_key(memory);
    by_pin.sort_by_key(|device| pinned(device).unwrap_or(input.segments.len() / 2));
    let mut orders = vec![given];
    for order in [by_memory, by_pin] {
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// Estimates the costs of each run on a device, at `first * (segments + 1) + end`. `None` if the run does not
/// fit.
fn run_costs(problem: &Problem<'_>, device: usize) -> Vec<Option<Costs>> {
    let (input, sizes) = (problem.input, &problem.lowered.sizes);
    let (segments, facts) = (input.segments.len(), &input.devices[device]);
    let sources = (0..input.devices.len()).filter(|from| *from != device);
    let staging = sources.map(|from| problem.link(from, device).routes.staging_bytes()).max().unwrap_or(0);
    let is_pinned_elsewhere = |segment: usize| {
        let mut pins = input.constraints.pins.iter();
        pins.any(|pin| pin.segment as usize == segment && pin.device != facts.label)
    };
    let mut all = vec![None; segments * (segments + 1)];
    for first in 0..segments {
        let mut streamable = Streamable::default();
        for end in first + 1..=segments {
            let run = first..end;
            if is_pinned_elsewhere(end - 1) || sizes.too_large(run.clone(), &problem.shape, facts).is_some() {
                break;
            }
            if device_may_stream(input, device) {
                streamable.add(sizes, end - 1);
            }
            let staging = if first > 0 { staging } else { 0 };
            let memory = sizes.stage(run.clone(), Streamed::NONE, &problem.shape, staging, facts);
            let missing = memory.total.saturating_sub(memory.available);
            all[first * (segments + 1) + end] = streamable.fewest(missing).map(|count| {
                let bytes = streamable.bytes.checked_div(streamable.count).unwrap_or(0);
                let read_us = if input.from_file { facts.file_read_us(bytes) } else { 0.0 };
                let upload_us = count as f64 * facts.host_copy_us(bytes).max(read_us);
                problem.estimated_costs(device, run, upload_us)
            });
        }
    }
    all
}

/// The segments of a run that can be streamed.
#[derive(Default)]
struct Streamable {
    count: u64,
    /// Exact bytes of their weights.
    bytes: u64,
    /// Device memory that they take if they are resident.
    resident: u64,
    /// Buffers of an arena for all of them.
    buffers: Vec<u64>,
}

impl Streamable {
    fn add(&mut self, sizes: &RunSizes, segment: usize) {
        let weights = sizes.streamed_weights(segment);
        if !weights.is_empty() {
            self.count += 1;
            self.bytes = self.bytes.saturating_add(sizes.streamed_bytes(&[segment]));
            self.resident = self.resident.saturating_add(sizes.resident_bytes(segment));
            self.buffers = arena_buffers([self.buffers.as_slice(), weights]);
        }
    }

    /// Estimates the minimum number of streamed segments that free `missing` bytes. Assumes an even number of
    /// segments of average size, or all segments. Returns `None` if they free less.
    fn fewest(&self, missing: u64) -> Option<u64> {
        if missing == 0 {
            return Some(0);
        }
        let arena = self.buffers.iter().map(|&bytes| class_bytes(bytes)).fold(0, u64::saturating_add);
        let average = self.resident.checked_div(self.count)?.max(1);
        let wanted = missing.saturating_add(arena.saturating_mul(2)).div_ceil(average);
        let wanted = wanted.saturating_add(wanted % 2);
        let all_arenas = arena.saturating_mul(Arenas::at_most(self.count as usize, 0).count() as u64);
        match wanted {
            _ if self.count < FEWEST as u64 => None,
            wanted if wanted <= self.count => Some(wanted),
            _ => (self.resident.saturating_sub(all_arenas) >= missing).then_some(self.count),
        }
    }
}

/// Places all segments on devices in the given order. May skip devices. `add` adds the costs of a stage or a
/// transfer to those of the stages before it. Returns the placement with the lowest cost for each last
/// device.
fn along(
    problem: &Problem<'_>,
    costs: &[Vec<Option<Costs>>],
    order: &[usize],
    add: impl Fn(f64, &Costs) -> f64,
) -> Vec<Vec<Run>> {
    let segments = problem.input.segments.len();
    // At `position * (segments + 1) + end`: the cost, the start of the last run, and the previous position.
    let mut best: Vec<Option<(f64, usize, Option<usize>)>> = vec![None; order.len() * (segments + 1)];
    for (at, &device) in order.iter().enumerate() {
        for first in 0..segments {
            let after = |before: usize| {
                let (so_far, ..) = best[before * (segments + 1) + first]?;
                let transfer = problem.transfer(order[before], device);
                Some((add(so_far, &problem.workload_times.costs(&transfer)), Some(before)))
            };
            let reached = match first {
                0 => Some((0.0, None)),
                _ => (0..at).filter_map(after).min_by(|(a, _), (b, _)| a.total_cmp(b)),
            };
            let Some((so_far, before)) = reached else { continue };
            for end in first + 1..=segments {
                let Some(run) = &costs[device][first * (segments + 1) + end] else { continue };
                let cost = add(so_far, run);
                let cell = &mut best[at * (segments + 1) + end];
                if cell.is_none_or(|(least, ..)| cost < least) {
                    *cell = Some((cost, first, before));
                }
            }
        }
    }
    let cell = |at: usize, end: usize| best[at * (segments + 1) + end];
    let placement = |last: usize| {
        let (mut runs, mut end, mut next) = (Vec::new(), segments, Some(last));
        while let Some(at) = next {
            let (_, first, before) = cell(at, end).expect("a run leads to each cell of the way");
            runs.push(Run::new(order[at], first..end));
            (end, next) = (first, before);
        }
        runs.reverse();
        runs
    };
    (0..order.len()).filter(|&last| cell(last, segments).is_some()).map(placement).collect()
}
