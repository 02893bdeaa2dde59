//! The number of blocks of the KV cache.
//!
//! The search proves placements with the blocks that the sequences surely need: those of one sequence at the full
//! context, and those of all sequences at the length of the planned request. The chosen placement then gets as many
//! blocks as fit into the memory that is left. So a cache never displaces weights beyond the need.
//!
//! This module knows nothing about the search.

use super::context;
use super::problem::Problem;
use super::{PlanError, PlannerInput};
use crate::cost::{RunSizes, StageCapacity, largest};
use crate::plan::MAX_KV_BLOCKS;
use ragtag_graph::execution::Reserve;
use ragtag_kernels::params::BLOCK_TOKENS;

/// Returns the number of blocks that all sequences need at the full context.
pub(super) fn full_blocks(shape: &StageCapacity) -> u32 {
    let blocks = shape.blocks().saturating_mul(u64::from(shape.sequences));
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Returns whether the user determines the number of blocks.
pub(super) fn is_given(input: &PlannerInput<'_>) -> bool {
    input.limits.kv_blocks.is_some() || input.limits.kv_memory_bytes.is_some()
}

/// Returns the number of blocks with which placements are proved. Ignores the number in `shape`.
pub(super) fn needed_blocks(input: &PlannerInput<'_>, sizes: &RunSizes, shape: &StageCapacity) -> u32 {
    let full = full_blocks(shape);
    match (input.limits.kv_blocks, input.limits.kv_memory_bytes) {
        (Some(blocks), _) => blocks,
        (None, Some(bytes)) => {
            // If all layers have KV rings, their memory does not depend on the number of blocks.
            let bytes_of = |kv_blocks| sizes.all_kv_bytes(&StageCapacity { kv_blocks, ..*shape });
            let most = if bytes_of(0) < bytes_of(MAX_KV_BLOCKS) { MAX_KV_BLOCKS } else { full };
            largest(0, most, |kv_blocks| bytes_of(kv_blocks) <= bytes)
        }
        (None, None) if input.limits.kv_use.reserve == Reserve::Full => full,
        (None, None) => {
            let tokens = input.workload.prompt_tokens.saturating_add(input.workload.generated_tokens);
            let of_request = tokens.min(shape.context).div_ceil(BLOCK_TOKENS as u32);
            let one = u32::try_from(shape.blocks()).unwrap_or(u32::MAX);
            of_request.saturating_mul(shape.sequences).max(one).min(full)
        }
    }
}

/// Returns the largest number of blocks for which `fits` holds, at least as many as `problem` has and at most as
/// many as all sequences need.
pub(super) fn filling_blocks<'a>(problem: &Problem<'a>, fits: impl Fn(&Problem<'a>) -> bool) -> u32 {
    match is_given(problem.input) {
        true => problem.shape.kv_blocks,
        false => largest(problem.shape.kv_blocks, full_blocks(&problem.shape), |blocks| {
            fits(&problem.with_kv_blocks(blocks))
        }),
    }
}

/// Checks that the user's KV cache holds one sequence at the full context.
pub(super) fn check(input: &PlannerInput<'_>, context: u32) -> Result<(), PlanError> {
    if !is_given(input) {
        return Ok(());
    }
    let problem = context::whole_problem(input, context);
    let (blocks, needed_blocks) = (problem.shape.kv_blocks, problem.shape.blocks());
    if u64::from(blocks) >= needed_blocks {
        return Ok(());
    }
    let needed = u32::try_from(needed_blocks).unwrap_or(u32::MAX);
    let needed_bytes = problem.lowered.sizes.all_kv_bytes(&problem.with_kv_blocks(needed).shape);
    Err(PlanError::SmallCache { context, blocks, needed_bytes })
}
