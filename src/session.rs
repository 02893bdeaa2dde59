//! Sessions: prompts in, streams of tokens or logits out.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::stop::{Matched, StopMatcher};
use ragtag_graph::TextStream;
use ragtag_scheduler::core::{FinishReason, Finished, SequenceId};
use ragtag_scheduler::{Job, Pipeline, Reply, Request, Sampler, Sampling};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// What to go on from.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Text; the tokenizer adds what the model wants before it.
    Text(&'a str),
    /// Token ids, as they are.
    Tokens(&'a [u32]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Prompt::Text(text)
    }
}

/// How to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Most new tokens.
    pub max_tokens: u32,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Texts to stop before.
    pub stop: Vec<String>,
    /// Go on after the model's end token, for measurements.
    pub ignore_end: bool,
}

impl Default for Generation {
    /// Up to 256 tokens with the usual sampling.
    fn default() -> Self {
        Self { max_tokens: 256, sampling: Sampling::default(), stop: Vec::new(), ignore_end: false }
    }
}

impl Generation {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { sampling: Sampling::greedy(), ..Self::default() }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The model said so.
    End,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// A stop string appeared.
    Stop,
    /// It was cancelled.
    Cancelled,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::End => "end of text",
            Reason::MaxTokens => "as many as asked for",
            Reason::ContextFull => "context full",
            Reason::Stop => "stop string",
            Reason::Cancelled => "cancelled",
        })
    }
}

/// How a generation went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: Reason,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// New tokens.
    pub new_tokens: u32,
    /// From the submission to the first new token, or to the end without one, in seconds.
    pub prefill_s: f64,
    /// From the first new token to the last, in seconds.
    pub decode_s: f64,
}

impl Summary {
    fn new(finished: &Finished, stopped: bool) -> Self {
        let times = finished.times;
        let first = times.prefilled_ns.unwrap_or(times.finished_ns);
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * 1e-9;
        let reason = match finished.reason {
            _ if stopped => Reason::Stop,
            FinishReason::EndToken(_) => Reason::End,
            FinishReason::MaxTokens | FinishReason::LogitsDone => Reason::MaxTokens,
            FinishReason::ContextFull => Reason::ContextFull,
            FinishReason::Cancelled => Reason::Cancelled,
        };
        Self {
            reason,
            prompt_tokens: finished.prompt_tokens,
            new_tokens: finished.new_tokens,
            prefill_s: seconds(times.submitted_ns, first),
            decode_s: seconds(first, times.finished_ns),
        }
    }

    /// Prompt tokens per second: 0 if the generation was cancelled before its first token.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        if self.reason == Reason::Cancelled && self.new_tokens == 0 {
            return 0.0;
        }
        rate(self.prompt_tokens, self.prefill_s)
    }

    /// New tokens per second, the first (which the prefill made) apart: 0 if there is no other.
    pub fn decode_tokens_per_s(&self) -> f64 {
        rate(self.new_tokens.saturating_sub(1), self.decode_s)
    }

    /// As JSON. A rate of nothing is null.
    pub fn timings(&self) -> serde_json::Value {
        let known = |rate: f64| (rate > 0.0).then_some(rate);
        json!({
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "prefill_tokens_per_s": known(self.prefill_tokens_per_s()),
            "decode_tokens_per_s": known(self.decode_tokens_per_s()),
        })
    }
}

fn rate(tokens: u32, seconds: f64) -> f64 {
    if seconds > 0.0 { f64::from(tokens) / seconds } else { 0.0 }
}

/// Something that happens in a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Text became clear. Without an id it is text that had been held back: half a character, or the possible start of a
    /// stop string.
    Token {
        /// The token.
        id: Option<u32>,
        /// Text that became clear with it; may be empty.
        text: String,
    },
    /// The end.
    Finished(Summary),
}

/// Turns prompts into streams. Cheap to clone; all sessions of an engine share its pipeline.
#[derive(Clone, Debug)]
pub struct Session {
    model: Model,
    pipeline: Arc<Pipeline>,
}

impl Session {
    pub(crate) fn new(model: Model, pipeline: Arc<Pipeline>) -> Self {
        Self { model, pipeline }
    }

    pub(crate) fn vocabulary(&self) -> u32 {
        self.model.hyperparameters().vocabulary
    }

    /// Starts a generation. The stream ends with [`Event::Finished`]; dropping it cancels.
    ///
    /// # Errors
    /// [`Error::Usage`] for sampling settings that make no sense, [`Error::Tokenizer`] if the prompt is text and cannot
    /// be encoded. What the pipeline refuses comes by the stream.
    pub fn generate<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        generation: &Generation,
    ) -> Result<TokenStream> {
        let sampler = Sampler::new(generation.sampling).map_err(|e| Error::Usage(e.to_string()))?;
        let ids = match prompt.into() {
            Prompt::Tokens(ids) => ids.to_vec(),
            Prompt::Text(text) => self
                .model
                .tokenizer()?
                .encode(text, true)
                .map_err(|cause| Error::Tokenizer { name: self.model.name().into(), cause })?,
        };
        // Without a tokenizer there are ids, but no text and no stop strings.
        let tokenizer = self.model.tokenizer();
        let tokenizer = if generation.stop.is_empty() { tokenizer.ok() } else { Some(tokenizer?) };
        let end_tokens = match &tokenizer {
            Some(tokenizer) if !generation.ignore_end => tokenizer.eos().iter().copied().collect(),
            _ => Vec::new(),
        };
        let text = tokenizer.map(|tokenizer| {
            let mut stream = tokenizer.stream();
            // The prompt's text stands before; the stream needs to know that a token is not the first.
            for &id in &ids {
                stream.push(id);
            }
            stream
        });
        let max_new_tokens = generation.max_tokens;
        let job = Job::Generate { max_new_tokens, end_tokens, sampler: Box::new(sampler) };
        let (id, replies) = self.submit(ids, job, max_new_tokens as usize + 2);
        Ok(TokenStream {
            replies,
            running: Running { pipeline: Arc::clone(&self.pipeline), id, ended: false },
            text,
            stop: StopMatcher::new(generation.stop.clone()),
            stopped: false,
            ready: VecDeque::new(),
        })
    }

    /// The logits of every position of a list of token ids: float32 `[positions, vocabulary]`, row by row.
    ///
    /// # Errors
    /// [`Error::Run`] if the pipeline refuses the ids or fails.
    pub async fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        self.start_logits(ids).collect().await
    }

    /// Starts what [`Session::logits`] waits for. What the pipeline refuses comes with the logits.
    pub fn start_logits(&self, ids: &[u32]) -> LogitStream {
        let (id, replies) = self.submit(ids.to_vec(), Job::Logits, ids.len() + 2);
        LogitStream { replies, running: Running { pipeline: Arc::clone(&self.pipeline), id, ended: false } }
    }

    /// Room for every reply there can be, so that the pipeline never waits for its user.
    fn submit(&self, prompt: Vec<u32>, job: Job, replies: usize) -> (SequenceId, mpsc::Receiver<Reply>) {
        let (sender, receiver) = mpsc::channel(replies);
        let reply = Box::new(move |reply| {
            // Nobody listens any more, or (never) the channel is full: both mean that the reply is not wanted.
            let _ = sender.try_send(reply);
        });
        (self.pipeline.submit(Request { prompt, job, reply }), receiver)
    }
}

/// Cancels its sequence when it is dropped before the end.
#[derive(Debug)]
struct Running {
    pipeline: Arc<Pipeline>,
    id: SequenceId,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.pipeline.cancel(self.id);
        }
    }
}

/// The tokens of one generation as they are made. Also a [`tokio_stream::Stream`].
#[derive(Debug)]
pub struct TokenStream {
    replies: mpsc::Receiver<Reply>,
    running: Running,
    text: Option<TextStream>,
    stop: StopMatcher,
    stopped: bool,
    ready: VecDeque<Event>,
}

impl TokenStream {
    /// The next event. After [`Event::Finished`] there is none.
    ///
    /// # Errors
    /// [`Error::Run`] if the pipeline refused the prompt or failed.
    pub async fn next_event(&mut self) -> Result<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Ends the generation; [`Event::Finished`] still comes.
    pub fn cancel(&mut self) {
        self.running.pipeline.cancel(self.running.id);
    }

    /// The whole text.
    ///
    /// # Errors
    /// As [`TokenStream::next_event`].
    pub async fn text(mut self) -> Result<String> {
        let mut whole = String::new();
        loop {
            match self.next_event().await? {
                Event::Token { text, .. } => whole.push_str(&text),
                Event::Finished(_) => return Ok(whole),
            }
        }
    }

    /// [`TokenStream::text`] for code that is not async.
    ///
    /// # Errors
    /// As [`TokenStream::next_event`].
    ///
    /// # Panics
    /// Inside an async runtime; use [`TokenStream::text`] there.
    pub fn blocking_text(mut self) -> Result<String> {
        let mut whole = String::new();
        while let Some(reply) = self.replies.blocking_recv() {
            self.take(reply)?;
            while let Some(event) = self.ready.pop_front() {
                match event {
                    Event::Token { text, .. } => whole.push_str(&text),
                    Event::Finished(_) => return Ok(whole),
                }
            }
        }
        Err(Error::Run(ragtag_scheduler::Error::Stopped))
    }

    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Ok(event));
            }
            match self.replies.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    self.running.ended = true;
                    return Poll::Ready(Err(Error::Run(ragtag_scheduler::Error::Stopped)));
                }
                Poll::Ready(Some(reply)) => {
                    if let Err(error) = self.take(reply) {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
    }

    fn take(&mut self, reply: Reply) -> Result<()> {
        match reply {
            // Tokens that were on their way when a stop string appeared are not wanted.
            Reply::Token { .. } if self.stopped => {}
            Reply::Token { id } => self.token(id),
            Reply::Finished(finished) => {
                self.running.ended = true;
                if !self.stopped {
                    let rest = self.text.take().map(TextStream::finish).unwrap_or_default();
                    let text = match self.stop.push(&rest) {
                        Matched::Text(text) => text + &self.stop.finish(),
                        Matched::Stop(text) => {
                            self.stopped = true;
                            text
                        }
                    };
                    if !text.is_empty() {
                        self.ready.push_back(Event::Token { id: None, text });
                    }
                }
                self.ready.push_back(Event::Finished(Summary::new(&finished, self.stopped)));
            }
            Reply::Failed(error) => {
                self.running.ended = true;
                return Err(Error::Run(error));
            }
            Reply::Logits { .. } => {}
        }
        Ok(())
    }

    fn token(&mut self, id: u32) {
        let piece = self.text.as_mut().map(|text| text.push(id)).unwrap_or_default();
        let text = match self.stop.push(&piece) {
            Matched::Text(text) => text,
            Matched::Stop(text) => {
                self.stopped = true;
                self.running.pipeline.cancel(self.running.id);
                text
            }
        };
        self.ready.push_back(Event::Token { id: Some(id), text });
    }
}

impl tokio_stream::Stream for TokenStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.running.ended && self.ready.is_empty() {
            return Poll::Ready(None);
        }
        self.poll_event(context).map(Some)
    }
}

/// The logits of one list of ids as they are made.
#[derive(Debug)]
pub struct LogitStream {
    replies: mpsc::Receiver<Reply>,
    running: Running,
}

impl LogitStream {
    /// All of them: float32 `[positions, vocabulary]`, row by row.
    ///
    /// # Errors
    /// [`Error::Run`] if the pipeline refused the ids or failed.
    pub async fn collect(mut self) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        while let Some(reply) = self.replies.recv().await {
            match reply {
                Reply::Logits { row, .. } => logits.extend_from_slice(&row),
                Reply::Token { .. } => {}
                Reply::Finished(_) => {
                    self.running.ended = true;
                    return Ok(logits);
                }
                Reply::Failed(error) => {
                    self.running.ended = true;
                    return Err(Error::Run(error));
                }
            }
        }
        Err(Error::Run(ragtag_scheduler::Error::Stopped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::core::SequenceTimes;

    #[test]
    fn a_prompt_that_was_cancelled_has_no_rate() {
        let times = SequenceTimes { finished_ns: 2_000_000_000, ..SequenceTimes::default() };
        let cancelled =
            Finished { reason: FinishReason::Cancelled, prompt_tokens: 100, new_tokens: 0, times };
        let summary = Summary::new(&cancelled, false);
        assert_eq!(summary.prefill_tokens_per_s(), 0.0);
        assert!(summary.timings()["prefill_tokens_per_s"].is_null());
        let times = SequenceTimes { prefilled_ns: Some(1_000_000_000), ..times };
        let later = Summary::new(&Finished { new_tokens: 3, times, ..cancelled }, false);
        assert_eq!((later.prefill_tokens_per_s(), later.decode_tokens_per_s()), (100.0, 2.0));
    }
}
