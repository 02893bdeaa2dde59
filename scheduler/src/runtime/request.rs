//! Requests to a pipeline, and its replies.

use crate::core::{Finished, Priority, Prompt, RunEvent, Sample, SequenceId};
use crate::error::{Error, Refusal};
use crate::runtime::attached::Attached;
use crate::sampling::shaping::LogProbabilities;
use crate::sampling::{Picks, Sampling};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Output that a request asks for.
pub enum Job {
    /// Generate tokens after the prompt.
    Generate {
        /// Maximum number of new tokens. If it is 0, the pipeline processes the prompt and samples no token.
        max_new_tokens: u32,
        /// Tokens that end the sequence. They are not emitted.
        end_tokens: Vec<u32>,
        /// Sampler that selects the tokens.
        sampler: Box<dyn Sample>,
        /// Rule that ends the sequence.
        stop: Option<Box<dyn StopRule>>,
    },
    /// Deliver the logits of every prompt position, and generate no tokens.
    Logits,
}

impl Job {
    /// Returns a job that generates `max_new_tokens` tokens and has no other end.
    pub fn generate(max_new_tokens: u32, sampler: impl Sample + 'static) -> Self {
        let sampler = Box::new(sampler);
        Job::Generate { max_new_tokens, end_tokens: Vec::new(), sampler, stop: None }
    }
}

/// Rule that ends a generation, such as stop strings.
pub trait StopRule: Send {
    /// Returns whether the sequence ends with `token`, its next new token. The pipeline calls this function
    /// once for each token, right after it was sampled, and computes nothing after the end.
    fn matches(&mut self, token: u32) -> bool;
}

/// Answer of a reply sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue.
    Go,
    /// Compute no further rows of this sequence until [`Pipeline::resume`](crate::Pipeline::resume). Results
    /// in flight still arrive.
    Pause,
}

/// Callback that receives the replies to a request. The coordinator's thread calls it and serves all
/// sequences, so the callback must not block. The thread that submits calls it if the request is refused.
/// Usually it sends to a channel. If it panics, its sequence is cancelled.
pub type ReplySink = Box<dyn FnMut(Reply) -> Flow + Send>;

/// A request to a pipeline.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Arc<[u32]>,
    /// Output that the request asks for.
    pub job: Job,
    /// Priority among the waiting requests.
    pub priority: Priority,
    /// Time from the submission to the end of the sequence, whatever it has produced.
    pub deadline: Option<Duration>,
    /// Whether the sequence may use keys and values that earlier sequences have left in the cache, and leaves
    /// its own there.
    pub shares_prefix: bool,
    /// Callback that receives the replies.
    pub reply: ReplySink,
}

impl Request {
    /// Creates a request of normal priority that shares its prefix and has no deadline.
    pub fn new(
        prompt: impl Into<Arc<[u32]>>,
        job: Job,
        reply: impl FnMut(Reply) -> Flow + Send + 'static,
    ) -> Self {
        let (priority, reply) = (Priority::Normal, Box::new(reply));
        Self { prompt: prompt.into(), job, priority, deadline: None, shares_prefix: true, reply }
    }
}

/// A reply about a sequence. The last reply is [`Reply::Finished`] or [`Reply::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A new token.
    Token {
        /// Token id.
        id: u32,
        /// Its log probabilities, if the request wants them.
        log_probabilities: Option<Box<LogProbabilities>>,
    },
    /// The logits of one position. Positions arrive in ascending order.
    Logits {
        /// The position.
        position: u32,
        /// One logit for each token of the vocabulary.
        row: Vec<f32>,
    },
    /// The sequence has ended. Its times are on the clock of [`ragtag_hal::Timing::now_ns`].
    Finished(Finished),
    /// The request was rejected, or the run has failed.
    Failed(Error),
}

/// Refusal of a request, because too many are waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Number of waiting requests.
    pub requests: u32,
    /// Number of their tokens.
    pub tokens: u64,
}

impl From<Busy> for Error {
    fn from(Busy { requests, tokens }: Busy) -> Self {
        Refusal::Busy { requests, tokens }.into()
    }
}

/// Messages from the users of a pipeline to the coordinator.
pub(super) enum RequestMessage {
    /// Submit a new sequence.
    Submit { sequence: SequenceId, prompt: Prompt, client: Client },
    /// Cancel a sequence.
    Cancel { sequence: SequenceId },
    /// Resume a paused sequence.
    Resume { sequence: SequenceId },
}

/// Urgent messages to the coordinator from the owner of the pipeline, and from its recovery.
pub(super) enum Control {
    /// Stop the pipeline.
    Stop,
    /// Interrupt the run, so that other stages can replace the loaded ones.
    Interrupt,
    /// Go on with these stages.
    Attach(Box<Attached>),
    /// End the run if it is interrupted, and at the next failure: nothing replaces lost stages.
    GiveUp,
}

/// Number of waiting requests and of their tokens: those in the channel to the coordinator and those that are
/// not admitted yet. It bounds the channel.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: AtomicU64,
    tokens: AtomicU64,
}

impl Waiting {
    /// Counts a request with `tokens` tokens, unless a limit is reached. Without other requests, no limit
    /// applies.
    pub(super) fn enter(&self, tokens: u64, limits: crate::core::Limits) -> Result<(), Busy> {
        let requests = self.requests.fetch_add(1, Ordering::SeqCst);
        let others = self.tokens.fetch_add(tokens, Ordering::SeqCst);
        let is_full = requests >= u64::from(limits.requests) || others.saturating_add(tokens) > limits.tokens;
        if requests > 0 && is_full {
            self.leave(tokens);
            return Err(Busy { requests: requests as u32, tokens: others });
        }
        Ok(())
    }

    /// Removes a request that is in the channel.
    pub(super) fn leave(&self, tokens: u64) {
        self.replace((1, tokens), (0, 0));
    }

    /// Replaces `before` requests and tokens by `after`.
    pub(super) fn replace(&self, before: (u64, u64), after: (u64, u64)) {
        if before == after {
            return;
        }
        // Both differences may be negative. Addition wraps.
        self.requests.fetch_add(after.0.wrapping_sub(before.0), Ordering::SeqCst);
        self.tokens.fetch_add(after.1.wrapping_sub(before.1), Ordering::SeqCst);
    }
}

/// State of a request in the coordinator's thread.
pub(super) struct Client {
    pub(super) prompt_tokens: u32,
    /// `None` if the request asks for logits.
    pub(super) picker: Option<Arc<Mutex<Picker>>>,
    /// Callback that receives the replies. `None` once it has panicked.
    pub(super) sink: Option<ReplySink>,
}

impl Client {
    /// Delivers a reply. Returns the event that follows from it, if any.
    pub(super) fn tell(&mut self, sequence: SequenceId, reply: Reply) -> Option<RunEvent> {
        let mut sink = self.sink.take()?;
        let flow = catch_unwind(AssertUnwindSafe(|| {
            let flow = sink(reply);
            (flow, sink)
        }));
        let Ok((flow, sink)) = flow else { return Some(RunEvent::Cancel { sequence }) };
        self.sink = Some(sink);
        (flow == Flow::Pause).then_some(RunEvent::Pause { sequence })
    }

    /// Delivers the last reply.
    pub(super) fn end(self, reply: Reply) {
        // The sampler and the sink may also panic while they are dropped.
        let _ = catch_unwind(AssertUnwindSafe(move || {
            let Self { sink, picker, .. } = self;
            if let Some(mut sink) = sink {
                sink(reply);
            }
            drop(picker);
        }));
    }
}

/// Logits of a row, from which a token is sampled.
pub(super) enum RowLogits<'a> {
    Whole(&'a [f32]),
    /// The best of them.
    Best(Picks<'a>),
}

/// Selects the tokens of a request.
pub(super) struct Picker {
    sampler: Box<dyn Sample>,
    stop: Option<Box<dyn StopRule>>,
    /// Number of recent tokens that the sampler reads.
    window: usize,
    /// Recent tokens, at least `window` of them if there are as many.
    history: Vec<u32>,
    /// Log probabilities of tokens that have not been delivered.
    reports: VecDeque<LogProbabilities>,
}

impl Picker {
    pub(super) fn new(sampler: Box<dyn Sample>, stop: Option<Box<dyn StopRule>>, prompt: &[u32]) -> Self {
        let window = sampler.window();
        let history = prompt[prompt.len().saturating_sub(window)..].to_vec();
        Self { sampler, stop, window, history, reports: VecDeque::new() }
    }

    fn next(&mut self, logits: RowLogits<'_>) -> Result<(u32, bool), String> {
        let token = match logits {
            RowLogits::Whole(logits) => self.sampler.sample(logits, &self.history)?,
            RowLogits::Best(picks) => self.sampler.sample_picks(&picks, &self.history)?,
        };
        if self.history.len() >= self.window.saturating_mul(2) {
            self.history.drain(..self.history.len() - self.window);
        }
        if self.window > 0 {
            self.history.push(token);
        }
        self.reports.extend(self.sampler.report());
        let stops = self.stop.as_mut().is_some_and(|stop| stop.matches(token));
        Ok((token, stops || self.sampler.is_done()))
    }

    /// Returns the settings of the sampler, if they alone determine the tokens.
    pub(super) fn settings(picker: &Mutex<Self>) -> Option<Sampling> {
        picker.lock().unwrap_or_else(PoisonError::into_inner).sampler.settings()
    }

    /// Takes the log probabilities of the token that is delivered next.
    pub(super) fn report(picker: &Mutex<Self>) -> Option<Box<LogProbabilities>> {
        picker.lock().unwrap_or_else(PoisonError::into_inner).reports.pop_front().map(Box::new)
    }

    /// Returns the next token, and whether it ends the sequence. A panic becomes an error.
    pub(super) fn pick(picker: &Mutex<Self>, logits: RowLogits<'_>) -> (Result<u32, String>, bool) {
        let picked = catch_unwind(AssertUnwindSafe(|| {
            picker.lock().unwrap_or_else(PoisonError::into_inner).next(logits)
        }));
        match picked.unwrap_or_else(|cause| Err(format!("the sampler panicked: {}", message(&*cause)))) {
            Ok((token, stops)) => (Ok(token), stops),
            Err(cause) => (Err(cause), false),
        }
    }
}

/// Returns the message of a panic.
fn message(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
