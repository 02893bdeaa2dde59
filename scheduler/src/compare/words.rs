//! Formats explanations of deviations. An explanation blames the largest component of the prediction. This
//! module does not depend on how predictions are computed.

use super::model::Model;
use super::{ComparedPart, ComparedRate, Comparison, Phase, TOLERANCE};
use ragtag_kernels::Activations;
use ragtag_planner::cost::Figure;
use ragtag_planner::plan::{Place, Plan};
use ragtag_planner::wording;

/// Returns an explanation of why a part took longer or shorter than predicted. Returns `None` if the
/// deviation is within the tolerance.
pub(super) fn part_finding(model: &Model<'_>, part: &ComparedPart) -> Option<String> {
    // The condition is also false if the deviation is NaN or if there is no prediction.
    let off = part.deviation.abs() > TOLERANCE && part.predicted_us > 0.0;
    if !off {
        return None;
    }
    let factor = part.measured_us / part.predicted_us;
    let said = match part.place {
        Place::Stage => stage(model, part, factor),
        _ => edge(model, part, factor),
    };
    Some(format!("{}: {said}", subject(part)))
}

/// Returns the noun phrase by which explanations refer to a part of the pipeline.
fn subject(part: &ComparedPart) -> String {
    let phase = part.phase;
    let percent = wording::deviation(part.deviation);
    match part.place {
        Place::Stage => format!("{}, {phase} {percent}", part.stage_name()),
        Place::TokenReturn => format!("the token return, {phase} {percent}"),
        _ => format!("the link {} -> {}, {phase} {percent}", part.device, part.to.as_deref().unwrap_or("")),
    }
}

fn stage(model: &Model<'_>, part: &ComparedPart, factor: f64) -> String {
    let (device, parts) = (model.device(part.index), &part.parts);
    if parts.overhead_us >= parts.moving_us.max(parts.computing_us) {
        let Figure { value, source } = device.launch_us;
        let took = value * factor;
        return format!("launch overhead per segment was {took:.1} µs in the run, {value:.1} µs {source}");
    }
    if parts.moving_us >= parts.computing_us {
        let Figure { value, source } = device.bandwidth_bytes_per_s;
        let (then, now) = (bytes_per_s(value), bytes_per_s(value / factor));
        return format!("bandwidth was {now} in the run, {then} {source}");
    }
    let (figure, form) = match model.activations() {
        Activations::F32 => (device.exact_flops_per_s, "f32"),
        Activations::Int8 => (device.fast_flops_per_s, "int8"),
        Activations::F16 => (device.fast_flops_per_s, "f16"),
    };
    let (then, now) = (flops_per_s(figure.value), flops_per_s(figure.value / factor));
    format!("rate with {form} activations was {now} in the run, {then} {}", figure.source)
}

fn edge(model: &Model<'_>, part: &ComparedPart, factor: f64) -> String {
    let latency_binds = part.parts.overhead_us >= part.parts.moving_us;
    if part.place == Place::TokenReturn {
        let what =
            if latency_binds { "copies to and from the host" } else { "the copy of logits to the host" };
        let Figure { source, .. } = model.device(0).host_latency_us;
        let (then, now) = (part.predicted_us, part.measured_us);
        return format!("{what} and sampling took {now:.1} µs in the run, {then:.1} µs {source}");
    }
    let link = model.link(part.index);
    if latency_binds {
        let Figure { value, source } = link.latency_us;
        // Assume that the bytes themselves took as long as predicted.
        let took = (part.measured_us - part.parts.moving_us).max(0.0);
        return format!("latency was {took:.1} µs in the run, {value:.1} µs {source}");
    }
    let Figure { value, source } = link.bandwidth_bytes_per_s;
    let (then, now) = (bytes_per_s(value), bytes_per_s(value / factor));
    format!("bandwidth was {now} in the run, {then} {source}")
}

/// Returns an explanation of why the whole pipeline was slower or faster than predicted. Returns `None` if
/// the deviation is within the tolerance.
pub(super) fn rate_finding(comparison: &Comparison, plan: &Plan, rate: &ComparedRate) -> Option<String> {
    if rate.deviation.is_nan() || rate.deviation.abs() <= TOLERANCE {
        return None;
    }
    let subject = format!("{} {}", rate.what, wording::deviation(rate.deviation));
    let parts: Vec<_> = comparison.parts.iter().filter(|part| part.phase == rate.phase).collect();
    // Blame the part with the largest share of the excess time.
    let slower = rate.deviation < 0.0;
    let unforeseen_us = |part: &ComparedPart| {
        let us = part.measured_us - part.predicted_us;
        if slower { us } else { -us }
    };
    let blamed = parts
        .iter()
        .filter(|part| part.finding.is_some() && unforeseen_us(part) > 0.0)
        .max_by(|a, b| unforeseen_us(a).total_cmp(&unforeseen_us(b)));
    let warm_up_us = match rate.phase {
        Phase::Decode => comparison.decode_warm_up_us,
        Phase::Prefill => comparison.prefill_warm_up_us,
    };
    let total_us = |part: &&ComparedPart, us: f64| us * part.micro_batches as f64;
    let by_part_us = blamed.map_or(0.0, |part| total_us(part, unforeseen_us(part)));
    let predicted_us: f64 = parts.iter().map(|part| total_us(part, part.predicted_us)).sum();
    if slower && warm_up_us > by_part_us.max(predicted_us * TOLERANCE) {
        let late = warm_up_us / 1e3;
        return Some(format!(
            "{subject}: mainly because the first micro-batches of each size took {late:.1} ms longer than predicted, \
             probably to compile kernels"
        ));
    }
    if let Some(part) = blamed {
        return Some(format!("{subject}: mainly because of {}", super::words::subject(part)));
    }
    let rows = parts.iter().find(|part| part.place == Place::Stage).map(|part| part.rows);
    if let Some(rows) = rows
        .filter(|rows| rate.phase == Phase::Decode && *rows < f64::from(plan.decode_rows) * (1.0 - TOLERANCE))
    {
        let planned = plan.decode_rows;
        return Some(format!(
            "{subject}: decode micro-batches were uneven, with {rows:.1} rows on average instead of {planned}"
        ));
    }
    let waited = parts.iter().max_by(|a, b| a.waited_us.total_cmp(&b.waited_us));
    if let Some(part) = waited.filter(|part| part.waited_us > part.measured_us * TOLERANCE) {
        let (index, us) = (part.index, part.waited_us);
        return Some(format!("{subject}: micro-batches waited {us:.1} µs each for a slot of stage {index}"));
    }
    Some(format!(
        "{subject}: no stage or edge deviates that much, so they waited for each other or for the host"
    ))
}

fn scaled(value: f64, units: [&str; 3]) -> String {
    match value {
        v if v >= 1e12 => format!("{:.1} {}", v / 1e12, units[2]),
        v if v >= 1e9 => format!("{:.1} {}", v / 1e9, units[1]),
        v => format!("{:.1} {}", v / 1e6, units[0]),
    }
}

fn bytes_per_s(value: f64) -> String {
    scaled(value, ["MB/s", "GB/s", "TB/s"])
}

fn flops_per_s(value: f64) -> String {
    scaled(value, ["MFLOP/s", "GFLOP/s", "TFLOP/s"])
}
