//! Explains a plan as data: bottleneck, bound, unused devices, alternatives and binding limits. Writes no
//! text for users.

use super::assemble::tenths;
use super::baselines::Baseline;
use super::grid::{Choice, FEWER_DEVICES, Grid, SearchResult};
use super::problem::Run;
use super::solver::{self, Instance};
use super::workload_times::Times;
use super::{PlannerInput, families, hybrid, placement, streamed};
use crate::cost::{DeviceFacts, Figure, FigureSource, LinkFacts, Links};
use crate::plan::{Alternative, BindingLimit, Bottleneck, Explanation, Family, FigureCount, LeftOut, Place};
use crate::wording;
use ragtag_graph::Granularity;
use rayon::prelude::*;

/// Maximum number of devices for which the planner searches for alternatives.
const SEARCHED_DEVICES: usize = 12;
/// The search for a plan that includes an unused device considers all devices if there are at most this many.
/// Otherwise, it considers only the unused device and those of the best plan.
const TRIED_WITH_ALL: usize = 8;
/// Maximum number of groups of interchangeable unused devices for which the planner searches for a plan.
const LEFT_OUT: usize = 16;
/// Maximum number of reported alternatives.
const ALTERNATIVES: usize = 6;
/// Maximum number of limits for which the planner evaluates a higher value.
const BINDINGS: usize = 6;
/// The plan reports a limit only if the relative gain from raising it exceeds [`FEWER_DEVICES`] by this much.
const GAIN: f64 = 0.005;
/// Maximum relative rounding error of the bound.
const ROUNDING: f64 = 1e-6;

pub(super) fn explanation(grid: &Grid<'_>, found: &SearchResult) -> Explanation {
    let best = &found.best;
    let devices = best.evaluation.devices.len();
    let is_one_stage = devices == best.runs.len();
    let (left_out, ((alternatives, bound_us), bindings)) = rayon::join(
        || left_out(grid, found),
        || rayon::join(|| alternatives(grid, found), || bindings(grid, best)),
    );
    let bubble = best.workload_times.bubble(devices, best.runs.len());
    let covers = grid.input.split.is_none() && is_one_stage;
    let (score_us, most_us) = (best.score_us(), best.score_us() * (1.0 + ROUNDING));
    assert!(
        bound_us.is_none_or(|us| us <= most_us || !covers),
        "the plan scores {score_us} µs, below the bound {bound_us:?}"
    );
    Explanation {
        score_us: score(best.score_us()),
        bound_us: score(bound_us.filter(|_| is_one_stage).map_or(0.0, |us| us.min(best.score_us()))),
        bottleneck: bottleneck(best),
        prefill_bubble: if best.prefill.is_some() { 0.0 } else { share(bubble) },
        decode_idle: share(best.evaluation.decode_idle.max(0.0)),
        left_out,
        alternatives,
        bindings,
        figures: figures(grid, best),
    }
}

/// Rounds a score for a plan. Scores below 1000 µs stay exact, because mixes with small weights have small
/// scores.
fn score(us: f64) -> f64 {
    if us < 1e3 { us } else { tenths(us) }
}

/// Rounds a fraction to four decimals.
fn share(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn bottleneck(choice: &Choice) -> Bottleneck {
    let (evaluation, busy_us) = (&choice.evaluation, |times: &Times| choice.workload_times.busy_us(times));
    // Each device is represented by its first stage.
    let first = |device| choice.all_runs().position(|run| run.device == device).expect("it has a stage");
    let devices = evaluation.devices.iter();
    let stages = devices.map(|(device, times)| (Place::Stage, first(*device), busy_us(times)));
    let of = |place| move |(index, times)| (place, index, busy_us(times));
    let edges = evaluation.transfers.iter().enumerate().map(of(Place::Edge));
    let shared = evaluation.shared.iter().enumerate().map(of(Place::SharedLink));
    let mut largest = Bottleneck::default();
    let mut total_us = 0.0;
    for (place, index, busy_us) in stages.chain(edges).chain(shared) {
        if place != Place::SharedLink {
            total_us += busy_us;
        }
        if busy_us > largest.busy_us {
            largest = Bottleneck { place, index, busy_us, share: 0.0 };
        }
    }
    largest.share = if total_us > 0.0 { share(largest.busy_us / total_us) } else { 0.0 };
    largest.busy_us = tenths(largest.busy_us);
    largest
}

fn alternative(grid: &Grid<'_>, choice: &Choice, why: impl Into<String>) -> Alternative {
    Alternative {
        split: placement(grid.input, &choice.runs),
        score_us: score(choice.score_us()),
        decode_tokens_per_s: tenths(choice.evaluation.decode_tokens_per_s),
        prefill_tokens_per_s: tenths(choice.evaluation.prefill_tokens_per_s),
        why: why.into(),
    }
}

/// Formats a placement as a split.
pub(super) fn placement(input: &PlannerInput<'_>, runs: &[Run]) -> String {
    let part = |run: &Run| format!("{}={}", run.span(), input.devices[run.device].label);
    runs.iter().map(part).collect::<Vec<_>>().join(",")
}

fn is_used(choice: &Choice, device: usize) -> bool {
    choice.runs.iter().any(|run| run.device == device)
}

/// Returns the unused devices, each paired with the best plan that includes the device. Searches once for
/// each group of interchangeable devices.
fn left_out(grid: &Grid<'_>, found: &SearchResult) -> Vec<LeftOut> {
    let (input, best) = (grid.input, &found.best);
    if input.split.is_some() {
        return Vec::new();
    }
    let tried = if best.runs.len() < SEARCHED_DEVICES { LEFT_OUT } else { 0 };
    let mut kinds = solver::alike(&grid.problem(best.point).instance());
    kinds.iter_mut().for_each(|kind| kind.retain(|device| !is_used(best, *device)));
    kinds.retain(|kind| !kind.is_empty());
    let of_kind = |(at, kind): (usize, &Vec<usize>)| {
        let (best_with, constrained) =
            if at < tried { best_with(grid, found, kind[0]) } else { (None, false) };
        let left_out = |&device: &usize| {
            let best_with = best_with.as_ref().map(|best| swapped(best, kind[0], device));
            let best_with = best_with.map(|best| alternative(grid, &best, "with this device"));
            let label = input.devices[device].label.clone();
            (device, LeftOut { device: label, best_with, tried: at < tried, constrained })
        };
        kind.iter().map(left_out).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, LeftOut)> = kinds.par_iter().enumerate().flat_map_iter(of_kind).collect();
    all.sort_by_key(|(device, _)| *device);
    all.into_iter().map(|(_, left)| left).collect()
}

/// Returns the best plan that includes `device`. If the plan streams weights, considers only the plans that the
/// search has found. The flag is true if there is no such plan, but there would
/// be one without the constraints.
fn best_with(grid: &Grid<'_>, found: &SearchResult, device: usize) -> (Option<Choice>, bool) {
    let best = &found.best;
    let with = |instance: &mut Instance| {
        instance.required = vec![device];
        if grid.input.devices.len() > TRIED_WITH_ALL {
            let others = |other: usize| other != device && !is_used(best, other);
            instance.excluded.iter_mut().enumerate().for_each(|(at, is)| *is |= others(at));
        }
    };
    let streamed = found.all().filter(|choice| best.streams() && is_used(choice, device));
    let streamed = streamed.min_by(|a, b| a.score_us().total_cmp(&b.score_us())).cloned();
    let found = streamed.or_else(|| grid.solve_with(best.point, with).best());
    let free = |instance: &mut Instance| {
        with(instance);
        instance.pins.fill(None);
        instance.max_stages = usize::MAX;
    };
    let constrained = found.is_none() && grid.solve_with(best.point, free).best().is_some();
    (found, constrained)
}

/// Returns the choice with devices `a` and `b` exchanged.
fn swapped(choice: &Choice, a: usize, b: usize) -> Choice {
    let mut choice = choice.clone();
    for run in &mut choice.runs {
        run.device = match run.device {
            device if device == a => b,
            device if device == b => a,
            device => device,
        };
    }
    choice
}

/// Returns the alternatives: placements with a different number of stages, and placements chosen by simple
/// rules. Lists each placement only once. Also returns a lower bound on the score, if one is known.
fn alternatives(grid: &Grid<'_>, found: &SearchResult) -> (Vec<Alternative>, Option<f64>) {
    let own = placement(grid.input, &found.best.runs);
    let (mut all, bound_us) = match grid.input.split {
        None => {
            let all = [others(grid, found), by_rules(grid)].concat();
            let bound_us = found.bound_us.or_else(|| grid.bound_us());
            // The bound covers resident weights only.
            (all, bound_us.filter(|_| !found.best.streams()))
        }
        Some(_) => found_freely(*grid.input, grid.context),
    };
    all.sort_by(|(a, _), (b, _)| a.score_us().total_cmp(&b.score_us()));
    let mut kept: Vec<Alternative> = Vec::new();
    for (choice, why) in all {
        let other = alternative(grid, &choice, why);
        if other.split != own && kept.iter().all(|kept| kept.split != other.split) {
            kept.push(other);
        }
    }
    kept.truncate(ALTERNATIVES);
    (kept, bound_us)
}

fn others(grid: &Grid<'_>, found: &SearchResult) -> Vec<(Choice, String)> {
    let granularity = Granularity::of(grid.input.segments);
    let why = |choice: &Choice| match families::family(&choice.runs, granularity) {
        Family::OneStage => format!("best with {}", wording::count(choice.runs.len(), "stage")),
        Family::Interleaved => "interleaved".into(),
        Family::FeedForwardApart => "feed-forward apart".into(),
        Family::SeveralStages => "several stages per device".into(),
    };
    found.others.iter().map(|other| (other.clone(), why(other))).collect()
}

fn by_rules(grid: &Grid<'_>) -> Vec<(Choice, String)> {
    Baseline::ALL.iter().filter_map(|&rule| Some((grid.baseline(rule)?, rule.to_string()))).collect()
}

/// Returns the alternatives to a user's split, and a lower bound on the score. Each alternative gets its own
/// decode groups and credits, even if the user fixed them.
fn found_freely(mut input: PlannerInput<'_>, context: u32) -> (Vec<(Choice, String)>, Option<f64>) {
    (input.limits.decode_groups, input.limits.credits) = (None, None);
    (input.split, input.trial, input.several_stages) = (None, None, false);
    let grid = Grid::new(&input, context);
    let found = placement::search(&grid, true);
    let bound_us = found.as_ref().and_then(|found| found.bound_us).or_else(|| grid.bound_us());
    // The bound covers resident weights only.
    let bound_us = bound_us.filter(|_| found.as_ref().is_some_and(|found| !found.best.streams()));
    let own = found.map(|found| (found.best, Alternative::PLANNERS_OWN.into()));
    (own.into_iter().chain(by_rules(&grid)).collect(), bound_us)
}

/// Hypothetical improvement of the hardware.
struct WhatIf {
    of: String,
    more: String,
    devices: Vec<DeviceFacts>,
    links: Links,
}

/// Returns the gains from more memory, a faster transfer or a faster shared link.
fn bindings(grid: &Grid<'_>, best: &Choice) -> Vec<BindingLimit> {
    let input = grid.input;
    if input.split.is_some() || input.devices.len() > SEARCHED_DEVICES {
        return Vec::new();
    }
    let mut asked = more_memory(grid, best);
    asked.extend(faster_transfer(grid, best));
    asked.extend(faster_shared_link(grid, best));
    asked.truncate(BINDINGS);
    let gain = |what: WhatIf| {
        let with = PlannerInput { devices: &what.devices, links: &what.links, ..*input };
        let grid = Grid::new(&with, grid.context);
        let streamed = || best.streams().then(|| streamed::search(&grid)).flatten().map(|found| found.best);
        let hybrid = best.prefill.as_ref().and_then(|_| hybrid::search(&grid));
        let found = grid.solve(best.point).best().or_else(streamed).into_iter().chain(hybrid);
        let found = found.min_by(|a, b| a.score_us().total_cmp(&b.score_us()))?;
        let gain = best.score_us() / found.score_us() - 1.0;
        // The preference for fewer devices may have cost up to [`FEWER_DEVICES`].
        (gain > FEWER_DEVICES + GAIN).then_some(BindingLimit {
            of: what.of,
            more: what.more,
            gain: share(gain),
        })
    };
    let mut bindings: Vec<BindingLimit> = asked.into_par_iter().filter_map(gain).collect();
    bindings.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    bindings
}

/// Returns a hypothetical memory increase and its description. The increase is half of `memory_bytes`,
/// rounded down to whole GiB if it is at least 1 GiB.
fn increment(memory_bytes: u64) -> (u64, String) {
    const GIB: u64 = 1 << 30;
    match memory_bytes / 2 / GIB {
        0 => (memory_bytes / 2, format!("{} MiB more memory", (memory_bytes / 2) >> 20)),
        gib => (gib * GIB, format!("{gib} GiB more memory")),
    }
}

/// Returns a hypothetical memory increase for each device that cannot hold another segment.
fn more_memory(grid: &Grid<'_>, best: &Choice) -> Vec<WhatIf> {
    let (input, problem) = (grid.input, grid.problem(best.point));
    let segments = input.segments.len();
    let is_full = |device: usize| match best.runs.iter().position(|run| run.device == device) {
        None => {
            problem.memory(&Run::new(device, 0..segments), None).total > input.devices[device].memory_bytes
        }
        Some(at) if !best.runs[at].streamed.is_empty() => true,
        Some(at) => {
            let run = &best.runs[at].segments;
            let before = at.checked_sub(1).map(|before| best.runs[before].device);
            let wider = [run.start.saturating_sub(1)..run.end, run.start..(run.end + 1).min(segments)];
            wider.into_iter().filter(|wider| wider != run).any(|segments| {
                let memory = problem.memory(&Run::new(device, segments), before);
                memory.total > memory.available
            })
        }
    };
    let what_if = |device: usize| {
        let mut devices = input.devices.to_vec();
        let (bytes, more) = increment(devices[device].memory_bytes);
        devices[device].memory_bytes = devices[device].memory_bytes.saturating_add(bytes);
        WhatIf { of: devices[device].label.clone(), more, devices, links: input.links.clone() }
    };
    (0..input.devices.len()).filter(|&device| is_full(device)).map(what_if).collect()
}

/// Returns the hypothetical improvement that doubles the speed of the slowest transfer in both directions.
fn faster_transfer(grid: &Grid<'_>, best: &Choice) -> Option<WhatIf> {
    let (input, problem) = (grid.input, grid.problem(best.point));
    let transfers = best.evaluation.transfers.iter().enumerate();
    let busy = |at: &usize| best.workload_times.busy_us(&best.evaluation.transfers[*at]);
    let at = transfers.map(|(at, _)| at).max_by(|a, b| busy(a).total_cmp(&busy(b)))?;
    let (from, to) = (best.runs[at].device, best.runs[at + 1].device);
    let label = |device: usize| input.devices[device].label.clone();
    let faster = |from: usize, to: usize| {
        let link = problem.link(from, to).clone();
        let rate = link.bandwidth_bytes_per_s;
        let latency = link.latency_us;
        let facts = LinkFacts {
            bandwidth_bytes_per_s: Figure { value: rate.value * 2.0, ..rate },
            latency_us: Figure { value: latency.value / 2.0, ..latency },
            ..link
        };
        (label(from), label(to), facts)
    };
    let mut links = input.links.clone();
    links.known.splice(0..0, [faster(from, to), faster(to, from)]);
    Some(WhatIf {
        of: format!("{} -> {}", label(from), label(to)),
        more: "twice the rate and half the latency".into(),
        devices: input.devices.to_vec(),
        links,
    })
}

/// Returns the hypothetical improvement that doubles the rate of a shared link, if this link is the
/// bottleneck.
fn faster_shared_link(grid: &Grid<'_>, best: &Choice) -> Option<WhatIf> {
    let Bottleneck { place: Place::SharedLink, index, .. } = bottleneck(best) else { return None };
    let mut links = grid.input.links.clone();
    let shared = &mut links.shared[index];
    shared.bandwidth_bytes_per_s.value *= 2.0;
    let of = shared.name.clone();
    Some(WhatIf { of, more: "twice the rate".into(), devices: grid.input.devices.to_vec(), links })
}

/// Counts the plan's input values by source.
fn figures(grid: &Grid<'_>, best: &Choice) -> Vec<FigureCount> {
    let input = grid.input;
    let of_device = |run: &Run| {
        let d = &input.devices[run.device];
        let memory = Figure { value: d.memory_bytes as f64, source: d.memory_source };
        let rates = [d.bandwidth_bytes_per_s, d.exact_flops_per_s, d.fast_flops_per_s, d.launch_us];
        let host = [d.stage_us, d.host_latency_us, d.host_bandwidth_bytes_per_s];
        rates.into_iter().chain(host).chain([memory])
    };
    let of_link = |pair: &[Run]| {
        let link = grid.problem(best.point).link(pair[0].device, pair[1].device);
        [link.latency_us, link.bandwidth_bytes_per_s]
    };
    let figures: Vec<Figure> =
        best.runs.iter().flat_map(of_device).chain(best.runs.windows(2).flat_map(of_link)).collect();
    let sources = [
        FigureSource::Measured,
        FigureSource::Fitted,
        FigureSource::Reported,
        FigureSource::Datasheet,
        FigureSource::User,
        FigureSource::Assumed,
    ];
    let count = |source| FigureCount {
        source,
        figures: figures.iter().filter(|figure| figure.source == source).count(),
    };
    sources.map(count).into_iter().filter(|count| count.figures > 0).collect()
}
