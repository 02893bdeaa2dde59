//! Steps the coordinator's core, and plays its clients.

use super::World;
use super::mailboxes::Message;
use super::queue::Event;
use crate::core::{
    LogitRows, MicroBatch, Path, Prompt, RunAction, RunEvent, Sampled, SequenceId, StageEvent,
};
use crate::sim::SimOutcome;
use crate::sim::spec::token_at;
use std::collections::VecDeque;

impl World<'_> {
    /// Submits request `index` when it arrives.
    pub(super) fn request(&mut self, index: usize) {
        let (request, sequence) = (&self.spec.requests[index], SequenceId(index as u64));
        let token = |position| token_at(sequence.0, position, self.spec.run.vocabulary);
        let tokens = (0..request.prompt_tokens).map(token).collect();
        let prompt = Prompt::new(tokens, request.want.clone());
        self.report.observations.arrived(self.queue.now, sequence);
        let message = Message::Run(RunEvent::Submit { sequence, prompt });
        self.mailboxes.arrive(&mut self.queue, self.cores.len(), message);
    }

    pub(super) fn run_event(&mut self, event: RunEvent) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            if let Some(invariants) = &mut self.invariants {
                if let RunEvent::Collected { micro_batch, .. } = event {
                    invariants.collected(micro_batch);
                }
                self.report.run_events.push((self.queue.now, event.clone()));
            }
            let mut actions = Vec::new();
            self.run.step(self.queue.now, event, &mut actions).map_err(|e| format!("coordinator: {e}"))?;
            if self.spec.checked {
                self.report.run_actions.extend(actions.iter().cloned());
            }
            self.report.observations.waiting.set(self.queue.now, self.run.counts().waiting);
            for action in actions {
                if let Some(invariants) = &mut self.invariants {
                    invariants.act(&action)?;
                }
                match action {
                    RunAction::Enter { path, micro_batch } => {
                        self.entered += 1;
                        let run = self.cores.len();
                        self.bytes
                            .insert(micro_batch.id, u64::from(micro_batch.rows()) * self.spec.row_bytes);
                        let first = if path == Path::Prefill { self.spec.stages.len() } else { 0 };
                        self.send_to_stage(run, first, StageEvent::HandOff { micro_batch })?;
                    }
                    RunAction::Collect { micro_batch } => {
                        self.bytes.remove(&micro_batch.id);
                        let sampled = self.sample(&micro_batch);
                        events.push_back(RunEvent::Collected { micro_batch: micro_batch.id, sampled });
                    }
                    RunAction::Emit { sequence, token } => {
                        if self.report.outcomes.contains_key(&sequence) {
                            return Err(format!("a token for {sequence}, which has ended"));
                        }
                        self.report.observations.token(self.queue.now, sequence);
                        self.tokens.entry(sequence).or_default().push(token);
                    }
                    RunAction::Finish { sequence, finished } => {
                        let tokens = self.tokens.remove(&sequence).unwrap_or_default();
                        if finished.new_tokens as usize != tokens.len() {
                            return Err(format!("{sequence} miscounts its tokens"));
                        }
                        self.ended_sequence(
                            sequence,
                            SimOutcome::Finished { reason: finished.reason, tokens },
                        )?;
                    }
                    RunAction::Fail { sequence, error } => {
                        self.ended_sequence(sequence, SimOutcome::Failed { error })?
                    }
                    RunAction::Stop => self.stopped = true,
                }
            }
        }
        Ok(())
    }

    fn sample(&self, batch: &MicroBatch) -> Vec<Sampled> {
        let wanted = batch.items.iter().filter(|i| i.logits == LogitRows::Last);
        let alive = wanted.filter(|i| !self.report.outcomes.contains_key(&i.sequence));
        let sampled = alive.map(|i| Sampled {
            sequence: i.sequence,
            stops: false,
            token: Ok(token_at(i.sequence.0, i.end_position(), self.spec.run.vocabulary)),
        });
        sampled.collect()
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
