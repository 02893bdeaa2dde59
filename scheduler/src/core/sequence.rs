//! A sequence in the coordinator: its request, its progress and its result.

use crate::core::Nanoseconds;
use crate::core::Path;
use crate::core::pool::Blocks;
use crate::error::Refusal;
use ragtag_kernels::params::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Output that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// Generate tokens.
    Generate {
        /// Maximum number of new tokens. If it is 0, the pipeline processes the prompt and samples no token.
        max_new_tokens: u32,
        /// Tokens that end the sequence. The coordinator does not emit them.
        end_tokens: Arc<[u32]>,
    },
    /// Return the logits of every prompt position, and generate no tokens.
    Logits,
}

/// A request without its sampler and its reply sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Arc<[u32]>,
    /// Output that the request asks for.
    pub want: Want,
    /// Whether the sequence may use keys and values that earlier sequences have left in the cache, and leaves
    /// its own there. Measurements do not.
    #[serde(default)]
    pub shares_prefix: bool,
    /// Priority among the waiting requests.
    #[serde(default)]
    pub priority: Priority,
    /// Time at which the sequence ends, whatever it has produced.
    #[serde(default)]
    pub deadline_ns: Option<Nanoseconds>,
}

impl Prompt {
    /// Creates a request of normal priority that shares its prefix and has no deadline.
    pub fn new(tokens: Arc<[u32]>, want: Want) -> Self {
        Self { tokens, want, shares_prefix: true, priority: Priority::Normal, deadline_ns: None }
    }
}

/// Priority of a request among those that wait. A request of a lower priority comes first once it has waited
/// long enough, so none starves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Ahead of normal requests that were submitted up to 10 seconds earlier.
    High,
    /// The default.
    #[default]
    Normal,
    /// Behind normal requests that are submitted up to 60 seconds later.
    Low,
}

/// Reason for the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// The sequence sampled one of its end tokens.
    EndToken(u32),
    /// The sequence has reached the requested number of new tokens.
    MaxTokens,
    /// The sequence has filled the context.
    ContextFull,
    /// The stop rule of the request matched. The token that completed the match is emitted.
    StopRule,
    /// The deadline of the request has passed.
    Deadline,
    /// All logits of the prompt have been delivered.
    LogitsDone,
    /// The sequence was cancelled, or the pipeline was shut down.
    Cancelled,
}

/// Times of a sequence, on the clock that drives the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceTimes {
    /// Time of submission.
    pub submitted_ns: Nanoseconds,
    /// Time at which the sequence got its cache blocks. `None` if it was never admitted.
    pub admitted_ns: Option<Nanoseconds>,
    /// Time at which the coordinator received the results of the last prompt row. For a generating sequence,
    /// this is the time of the first token.
    pub prefilled_ns: Option<Nanoseconds>,
    /// Time at which the sequence ended.
    pub finished_ns: Nanoseconds,
}

/// Result of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Reason for the end of the sequence.
    pub reason: FinishReason,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of emitted tokens.
    pub new_tokens: u32,
    /// Number of prompt tokens whose keys and values were in the cache when the sequence started.
    #[serde(default)]
    pub cached_tokens: u32,
    /// How often the sequence was preempted.
    #[serde(default)]
    pub preemptions: u32,
    /// Times of the sequence.
    pub times: SequenceTimes,
}

/// State of a sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Tokens to compute before the next one is sampled: those of the request, and generated tokens if the
    /// sequence is computed again.
    pub(crate) prompt: Arc<[u32]>,
    /// Number of tokens in the request.
    pub(crate) prompt_tokens: u32,
    /// Length at which the sequence is computed again. `None` if it is not.
    pub(crate) recompute_at: Option<u32>,
    /// Generated tokens of a sequence that may be computed again.
    generated: Vec<u32>,
    /// Generation state. `None` if the request asks for logits.
    pub(crate) generation: Option<Generation>,
    /// Number of cache blocks that the sequence needs.
    pub(crate) wanted_blocks: u32,
    /// Cache blocks of the sequence. `None` until the sequence is admitted.
    pub(crate) blocks: Option<Blocks>,
    /// Number of prompt tokens that have entered the pipeline.
    pub(crate) entered: u32,
    /// Number of times that the sequence has lost its cache blocks. Results of an earlier epoch are dropped.
    pub(crate) epoch: u32,
    pub(crate) times: SequenceTimes,
}

#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) max_new_tokens: u32,
    /// Reason to report when the sequence reaches `max_new_tokens`.
    pub(crate) at_limit: FinishReason,
    end_tokens: Arc<[u32]>,
    /// Number of emitted tokens.
    pub(crate) new_tokens: u32,
    /// Last emitted token.
    pub(crate) last_token: u32,
}

impl Generation {
    pub(crate) fn ends_with(&self, token: u32) -> bool {
        self.end_tokens.contains(&token)
    }
}

impl Sequence {
    /// Creates a sequence for the request `prompt`. Rejects a request that is invalid, or that does not fit
    /// `context` tokens or `total_blocks` cache blocks.
    pub(crate) fn new(
        prompt: Prompt,
        context: u32,
        vocabulary: u32,
        total_blocks: u32,
        now: Nanoseconds,
    ) -> Result<Self, Refusal> {
        let Prompt { tokens, want, .. } = prompt;
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
                // The last new token is never an input, so it needs no position.
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
        Ok(Self {
            prompt: tokens,
            prompt_tokens: length,
            recompute_at: None,
            generated: Vec::new(),
            generation,
            wanted_blocks,
            blocks: None,
            entered: 0,
            epoch: 0,
            times,
        })
    }

    /// Returns the path of the prompt. `prefill_from` is the minimum number of tokens of a prompt that the
    /// prefill stage computes. All chunks of a prompt take the same path, so that its keys and values are in
    /// one place.
    pub(crate) fn prefill_path(&self, prefill_from: Option<u32>) -> Path {
        let is_long = prefill_from.is_some_and(|from| self.prompt_tokens >= from);
        if is_long && self.generation.is_some() { Path::Prefill } else { Path::Stages }
    }

    /// Takes a generated token. Returns whether the sequence has reached the length at which it is computed
    /// again. It then enters with all its tokens as its prompt, and into the same cache blocks.
    pub(crate) fn recomputes(&mut self, token: u32) -> bool {
        let Some(at) = self.recompute_at else { return false };
        self.generated.push(token);
        if self.prompt.len() + self.generated.len() < at as usize {
            return false;
        }
        self.prompt = [&self.prompt[..], &self.generated].concat().into();
        (self.recompute_at, self.generated, self.entered) = (None, Vec::new(), 0);
        true
    }

    /// Returns whether the sequence has its cache blocks.
    pub(crate) fn is_admitted(&self) -> bool {
        self.blocks.is_some()
    }

    pub(crate) fn finished(&self, reason: FinishReason, now: Nanoseconds) -> Finished {
        Finished {
            reason,
            prompt_tokens: self.prompt_tokens,
            new_tokens: self.generation.as_ref().map_or(0, |g| g.new_tokens),
            cached_tokens: 0,
            preemptions: 0,
            times: SequenceTimes { finished_ns: now, ..self.times },
        }
    }
}
