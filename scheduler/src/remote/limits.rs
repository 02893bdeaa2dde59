//! Checks of micro-batches that arrive from another host. Kernels trust their tokens and blocks.

use crate::core::{Item, MicroBatch, RunShape};
use ragtag_kernels::params::BLOCK_TOKENS;

/// Returns why a micro-batch does not fit the pipeline.
pub(super) fn misfit(batch: &MicroBatch, run: &RunShape) -> Option<&'static str> {
    let rows: usize = batch.items.iter().map(|item| item.tokens.len()).sum();
    if rows == 0 || rows > run.max_rows as usize {
        return Some("its number of rows is invalid");
    }
    if batch.logit_rows() > run.max_logit_rows || batch.items.len() > run.max_sequences as usize {
        return Some("it has too many sequences or logit rows");
    }
    if batch.credit >= run.credits {
        return Some("its credit does not exist");
    }
    batch.items.iter().find_map(|item| misfit_item(item, run))
}

fn misfit_item(item: &Item, run: &RunShape) -> Option<&'static str> {
    let end = u64::from(item.first_position) + item.tokens.len() as u64;
    if item.tokens.is_empty() || end > u64::from(run.context) || item.prompt_tokens > run.context {
        return Some("a sequence exceeds the context");
    }
    if item.tokens.iter().any(|token| *token >= run.vocabulary) {
        return Some("a token is outside the vocabulary");
    }
    let has_blocks = item.blocks.len() as u64 * BLOCK_TOKENS as u64 >= end;
    if !has_blocks || item.blocks.iter().any(|block| *block >= run.kv_blocks) {
        return Some("a block is outside the KV cache");
    }
    let ring = run.kv_ring.map_or(0, |ring| ring.total);
    let is_short = run.kv_ring.is_some() && item.ring.is_empty();
    (is_short || item.ring.iter().any(|block| *block >= ring)).then_some("a block is outside the KV ring")
}
