//! Finds the longest context that fits. If none fits, says what is missing.

use super::grid::Grid;
use super::problem::{Lowered, Problem};
use super::requested::{self, Requested};
use super::workload_times::Point;
use super::{DoesNotFit, PlanError, PlannerInput, Remedy, Shortage, check, memory_fit, pool, streamed};
use crate::cost::largest;
use crate::objective::Workload;
use ragtag_kernels::KvType;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::sync::Arc;

/// Default of the longest context for which the planner streams weights, in positions. A longer cache would
/// displace more weights. The planned request may need a longer context.
const STREAMED_CONTEXT: u32 = 4096;

/// Number of positions of a block of the KV cache.
const BLOCK: u32 = BLOCK_TOKENS as u32;

/// Returns the longest context that fits: the model's trained context, or a shorter multiple of the KV cache
/// block size. If weights must be streamed, returns the default context. Ignores
/// [`PlanLimits::context`](super::PlanLimits::context).
///
/// # Errors
/// Returns the same errors as [`plan`](super::plan), and [`PlanError::DoesNotFit`] if not even one cache block
/// fits.
pub fn largest_context(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    check::check(input)?;
    fitting(input)
}

/// Returns the context that the user requested, or the longest one that fits.
pub(super) fn context(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    let context = input.limits.context.map_or_else(|| fitting(input), Ok)?;
    pool::check(input, context)?;
    Ok(context)
}

fn fitting(input: &PlannerInput<'_>) -> Result<u32, PlanError> {
    let whole = input.model.context;
    pool::check(input, BLOCK.min(whole))?;
    let lowered = Arc::new(Lowered::new(input.limits.chunk, input.segments));
    let resident = || longest(whole, |context| fits(input, &lowered, context, false));
    let Workload { prompt_tokens, generated_tokens } = input.workload;
    let usual = STREAMED_CONTEXT.max(prompt_tokens.saturating_add(generated_tokens)).min(whole);
    let streamed = || longest(usual, |context| fits(input, &lowered, context, true));
    let found = resident().or_else(|| input.may_stream().then(streamed).flatten());
    found.ok_or_else(|| {
        let grid = Grid::new(input, BLOCK.min(whole));
        match requested::runs(input) {
            Some(requested) => {
                let proof = prove(&problem(input, &lowered, grid.context), &requested);
                no_fit(&grid, proof.expect_err("not even the shortest context fits"))
            }
            None => nothing_fits(&grid),
        }
    })
}

/// Returns the problem at the point that decides about the context.
fn problem<'a>(input: &'a PlannerInput<'a>, lowered: &Arc<Lowered<'a>>, context: u32) -> Problem<'a> {
    let wire_type = input.limits.wire_type.unwrap_or_default();
    let point = Point { chunk: input.limits.chunk, groups: 1, wire_type };
    Problem::new(input, Arc::clone(lowered), context, point)
}

/// Returns the problem that decides about the context, for memory that does not depend on the placement.
pub(super) fn whole_problem<'a>(input: &'a PlannerInput<'a>, context: u32) -> Problem<'a> {
    problem(input, &Arc::new(Lowered::new(input.limits.chunk, input.segments)), context)
}

fn prove(problem: &Problem<'_>, (runs, prefill): &Requested) -> Result<(), Vec<Shortage>> {
    problem.prove_with(runs, prefill.as_ref().map(|prefill| &prefill.run))
}

/// Returns whether the user's split fits at this context. Without a split, returns whether any placement
/// fits. If `streaming` is set, stages may stream weights.
fn fits<'a>(input: &'a PlannerInput<'a>, lowered: &Arc<Lowered<'a>>, context: u32, streaming: bool) -> bool {
    let problem = problem(input, lowered, context);
    if u64::from(problem.shape.kv_blocks) < problem.shape.blocks() {
        return false;
    }
    match requested::runs(input) {
        Some((runs, _)) if streaming => streamed::streamed(&problem, &runs, 0).is_some(),
        Some(requested) => prove(&problem, &requested).is_ok(),
        None if streaming => streamed::fits(&problem),
        None => memory_fit::fits(&problem.instance()),
    }
}

/// Returns the longest context that fits: `whole`, or a shorter multiple of the KV cache block size.
fn longest(whole: u32, fits: impl Fn(u32) -> bool) -> Option<u32> {
    if fits(whole) {
        return Some(whole);
    }
    if !fits(BLOCK.min(whole)) {
        return None;
    }
    // Memory grows with the context.
    let blocks = largest(1, whole.div_ceil(BLOCK) - 1, |blocks| fits(blocks * BLOCK));
    Some((blocks * BLOCK).min(whole))
}

/// Returns the error for a search that found no placement: either the devices lack memory, or the constraints
/// conflict.
pub(super) fn nothing_fits(grid: &Grid<'_>) -> PlanError {
    match memory_fit::closest(grid.start()) {
        shortages if shortages.is_empty() => {
            PlanError::BadConstraint { what: "no placement that fits meets all of them".into() }
        }
        shortages => no_fit(grid, shortages),
    }
}

/// Returns the error for a placement with these shortages.
pub(super) fn no_fit(grid: &Grid<'_>, shortages: Vec<Shortage>) -> PlanError {
    let (input, context) = (grid.input, grid.context);
    let shorter = (context > BLOCK).then(|| fitting(input).ok()).flatten();
    let remedies = remedies(input, shorter.filter(|c| *c < context), with_streaming(grid, &shortages));
    PlanError::DoesNotFit(Box::new(DoesNotFit { context, shortages, remedies }))
}

/// Returns changes that may make the model fit. `shorter` is a context that is known to fit. `streaming` is a device
/// and the memory with which it could stream the weights.
fn remedies(input: &PlannerInput<'_>, shorter: Option<u32>, streaming: Option<(&str, u64)>) -> Vec<Remedy> {
    let mut remedies: Vec<_> = shorter.map(Remedy::Context).into_iter().collect();
    remedies.extend(
        streaming.map(|(device, needed_bytes)| Remedy::Streaming { device: device.into(), needed_bytes }),
    );
    match input.limits.kv {
        KvType::F32 => remedies.push(Remedy::Kv(KvType::F16)),
        KvType::F16 => remedies.push(Remedy::Kv(KvType::Q8_0)),
        KvType::Q8_0 | KvType::Q8_0Q4_0 | KvType::Q4_0 => {}
    }
    if input.limits.sequences > 1 {
        remedies.push(Remedy::FewerSequences);
    }
    remedies.push(if input.split.is_some() { Remedy::AnotherSplit } else { Remedy::AnotherDevice });
    remedies
}

/// Returns the label of the device that lacks memory for the whole model, and the memory with which it could
/// stream the model's weights.
fn with_streaming<'a>(grid: &Grid<'a>, shortages: &[Shortage]) -> Option<(&'a str, u64)> {
    let [shortage] = shortages else { return None };
    let is_whole = shortage.segments.range().len() == grid.input.segments.len();
    let device = grid.input.devices.iter().position(|device| device.label == shortage.device)?;
    let may_stream = is_whole && shortage.too_large.is_none() && grid.input.may_stream();
    let bytes = may_stream.then(|| streamed::smallest_bytes(grid.start(), device)).flatten()?;
    (bytes > shortage.memory.available).then_some((grid.input.devices[device].label.as_str(), bytes))
}
