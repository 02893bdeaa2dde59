//! The planner's words: why this plan, what was left out, what is missing.
//!
//! This module must not decide anything: it tells what the search and the explanation found.

use super::grid::{Choice, Grid};
use super::pace::{Pace, Point};
use super::trial::Trial;
use super::{Baseline, DoesNotFit, PlannerInput, Shortage};
use crate::objective::Objective;
use crate::plan::{Alternative, Bottleneck, Explanation, LeftOut, Place};
use ragtag_graph::Boundary;
use ragtag_kernels::KvType;

/// Differences below this are not told.
const SAME_PERCENT: f64 = 0.05;

/// Bytes as people read them, with the exact figure where they are few.
fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] =
        [("GiB", (1u64 << 30) as f64), ("MiB", (1u64 << 20) as f64), ("KiB", 1024.0)];
    match UNITS.iter().find(|(_, size)| bytes as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size),
        None => format!("{bytes} bytes"),
    }
}

fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Slower or faster by how much, for "… is predicted 12.0 % slower".
fn compared(with: f64, us: f64) -> String {
    match (us / with - 1.0) * 100.0 {
        percent if percent >= SAME_PERCENT => format!("{percent:.1} % slower"),
        percent if percent <= -SAME_PERCENT => format!("{:.1} % faster", -percent),
        _ => "as fast".into(),
    }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Why this plan.
pub(super) fn reasons(grid: &Grid<'_>, chosen: &Choice, explanation: &Explanation) -> Vec<String> {
    let mut reasons = vec![objective(grid.input, &chosen.pace), context(grid)];
    reasons.push(bottleneck(grid, chosen, &explanation.bottleneck));
    reasons.push(speed(chosen));
    if chosen.runs.len() > 1 {
        reasons.push(idle(chosen, explanation));
        reasons.extend(boundary(grid, chosen));
    }
    match grid.input.split {
        Some(_) => reasons.push(against_own(explanation)),
        None => {
            reasons.extend(bound(explanation));
            let left_out = &explanation.left_out;
            let tried = left_out.iter().filter(|device| device.tried);
            reasons.extend(tried.map(|device| left_out_because(grid, explanation, device)));
            reasons.extend(left_out_untried(left_out));
            reasons.extend(against_rules(explanation));
        }
    }
    let binding =
        |b: &crate::plan::Binding| format!("{} on {} would give {} more", b.more, b.of, percent(b.gain));
    reasons.extend(explanation.bindings.iter().map(binding));
    reasons.push(sources(grid, chosen, explanation));
    reasons
}

fn objective(input: &PlannerInput<'_>, pace: &Pace) -> String {
    let request = format!(
        "requests of {} prompt and {} generated tokens",
        input.workload.prompt_tokens, input.workload.generated_tokens
    );
    if input.split.is_some() {
        return format!("placement: the user's; predicted for {request}");
    }
    match input.objective {
        Objective::Latency => format!("objective: latency of one sequence, for {request}"),
        Objective::FirstToken => format!("objective: time to the first token of one sequence, for {request}"),
        Objective::Throughput => {
            let sequences = count(pace.sequences as usize, "sequence");
            format!("objective: throughput of {sequences}, for {request}")
        }
        Objective::Mix(mix) => format!(
            "objective: {} × latency + {} × time per request of a full pipeline + {} × time to the first token, for {request}",
            mix.latency, mix.throughput, mix.first_token
        ),
    }
}

fn context(grid: &Grid<'_>) -> String {
    let (context, own) = (grid.context, grid.input.model.context);
    match grid.input.limits.context {
        Some(_) if context > own => {
            format!("context {context}: as asked, beyond the {own} that the model was trained for")
        }
        Some(_) => format!("context {context}: as asked"),
        None if context == own => format!("context {context}: the model's own, it fits"),
        None => {
            let chunk = grid.input.limits.chunk;
            format!(
                "context {context}: the longest that fits with chunks of {chunk}; the model's own is {own}"
            )
        }
    }
}

fn bottleneck(grid: &Grid<'_>, chosen: &Choice, bottleneck: &Bottleneck) -> String {
    let label = |at: usize| &grid.input.devices[chosen.runs[at].device].label;
    let what = match bottleneck.place {
        Place::Edge => {
            format!("the crossing from {} to {}", label(bottleneck.index), label(bottleneck.index + 1))
        }
        Place::SharedLink => format!("{}, which links share", grid.input.links.shared[bottleneck.index].name),
        Place::Stage | Place::TokenReturn => {
            let at = bottleneck.index;
            format!("{} with segments {}", label(at), chosen.runs[at].span())
        }
    };
    let (busy, share) = (time(bottleneck.busy_us), percent(bottleneck.share));
    format!("bottleneck: {what}, {busy} a request, {share} of all work")
}

fn speed(chosen: &Choice) -> String {
    let (evaluation, pace) = (&chosen.evaluation, &chosen.pace);
    format!(
        "predicted: decode {:.1} tokens/s with {} in micro-batches of {}, prefill {:.1} tokens/s",
        evaluation.decode_tokens_per_s,
        count(pace.sequences as usize, "sequence"),
        pace.decode_rows,
        evaluation.prefill_tokens_per_s
    )
}

fn idle(chosen: &Choice, explanation: &Explanation) -> String {
    let stages = chosen.runs.len();
    format!(
        "bubbles: filling and draining {stages} stages idles each for {} of a prefill burst; in decode the slowest is \
         idle for {}, with {} of sequences going round",
        percent(explanation.prefill_bubble),
        percent(explanation.decode_idle),
        count(chosen.pace.decode_groups as usize, "group"),
    )
}

/// In which form activations cross, where that is a choice, and what comes of it.
fn boundary(grid: &Grid<'_>, chosen: &Choice) -> Option<String> {
    let form = chosen.point.boundary;
    if grid.input.limits.boundary.is_some() {
        return Some(format!("boundaries: activations cross as {form}, as asked"));
    }
    let other = grid.boundaries().iter().find(|other| **other != form)?;
    let Some(with) = grid.priced(Point { boundary: *other, ..chosen.point }, chosen.runs.clone()) else {
        return Some(format!("boundaries: activations cross as {form}; as {other} the plan would not fit"));
    };
    let gain = with.score_us() / chosen.score_us() - 1.0;
    if form == Boundary::F32 {
        let told = compared(chosen.score_us(), with.score_us());
        return Some(format!("boundaries: activations cross as f32; as f16 the plan is predicted {told}"));
    }
    let crossings = chosen.evaluation.crossings.iter().zip(&with.evaluation.crossings).enumerate();
    let busy_us = |times| chosen.pace.busy_us(times);
    let (at, (short, long)) =
        crossings.max_by(|(_, (_, a)), (_, (_, b))| busy_us(a).total_cmp(&busy_us(b)))?;
    let label = |at: usize| &grid.input.devices[chosen.runs[at].device].label;
    Some(format!(
        "boundaries: activations cross as f16, which makes the plan {:.1} % faster than f32; the crossing from {} to {} takes {} \
         a request instead of {}",
        gain * 100.0,
        label(at),
        label(at + 1),
        time(busy_us(short)),
        time(busy_us(long)),
    ))
}

/// What came of trying placements.
pub(super) fn trial(trial: Trial) -> String {
    format!(
        "tried: {} in simulation, the best of them serves {:.3} requests/s",
        count(trial.placements, "placement"),
        trial.requests_per_s
    )
}

/// How far from the best possible the plan is, where that is not nothing.
fn bound(explanation: &Explanation) -> Option<String> {
    let gap = explanation.score_us / explanation.bound_us - 1.0;
    let is_told = gap.is_finite() && gap > 5e-4;
    is_told.then(|| format!("bound: by the cost model no plan can be more than {:.1} % faster", gap * 100.0))
}

fn left_out_because(grid: &Grid<'_>, explanation: &Explanation, left_out: &LeftOut) -> String {
    let LeftOut { device, best_with, .. } = left_out;
    match best_with {
        Some(with) => {
            let compared = compared(explanation.score_us, with.score_us);
            let but = match with.score_us < explanation.score_us {
                true if grid.input.is_tried() => {
                    "; in simulation this one is the best of those that were tried"
                }
                true => "; of plans within 1 % the one with the fewest devices is taken",
                false => "",
            };
            format!(
                "{device} is left out: the best plan with it, {}, is predicted {compared}{but}",
                with.split
            )
        }
        None => {
            let facts = grid.input.devices.iter().find(|facts| facts.label == *device);
            let has = bytes(facts.map_or(0, |facts| facts.memory_bytes));
            format!("{device} is left out: no plan with it fits (it has {has})")
        }
    }
}

/// Devices that are left out and were not looked at further.
fn left_out_untried(left_out: &[LeftOut]) -> Option<String> {
    let untried: Vec<_> = left_out.iter().filter(|out| !out.tried).map(|out| out.device.as_str()).collect();
    let verb = if untried.len() == 1 { "is" } else { "are" };
    (!untried.is_empty()).then(|| {
        format!("{} {verb} left out as well; no plan with them was searched for", untried.join(", "))
    })
}

/// What placing layers by a rule would have cost.
fn against_rules(explanation: &Explanation) -> Option<String> {
    let is_rule = |why: &str| Baseline::ALL.iter().any(|rule| rule.to_string() == why);
    let rules = explanation.alternatives.iter().filter(|other| is_rule(&other.why));
    let told: Vec<_> =
        rules.map(|rule| format!("{} {}", rule.why, compared(explanation.score_us, rule.score_us))).collect();
    (!told.is_empty()).then(|| format!("by rule instead: {}", told.join(", ")))
}

/// The user's split against the planner's own.
fn against_own(explanation: &Explanation) -> String {
    let own = explanation.alternatives.iter().find(|other| other.why == Alternative::PLANNERS_OWN);
    let gain = |own: f64| (explanation.score_us / own - 1.0) * 100.0;
    match own {
        Some(own) if gain(own.score_us) >= SAME_PERCENT => format!(
            "the planner's own split, {}, is predicted faster; this one is {}",
            own.split,
            compared(own.score_us, explanation.score_us)
        ),
        _ => "the planner knows no faster split".into(),
    }
}

fn sources(grid: &Grid<'_>, chosen: &Choice, explanation: &Explanation) -> String {
    let devices = chosen.runs.iter().map(|run| &grid.input.devices[run.device]);
    let figures: Vec<_> =
        explanation.figures.iter().map(|count| format!("{} {}", count.figures, count.source)).collect();
    let memory: Vec<_> =
        devices.map(|d| format!("{} {} ({})", d.label, bytes(d.memory_bytes), d.memory_source)).collect();
    format!("figures: {}; memory {}", figures.join(", "), memory.join(", "))
}

/// What is missing, where.
pub(super) fn does_not_fit(error: &DoesNotFit) -> String {
    const TOLD: usize = 3;
    let mut stages: Vec<_> = error.shortages.iter().take(TOLD).map(shortage).collect();
    if let Some(rest) = error.shortages.get(TOLD..).filter(|rest| !rest.is_empty()) {
        let missing = rest.iter().map(Shortage::missing_bytes).fold(0, u64::saturating_add);
        stages.push(format!("{} more lack {missing} bytes together", count(rest.len(), "device")));
    }
    format!("the model does not fit at a context of {}: {}. {}", error.context, stages.join("; "), error.hint)
}

fn shortage(shortage: &Shortage) -> String {
    let memory = &shortage.memory;
    let parts = [
        ("weights", memory.weights),
        ("keys and values", memory.kv),
        ("scratch", memory.scratch),
        ("slots", memory.slots),
        ("staging", memory.staging),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(_, size)| *size > 0)
        .map(|(name, size)| format!("{name} {}", bytes(*size)))
        .collect();
    format!(
        "{} lacks {} bytes for segments {} (it has {} bytes of the {} needed: {})",
        shortage.device,
        shortage.missing_bytes(),
        shortage.segments,
        memory.available,
        memory.total,
        parts.join(", ")
    )
}

/// What might help; `shorter` is a context that is known to fit.
pub(super) fn hint(input: &PlannerInput<'_>, shorter: Option<u32>) -> String {
    let mut hints = Vec::new();
    if let Some(context) = shorter {
        hints.push(format!("--ctx {context} fits"));
    }
    if input.limits.kv == KvType::F32 {
        hints.push("--kv f16 halves keys and values".into());
    }
    if input.limits.sequences > 1 {
        hints.push("fewer sequences at once need less".into());
    }
    hints.push(match input.split {
        Some(_) => "another split may fit".into(),
        None => "another device adds memory".into(),
    });
    format!("What may help: {}", hints.join("; "))
}
