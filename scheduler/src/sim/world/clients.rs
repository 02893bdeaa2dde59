//! Steps the coordinator's core, and plays its clients.

use super::World;
use super::mailboxes::Message;
use super::queue::Event;
use crate::core::{
    FinishReason, Finished, Item, LogitRows, MicroBatch, Path, Prompt, RunAction, RunCounts, RunEvent,
    Sampled, SequenceId, StageEvent,
};
use crate::error::{Error, Refusal};
use crate::sim::SimOutcome;
use crate::sim::request::Prefix;
use ragtag_graph::execution::Reserve;
use std::collections::VecDeque;

/// Text of a sequence that has not ended.
#[derive(Debug)]
pub(super) struct Text {
    /// Number of tokens of the prompt.
    prompt: u32,
    /// The tokens so far, prompt and output together.
    prefix: Prefix,
    /// The tokens that the client has received.
    received: Vec<u32>,
}

impl World<'_> {
    /// Submits request `index` when it arrives.
    pub(super) fn request(&mut self, index: usize) {
        let (request, sequence) = (&self.spec.requests[index], SequenceId(index as u64));
        let tokens = request.prompt(sequence.0, self.spec.run.vocabulary).collect();
        let prompt = Prompt {
            shares_prefix: request.shares_prefix,
            priority: request.priority,
            deadline_ns: request.deadline_ns,
            whole_rows: request.whole_rows,
            ..Prompt::new(tokens, request.want.clone())
        };
        self.report.observations.arrived(self.queue.now, sequence);
        let message = Message::Run(RunEvent::Submit { sequence, prompt });
        self.mailboxes.arrive(&mut self.queue, self.cores.len(), message);
    }

    pub(super) fn run_event(&mut self, event: RunEvent) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let counts = self.run.counts();
            if let Some(invariants) = &mut self.invariants {
                invariants.event(self.queue.now, &event);
                self.report.run_events.push((self.queue.now, event.clone()));
            }
            if let RunEvent::Submit { sequence, prompt } = &event {
                let prefix = prompt.tokens.iter().fold(Prefix::EMPTY, |prefix, &token| prefix.then(token));
                let text = Text { prompt: prompt.tokens.len() as u32, prefix, received: Vec::new() };
                self.texts.insert(*sequence, text);
            }
            let mut actions = Vec::new();
            self.run
                .step(self.queue.now, event.clone(), &mut actions)
                .map_err(|e| format!("coordinator: {e}"))?;
            self.check_limits(&event, &actions, counts)?;
            self.schedule_tick(event == RunEvent::Tick)?;
            if self.spec.checked {
                self.report.run_actions.extend(actions.iter().cloned());
            }
            self.report.observations.waiting.set(self.queue.now, self.run.counts().waiting);
            if let Some(invariants) = &mut self.invariants {
                invariants.stepped(|item| self.run.keeps_blocks(item));
            }
            for action in actions {
                if let Some(invariants) = &mut self.invariants {
                    invariants.act(&action, |item| self.run.is_current(item))?;
                }
                events.extend(self.act(action)?);
            }
            if let Some(invariants) = &mut self.invariants {
                invariants.check_step([counts, self.run.counts()])?;
                self.report.observations.cache = invariants.cache;
            }
        }
        Ok(())
    }

    /// Executes an action of the coordinator. Returns the event that follows at once, if any.
    fn act(&mut self, action: RunAction) -> Result<Option<RunEvent>, String> {
        match action {
            RunAction::Enter { path, micro_batch } => {
                self.entered += 1;
                let run = self.cores.len();
                self.bytes.insert(micro_batch.id, u64::from(micro_batch.rows()) * self.spec.row_bytes);
                let first = if path == Path::Prefill { self.spec.stages.len() } else { 0 };
                self.send_to_stage(run, first, StageEvent::HandOff { micro_batch })?;
            }
            RunAction::Collect { micro_batch } => {
                self.bytes.remove(&micro_batch.id);
                let sampled = self.sample(&micro_batch)?;
                return Ok(Some(RunEvent::Collected { micro_batch: micro_batch.id, sampled }));
            }
            RunAction::Emit { sequence, token } => {
                let text = self.texts.get_mut(&sequence);
                let text = text.ok_or_else(|| format!("a token for {sequence}, which has ended"))?;
                text.prefix = text.prefix.then(token);
                text.received.push(token);
                self.report.observations.token(self.queue.now, sequence);
            }
            RunAction::Finish { sequence, finished } => {
                let tokens = self.texts.remove(&sequence).map_or(Vec::new(), |text| text.received);
                self.check_finished(sequence, &finished, tokens.len())?;
                self.ended_sequence(sequence, SimOutcome::Finished { reason: finished.reason, tokens })?;
            }
            RunAction::Fail { sequence, error } => {
                self.texts.remove(&sequence);
                self.ended_sequence(sequence, SimOutcome::Failed { error })?;
            }
            RunAction::Stop => self.stopped = true,
        }
        Ok(None)
    }

    /// Samples tokens for the items of a micro-batch that are current. Each follows the text so far.
    fn sample(&self, batch: &MicroBatch) -> Result<Vec<Sampled>, String> {
        let samples = |item: &&Item| matches!(item.logits, LogitRows::Last | LogitRows::Picks);
        let wanted = batch.items.iter().filter(samples).filter(|item| self.run.is_current(item));
        let sampled = wanted.map(|item| {
            let sequence = item.sequence;
            let text = self.texts.get(&sequence).ok_or_else(|| format!("{sequence} has ended"))?;
            let received = text.received.len() as u32;
            if item.end_position() != text.prompt + received {
                return Err(format!("a token after {} positions, but {text:?}", item.end_position()));
            }
            let stops = self.spec.requests[sequence.0 as usize].stops == Some(received + 1);
            Ok(Sampled { sequence, stops, token: Ok(text.prefix.next_token(self.spec.run.vocabulary)) })
        });
        sampled.collect()
    }

    /// Checks that exactly the requests beyond the limits are refused. `before` are the counts before `event`.
    fn check_limits(&self, event: &RunEvent, actions: &[RunAction], before: RunCounts) -> Result<(), String> {
        let refusals = actions.iter().filter_map(|action| match action {
            RunAction::Fail { error: Error::Refused(Refusal::Busy { requests, tokens }), .. } => {
                Some((*requests, *tokens))
            }
            _ => None,
        });
        let (limits, waiting) = (self.spec.run.limits, (before.waiting, before.waiting_tokens));
        let expected = match event {
            RunEvent::Submit { prompt, .. } if waiting.0 > 0 && !self.stopped => {
                let tokens = waiting.1 + prompt.tokens.len() as u64;
                (waiting.0 >= limits.requests || tokens > limits.tokens).then_some(waiting)
            }
            _ => None,
        };
        let refusals: Vec<_> = refusals.collect();
        match refusals.iter().copied().eq(expected) {
            true => Ok(()),
            false => Err(format!("{refusals:?} is refused, but {waiting:?} wait at {event:?}")),
        }
    }

    /// Schedules the time at which the next sequence must end. Its deadline may be over when it is submitted, but not
    /// after a tick.
    fn schedule_tick(&mut self, ticked: bool) -> Result<(), String> {
        let Some(at) = self.run.next_deadline_ns() else { return Ok(()) };
        if ticked && at <= self.queue.now {
            return Err(format!("a sequence goes on after its deadline at {at} ns"));
        }
        let at = at.max(self.queue.now);
        if self.tick_ns.is_none_or(|tick_ns| at < tick_ns) {
            self.tick_ns = Some(at);
            self.queue.at(at, Event::Tick);
        }
        Ok(())
    }

    /// Checks the numbers in the result of a sequence that has received `received` tokens.
    fn check_finished(
        &self,
        sequence: SequenceId,
        finished: &Finished,
        received: usize,
    ) -> Result<(), String> {
        let (run, request) = (&self.spec.run, &self.spec.requests[sequence.0 as usize]);
        let most_cached = if request.reuses(run) { request.prompt_tokens - 1 } else { 0 };
        let counts = (finished.prompt_tokens, finished.new_tokens as usize);
        let is_late = request.deadline_ns.is_some_and(|deadline_ns| self.queue.now >= deadline_ns);
        let ends_late = finished.reason == FinishReason::Deadline;
        if counts != (request.prompt_tokens, received) || finished.cached_tokens > most_cached {
            return Err(format!("{sequence} miscounts its {received} tokens: {finished:?}"));
        }
        if run.kv_use.reserve == Reserve::Full && finished.preemptions > 0 {
            return Err(format!("{sequence} was preempted: {finished:?}"));
        }
        match is_late == ends_late || self.queue.now == request.deadline_ns.unwrap_or(0) {
            true => Ok(()),
            false => Err(format!("{sequence} with {request:?} ends with {finished:?}")),
        }
    }

    fn ended_sequence(&mut self, sequence: SequenceId, outcome: SimOutcome) -> Result<(), String> {
        self.report.observations.ended(self.queue.now, sequence);
        if self.spec.at_once.is_some() && self.next_request < self.spec.requests.len() {
            self.queue.at(self.queue.now, Event::Request { index: self.next_request });
            self.next_request += 1;
        }
        match self.report.outcomes.insert(sequence, outcome) {
            None => Ok(()),
            Some(before) => Err(format!("{sequence} ends again after {before:?}")),
        }
    }
}
