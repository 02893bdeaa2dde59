//! Sessions, which turn prompts into streams of tokens or logits.

use crate::error::{Error, Result};
use crate::ledger::Claim;
use crate::model::Model;
use crate::stop::{Matched, StopMatcher};
use ragtag_graph::TextStream;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::core::{FinishReason, Finished, SequenceId};
use ragtag_scheduler::{Job, Pipeline, Reply, Request, Sampler, Sampling};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Input of a generation.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Text. The tokenizer encodes it and adds the model's start tokens.
    Text(&'a str),
    /// Token ids. The session adds no start tokens.
    Tokens(&'a [u32]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Prompt::Text(text)
    }
}

/// Generation parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Maximum number of new tokens.
    pub max_tokens: u32,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Stop strings. The generated text ends before the first stop string that occurs in it.
    pub stop: Vec<String>,
    /// Whether to continue after the model's end token. Benchmarks set this flag so that all runs have the
    /// same length.
    pub ignore_end: bool,
}

impl Default for Generation {
    /// Returns parameters for up to 256 new tokens with the default sampling.
    fn default() -> Self {
        Self { max_tokens: 256, sampling: Sampling::default(), stop: Vec::new(), ignore_end: false }
    }
}

impl Generation {
    /// Returns parameters that always select the most likely token.
    pub fn greedy() -> Self {
        Self { sampling: Sampling::greedy(), ..Self::default() }
    }
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The model produced an end token.
    End,
    /// The generation reached the maximum number of new tokens.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// A stop string appeared.
    Stop,
    /// The deadline of the request has passed.
    Deadline,
    /// The user cancelled the generation.
    Cancelled,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::End => "end of text",
            Reason::MaxTokens => "token limit",
            Reason::ContextFull => "context full",
            Reason::Stop => "stop string",
            Reason::Deadline => "deadline",
            Reason::Cancelled => "cancelled",
        })
    }
}

/// Summary of a generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Reason why the generation ended.
    pub reason: Reason,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of new tokens.
    pub new_tokens: u32,
    /// Time from submission to the first new token, or to the end if there is no new token, in seconds.
    pub prefill_s: f64,
    /// Time from the first new token to the last, in seconds.
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
            FinishReason::StopRule => Reason::Stop,
            FinishReason::Deadline => Reason::Deadline,
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

    /// Returns the prefill rate in prompt tokens per second, or 0 if the generation was cancelled before its
    /// first token.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        if self.reason == Reason::Cancelled && self.new_tokens == 0 {
            return 0.0;
        }
        rate(self.prompt_tokens, self.prefill_s)
    }

    /// Returns the decode rate in new tokens per second, or 0 if there are fewer than two new tokens.
    /// Excludes the first new token, because prefill produces it.
    pub fn decode_tokens_per_s(&self) -> f64 {
        rate(self.new_tokens.saturating_sub(1), self.decode_s)
    }

    /// Returns the token counts, times and rates as JSON. Unknown rates are null.
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

/// Event of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A new token with the text that it completes. The session holds back text that is an incomplete
    /// character or the possible start of a stop string. If such text remains at the end, the last event of
    /// this kind carries it without an id.
    Token {
        /// Token id, or `None` for held-back text at the end.
        id: Option<u32>,
        /// Text that the token completes. It is empty if the session holds the text back.
        text: String,
    },
    /// The generation has ended.
    Finished(Summary),
}

/// A pipeline, and the claim on the memory that it holds. The claim ends after the pipeline.
#[derive(Debug)]
pub(crate) struct HeldPipeline {
    pub(crate) pipeline: Pipeline,
    pub(crate) _claim: Claim,
}

impl Deref for HeldPipeline {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

/// A session, which turns prompts into streams of tokens or logits. Sessions are cheap to clone. All sessions
/// of an engine share its pipeline.
#[derive(Clone, Debug)]
pub struct Session {
    model: Model,
    plan: Arc<Plan>,
    pipeline: Arc<HeldPipeline>,
}

impl Session {
    pub(crate) fn new(model: Model, plan: Arc<Plan>, pipeline: Arc<HeldPipeline>) -> Self {
        Self { model, plan, pipeline }
    }

    pub(crate) fn vocabulary(&self) -> u32 {
        self.model.hyperparameters().vocabulary
    }

    /// Starts a generation. The stream ends with [`Event::Finished`]. Dropping the stream cancels the
    /// generation.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for invalid sampling settings, and [`Error::Tokenizer`] if a text prompt
    /// cannot be encoded. If the pipeline rejects the request, the stream returns the error.
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
        // Without a tokenizer, the stream returns only ids and cannot detect stop strings.
        let tokenizer = self.model.tokenizer();
        let tokenizer = if generation.stop.is_empty() { tokenizer.ok() } else { Some(tokenizer?) };
        let end_tokens = match &tokenizer {
            Some(tokenizer) if !generation.ignore_end => tokenizer.eos().iter().copied().collect(),
            _ => Vec::new(),
        };
        let text = tokenizer.map(|tokenizer| {
            let mut stream = tokenizer.stream();
            // The stream gets the prompt's tokens first, because the first token of a text decodes
            // differently.
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

    /// Prepares the pipeline for the first request, which would otherwise wait until programs are compiled and
    /// recorded. Runs a prompt of `prompt_tokens` tokens and a decode step in each slot, on all stages. If the plan has
    /// a prefill stage, also runs a prompt that this stage processes. [`Engine::stats`](crate::Engine::stats) counts
    /// these tokens.
    ///
    /// Dropping the future cancels the rest. A request then waits at most for the micro-batch that is in flight.
    ///
    /// ```
    /// # use ragtag_engine::{DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Planner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> ragtag_engine::Result<()> {
    /// # let model = Model::bundled()?;
    /// # let devices = Devices::probe(&DeviceOptions::selecting("cpu"))?;
    /// # let planner = Planner::new(&model).devices(&devices);
    /// let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
    /// engine.session().warmup(32).await?;
    /// // This prompt starts at full speed.
    /// let text = engine.session().generate("Once upon a time", &Generation::default())?.text().await?;
    /// # assert!(!text.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline fails.
    pub async fn warmup(&self, prompt_tokens: u32) -> Result<()> {
        // All stages but the first use their slots in turn, and each slot has its own programs.
        let new_tokens = self.plan.slots + 1;
        let prefill = self.plan.prefill_stage.as_ref().map(|prefill| prefill.from_tokens);
        for prompt_tokens in [Some(prompt_tokens), prefill].into_iter().flatten() {
            self.rehearse(prompt_tokens, new_tokens).await?;
        }
        Ok(())
    }

    /// Runs a request whose result does not matter. Shortens it if it exceeds the context.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline fails.
    pub async fn rehearse(&self, prompt_tokens: u32, new_tokens: u32) -> Result<()> {
        let context = self.plan.context;
        let new_tokens = new_tokens.min(context / 2).max(1);
        // The ids do not affect the time. Id 0 is in every vocabulary.
        let ids = vec![0; prompt_tokens.min(context.saturating_sub(new_tokens)).max(1) as usize];
        let generation = Generation { max_tokens: new_tokens, ignore_end: true, ..Generation::greedy() };
        let mut stream = self.generate(Prompt::Tokens(&ids), &generation)?;
        while !matches!(stream.next_event().await?, Event::Finished(_)) {}
        Ok(())
    }

    /// Computes the logits of every position of `ids`. Returns float32 values `[positions, vocabulary]` in
    /// row-major order.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejects the ids or fails.
    pub async fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        self.start_logits(ids).collect().await
    }

    /// Starts the computation of [`Session::logits`] without waiting. If the pipeline rejects the request,
    /// the stream returns the error.
    pub fn start_logits(&self, ids: &[u32]) -> LogitStream {
        let (id, replies) = self.submit(ids.to_vec(), Job::Logits, ids.len() + 2);
        LogitStream { replies, running: Running { pipeline: Arc::clone(&self.pipeline), id, ended: false } }
    }

    /// Submits a request. `replies` is the capacity of the reply channel. It must be at least the number of
    /// replies, so that the pipeline never waits for the user.
    fn submit(&self, prompt: Vec<u32>, job: Job, replies: usize) -> (SequenceId, mpsc::Receiver<Reply>) {
        let (sender, receiver) = mpsc::channel(replies);
        let reply = Box::new(move |reply| {
            // Sending fails only if the receiver was dropped, because the channel is never full.
            let _ = sender.try_send(reply);
        });
        (self.pipeline.submit(Request { prompt, job, reply }), receiver)
    }
}

/// Guard of a running sequence. Dropping the guard before the sequence ends cancels the sequence.
#[derive(Debug)]
struct Running {
    pipeline: Arc<HeldPipeline>,
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

/// Stream of the tokens of one generation. Implements [`tokio_stream::Stream`].
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
    /// Waits for the next event. [`Event::Finished`] is the last event.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejected the prompt or failed.
    pub async fn next_event(&mut self) -> Result<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Cancels the generation. The stream still ends with [`Event::Finished`].
    pub fn cancel(&mut self) {
        self.running.pipeline.cancel(self.running.id);
    }

    /// Waits for the end of the generation and returns all generated text.
    ///
    /// # Errors
    /// Fails like [`TokenStream::next_event`].
    pub async fn text(mut self) -> Result<String> {
        let mut whole = String::new();
        loop {
            match self.next_event().await? {
                Event::Token { text, .. } => whole.push_str(&text),
                Event::Finished(_) => return Ok(whole),
            }
        }
    }

    /// Blocks until the end of the generation and returns all generated text.
    ///
    /// # Errors
    /// Fails like [`TokenStream::next_event`].
    ///
    /// # Panics
    /// Panics if it is called within an async runtime. Use [`TokenStream::text`] in async code.
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
            // These tokens were in flight when a stop string appeared.
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

/// Stream of the logits of one request.
#[derive(Debug)]
pub struct LogitStream {
    replies: mpsc::Receiver<Reply>,
    running: Running,
}

impl LogitStream {
    /// Waits until the logits of all positions have arrived. Returns float32 values `[positions, vocabulary]`
    /// in row-major order.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejected the ids or failed.
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
    fn a_cancelled_prompt_has_no_rate() {
        let times = SequenceTimes { finished_ns: 2_000_000_000, ..SequenceTimes::default() };
        let cancelled = Finished {
            reason: FinishReason::Cancelled,
            prompt_tokens: 100,
            new_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            times,
        };
        let summary = Summary::new(&cancelled, false);
        assert_eq!(summary.prefill_tokens_per_s(), 0.0);
        assert!(summary.timings()["prefill_tokens_per_s"].is_null());
        let times = SequenceTimes { prefilled_ns: Some(1_000_000_000), ..times };
        let later = Summary::new(&Finished { new_tokens: 3, times, ..cancelled }, false);
        assert_eq!((later.prefill_tokens_per_s(), later.decode_tokens_per_s()), (100.0, 2.0));
    }
}
