//! Expected results of simulated requests, and the expected number of events.

use crate::core::{FinishReason, Want};
use crate::error::Refusal;
use crate::sim::request::SimRequest;
use crate::sim::spec::{SimSpec, SimStage};
use ragtag_transfer::Route;

/// Returns the expected result of a request if the run has no faults.
pub(super) fn expected(
    spec: &SimSpec,
    sequence: u64,
    request: &SimRequest,
) -> Result<(FinishReason, Vec<u32>), Refusal> {
    let context = spec.run.context;
    let length = request.prompt_tokens;
    if length == 0 {
        return Err(Refusal::EmptyPrompt);
    }
    if length > context {
        return Err(Refusal::PromptTooLong { tokens: length as usize, context });
    }
    let blocks = |positions: u32| match positions.div_ceil(ragtag_kernels::params::BLOCK_TOKENS as u32) {
        wanted if wanted > spec.run.kv_blocks => {
            Err(Refusal::TooManyBlocks { wanted, total: spec.run.kv_blocks })
        }
        _ => Ok(()),
    };
    let Want::Generate { max_new_tokens, end_tokens } = &request.want else {
        blocks(length)?;
        return Ok((FinishReason::LogitsDone, Vec::new()));
    };
    let room = context + 1 - length;
    let most = room.min(*max_new_tokens);
    blocks(length + most.max(1) - 1)?;
    let mut tokens = Vec::new();
    for token in request.text(sequence, &spec.run).split_off(length as usize) {
        if end_tokens.contains(&token) {
            return Ok((FinishReason::EndToken(token), tokens));
        }
        tokens.push(token);
        if request.stops == Some(tokens.len() as u32) {
            return Ok((FinishReason::StopRule, tokens));
        }
    }
    let reason = if *max_new_tokens > room { FinishReason::ContextFull } else { FinishReason::MaxTokens };
    Ok((reason, tokens))
}

/// Returns the maximum number of events between the times at which two consecutive micro-batches enter the
/// pipeline. It counts all submissions for the micro-batches in flight, all requests, and their messages. If
/// more events occur, the run is in an endless loop.
pub(super) fn most_between_entries(spec: &SimSpec) -> u64 {
    const EVENTS: u64 = 32;
    let bytes = u64::from(spec.run.max_rows).saturating_mul(spec.row_bytes);
    let chunks = |stage: &SimStage| {
        let of_route = |route: Route| bytes.checked_div(route.ring().0).map_or(1, |chunks| chunks + 1);
        stage.routes.iter().map(of_route).fold(0, u64::max)
    };
    let submissions = spec.all().map(|stage| chunks(stage).saturating_add(2)).fold(0, u64::saturating_add);
    // A verified transfer has four submissions for its checksums, and it may be sent several times.
    let submissions =
        if spec.verified { submissions.saturating_add(4).saturating_mul(4) } else { submissions };
    let in_flight = submissions.saturating_mul(spec.run.credits.into());
    in_flight.saturating_add(spec.requests.len() as u64).saturating_mul(EVENTS)
}

/// Returns the maximum number of micro-batches of a run. Each of them has a row of some sequence. Sequences start
/// over because older ones take further blocks, or because they pause. If more micro-batches enter, the run is
/// in an endless loop.
pub(super) fn most_entries(spec: &SimSpec) -> u64 {
    let tokens = |request: &SimRequest| match request.want {
        Want::Generate { max_new_tokens, .. } => u64::from(request.prompt_tokens) + u64::from(max_new_tokens),
        Want::Logits => u64::from(request.prompt_tokens),
    };
    let tokens = spec.requests.iter().map(tokens).fold(0, u64::saturating_add);
    tokens.saturating_mul(tokens / 16 + 16)
}
