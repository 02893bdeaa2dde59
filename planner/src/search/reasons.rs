//! Formats the planner's messages: reasons for a plan, unused devices and shortages. Uses the results of the
//! search and of the explanation, and decides nothing itself.

use super::grid::{Choice, Grid, Prefill};
use super::problem::Run;
use super::trial::Trials;
use super::workload_times::{Point, Times, WorkloadTimes};
use super::{Baseline, DoesNotFit, PlannerInput, Remedy, Shortage, families, pool};
use crate::cost::{DeviceFacts, Figure, RunSizes};
use crate::objective::Objective;
use crate::plan::{
    Alternative, Bottleneck, Explanation, Family, HostMemory, LeftOut, OtherHost, Place, Plan,
};
use crate::wording::{self, count};
use ragtag_graph::execution::Reserve;
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::params::BLOCK_TOKENS;

/// Width of multi-line messages, in columns.
const COLUMNS: usize = 80;

/// Suffix of a reason if the cost model prefers another plan to the one that was chosen by simulation.
const IN_SIMULATION: &str = "; this plan is the best in simulation";

/// Formats a number of bytes with one decimal and a unit. Below 1 KiB, it prints the exact number.
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

/// Describes the time `us` relative to the time `with`, for example `12.0 % slower`.
fn compared(with: f64, us: f64) -> String {
    wording::speed(us / with)
}

/// Returns the reasons for a plan, as lines of text.
pub(super) fn reasons(
    grid: &Grid<'_>,
    chosen: &Choice,
    plan: &Plan,
    explanation: &Explanation,
    tried: Option<Trials>,
) -> Vec<String> {
    let mut reasons = vec![objective(grid, &chosen.workload_times), context(grid, chosen)];
    reasons.push(kv_cache(grid, chosen, plan));
    reasons.extend(credits(grid, chosen));
    reasons.extend(beside_decode(chosen, plan));
    reasons.push(bottleneck(grid, chosen, &explanation.bottleneck));
    reasons.push(speed(chosen));
    reasons.extend(trials(grid, chosen, tried));
    reasons.extend(streamed(grid, chosen));
    reasons.extend(prefill_stage(grid, chosen));
    reasons.extend(family(grid, chosen));
    if chosen.runs.len() > 1 {
        reasons.push(idle(chosen, explanation));
        reasons.extend(edges(grid, chosen));
        reasons.extend(wire_type(grid, chosen));
    }
    match grid.input.split {
        Some(_) => reasons.push(against_own(explanation)),
        None => {
            reasons.extend(bound(explanation));
            let left_out = explanation.left_out_alike();
            let tried = left_out.iter().filter(|alike| alike[0].tried);
            reasons.extend(tried.map(|alike| left_out_because(grid, explanation, alike)));
            reasons.extend(left_out_untried(&explanation.left_out));
            reasons.extend(against_rules(grid.input, explanation));
        }
    }
    let binding = |b: &crate::plan::BindingLimit| {
        format!("{} on {} would make it {}", b.more, b.of, wording::speed(1.0 / (1.0 + b.gain)))
    };
    reasons.extend(explanation.bindings.iter().map(binding));
    reasons.push(sources(grid, chosen, explanation));
    reasons
}

fn objective(grid: &Grid<'_>, workload_times: &WorkloadTimes) -> String {
    let input = grid.input;
    let request = format!("requests of {}", wording::request(input.workload, grid.context));
    if input.split.is_some() {
        return format!("placement: the user's; predicted for {request}");
    }
    match input.objective {
        Objective::Latency => format!("objective: latency of one sequence, for {request}"),
        Objective::FirstToken => format!("objective: time to the first token of one sequence, for {request}"),
        Objective::Throughput => {
            let sequences = count(workload_times.sequences as usize, "sequence");
            format!("objective: throughput of {sequences}, for {request}")
        }
        Objective::Mix(mix) => format!(
            "objective: {} × latency + {} × time per request of a full pipeline + {} × time to the first token, for {request}",
            mix.latency, mix.throughput, mix.first_token
        ),
    }
}

fn context(grid: &Grid<'_>, chosen: &Choice) -> String {
    let (context, own) = (grid.context, grid.input.model.context);
    match grid.input.limits.context {
        Some(_) if context > own => {
            format!("context {context}: as requested, longer than the {own} that the model was trained for")
        }
        Some(_) => format!("context {context}: as requested"),
        None if chosen.stages_stream() && context < own => {
            format!("context {context}: the default with streamed weights; the model has {own}")
        }
        None if context == own => format!("context {context}: the full context of the model"),
        None => {
            let chunk = grid.input.limits.chunk;
            format!(
                "context {context}: the longest that fits with prefill chunks of {chunk}; the model has {own}"
            )
        }
    }
}

/// Describes the size of the KV cache, what limits it, and its use.
fn kv_cache(grid: &Grid<'_>, chosen: &Choice, plan: &Plan) -> String {
    let (blocks, full) = (plan.kv_blocks, plan.full_blocks());
    let positions = u64::from(blocks) * BLOCK_TOKENS as u64;
    let sequences = count(plan.sequences as usize, "sequence");
    let limit = match blocks {
        _ if pool::is_given(grid.input) => ", as requested".into(),
        blocks if blocks >= full => ", the full context of each".into(),
        _ => format!(", limited by {}", tightest(grid, chosen, plan)),
    };
    let growth = match plan.kv_use.reserve {
        Reserve::Grow => "take blocks as they grow",
        Reserve::Full => "take all their blocks before they start",
    };
    let kept = plan.kv_use.prefixes.map_or(String::new(), |eviction| {
        format!("; blocks of earlier prompts are kept ({})", eviction.name())
    });
    let blocks = count(blocks as usize, "block");
    format!("KV cache: {blocks} = {positions} positions for {sequences}{limit}; sequences {growth}{kept}")
}

/// Returns the device that has no memory for one more block, or host memory.
fn tightest<'a>(grid: &'a Grid<'_>, chosen: &Choice, plan: &Plan) -> &'a str {
    let problem = grid.problem(Point { chunk: plan.chunk, ..chosen.point });
    let more = problem.with_kv_blocks(plan.kv_blocks.saturating_add(1));
    let short = more.prove_with(&chosen.runs, chosen.prefill_run()).err();
    let label = short.and_then(|short| Some(short.first()?.device.clone()));
    let device = grid.input.devices.iter().find(|device| Some(&device.label) == label.as_ref());
    device.map_or("host memory", |device| &device.label)
}

/// Says why a plan has more credits than the user requested.
fn credits(grid: &Grid<'_>, chosen: &Choice) -> Option<String> {
    let asked = grid.input.limits.credits.filter(|asked| *asked < chosen.credits)?;
    let groups = count(chosen.point.groups as usize, "decode group");
    Some(format!("credits: {} instead of {asked}, because prompts need one beside {groups}", chosen.credits))
}

/// Describes the prompt rows that enter beside decode rows, if they are fewer than those of a chunk.
fn beside_decode(chosen: &Choice, plan: &Plan) -> Option<String> {
    let rows = plan.chunks.as_ref()?.beside_decode;
    let is_short = plan.sequences > 1 && rows < chosen.point.chunk;
    is_short.then(|| {
        format!(
            "prompts: at most {} beside {}, so that generating sequences wait little",
            count(rows as usize, "row"),
            count(chosen.workload_times.decode_rows as usize, "decode row"),
        )
    })
}

fn bottleneck(grid: &Grid<'_>, chosen: &Choice, bottleneck: &Bottleneck) -> String {
    let device = |at: usize| chosen.all_runs().nth(at).expect("the bottleneck is in the plan").device;
    let label = |at: usize| &grid.input.devices[device(at)].label;
    let what = match bottleneck.place {
        Place::Edge => {
            format!("the transfer from {} to {}", label(bottleneck.index), label(bottleneck.index + 1))
        }
        Place::SharedLink => format!("shared link {}", grid.input.links.shared[bottleneck.index].name),
        Place::Stage | Place::TokenReturn => {
            let device = device(bottleneck.index);
            let runs = chosen.runs.iter().filter(|run| run.device == device);
            let spans: Vec<_> = runs.map(|run| run.span().to_string()).collect();
            let prefills = chosen.prefill_run().is_some_and(|run| run.device == device);
            let prefill = if prefills { " and the prefill stage" } else { "" };
            format!("{} with segments {}{prefill}", label(bottleneck.index), spans.join(" and "))
        }
    };
    let (busy, share) = (time(bottleneck.busy_us), percent(bottleneck.share));
    format!("bottleneck: {what}, {busy} per request, {share} of all work")
}

fn speed(chosen: &Choice) -> String {
    let (evaluation, workload_times) = (&chosen.evaluation, &chosen.workload_times);
    format!(
        "predicted: decode {:.1} tokens/s with {} in micro-batches of {}, prefill {:.1} tokens/s",
        evaluation.decode_tokens_per_s,
        count(workload_times.sequences as usize, "sequence"),
        workload_times.decode_rows,
        evaluation.prefill_tokens_per_s
    )
}

/// Describes the streamed segments of each stage that has any.
fn streamed(grid: &Grid<'_>, chosen: &Choice) -> Vec<String> {
    let problem = grid.problem(chosen.point);
    let stages = chosen.runs.iter().zip(&chosen.evaluation.stages);
    let sentence = |(run, times): (&Run, &Times)| {
        let device = &grid.input.devices[run.device];
        let rate = device.host_bandwidth_bytes_per_s;
        let resident = problem.times(&Run::new(run.device, run.segments.clone()));
        format!(
            "streamed on {}: {} of {} ({}) through {}, {} per step at {:.1} GB/s ({}){}; compared with \
             resident weights, decode steps are predicted {}, prefill chunks {}",
            device.label,
            run.streamed.len(),
            count(run.segments.len(), "segment"),
            wording::ranges(&run.streamed),
            count(run.arenas().count(), "arena"),
            bytes(problem.lowered.sizes.streamed_bytes(run.copied())),
            rate.value / 1e9,
            rate.source,
            from_file(run, &problem.lowered.sizes, device),
            compared(resident.decode_us, times.decode_us),
            compared(resident.full_chunk_us, times.full_chunk_us),
        )
    };
    stages.filter(|(run, _)| !run.streamed.is_empty()).map(sentence).collect()
}

/// Describes the streamed segments of a stage that are read from the model's file, if there are any.
fn from_file(run: &Run, sizes: &RunSizes, device: &DeviceFacts) -> String {
    if run.from_file.is_empty() {
        return String::new();
    }
    let read = run.copied().iter().copied().filter(|segment| run.from_file.contains(segment));
    let read: Vec<usize> = read.collect();
    format!(
        ", {} ({}) from the model's file, {} per step at {:.1} GB/s ({})",
        count(run.from_file.len(), "segment"),
        wording::ranges(&run.from_file),
        bytes(sizes.streamed_bytes(&read)),
        device.file_bytes_per_s.value / 1e9,
        device.file_bytes_per_s.source,
    )
}

/// Describes the prefill stage, if there is one.
fn prefill_stage(grid: &Grid<'_>, chosen: &Choice) -> Option<String> {
    let Prefill { run, from_tokens } = chosen.prefill.as_ref()?;
    let (problem, device) = (grid.problem(chosen.point), &grid.input.devices[run.device]);
    let rate = device.host_bandwidth_bytes_per_s;
    Some(format!(
        "prompts from {} run on {} with streamed weights of segments {} through {}: {} per chunk at {:.1} \
         GB/s ({}); predicted {:.1} tokens/s instead of {:.1}",
        count(*from_tokens as usize, "token"),
        device.label,
        wording::ranges(&run.streamed),
        count(run.arenas().count(), "arena"),
        bytes(problem.lowered.sizes.streamed_bytes(run.copied())),
        rate.value / 1e9,
        rate.source,
        chosen.evaluation.prefill_tokens_per_s,
        problem.evaluate(&chosen.runs).prefill_tokens_per_s,
    ))
}

fn idle(chosen: &Choice, explanation: &Explanation) -> String {
    format!(
        "pipeline bubble: {} in prefill, {} in decode ({} in flight)",
        percent(explanation.prefill_bubble),
        percent(explanation.decode_idle),
        count(chosen.workload_times.decode_groups as usize, "group"),
    )
}

/// Describes the routes of each edge, whether they are verified, and their latency. Edges between the same
/// devices have one line.
fn edges(grid: &Grid<'_>, chosen: &Choice) -> Vec<String> {
    let mut lines = Vec::new();
    for pair in chosen.runs.windows(2) {
        let link = grid.problem(chosen.point).link(pair[0].device, pair[1].device);
        let [from, to] = [0, 1].map(|at| &grid.input.devices[pair[at].device].label);
        let routes: Vec<_> = link.routes.iter().map(|route| route.name()).collect();
        let Figure { value, source } = link.latency_us;
        let line = format!(
            "edge {from} -> {to}: route {} ({}), latency {value:.1} µs ({source})",
            routes.join(", else "),
            if link.verified { "verified" } else { "not probed" },
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Describes the wire type and its effect on the prediction. Returns `None` if only one type is possible.
fn wire_type(grid: &Grid<'_>, chosen: &Choice) -> Option<String> {
    let form = chosen.point.wire_type;
    if grid.input.limits.wire_type.is_some() {
        return Some(format!("wire type: {form}, as requested"));
    }
    let other = grid.boundaries().iter().find(|other| **other != form)?;
    let Some(with) = grid.priced(Point { wire_type: *other, ..chosen.point }, chosen.runs.clone()) else {
        return Some(format!("wire type: {form}; the plan does not fit with {other}"));
    };
    let effect = compared(chosen.score_us(), with.score_us());
    let reason = format!("wire type: {form}; with {other} the plan is predicted {effect}");
    if form == WireType::F32 {
        return Some(reason);
    }
    let transfers = chosen.evaluation.transfers.iter().zip(&with.evaluation.transfers).enumerate();
    let busy_us = |times| chosen.workload_times.busy_us(times);
    let (at, (short, long)) =
        transfers.max_by(|(_, (_, a)), (_, (_, b))| busy_us(a).total_cmp(&busy_us(b)))?;
    let label = |at: usize| &grid.input.devices[chosen.runs[at].device].label;
    Some(format!(
        "{reason}; the transfer from {} to {} takes {} per request instead of {}",
        label(at),
        label(at + 1),
        time(busy_us(short)),
        time(busy_us(long)),
    ))
}

/// Describes the result of the trials, or says why there were none although the planner simulates plans.
fn trials(grid: &Grid<'_>, chosen: &Choice, tried: Option<Trials>) -> Option<String> {
    match tried {
        Some(Trials { placements, requests_per_s }) => Some(format!(
            "trials: {} simulated, the best serves {requests_per_s:.3} requests/s",
            count(placements, "placement"),
        )),
        None if grid.input.is_tried() && chosen.stages_stream() => {
            Some("trials: none, because they would not choose the streamed segments again".into())
        }
        None => None,
    }
}

/// Describes the family of a placement in which devices have several stages.
fn family(grid: &Grid<'_>, chosen: &Choice) -> Option<String> {
    let what = match families::family(&chosen.runs, Granularity::of(grid.input.segments)) {
        Family::OneStage => return None,
        Family::Interleaved => "interleaved: the devices take turns",
        Family::FeedForwardApart => "attention and feed-forward halves are on different devices",
        Family::SeveralStages => "some device has several stages",
    };
    let copying = chosen.prefill_run().map_or(String::new(), |run| {
        let label = &grid.input.devices[run.device].label;
        format!(", so that weights are copied while {label} computes its own segments of a prompt")
    });
    Some(format!("family: {what}{copying}; no bound covers it"))
}

/// Describes the gap between the score and its lower bound, if there is a gap worth reporting.
fn bound(explanation: &Explanation) -> Option<String> {
    let gap = explanation.score_us / explanation.bound_us - 1.0;
    let is_worth_a_line = gap.is_finite() && gap > 5e-4;
    is_worth_a_line.then(|| {
        let faster = wording::speed(explanation.bound_us / explanation.score_us);
        format!("bound: with one stage per device, no placement can be predicted more than {faster}")
    })
}

/// Returns the reason why a group of interchangeable devices is unused.
fn left_out_because(grid: &Grid<'_>, explanation: &Explanation, alike: &[&LeftOut]) -> String {
    let labels: Vec<&str> = alike.iter().map(|left| left.device.as_str()).collect();
    let (verb, it, any, has) = match alike {
        [_] => ("is", "it", "it", "it has"),
        _ => ("are", "one of them", "any of them", "each has"),
    };
    let left_out = format!("{} {verb} left out", wording::labels(&labels));
    match &alike[0].best_with {
        Some(with) => {
            let compared = compared(explanation.score_us, with.score_us);
            let but = match with.score_us < explanation.score_us {
                true if grid.input.is_tried() => IN_SIMULATION,
                true => "; of plans within 1 %, the one with the fewest devices is chosen",
                false => "",
            };
            format!("{left_out}: the best plan with {it}, {}, is predicted {compared}{but}", with.split)
        }
        None if alike[0].constrained => format!("{left_out}: the constraints exclude {any}"),
        None => {
            let devices = grid.input.devices.iter().filter(|facts| labels.contains(&facts.label.as_str()));
            let mut memory: Vec<u64> = devices.map(|facts| facts.memory_bytes).collect();
            memory.dedup();
            let memory = match memory[..] {
                [memory] => format!(" ({has} {})", bytes(memory)),
                _ => String::new(),
            };
            format!("{left_out}: no plan with {any} fits{memory}")
        }
    }
}

/// Returns a line that names the unused devices for which the planner did not search for a plan.
fn left_out_untried(left_out: &[LeftOut]) -> Option<String> {
    let untried: Vec<_> = left_out.iter().filter(|out| !out.tried).map(|out| out.device.as_str()).collect();
    let verb = if untried.len() == 1 { "is" } else { "are" };
    (!untried.is_empty()).then(|| {
        let untried = wording::labels(&untried);
        format!("{untried} {verb} left out without a search")
    })
}

/// Returns a line that compares the plan with placements chosen by simple rules.
fn against_rules(input: &PlannerInput<'_>, explanation: &Explanation) -> Option<String> {
    let is_rule = |why: &str| Baseline::ALL.iter().any(|rule| rule.to_string() == why);
    let rules: Vec<_> = explanation.alternatives.iter().filter(|other| is_rule(&other.why)).collect();
    let times: Vec<_> = rules
        .iter()
        .map(|rule| format!("{} {}", rule.why, compared(explanation.score_us, rule.score_us)))
        .collect();
    let is_faster = rules.iter().any(|rule| rule.score_us < explanation.score_us);
    let but = if is_faster && input.is_tried() { IN_SIMULATION } else { "" };
    (!times.is_empty()).then(|| format!("placement rules: {}{but}", times.join(", ")))
}

/// Compares the user's split with the split that the planner would choose.
fn against_own(explanation: &Explanation) -> String {
    let own = explanation.alternatives.iter().find(|other| other.why == Alternative::PLANNERS_OWN);
    match own {
        Some(own) if own.score_us < explanation.score_us * (1.0 - 5e-4) => format!(
            "the planner's own split, {}, is predicted faster; this one is {}",
            own.split,
            compared(own.score_us, explanation.score_us)
        ),
        _ => "the planner found no faster split".into(),
    }
}

fn sources(grid: &Grid<'_>, chosen: &Choice, explanation: &Explanation) -> String {
    let devices = chosen.evaluation.devices.iter().map(|(device, _)| &grid.input.devices[*device]);
    let figures: Vec<_> =
        explanation.figures.iter().map(|count| format!("{} {}", count.figures, count.source)).collect();
    let memory: Vec<_> =
        devices.map(|d| format!("{} {} ({})", d.label, bytes(d.memory_bytes), d.memory_source)).collect();
    format!("inputs: {}; memory {}", figures.join(", "), memory.join(", "))
}

/// Formats the shortages, and the remedies as `word` words them, as several lines.
pub(super) fn does_not_fit(error: &DoesNotFit, word: impl Fn(&Remedy) -> String) -> String {
    const LISTED: usize = 3;
    let mut lines = vec![format!("the model does not fit at a context of {}:", error.context)];
    lines.extend(error.shortages.iter().take(LISTED).flat_map(|one| wrapped(&shortage(one))));
    if let Some(rest) = error.shortages.get(LISTED..).filter(|rest| !rest.is_empty()) {
        let missing = rest.iter().map(Shortage::missing_bytes).fold(0, u64::saturating_add);
        lines.push(format!("  {} missing on {}", bytes_up(missing), count(rest.len(), "more device")));
    }
    let remedies: Vec<_> = error.remedies.iter().map(word).collect();
    lines.extend(wrapped(&format!("What may help: {}", remedies.join("; "))));
    lines.join("\n")
}

/// Formats a number of bytes with a unit. Rounds up, so that the printed amount suffices.
pub(super) fn bytes_up(exact: u64) -> String {
    let unit = [30, 20, 10].into_iter().find(|bits| exact >> bits > 0);
    // Add half of the last printed digit, so that rounding to nearest rounds up.
    unit.map_or_else(|| bytes(exact), |bits| bytes(exact.saturating_add((1 << bits) / 20)))
}

/// Wraps `text` to [`COLUMNS`] columns with a hanging indent.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::from(" ")];
    for word in text.split_whitespace() {
        let is_full = |line: &String| line.chars().count() + 1 + word.chars().count() > COLUMNS;
        if lines.last().is_some_and(is_full) {
            lines.push("   ".into());
        }
        lines.iter_mut().last().into_iter().for_each(|line| *line = format!("{line} {word}"));
    }
    lines
}

/// Formats the message for a KV cache that does not hold one sequence.
pub(super) fn small_cache(context: u32, blocks: u32, needed_bytes: u64) -> String {
    let (blocks, positions) = (count(blocks as usize, "block"), u64::from(blocks) * BLOCK_TOKENS as u64);
    format!(
        "the requested KV cache has {blocks} = {positions} positions; one sequence of {context} positions needs {}",
        bytes_up(needed_bytes)
    )
}

/// Formats the message for a shortage of host memory.
pub(super) fn host_does_not_fit(memory: &HostMemory) -> String {
    of_host_does_not_fit(memory, "")
}

/// Formats the message for a shortage of memory on another host.
pub(super) fn other_host_does_not_fit(host: &OtherHost) -> String {
    of_host_does_not_fit(&host.memory_bytes, &format!(" on {}", host.name))
}

fn of_host_does_not_fit(memory: &HostMemory, of: &str) -> String {
    let parts = [
        ("logits", memory.logits),
        ("staging", memory.staging),
        ("parameters", memory.parameters),
        ("stages of devices in host memory", memory.devices),
        ("streamed weights", memory.weights),
        ("keys and values in transit", memory.kv),
    ];
    let available = memory.available.map_or_else(String::new, bytes);
    format!(
        "the plan needs {} of host memory{of} ({}) and {available} is free; fewer sequences, fewer credits or a shorter \
         context need less",
        bytes_up(memory.total),
        sizes(&parts)
    )
}

/// Formats all sizes that are not zero.
fn sizes(parts: &[(&str, u64)]) -> String {
    let parts = parts.iter().filter(|(_, size)| *size > 0);
    parts.map(|(name, size)| format!("{name} {}", bytes(*size))).collect::<Vec<_>>().join(", ")
}

fn shortage(shortage: &Shortage) -> String {
    let memory = &shortage.memory;
    if let Some(buffer) = shortage.too_large.filter(|_| shortage.missing_bytes() == 0) {
        return format!(
            "{} cannot hold segments {}: {} takes {}, and the device allows {} in one piece",
            shortage.device,
            shortage.segments,
            buffer.what,
            bytes_up(buffer.bytes),
            bytes(buffer.limit)
        );
    }
    let parts = [
        ("weights", memory.weights),
        ("arenas", memory.arenas),
        ("keys and values", memory.kv),
        ("scratch", memory.scratch),
        ("slots", memory.slots),
        ("staging", memory.staging),
    ];
    let needed = bytes_up(memory.total);
    format!(
        "{} lacks {} for segments {}: it has {} of the {needed} needed ({}); a device with {needed} would hold them",
        shortage.device,
        bytes_up(shortage.missing_bytes()),
        shortage.segments,
        bytes(memory.available),
        sizes(&parts)
    )
}
