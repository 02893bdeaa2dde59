//! Sessions, which turn prompts into streams of tokens or logits.

use crate::embedding::{Embedding, Pooling};
use crate::error::{Error, Result};
use crate::held::HeldPipeline;
use crate::model::Model;
use crate::running::{Running, replies};
use crate::stop::{Matched, StopMatcher, StopStrings};
use ragtag_graph::TextStream;
use ragtag_scheduler::core::{FinishReason, Finished, Priority, Sample, SequenceId};
use ragtag_scheduler::{
    Job, LogProbabilities, Reply, Request, Sampler, Sampling, ShapedSampler, Shaping, StopRule, TokenMask,
};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

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
    /// Penalties, biases and reported log probabilities.
    pub shaping: Shaping,
    /// Tokens that may follow, such as those that a grammar allows. The generation ends when the text is complete.
    pub mask: Option<MaskSource>,
    /// Stop strings. The generated text ends before the first stop string that occurs in it.
    pub stop: Vec<String>,
    /// Whether to continue after the model's end token. Benchmarks set this flag so that all runs have the
    /// same length.
    pub ignore_end: bool,
    /// Priority among the requests that wait.
    pub priority: Priority,
    /// Time from the submission to the end of the generation, whatever it has produced. `None` sets no limit.
    pub deadline: Option<Duration>,
    /// Whether to use what the KV cache keeps of earlier prompts that begin alike, and to leave this prompt
    /// there. Benchmarks turn it off, because a cached prompt takes almost no time.
    pub cache: bool,
}

impl Default for Generation {
    /// Returns parameters for up to 256 new tokens with the default sampling.
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: Sampling::default(),
            shaping: Shaping::default(),
            mask: None,
            stop: Vec::new(),
            ignore_end: false,
            priority: Priority::Normal,
            deadline: None,
            cache: true,
        }
    }
}

impl Generation {
    /// Returns parameters that always select the most likely token.
    pub fn greedy() -> Self {
        Self { sampling: Sampling::greedy(), ..Self::default() }
    }
}

/// Source of masks, one for each generation.
#[derive(Clone)]
pub struct MaskSource(Arc<dyn Fn() -> Box<dyn TokenMask> + Send + Sync>);

impl MaskSource {
    /// Creates a source that calls `create` for each generation.
    pub fn new(create: impl Fn() -> Box<dyn TokenMask> + Send + Sync + 'static) -> Self {
        Self(Arc::new(create))
    }
}

impl fmt::Debug for MaskSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskSource").finish_non_exhaustive()
    }
}

impl PartialEq for MaskSource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The model produced an end token, or the mask of the generation allows no further text.
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
    /// Number of prompt tokens whose keys and values were in the cache.
    pub cached_tokens: u32,
    /// Number of new tokens.
    pub new_tokens: u32,
    /// Number of times that the generation gave up its cache blocks to an older one, and was computed again.
    pub preemptions: u32,
    /// Seed of the sampler.
    pub seed: u64,
    /// Index of the stop string that ended the generation, in the order of [`Generation::stop`].
    pub stop: Option<u32>,
    /// Time from submission to the first new token, or to the end if there is no new token, in seconds.
    pub prefill_s: f64,
    /// Time from the first new token to the last, in seconds.
    pub decode_s: f64,
}

impl Summary {
    fn new(finished: &Finished, stop: Option<u32>, seed: u64) -> Self {
        let times = finished.times;
        let first = times.prefilled_ns.unwrap_or(times.finished_ns);
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * 1e-9;
        let reason = match finished.reason {
            _ if stop.is_some() => Reason::Stop,
            // Without a stop string, the mask has ended the sequence.
            FinishReason::EndToken(_) | FinishReason::StopRule => Reason::End,
            FinishReason::MaxTokens | FinishReason::LogitsDone => Reason::MaxTokens,
            FinishReason::ContextFull => Reason::ContextFull,
            FinishReason::Deadline => Reason::Deadline,
            FinishReason::Cancelled => Reason::Cancelled,
        };
        Self {
            reason,
            prompt_tokens: finished.prompt_tokens,
            cached_tokens: finished.cached_tokens,
            new_tokens: finished.new_tokens,
            preemptions: finished.preemptions,
            seed,
            stop,
            prefill_s: seconds(times.submitted_ns, first),
            decode_s: seconds(first, times.finished_ns),
        }
    }

    /// Returns the prefill rate in prompt tokens per second, without cached tokens. Returns 0 if the generation
    /// was cancelled before its first token.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        if self.reason == Reason::Cancelled && self.new_tokens == 0 {
            return 0.0;
        }
        rate(self.prompt_tokens - self.cached_tokens, self.prefill_s)
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
            "cached_tokens": self.cached_tokens,
            "new_tokens": self.new_tokens,
            "preemptions": self.preemptions,
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
        /// Log probabilities of the token, if the generation reports them.
        log_probabilities: Option<Box<LogProbabilities>>,
    },
    /// The generation has ended.
    Finished(Summary),
}

/// A session, which turns prompts into streams of tokens or logits. Sessions are cheap to clone. All sessions
/// of an engine share its pipeline.
#[derive(Clone, Debug)]
pub struct Session {
    model: Model,
    pipeline: Arc<HeldPipeline>,
}

impl Session {
    pub(crate) fn new(model: Model, pipeline: Arc<HeldPipeline>) -> Self {
        Self { model, pipeline }
    }

    pub(crate) fn vocabulary(&self) -> u32 {
        self.model.hyperparameters().vocabulary
    }

    /// Starts a generation without blocking. The stream ends with [`Event::Finished`]. Dropping the stream cancels
    /// the generation. A reader that is about a thousand tokens behind pauses the generation.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for invalid sampling settings and for models
    /// [for embeddings](Model::for_embeddings), and [`Error::Tokenizer`] if a text prompt cannot be encoded. If
    /// the pipeline rejects the request, the stream returns the error.
    pub fn generate<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        generation: &Generation,
    ) -> Result<TokenStream> {
        self.start(prompt.into(), generation, |request| Ok(self.pipeline.submit(request)))
    }

    /// Starts a generation as [`generate`](Self::generate) does, unless too many requests are waiting.
    ///
    /// # Errors
    /// Those of [`generate`](Self::generate). Returns [`Error::Run`] with
    /// [`Refusal::Busy`](ragtag_scheduler::Refusal::Busy) if the limits of waiting requests are reached.
    pub fn try_generate<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        generation: &Generation,
    ) -> Result<TokenStream> {
        let submit = |request| self.pipeline.try_submit(request).map_err(|busy| Error::Run(busy.into()));
        self.start(prompt.into(), generation, submit)
    }

    /// Starts a generation. `submit` submits its request.
    fn start(
        &self,
        prompt: Prompt<'_>,
        generation: &Generation,
        submit: impl FnOnce(Request) -> Result<SequenceId>,
    ) -> Result<TokenStream> {
        if self.model.is_for_embeddings() {
            return Err(Error::Usage(format!("cannot generate: {} runs for embeddings", self.model.name())));
        }
        let sampler = Sampler::new(generation.sampling).map_err(|e| Error::Usage(e.to_string()))?;
        let ids = match prompt {
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
        let (seed, sampler) = (sampler.seed(), self.shaped(sampler, generation)?);
        let stop = StopMatcher::new(generation.stop.clone());
        let rule = text.clone().filter(|_| !generation.stop.is_empty());
        let rule = rule.map(|text| Box::new(StopStrings { text, stop: stop.clone() }) as Box<dyn StopRule>);
        let job = Job::Generate { max_new_tokens: generation.max_tokens, end_tokens, sampler, stop: rule };
        let (reply, replies) = replies();
        let id = submit(Request {
            prompt: ids.into(),
            job,
            priority: generation.priority,
            deadline: generation.deadline,
            shares_prefix: generation.cache,
            reply,
        })?;
        let running = Running::new(&self.pipeline, id, replies);
        Ok(TokenStream { running, text, stop, stopped: None, seed, ready: VecDeque::new() })
    }

    /// Returns a sampler that also applies the generation's penalties, biases and mask.
    fn shaped(&self, sampler: Sampler, generation: &Generation) -> Result<Box<dyn Sample>> {
        if generation.mask.is_none() && !generation.shaping.reads_rows() {
            return Ok(Box::new(sampler));
        }
        let vocabulary = self.vocabulary();
        if let Some((token, _)) = generation.shaping.bias.iter().find(|(token, _)| *token >= vocabulary) {
            return Err(Error::Usage(format!("token {token} is outside the vocabulary of {vocabulary}")));
        }
        let mask = generation.mask.as_ref().map(|source| source.0());
        let shaped = ShapedSampler::new(sampler, generation.shaping.clone(), mask);
        Ok(Box::new(shaped.map_err(|error| Error::Usage(error.to_string()))?))
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
        let plan = self.pipeline.plan();
        let new_tokens = plan.slots + 1;
        let prefill = plan.prefill_stage.as_ref().map(|prefill| prefill.from_tokens);
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
        let context = self.pipeline.plan().context;
        let new_tokens = new_tokens.min(context / 2).max(1);
        // The ids do not affect the time. Id 0 is in every vocabulary.
        let ids = vec![0; prompt_tokens.min(context.saturating_sub(new_tokens)).max(1) as usize];
        if self.model.is_for_embeddings() {
            return self.logits(&ids).await.map(drop);
        }
        let generation =
            Generation { max_tokens: new_tokens, ignore_end: true, cache: false, ..Generation::greedy() };
        let mut stream = self.generate(Prompt::Tokens(&ids), &generation)?;
        while !matches!(stream.next_event().await?, Event::Finished(_)) {}
        Ok(())
    }

    /// Computes the logits of every position of `ids`. Returns float32 values `[positions, vocabulary]` in
    /// row-major order. Of a model [for embeddings](Model::for_embeddings), returns its hidden rows
    /// `[positions, width]`.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejects the ids or fails.
    pub async fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        self.start_logits(ids).collect().await
    }

    /// Starts the computation of an embedding without waiting. The model must be
    /// [for embeddings](Model::for_embeddings), and the engine must return [all rows](crate::EngineOptions::all_logits).
    /// If the pipeline rejects the ids, the embedding returns the error.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the model is not for embeddings.
    pub fn embed(&self, ids: &[u32]) -> Result<Embedding> {
        let pooling = self.pooling()?;
        Ok(Embedding::new(self.start_logits(ids), pooling))
    }

    /// Starts an embedding as [`embed`](Self::embed) does, unless too many requests are waiting.
    ///
    /// # Errors
    /// Those of [`embed`](Self::embed). Returns [`Error::Run`] with
    /// [`Refusal::Busy`](ragtag_scheduler::Refusal::Busy) if the limits of waiting requests are reached.
    pub fn try_embed(&self, ids: &[u32]) -> Result<Embedding> {
        let (pooling, (reply, replies)) = (self.pooling()?, replies());
        let id = self.pipeline.try_submit(Request::new(ids, Job::Logits, reply));
        let id = id.map_err(|busy| Error::Run(busy.into()))?;
        Ok(Embedding::new(LogitStream { running: Running::new(&self.pipeline, id, replies) }, pooling))
    }

    fn pooling(&self) -> Result<Pooling> {
        if !self.model.is_for_embeddings() {
            return Err(Error::Usage(format!(
                "cannot embed: {} does not run for embeddings",
                self.model.name()
            )));
        }
        Pooling::of(&self.model)
    }

    /// Starts the computation of [`Session::logits`] without waiting. If the pipeline rejects the request,
    /// the stream returns the error.
    pub fn start_logits(&self, ids: &[u32]) -> LogitStream {
        let (reply, replies) = replies();
        let id = self.pipeline.submit(Request::new(ids, Job::Logits, reply));
        LogitStream { running: Running::new(&self.pipeline, id, replies) }
    }
}

/// Stream of the tokens of one generation. Implements [`tokio_stream::Stream`].
#[derive(Debug)]
pub struct TokenStream {
    running: Running,
    text: Option<TextStream>,
    stop: StopMatcher,
    /// Index of the stop string that occurred.
    stopped: Option<u32>,
    seed: u64,
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

    /// Returns the seed of the generation's sampler.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Cancels the generation. The stream still ends with [`Event::Finished`].
    pub fn cancel(&mut self) {
        self.running.cancel();
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
        loop {
            let reply = self.running.blocking_next()?;
            self.take(reply);
            while let Some(event) = self.ready.pop_front() {
                match event {
                    Event::Token { text, .. } => whole.push_str(&text),
                    Event::Finished(_) => return Ok(whole),
                }
            }
        }
    }

    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Ok(event));
            }
            let reply = ready!(self.running.poll(context))?;
            self.take(reply);
        }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Token { id, log_probabilities } => self.token(id, log_probabilities),
            Reply::Finished(finished) => {
                if self.stopped.is_none() {
                    let rest = self.text.take().map(TextStream::finish).unwrap_or_default();
                    let text = match self.stop.push(&rest) {
                        Matched::Text(text) => text + &self.stop.finish(),
                        Matched::Stop { text, index } => {
                            self.stopped = Some(index);
                            text
                        }
                    };
                    if !text.is_empty() {
                        self.ready.push_back(Event::Token { id: None, text, log_probabilities: None });
                    }
                }
                self.ready.push_back(Event::Finished(Summary::new(&finished, self.stopped, self.seed)));
            }
            Reply::Failed(_) | Reply::Logits { .. } => {}
        }
    }

    fn token(&mut self, id: u32, log_probabilities: Option<Box<LogProbabilities>>) {
        let piece = self.text.as_mut().map(|text| text.push(id)).unwrap_or_default();
        let text = match self.stop.push(&piece) {
            Matched::Text(text) => text,
            Matched::Stop { text, index } => {
                self.stopped = Some(index);
                text
            }
        };
        self.ready.push_back(Event::Token { id: Some(id), text, log_probabilities });
    }
}

impl tokio_stream::Stream for TokenStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.running.has_ended() && self.ready.is_empty() {
            return Poll::Ready(None);
        }
        self.poll_event(context).map(Some)
    }
}

/// Stream of the logits of one request.
#[derive(Debug)]
pub struct LogitStream {
    running: Running,
}

impl LogitStream {
    /// Waits for the logits of the next position. Returns `None` after the last one.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejected the ids or failed.
    pub async fn next_row(&mut self) -> Result<Option<Vec<f32>>> {
        loop {
            match std::future::poll_fn(|context| self.running.poll(context)).await? {
                Reply::Logits { row, .. } => return Ok(Some(row)),
                Reply::Finished(_) => return Ok(None),
                Reply::Token { .. } | Reply::Failed(_) => {}
            }
        }
    }

    /// Waits until the logits of all positions have arrived. Returns float32 values `[positions, vocabulary]`
    /// in row-major order.
    ///
    /// # Errors
    /// Returns [`Error::Run`] if the pipeline rejected the ids or failed.
    pub async fn collect(mut self) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        while let Some(row) = self.next_row().await? {
            logits.extend_from_slice(&row);
        }
        Ok(logits)
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
            cached_tokens: 20,
            preemptions: 0,
            times,
        };
        let summary = Summary::new(&cancelled, None, 1);
        assert_eq!(summary.prefill_tokens_per_s(), 0.0);
        assert!(summary.timings()["prefill_tokens_per_s"].is_null());
        let times = SequenceTimes { prefilled_ns: Some(1_000_000_000), ..times };
        let later = Summary::new(&Finished { new_tokens: 3, times, ..cancelled }, None, 1);
        assert_eq!((later.prefill_tokens_per_s(), later.decode_tokens_per_s()), (80.0, 2.0));
    }
}
