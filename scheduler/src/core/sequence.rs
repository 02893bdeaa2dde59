//! A sequence as the coordinator sees it: what was asked for, how far it has come, and how it ends.

use crate::core::Nanoseconds;
use crate::error::Refusal;
use ragtag_kernels::params::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a request wants of its prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// New tokens.
    Generate {
        /// At most so many. With 0 the prompt is processed and nothing is sampled.
        max_new_tokens: u32,
        /// Tokens that end the sequence; they are not emitted.
        end_tokens: Arc<[u32]>,
    },
    /// The logits of every position of the prompt, and no new token.
    Logits,
}

/// What a request gives the coordinator; its sampler and its replies stay outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Arc<[u32]>,
    /// What to do with them.
    pub want: Want,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// One of its end tokens was sampled.
    EndToken(u32),
    /// It has as many new tokens as were asked for.
    MaxTokens,
    /// It fills the context.
    ContextFull,
    /// All logits of the prompt have been delivered.
    LogitsDone,
    /// It was cancelled, or the pipeline was shut down.
    Cancelled,
}

/// When what happened to a sequence, on the clock that drove the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceTimes {
    /// It was submitted.
    pub submitted_ns: Nanoseconds,
    /// It got its cache blocks.
    pub admitted_ns: Option<Nanoseconds>,
    /// The result of its whole prompt was there: for a generating sequence, the first token.
    pub prefilled_ns: Option<Nanoseconds>,
    /// It ended.
    pub finished_ns: Nanoseconds,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens emitted.
    pub new_tokens: u32,
    /// When.
    pub times: SequenceTimes,
}

/// The state of a sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) prompt: Arc<[u32]>,
    /// `None` if logits are wanted instead of tokens.
    pub(crate) generation: Option<Generation>,
    /// Cache blocks that it needs in all.
    pub(crate) wanted_blocks: u32,
    /// Its cache blocks; empty until it is admitted.
    pub(crate) blocks: Arc<[u32]>,
    /// Prompt tokens that have entered the pipeline.
    pub(crate) entered: u32,
    pub(crate) times: SequenceTimes,
}

#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) max_new_tokens: u32,
    /// Why it ends at `max_new_tokens`.
    pub(crate) at_limit: FinishReason,
    end_tokens: Arc<[u32]>,
    /// Tokens emitted.
    pub(crate) new_tokens: u32,
    /// The last of them.
    pub(crate) last_token: u32,
}

impl Generation {
    pub(crate) fn ends_with(&self, token: u32) -> bool {
        self.end_tokens.contains(&token)
    }
}

impl Sequence {
    /// A sequence for this request, if a cache of `total_blocks` blocks and a context of so many tokens can ever hold it.
    pub(crate) fn new(
        prompt: Prompt,
        context: u32,
        vocabulary: u32,
        total_blocks: u32,
        now: Nanoseconds,
    ) -> Result<Self, Refusal> {
        let Prompt { tokens, want } = prompt;
        if tokens.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if tokens.len() > context as usize {
            return Err(Refusal::PromptTooLong { tokens: tokens.len(), context });
        }
        if let Some(position) = tokens.iter().position(|&t| t >= vocabulary) {
            return Err(Refusal::UnknownToken { token: tokens[position], position, vocabulary });
        }
        let length = tokens.len() as u32;
        let generation = match want {
            Want::Logits => None,
            Want::Generate { max_new_tokens, end_tokens } => {
                // The last new token is never fed back and needs no position.
                let room = context - length + 1;
                let at_limit =
                    if max_new_tokens > room { FinishReason::ContextFull } else { FinishReason::MaxTokens };
                let max_new_tokens = max_new_tokens.min(room);
                Some(Generation { max_new_tokens, at_limit, end_tokens, new_tokens: 0, last_token: 0 })
            }
        };
        let new_positions = generation.as_ref().map_or(0, |g| g.max_new_tokens.saturating_sub(1));
        let wanted_blocks = (length + new_positions).div_ceil(BLOCK_TOKENS as u32);
        if wanted_blocks > total_blocks {
            return Err(Refusal::TooManyBlocks { wanted: wanted_blocks, total: total_blocks });
        }
        let times = SequenceTimes { submitted_ns: now, ..SequenceTimes::default() };
        Ok(Self { prompt: tokens, generation, wanted_blocks, blocks: Arc::new([]), entered: 0, times })
    }

    /// Whether it has its cache blocks.
    pub(crate) fn is_admitted(&self) -> bool {
        !self.blocks.is_empty()
    }

    pub(crate) fn finished(&self, reason: FinishReason, now: Nanoseconds) -> Finished {
        Finished {
            reason,
            prompt_tokens: self.prompt.len() as u32,
            new_tokens: self.generation.as_ref().map_or(0, |g| g.new_tokens),
            times: SequenceTimes { finished_ns: now, ..self.times },
        }
    }
}
