//! The loss of all stages, and their replacement.
//!
//! The coordinator owns the tokens of all sequences. When the stages are lost, it forgets what was in flight and in the
//! KV cache. Once other stages are there, the sequences enter again with all their tokens, as after a preemption. Tokens
//! that were delivered stay delivered, and each token is sampled once.

use crate::core::pool::Pools;
use crate::core::run::{Actions, RunCore, RunShape};
use crate::error::{Error, Result};

impl RunCore {
    /// Forgets the micro-batches in flight and the contents of the KV cache. All sequences wait with their tokens, at
    /// their former places. The ids of later micro-batches go on.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
        self.in_flight.clear();
        self.free_retired();
        self.all().into_iter().for_each(|id| self.restart(id));
        self.renew();
    }

    /// Creates the credits and the empty cache of new stages, whose timelines begin at 0.
    fn renew(&mut self) {
        let RunShape { credits, kv_blocks, kv_ring, kv_use, .. } = self.shape;
        self.credits = (0..credits).collect();
        self.pool = Pools::new(kv_blocks, kv_ring, kv_use);
        self.progress = Default::default();
    }

    /// Goes on with the stages of another pipeline. A sequence that does not fit them fails.
    pub(super) fn restart_with(&mut self, shape: RunShape, actions: &mut Actions) -> Result<()> {
        shape.check()?;
        if !self.is_interrupted || shape.vocabulary != self.shape.vocabulary {
            return Err(Error::protocol(format!("{shape:?} cannot replace {:?}", self.shape)));
        }
        self.shape = shape;
        self.renew();
        for id in self.all() {
            let sequence = self.sequences.get_mut(&id);
            if let Some(Err(refusal)) = sequence.map(|sequence| sequence.refit(&self.shape)) {
                self.unqueue(id);
                self.fail(id, refusal.into(), actions);
            }
        }
        (self.is_interrupted, self.may_admit) = (false, true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::core::tests::{Run, items, shape};
    use crate::core::{FinishReason, LogitRows, Prompt, RunAction, RunEvent, RunShape, SequenceId, Want};
    use crate::error::{Error, Refusal};

    fn restart(run: &mut Run, shape: RunShape) {
        run.entered.clear();
        run.step(RunEvent::Restarted { shape: Box::new(shape) });
    }

    #[test]
    fn sequences_go_on_with_their_tokens_after_an_interruption() {
        let mut run = Run::new(shape(2));
        run.submit(0, 4, 3);
        run.submit(1, 2, 3);
        (0..4).for_each(|_| drop(run.give_back()));
        let before = run.entered[run.entered.len() - 1].id;
        assert_eq!(run.tokens.len(), 4, "each sequence has two tokens");
        run.step(RunEvent::Interrupted);
        run.submit(2, 1, 1);
        run.step(RunEvent::Cancel { sequence: SequenceId(9) });
        let counts = run.core.counts();
        assert_eq!((counts.waiting, counts.waiting_tokens, counts.in_flight), (3, 11, 0));
        assert_eq!((counts.free_blocks, counts.free_credits), (32, 3));
        restart(&mut run, RunShape { credits: 1, ..shape(1) });
        // The oldest sequences come first, with all their tokens.
        let batch = run.give_back();
        assert_eq!(items(&batch), [(0, 0, 6), (1, 0, 2)]);
        assert_eq!(batch.items[0].tokens, [0, 1, 2, 3, 7, 7]);
        assert!(batch.id > before, "ids go on");
        while !run.entered.is_empty() {
            run.give_back();
        }
        let ends = [0, 1, 2].map(|id| (SequenceId(id), FinishReason::MaxTokens));
        run.finished.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(run.finished, ends);
        assert_eq!(run.tokens.len(), 3 + 3 + 1);
    }

    #[test]
    fn a_paused_sequence_stays_paused() {
        let mut run = Run::new(shape(1));
        run.submit(0, 4, 2);
        run.step(RunEvent::Pause { sequence: SequenceId(0) });
        run.step(RunEvent::Interrupted);
        run.step(RunEvent::Interrupted);
        restart(&mut run, shape(1));
        assert!(run.entered.is_empty());
        run.step(RunEvent::Resume { sequence: SequenceId(0) });
        assert_eq!(items(&run.entered[0]), [(0, 0, 4)]);
    }

    #[test]
    fn a_sequence_that_no_longer_fits_fails_alone() {
        let mut run = Run::new(shape(1));
        run.submit(0, 20, 40);
        run.submit(1, 5, 40);
        run.step(RunEvent::Interrupted);
        let mut actions = Vec::new();
        let shape = RunShape { context: 16, ..shape(1) };
        run.core.step(0, RunEvent::Restarted { shape: Box::new(shape) }, &mut actions).unwrap();
        let error = Error::Refused(Refusal::NoLongerFits { tokens: 20, context: 16 });
        let [failed, RunAction::Enter { micro_batch, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(*failed, RunAction::Fail { sequence: SequenceId(0), error });
        run.entered = vec![micro_batch.clone()];
        while !run.entered.is_empty() {
            run.give_back();
        }
        assert_eq!(run.finished, [(SequenceId(1), FinishReason::ContextFull)]);
        assert_eq!(run.tokens.len(), 12);
    }

    #[test]
    fn stages_without_the_best_logits_return_whole_rows() {
        let mut run = Run::new(RunShape { has_picks: true, ..shape(1) });
        run.submit(0, 4, 2);
        assert_eq!(run.entered[0].items[0].logits, LogitRows::Picks);
        run.step(RunEvent::Interrupted);
        restart(&mut run, shape(1));
        assert_eq!(run.entered[0].items[0].logits, LogitRows::Last);
    }

    #[test]
    fn delivered_logits_are_not_delivered_again() {
        let mut run = Run::new(shape(1));
        let prompt = Prompt::new((0..12).collect(), Want::Logits);
        run.step(RunEvent::Submit { sequence: SequenceId(0), prompt });
        assert_eq!(items(&run.give_back()), [(0, 0, 8)]);
        run.step(RunEvent::Interrupted);
        restart(&mut run, shape(1));
        let [first, second] = [0, 1].map(|at| run.entered[at].items[0].logits);
        assert_eq!((first, second), (LogitRows::None, LogitRows::All));
    }

    #[test]
    fn only_an_interrupted_run_restarts_and_with_the_same_vocabulary() {
        let restarted = |is_interrupted: bool, vocabulary: u32| {
            let mut run = Run::new(shape(1));
            if is_interrupted {
                run.step(RunEvent::Interrupted);
            }
            let shape = Box::new(RunShape { vocabulary, ..shape(1) });
            run.core.step(0, RunEvent::Restarted { shape }, &mut Vec::new())
        };
        assert_eq!(restarted(true, 100), Ok(()));
        for refused in [restarted(false, 100), restarted(true, 99)] {
            assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
        }
    }
}
