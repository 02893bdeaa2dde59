//! A running request: the token streams of its answers, which become parts, and then events or a whole answer.

use crate::answer::{Assembler, Choice, Ended};
use crate::job::{Events, Writer};
use crate::logs::Log;
use crate::metrics::ModelMetrics;
use crate::models::InUse;
use crate::refusal::Refusal;
use crate::tools::Part;
use ragtag_engine::{Event, TokenStream, Tokenizer};
use serde_json::Value;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tokio_stream::Stream;

/// Interval of the events that keep an idle stream open.
const PING: Duration = Duration::from_secs(15);

/// The answers to a request. Dropping it cancels those that have not ended.
pub(crate) struct Running {
    answers: Vec<Answer>,
    pub(crate) choices: Vec<Choice>,
    tokenizer: Option<Tokenizer>,
    timing: Timing,
    served: InUse,
}

/// Times of a request, which go into the metrics.
struct Timing {
    metrics: ModelMetrics,
    submitted: Instant,
    last: Option<Instant>,
}

/// An answer that has not ended.
struct Answer {
    index: usize,
    stream: TokenStream,
    assembler: Assembler,
    has_calls: bool,
    reasoning_tokens: u64,
}

/// Step of a running request.
enum Step {
    Parts { index: usize, log: Option<Log>, parts: Vec<Part>, ended: Option<Ended> },
    AllEnded,
}

impl Running {
    /// Creates a request with these answers. Each has the index of its prompt.
    pub(crate) fn new(
        answers: Vec<(usize, TokenStream, Assembler)>,
        served: InUse,
        metrics: ModelMetrics,
    ) -> Self {
        let choices =
            answers.iter().map(|(prompt, ..)| Choice { prompt: *prompt, ..Choice::default() }).collect();
        let answers = answers.into_iter().enumerate().map(|(index, (_, stream, assembler))| Answer {
            index,
            stream,
            assembler,
            has_calls: false,
            reasoning_tokens: 0,
        });
        let timing = Timing { metrics, submitted: Instant::now(), last: None };
        let tokenizer = served.tokenizer().ok().cloned();
        Self { answers: answers.collect(), choices, tokenizer, timing, served }
    }

    /// Waits for all answers.
    pub(crate) async fn whole(mut self, writer: Box<dyn Writer>) -> Result<Value, Refusal> {
        while !matches!(poll_fn(|context| self.poll(context)).await?, Step::AllEnded) {}
        Ok(writer.whole(&self.choices))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Step, Refusal>> {
        if self.answers.is_empty() {
            self.timing.metrics.answered(self.timing.submitted.elapsed());
            return Poll::Ready(Ok(Step::AllEnded));
        }
        for at in 0..self.answers.len() {
            let answer = &mut self.answers[at];
            let Poll::Ready(Some(event)) = Pin::new(&mut answer.stream).poll_next(context) else { continue };
            let event = event.map_err(|cause| {
                let refusal = Refusal::from(cause);
                tracing::error!(cause = refusal.message, "an answer failed");
                self.served.failed(&refusal);
                refusal
            });
            let mut event = event?;
            let log = answer.log(&mut event, self.tokenizer.as_ref());
            let (parts, ended) = answer.take(event, self.tokenizer.as_ref(), &mut self.timing);
            let index = answer.index;
            if let Some(ended) = ended {
                self.timing.metrics.ended(&ended);
                self.answers.swap_remove(at);
            }
            let choice = &mut self.choices[index];
            parts.iter().for_each(|part| choice.add(part));
            choice.logs.extend(log.clone());
            choice.ended = ended;
            return Poll::Ready(Ok(Step::Parts { index, log, parts, ended }));
        }
        Poll::Pending
    }
}

impl Answer {
    /// Takes the log probabilities of a token.
    fn log(&self, event: &mut Event, tokenizer: Option<&Tokenizer>) -> Option<Log> {
        let Event::Token { log_probabilities, .. } = event else { return None };
        Some(Log::new(&*log_probabilities.take()?, tokenizer?))
    }

    fn take(
        &mut self,
        event: Event,
        tokenizer: Option<&Tokenizer>,
        timing: &mut Timing,
    ) -> (Vec<Part>, Option<Ended>) {
        let (parts, ended) = match event {
            Event::Token { id, text, .. } => {
                timing.token();
                let piece = id.and_then(|id| tokenizer?.piece(id));
                (self.assembler.push(piece, &text), None)
            }
            Event::Finished(summary) => (self.assembler.finish(), Some(summary)),
        };
        self.has_calls |= parts.iter().any(|part| matches!(part, Part::Call { .. }));
        self.reasoning_tokens += u64::from(parts.iter().any(|part| matches!(part, Part::Reasoning(_))));
        if ended.is_none() && self.assembler.is_complete() {
            self.stream.cancel();
        }
        (parts, ended.map(|summary| Ended::new(&summary, self.has_calls, self.reasoning_tokens)))
    }
}

impl Timing {
    fn token(&mut self) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => self.metrics.first_token(now - self.submitted),
            Some(last) => self.metrics.next_token(now - last),
        }
    }
}

/// The stream of events of a running request.
pub(crate) struct EventStream {
    running: Running,
    writer: Box<dyn Writer>,
    ping: Interval,
    /// Events that wait for the reader.
    events: Events,
    has_ended: bool,
}

impl EventStream {
    pub(crate) fn new(running: Running, mut writer: Box<dyn Writer>, prompt_tokens: u64) -> Self {
        let mut events = Events::default();
        writer.begin(running.choices.len(), prompt_tokens, &mut events);
        let mut ping = interval_at(tokio::time::Instant::now() + PING, PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { running, writer, ping, events, has_ended: false }
    }
}

impl Stream for EventStream {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while !this.has_ended {
            match this.running.poll(context) {
                Poll::Ready(Ok(Step::Parts { index, log, parts, ended })) => {
                    log.iter().for_each(|log| this.writer.log(index, log));
                    parts.iter().for_each(|part| this.writer.part(index, part, &mut this.events));
                    if let Some(ended) = ended {
                        this.writer.end(index, &ended, &mut this.events);
                    }
                    // An event for each token, unless the reader is behind.
                    if !this.events.0.is_empty() {
                        break;
                    }
                }
                Poll::Ready(Ok(Step::AllEnded)) => {
                    this.writer.finish(&this.running.choices, &mut this.events);
                    this.has_ended = true;
                }
                Poll::Ready(Err(refusal)) => {
                    this.writer.failed(&refusal, &mut this.events);
                    this.running.answers.clear();
                    this.has_ended = true;
                }
                Poll::Pending => {
                    if this.events.0.is_empty() && this.ping.poll_tick(context).is_ready() {
                        this.writer.ping(&mut this.events);
                        continue;
                    }
                    break;
                }
            }
        }
        match std::mem::take(&mut this.events.0) {
            events if !events.is_empty() => {
                this.ping.reset();
                Poll::Ready(Some(Ok(events)))
            }
            _ if this.has_ended => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}
