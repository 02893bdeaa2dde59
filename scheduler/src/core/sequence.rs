//! A sequence in the coordinator: its request, its progress and its result.

use crate::core::pool::{Holding, Root};
use crate::core::{LogitRows, Nanoseconds, Path, RunShape, SequenceId};
use crate::error::Refusal;
use crate::sampling::Noise;
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
    /// Whether tokens are sampled from whole rows of logits, and not from their best logits.
    #[serde(default)]
    pub whole_rows: bool,
    /// Noise with which the device draws the tokens, if it does.
    #[serde(default)]
    pub noise: Option<Noise>,
}

impl Prompt {
    /// Creates a request of normal priority that shares its prefix, has no deadline, and reads the best logits.
    pub fn new(tokens: Arc<[u32]>, want: Want) -> Self {
        let (priority, deadline_ns) = (Priority::Normal, None);
        Self { tokens, want, shares_prefix: true, priority, deadline_ns, whole_rows: false, noise: None }
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
    /// Number of times that the sequence was preempted.
    #[serde(default)]
    pub preemptions: u32,
    /// Times of the sequence.
    pub times: SequenceTimes,
}

/// State of a sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Tokens of the request.
    prompt: Arc<[u32]>,
    /// Generated tokens.
    generated: Vec<u32>,
    /// Generation state. `None` if the request asks for logits.
    pub(crate) generation: Option<Generation>,
    /// Place of the sequence among the waiting ones: the time of its submission, and what its priority adds.
    pub(crate) rank: Rank,
    /// Whether the sequence uses prefixes in the cache, and leaves its own there.
    pub(crate) shares_prefix: bool,
    pub(crate) deadline_ns: Option<Nanoseconds>,
    /// Whether the request reads whole rows of logits.
    whole_rows: bool,
    /// Noise with which the device draws the tokens.
    pub(crate) noise: Option<Noise>,
    /// Logits of the row after which a token is sampled.
    pub(crate) last_row: LogitRows,
    /// Maximum number of cache blocks that the sequence needs.
    pub(crate) wanted_blocks: u32,
    pub(crate) place: Place,
    /// Whether the reader of the sequence is behind.
    pub(crate) is_paused: bool,
    /// Number of requests that were admitted while this one was the first that waited.
    pub(crate) overtaken: u32,
    /// Cache blocks. `None` until the first rows enter.
    pub(crate) holding: Option<Holding>,
    /// Number of times that the sequence has started over.
    pub(crate) epoch: u32,
    /// Number of its tokens when the epoch began.
    pub(crate) start_tokens: u32,
    /// Path of the tokens with which the epoch began.
    pub(crate) path: Path,
    /// Number of tokens that have entered the pipeline in this epoch, or were in the cache.
    pub(crate) entered: u32,
    /// Number of tokens that were in a micro-batch of this epoch that was formed, or in the cache. The rows of a micro-batch
    /// that is being formed may be dropped.
    pub(crate) formed: u32,
    /// Number of positions whose logits the client has.
    pub(crate) delivered: u32,
    /// Length at which the sequence starts over. `None` if it does not.
    pub(crate) recompute_at: Option<u32>,
    /// Prompt tokens that were in the cache at the first start. `None` before it.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) preemptions: u32,
    pub(crate) times: SequenceTimes,
}

/// Place of a sequence among the waiting ones. The smallest comes first.
pub(crate) type Rank = (Nanoseconds, SequenceId);

/// Queue that contains a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Sequences that wait for admission.
    Waiting,
    /// Admitted sequences that have several tokens to enter, or no token of their own yet.
    Prefilling,
    /// Sequences whose latest token has not entered.
    Ready,
    /// None: the sequence is paused, or all its tokens have entered.
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) max_new_tokens: u32,
    /// Reason to report when the sequence reaches `max_new_tokens`.
    pub(crate) at_limit: FinishReason,
    end_tokens: Arc<[u32]>,
}

impl Generation {
    pub(crate) fn ends_with(&self, token: u32) -> bool {
        self.end_tokens.contains(&token)
    }
}

/// Times by which requests of high priority come before, and those of low priority after, normal ones that
/// were submitted at the same time.
const HIGH_NS: Nanoseconds = 10_000_000_000;
const LOW_NS: Nanoseconds = 60_000_000_000;

/// Least number of tokens before the place at which the state of a prompt is kept.
const SNAPSHOT_TOKENS: u32 = 64;

/// Limits the generation after a prompt of `length` tokens to a context of `context` tokens. Returns the maximum number of
/// cache blocks that the sequence needs.
fn fit(length: u32, generation: Option<&mut Generation>, context: u32, total: u32) -> Result<u32, Refusal> {
    let room = context - length + 1;
    let mut new_positions = 0;
    if let Some(generation) = generation {
        if generation.max_new_tokens > room {
            (generation.max_new_tokens, generation.at_limit) = (room, FinishReason::ContextFull);
        }
        new_positions = generation.max_new_tokens.saturating_sub(1);
    }
    match (length + new_positions).div_ceil(BLOCK_TOKENS as u32) {
        wanted if wanted > total => Err(Refusal::TooManyBlocks { wanted, total }),
        wanted => Ok(wanted),
    }
}

impl Sequence {
    /// Creates a sequence for the request `prompt`. Rejects a request that is invalid, or that does not fit
    /// `context` tokens or `total_blocks` cache blocks.
    pub(crate) fn new(
        id: SequenceId,
        prompt: Prompt,
        context: u32,
        vocabulary: u32,
        total_blocks: u32,
        now: Nanoseconds,
    ) -> Result<Self, Refusal> {
        let Prompt { tokens, want, shares_prefix, priority, deadline_ns, whole_rows, noise } = prompt;
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
        let mut generation = match want {
            Want::Logits => None,
            Want::Generate { max_new_tokens, end_tokens } => {
                Some(Generation { max_new_tokens, at_limit: FinishReason::MaxTokens, end_tokens })
            }
        };
        let wanted_blocks = fit(length, generation.as_mut(), context, total_blocks)?;
        let rank_ns = match priority {
            Priority::High => now,
            Priority::Normal => now.saturating_add(HIGH_NS),
            Priority::Low => now.saturating_add(HIGH_NS + LOW_NS),
        };
        Ok(Self {
            prompt: tokens,
            generated: Vec::new(),
            rank: (rank_ns, id),
            shares_prefix: shares_prefix && generation.is_some(),
            generation,
            deadline_ns,
            whole_rows,
            noise,
            last_row: LogitRows::Last,
            wanted_blocks,
            place: Place::Nowhere,
            is_paused: false,
            overtaken: 0,
            holding: None,
            epoch: 0,
            start_tokens: length,
            path: Path::Stages,
            entered: 0,
            formed: 0,
            delivered: 0,
            recompute_at: None,
            cached_tokens: None,
            preemptions: 0,
            times: SequenceTimes { submitted_ns: now, ..SequenceTimes::default() },
        })
    }

    /// Returns the number of tokens: those of the request and the generated ones.
    pub(crate) fn tokens(&self) -> u32 {
        self.prompt_tokens() + self.new_tokens()
    }

    /// Returns the number of tokens of the request.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// Returns the number of generated tokens.
    pub(crate) fn new_tokens(&self) -> u32 {
        self.generated.len() as u32
    }

    /// Returns the token at a position.
    pub(crate) fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt.len()) {
            None => self.prompt[position],
            Some(position) => self.generated[position],
        }
    }

    /// Returns the tokens from `first` on.
    pub(crate) fn tokens_from(&self, first: u32) -> impl Iterator<Item = u32> + Clone {
        let first = first as usize;
        let generated = &self.generated[first.saturating_sub(self.prompt.len()).min(self.generated.len())..];
        self.prompt[first.min(self.prompt.len())..].iter().chain(generated).copied()
    }

    /// Returns the number of tokens that have not entered.
    pub(crate) fn left(&self) -> u32 {
        self.tokens() - self.entered
    }

    /// Returns whether the sequence has one generated token to enter, and nothing else.
    pub(crate) fn decodes(&self) -> bool {
        self.left() == 1 && self.entered >= self.start_tokens
    }

    /// Adapts the sequence, which has just started over, to a pipeline of another shape. Rejects it if its tokens do
    /// not fit.
    pub(crate) fn refit(&mut self, shape: &RunShape) -> Result<(), Refusal> {
        let (tokens, context) = (self.tokens(), shape.context);
        if tokens > context {
            return Err(Refusal::NoLongerFits { tokens, context });
        }
        self.wanted_blocks = fit(self.prompt_tokens(), self.generation.as_mut(), context, shape.kv_blocks)?;
        self.read_rows(shape.has_picks);
        self.recompute_at = shape.recompute_at.filter(|at| tokens < *at);
        self.shares_prefix &= shape.kv_use.prefixes.is_some();
        Ok(())
    }

    /// Reads the best logits of rows if the stages find them and the request allows it, and otherwise whole rows.
    pub(crate) fn read_rows(&mut self, has_picks: bool) {
        self.last_row = if self.whole_rows || !has_picks { LogitRows::Last } else { LogitRows::Picks };
    }

    /// Takes a generated token.
    pub(crate) fn push(&mut self, token: u32) {
        self.generated.push(token);
    }

    /// Lets its state be kept at the last block border of its tokens, from where the next turn of a conversation can go on
    /// whatever the reply is. A short prompt is not worth the micro-batch that this takes.
    pub(crate) fn plan_snapshot(&mut self) {
        let border = self.tokens().saturating_sub(1) / BLOCK_TOKENS as u32 * BLOCK_TOKENS as u32;
        if self.shares_prefix && border >= self.entered + SNAPSHOT_TOKENS {
            self.holding.iter_mut().for_each(|holding| holding.keep_state_at(border));
        }
    }

    /// Forgets its progress through the pipeline.
    pub(crate) fn start_over(&mut self) {
        (self.epoch, self.entered, self.start_tokens) = (self.epoch + 1, 0, self.tokens());
        self.formed = 0;
    }

    /// Returns the root of the sequence's prefix, if the frequencies of sequences change at `recompute_at`
    /// positions.
    pub(crate) fn root(&self, recompute_at: Option<u32>) -> Root {
        if recompute_at.is_some_and(|at| self.start_tokens >= at) { Root::Long } else { Root::Short }
    }

    /// Returns the number of tokens, from the first on, that this sequence has in common with the first `most`
    /// tokens of `other`.
    pub(crate) fn common(&self, other: &Self, most: u32) -> u32 {
        let pairs = self.tokens_from(0).zip(other.tokens_from(0)).take(most as usize);
        pairs.take_while(|(a, b)| a == b).count() as u32
    }

    pub(crate) fn finished(&self, reason: FinishReason, now: Nanoseconds) -> Finished {
        Finished {
            reason,
            prompt_tokens: self.prompt_tokens(),
            new_tokens: self.new_tokens(),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.preemptions,
            times: SequenceTimes { finished_ns: now, ..self.times },
        }
    }
}
