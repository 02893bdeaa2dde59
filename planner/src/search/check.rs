//! Checks the inputs of the planner. This module knows nothing about the search.

use super::{Constraints, PlanError, PlannerInput};
use crate::cost::{RunSizes, is_rate};
use crate::objective::{MAX_WEIGHT, Objective};
use crate::split::{Split, SplitPart, SplitPrefill};
use ragtag_graph::WireType;
use ragtag_graph::execution::{FEWEST, wrong_arenas, wrong_from_file};
use ragtag_kernels::Activations;

/// Returns an error for the first invalid input.
pub(super) fn check(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    check_devices(input)?;
    check_links(input)?;
    check_limits(input)?;
    check_objective(input.objective)?;
    check_constraints(input)?;
    if let Some(split) = input.split {
        let labels: Vec<_> = input.devices.iter().map(|d| d.label.as_str()).collect();
        split.check(input.segment_count(), &labels)?;
    }
    check_streamed(input)
}

fn check_devices(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    if input.devices.is_empty() {
        return Err(PlanError::NoDevice);
    }
    if input.segments.is_empty() {
        return Err(PlanError::NoSegment);
    }
    for (at, device) in input.devices.iter().enumerate() {
        let twice = input.devices[..at].iter().any(|other| other.label == device.label);
        if let Some(field) = device.nonsense().or(twice.then_some("label (used twice)")) {
            return Err(PlanError::BadFacts { of: device.label.clone(), field });
        }
    }
    Ok(())
}

fn check_links(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    for shared in &input.links.shared {
        if !is_rate(shared.bandwidth_bytes_per_s.value) {
            return Err(PlanError::BadFacts { of: shared.name.clone(), field: "bandwidth_bytes_per_s" });
        }
    }
    for (from, to, link) in &input.links.known {
        if let Some(field) = link.nonsense() {
            return Err(PlanError::BadFacts { of: format!("the link from {from} to {to}"), field });
        }
    }
    match input.links.other.nonsense() {
        Some(field) => Err(PlanError::BadFacts { of: "the default link".into(), field }),
        None => Ok(()),
    }
}

fn check_limits(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    let (limits, workload) = (&input.limits, &input.workload);
    let at_least_one = [
        ("the context", limits.context.unwrap_or(input.model.context)),
        ("the number of sequences", limits.sequences),
        ("the chunk", limits.chunk),
        ("the number of logit rows", limits.logit_rows),
        ("the number of slots", limits.slots),
        ("the number of decode groups", limits.decode_groups.unwrap_or(1)),
        ("the number of credits", limits.credits.unwrap_or(1)),
        ("the workload's tokens", workload.prompt_tokens.saturating_add(workload.generated_tokens)),
    ];
    if let Some((what, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
        return Err(PlanError::BadLimit { what });
    }
    let is_wrong = |(chunk, segments): &(u32, &[_])| *chunk == 0 || segments.len() != input.segments.len();
    if input.other_chunks.iter().any(is_wrong) {
        return Err(PlanError::BadLimit { what: "every chunk" });
    }
    match limits.wire_type.filter(|wire_type| *wire_type != WireType::F32) {
        Some(wire_type) if limits.activations == Activations::F32 => {
            Err(PlanError::ExactBoundary { wire_type })
        }
        _ => Ok(()),
    }
}

/// Checks the streamed segments and the prefill stage of the user's split.
fn check_streamed(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    let Some(Split { parts, prefill }) = input.split else { return Ok(()) };
    let of_parts = parts.iter().filter_map(|part| {
        let streamed = part.streamed.as_ref().filter(|of| !of.is_empty())?;
        Some((&part.device, part.span.range(), streamed, part.arenas))
    });
    let wrong_files = |part: &SplitPart| {
        let what = wrong_from_file(part.streamed.as_deref().unwrap_or_default(), &part.from_file)?;
        Some(format!("{}: {what}", part.device))
    };
    if let Some(what) = parts.iter().find_map(wrong_files) {
        return Err(PlanError::BadConstraint { what });
    }
    let of_prefill = prefill.iter().map(|of| (&of.device, 0..input.segments.len(), &of.streamed, of.arenas));
    let all: Vec<_> = of_parts.chain(of_prefill).collect();
    if all.is_empty() {
        return Ok(());
    }
    let wrong = |what: String| Err(PlanError::BadConstraint { what });
    let sizes = RunSizes::new(input.segments);
    for (device, segments, streamed, arenas) in all {
        let streamable = sizes.streamable(segments);
        let is_streamable = |segment: &u32| streamable.contains(&(*segment as usize));
        if let Some(segment) = streamed.iter().find(|segment| !is_streamable(segment)) {
            return wrong(format!("segment {segment} on {device} cannot be streamed"));
        }
        if streamed.len() < FEWEST || streamed.windows(2).any(|pair| pair[0] >= pair[1]) {
            return wrong(format!("the streamed segments on {device} must be at least {FEWEST} in order"));
        }
        if let Some(what) = arenas.and_then(|count| wrong_arenas(streamed.len(), count as usize)) {
            return wrong(format!("{device}: {what}"));
        }
    }
    let Some(SplitPrefill { device, streamed, .. }) = prefill else { return Ok(()) };
    if input.devices.iter().all(|known| known.label != *device) {
        return wrong(format!("there is no device {device}"));
    }
    let own = || parts.iter().filter(|part| part.device == *device);
    let decodes = |at: &&u32| own().any(|part| part.span.range().contains(&(**at as usize)));
    match streamed.iter().find(decodes) {
        Some(at) => wrong(format!("{device} decodes segment {at}, so its prefill stage cannot stream it")),
        None if own().any(|part| part.streamed.as_ref().is_some_and(|of| !of.is_empty())) => {
            wrong(format!("the stages of {device} stream weights, so it cannot have a prefill stage"))
        }
        None => Ok(()),
    }
}

fn check_objective(objective: Objective) -> Result<(), PlanError> {
    let Objective::Mix(mix) = objective else { return Ok(()) };
    let weights = [mix.latency, mix.throughput, mix.first_token];
    let is_weight = |weight: &f64| (0.0..=MAX_WEIGHT).contains(weight);
    if weights.iter().all(is_weight) && weights.iter().any(|weight| *weight > 0.0) {
        return Ok(());
    }
    Err(PlanError::BadConstraint {
        what: "the weights of a mixed objective must be from 0 to 1e9, and one of them more than 0".into(),
    })
}

fn check_constraints(input: &PlannerInput<'_>) -> Result<(), PlanError> {
    let wrong = |what: String| Err(PlanError::BadConstraint { what });
    let Constraints { pins, excluded, max_stages } = input.constraints;
    let known = |label: &str| input.devices.iter().any(|device| device.label == label);
    let names = || input.devices.iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(", ");
    for label in pins.iter().map(|pin| &pin.device).chain(excluded) {
        if !known(label) {
            return wrong(format!("there is no device {label} (devices: {})", names()));
        }
    }
    for (at, pin) in pins.iter().enumerate() {
        let last = input.segments.len() - 1;
        if pin.segment as usize > last {
            return wrong(format!("segment {} is pinned, but the last segment is {last}", pin.segment));
        }
        if excluded.contains(&pin.device) {
            return wrong(format!("segment {} is pinned to {}, which is excluded", pin.segment, pin.device));
        }
        let other =
            pins[..at].iter().find(|other| other.segment == pin.segment && other.device != pin.device);
        if let Some(other) = other {
            return wrong(format!(
                "segment {} is pinned to {} and to {}",
                pin.segment, other.device, pin.device
            ));
        }
    }
    let mut parts = input.split.iter().flat_map(|split| &split.parts);
    if let Some(part) = parts.find(|part| excluded.contains(&part.device)) {
        return wrong(format!("the split names {}, which is excluded", part.device));
    }
    if input.devices.iter().all(|device| excluded.contains(&device.label)) {
        return wrong("every device is excluded".into());
    }
    if *max_stages == Some(0) {
        return wrong("at most 0 stages".into());
    }
    Ok(())
}
