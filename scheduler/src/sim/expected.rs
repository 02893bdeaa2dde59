//! Expected results of simulated requests.

use crate::core::{FinishReason, Want};
use crate::error::Refusal;
use crate::sim::spec::{SimRequest, SimSpec, token_at};

/// Returns the expected result of a request if the run has no faults.
pub(super) fn expected(
    spec: &SimSpec,
    sequence: u64,
    request: &SimRequest,
) -> Result<(FinishReason, Vec<u32>), Refusal> {
    let (context, vocabulary) = (spec.run.context, spec.run.vocabulary);
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
    for position in length..length + most {
        let token = token_at(sequence, position, vocabulary);
        if end_tokens.contains(&token) {
            return Ok((FinishReason::EndToken(token), tokens));
        }
        tokens.push(token);
    }
    let reason = if *max_new_tokens > room { FinishReason::ContextFull } else { FinishReason::MaxTokens };
    Ok((reason, tokens))
}
