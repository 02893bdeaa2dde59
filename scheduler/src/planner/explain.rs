//! The planner's words: why this plan, what was left out, what is missing.
//!
//! This module must not decide anything: it tells what the search and the evaluation found.

use super::evaluate::{Costs, Pace};
use super::search::{MARGIN, Run, Search};
use super::{Choice, DoesNotFit, Objective, PlannerInput, Shortage};
use crate::cost::{DeviceFacts, FigureSource};
use ragtag_kernels::KvType;

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

/// Slower by how much, for "… is predicted 12.0 % slower".
fn slower(than: f64, us: f64) -> String {
    match (us / than - 1.0) * 100.0 {
        percent if percent < 0.05 => "no faster".into(),
        percent => format!("{percent:.1} % slower"),
    }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn placement(search: &Search<'_>, runs: &[Run]) -> String {
    let part = |run: &Run| format!("{}={}", run.span(), search.input.devices[run.device].label);
    runs.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Why this plan.
pub(super) fn reasons(search: &Search<'_>, chosen: &Choice) -> Vec<String> {
    let mut reasons = vec![objective(search.input, &chosen.pace), context(search)];
    reasons.push(bottleneck(search, chosen));
    reasons.push(speed(chosen));
    if chosen.runs.len() > 1 {
        reasons.push(idle(chosen));
    }
    match search.input.split {
        Some(_) => reasons.push(against_own(search, chosen)),
        None => reasons.extend(left_out(search, chosen)),
    }
    reasons.push(sources(search, chosen));
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
        Objective::Throughput => {
            let sequences = count(pace.sequences as usize, "sequence");
            format!("objective: throughput of {sequences}, for {request}")
        }
    }
}

fn context(search: &Search<'_>) -> String {
    let (context, own) = (search.shape.context, search.input.model.context);
    match search.input.limits.context {
        Some(_) if context > own => {
            format!("context {context}: as asked, beyond the {own} that the model was trained for")
        }
        Some(_) => format!("context {context}: as asked"),
        None if context == own => format!("context {context}: the model's own, it fits"),
        None => format!("context {context}: the longest that fits; the model's own is {own}"),
    }
}

fn bottleneck(search: &Search<'_>, chosen: &Choice) -> String {
    let evaluation = &chosen.evaluation;
    let total: f64 = evaluation.stages.iter().chain(&evaluation.crossings).map(|c| c.request_us).sum();
    let largest = |costs: &[Costs]| {
        costs
            .iter()
            .enumerate()
            .fold((0, 0.0), |best, (at, c)| if c.request_us > best.1 { (at, c.request_us) } else { best })
    };
    let (stage, stage_us) = largest(&evaluation.stages);
    let (crossing, crossing_us) = largest(&evaluation.crossings);
    let label = |at: usize| &search.input.devices[chosen.runs[at].device].label;
    if crossing_us > stage_us {
        let (from, to) = (label(crossing), label(crossing + 1));
        return format!(
            "bottleneck: the crossing from {from} to {to}, {} a request, {} of all work",
            time(crossing_us),
            percent(crossing_us / total)
        );
    }
    format!(
        "bottleneck: {} with segments {}, {} a request, {} of all work",
        label(stage),
        chosen.runs[stage].span(),
        time(stage_us),
        percent(stage_us / total)
    )
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

fn idle(chosen: &Choice) -> String {
    let stages = chosen.runs.len();
    format!(
        "bubbles: filling and draining {stages} stages idles each for {} of a prefill burst; in decode the slowest is \
         idle for {}, with {} of sequences going round",
        percent(chosen.pace.bubble(stages)),
        percent(chosen.evaluation.decode_idle),
        count(chosen.pace.decode_batches as usize, "group"),
    )
}

/// Each device that the plan leaves out, and why.
fn left_out(search: &Search<'_>, chosen: &Choice) -> Vec<String> {
    let used = |device: usize| chosen.runs.iter().any(|run| run.device == device);
    let devices = search.input.devices.iter().enumerate().filter(|(device, _)| !used(*device));
    let why = |(device, facts): (usize, &DeviceFacts)| match search.choose(Some(device)) {
        Some(with) => format!(
            "{} is left out: the best plan with it, {}, is predicted {}",
            facts.label,
            placement(search, &with.runs),
            slower(chosen.evaluation.score_us, with.evaluation.score_us)
        ),
        None => format!(
            "{} is left out: no plan with it fits (it has {})",
            facts.label,
            bytes(facts.memory_bytes)
        ),
    };
    devices.map(why).collect()
}

/// The user's split against the planner's own.
fn against_own(search: &Search<'_>, chosen: &Choice) -> String {
    match search.choose(None) {
        Some(own) if own.evaluation.score_us < chosen.evaluation.score_us * (1.0 - MARGIN) => format!(
            "the planner's own split, {}, is predicted faster; this one is {}",
            placement(search, &own.runs),
            slower(own.evaluation.score_us, chosen.evaluation.score_us)
        ),
        _ => "the planner knows no faster split".into(),
    }
}

fn sources(search: &Search<'_>, chosen: &Choice) -> String {
    let devices = chosen.runs.iter().map(|run| &search.input.devices[run.device]);
    let rates = devices
        .clone()
        .flat_map(|d| [d.bandwidth_bytes_per_s, d.exact_flops_per_s, d.fast_flops_per_s, d.launch_us]);
    let assumed = rates.clone().filter(|figure| figure.source == FigureSource::Assumed).count();
    let memory: Vec<_> =
        devices.map(|d| format!("{} {} ({})", d.label, bytes(d.memory_bytes), d.memory_source)).collect();
    format!("figures: {assumed} of {} device rates are assumed; memory {}", rates.count(), memory.join(", "))
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
