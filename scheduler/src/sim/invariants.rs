//! Checks invariants of the coordinator at each of its actions.
//!
//! The checks keep their own record of the micro-batches in flight and of the waiting sequences. They never
//! read the coordinator's state.

use crate::core::{
    FinishReason, Item, LogitRows, MicroBatch, MicroBatchId, Path, RunAction, RunShape, SequenceId, Want,
};
use crate::sim::spec::{SimRequest, SimSpec};
use ragtag_graph::execution::PREFILLS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Progress of a sequence, derived from its micro-batches and tokens.
#[derive(Debug, Default)]
struct Progress {
    /// Next position that will enter the pipeline.
    next_position: u32,
    /// Number of logit rows that the host has read for a request for logits.
    logit_rows: u32,
    has_token: bool,
    /// For each other sequence, the number of tokens that it has received since this sequence's last token.
    others: BTreeMap<SequenceId, u32>,
}

/// Record of the coordinator's past actions. Later actions are checked against this record.
#[derive(Debug)]
pub(super) struct Invariants<'a> {
    shape: &'a RunShape,
    requests: &'a [SimRequest],
    sequences: BTreeMap<SequenceId, Progress>,
    /// Sequences whose latest sampled token has not entered the pipeline.
    ready: BTreeSet<SequenceId>,
    in_flight: VecDeque<(Path, Arc<MicroBatch>)>,
    /// For each credit, the micro-batch whose unread logits are in the host memory of that credit.
    logits: BTreeMap<u32, MicroBatchId>,
    stopped: bool,
}

impl<'a> Invariants<'a> {
    pub(super) fn new(spec: &'a SimSpec) -> Self {
        Self {
            shape: &spec.run,
            requests: &spec.requests,
            sequences: BTreeMap::new(),
            ready: BTreeSet::new(),
            in_flight: VecDeque::new(),
            logits: BTreeMap::new(),
            stopped: false,
        }
    }

    /// Checks one action and records it.
    pub(super) fn act(&mut self, action: &RunAction) -> Result<(), String> {
        if self.stopped && !matches!(action, RunAction::Fail { .. }) {
            return Err(format!("after the end: {action:?}"));
        }
        match action {
            RunAction::Enter { path, micro_batch } => {
                self.enter(*path, micro_batch).map_err(|what| format!("{} enters: {what}", micro_batch.id))
            }
            RunAction::Collect { micro_batch } => self.collect(micro_batch),
            RunAction::Emit { sequence, .. } => self.emit(*sequence),
            RunAction::Finish { sequence, finished } => {
                self.ready.remove(sequence);
                let read = self.sequences.remove(sequence).map_or(0, |progress| progress.logit_rows);
                let all = finished.reason == FinishReason::LogitsDone;
                if all && read != finished.prompt_tokens {
                    return Err(format!("{sequence} got {read} rows of logits"));
                }
                Ok(())
            }
            RunAction::Fail { sequence, .. } => {
                self.ready.remove(sequence);
                self.sequences.remove(sequence);
                Ok(())
            }
            RunAction::Stop => {
                self.stopped = true;
                Ok(())
            }
        }
    }

    /// Records that the last stage has copied a micro-batch's logits to the host memory of its credit.
    pub(super) fn copied(&mut self, batch: &MicroBatch) -> Result<(), String> {
        match self.logits.insert(batch.credit, batch.id) {
            Some(unread) => Err(format!("{} overwrites the logits of {unread}", batch.id)),
            None => Ok(()),
        }
    }

    /// Records that the coordinator has handled the results of a micro-batch.
    pub(super) fn collected(&mut self, id: MicroBatchId) {
        self.in_flight.retain(|(_, batch)| batch.id != id);
    }

    fn prompt_tokens(&self, sequence: SequenceId) -> u32 {
        self.requests[sequence.0 as usize].prompt_tokens
    }

    fn decodes(&self, item: &Item) -> bool {
        item.first_position >= self.prompt_tokens(item.sequence)
    }

    fn enter(&mut self, path: Path, batch: &Arc<MicroBatch>) -> Result<(), String> {
        self.check_path(path, batch)?;
        self.check_sizes(path, batch)?;
        self.check_order(batch)?;
        for item in &batch.items {
            let wanted = self.wanted_logits(item);
            let (sequence, prompt) = (item.sequence, self.prompt_tokens(item.sequence));
            let progress = self.sequences.entry(sequence).or_default();
            if item.first_position != progress.next_position || item.tokens.is_empty() {
                return Err(format!("{item:?} where position {} is next", progress.next_position));
            }
            progress.next_position = item.end_position();
            if item.first_position < prompt && item.end_position() > prompt {
                return Err(format!("{item:?} goes on after a prompt of {prompt} tokens"));
            }
            if item.logits != wanted {
                return Err(format!("{item:?} should have logits of {wanted:?}"));
            }
            if item.first_position >= prompt && !self.ready.remove(&sequence) {
                return Err(format!("{sequence} decodes without a token"));
            }
        }
        self.in_flight.push_back((path, Arc::clone(batch)));
        Ok(())
    }

    /// Checks that every item takes the path of its prompt, and decode rows take the path through all stages.
    /// Checks the number of micro-batches at the prefill stage.
    fn check_path(&self, path: Path, batch: &MicroBatch) -> Result<(), String> {
        for item in &batch.items {
            let request = &self.requests[item.sequence.0 as usize];
            let is_long = self.shape.prefill_from.is_some_and(|from| request.prompt_tokens >= from);
            let generates = matches!(request.want, Want::Generate { .. });
            let takes_prefill = is_long && generates && !self.decodes(item);
            if takes_prefill != (path == Path::Prefill) {
                return Err(format!("{item:?} takes the path {path:?}"));
            }
        }
        let prefills = self.in_flight.iter().filter(|(path, _)| *path == Path::Prefill).count();
        match path {
            Path::Prefill if prefills >= PREFILLS => {
                Err("too many micro-batches at the prefill stage".into())
            }
            _ => Ok(()),
        }
    }

    /// Checks the numbers of rows, logit rows and sequences of a micro-batch, and its credit.
    fn check_sizes(&self, path: Path, batch: &MicroBatch) -> Result<(), String> {
        let shape = self.shape;
        let prefills = path == Path::Stages && batch.items.iter().any(|item| !self.decodes(item));
        let generating = !self.ready.is_empty()
            || batch.items.iter().any(|item| self.decodes(item))
            || self.in_flight.iter().any(|(_, other)| other.items.iter().any(|item| self.decodes(item)));
        let chunk_rows = match (prefills, generating) {
            (false, _) => shape.max_rows,
            (true, false) => shape.chunks.most_rows(),
            (true, true) => shape.chunks.most_rows().min(shape.chunks.beside_decode),
        };
        let prompts = batch.items.iter().filter(|item| !self.decodes(item));
        let prompt_rows = prompts.map(|item| item.tokens.len() as u32).sum();
        let sequences: BTreeSet<_> = batch.items.iter().map(|item| item.sequence).collect();
        if sequences.is_empty() || sequences.len() != batch.items.len() {
            return Err(format!("not one item for each of {sequences:?}"));
        }
        for (what, got, most) in [
            ("rows", batch.rows(), shape.max_rows),
            ("rows of a chunk", prompt_rows, chunk_rows),
            ("logit rows", batch.logit_rows(), shape.max_logit_rows),
            ("sequences", sequences.len() as u32, shape.max_sequences),
            ("credits", self.in_flight.len() as u32 + 1, shape.credits),
        ] {
            if got > most {
                return Err(format!("{got} {what} where {most} fit"));
            }
        }
        if batch.credit >= shape.credits
            || self.in_flight.iter().any(|(_, other)| other.credit == batch.credit)
        {
            return Err(format!("credit {} is not free", batch.credit));
        }
        Ok(())
    }

    /// Checks that decode rows enter before prompt rows. Also checks that the number of micro-batches with
    /// decode rows does not exceed the number of decode groups.
    fn check_order(&self, batch: &MicroBatch) -> Result<(), String> {
        let has_decode_rows = |batch: &MicroBatch| batch.items.iter().any(|item| self.decodes(item));
        let groups = self.in_flight.iter().filter(|(_, other)| has_decode_rows(other)).count() as u32;
        let full = groups >= self.shape.decode_groups;
        match has_decode_rows(batch) {
            true if full => Err(format!("decode rows while {groups} groups are in flight")),
            false if !full && !self.ready.is_empty() => Err("prompts overtake decode rows".into()),
            _ => Ok(()),
        }
    }

    fn wanted_logits(&self, item: &Item) -> LogitRows {
        match self.requests[item.sequence.0 as usize].want {
            Want::Logits => LogitRows::All,
            Want::Generate { max_new_tokens: 1.., .. }
                if item.end_position() >= self.prompt_tokens(item.sequence) =>
            {
                LogitRows::Last
            }
            Want::Generate { .. } => LogitRows::None,
        }
    }

    /// Checks that the host may read the logits of a micro-batch, and records the read.
    fn collect(&mut self, batch: &MicroBatch) -> Result<(), String> {
        let found = self.logits.remove(&batch.credit);
        if found != Some(batch.id) {
            return Err(format!("logits of {} are read, but {found:?} has written there", batch.id));
        }
        for item in batch.items.iter().filter(|item| item.logits == LogitRows::All) {
            if let Some(progress) = self.sequences.get_mut(&item.sequence) {
                progress.logit_rows += item.logit_rows();
            }
        }
        Ok(())
    }

    /// Records a new token of `sequence`. Checks that no other sequence has received two tokens since the
    /// last token of `sequence`. This must hold, because a sequence that gets a token goes to the end of the
    /// queue. The first token of a sequence from the prefill stage may take longer.
    fn emit(&mut self, sequence: SequenceId) -> Result<(), String> {
        let progress =
            self.sequences.get_mut(&sequence).ok_or("a token for a sequence that never entered")?;
        let request = &self.requests[sequence.0 as usize];
        let is_long = self.shape.prefill_from.is_some_and(|from| request.prompt_tokens >= from);
        let may_wait = is_long && !std::mem::replace(&mut progress.has_token, true);
        let most = if may_wait { u32::MAX } else { 1 };
        let unfair = std::mem::take(&mut progress.others).into_iter().find(|(_, tokens)| *tokens > most);
        if let Some((other, tokens)) = unfair {
            return Err(format!("{other} got {tokens} tokens between two of {sequence}"));
        }
        self.ready.insert(sequence);
        let requests = self.requests;
        for (id, progress) in &mut self.sequences {
            // The sequence has received a token, or its whole prompt is in flight.
            let generates = progress.next_position >= requests[id.0 as usize].prompt_tokens;
            if *id != sequence && generates {
                *progress.others.entry(sequence).or_default() += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Finished, SequenceTimes};
    use ragtag_graph::execution::Chunks;

    /// Returns a specification with three requests of four tokens each. The last one asks for logits.
    fn spec() -> SimSpec {
        let mut spec = SimSpec::random(0);
        let chunks = Chunks { beside_decode: 3, ..Chunks::fixed(4) };
        spec.run = RunShape {
            decode_groups: 2,
            credits: 3,
            chunks,
            max_rows: 6,
            max_logit_rows: 5,
            max_sequences: 2,
            prefill_from: None,
            recompute_at: None,
            kv_ring: None,
            ..spec.run
        };
        let request = |want| SimRequest { at_ns: 0, prompt_tokens: 4, want, cancel_ns: None };
        let generate = || request(Want::Generate { max_new_tokens: 9, end_tokens: [].into() });
        spec.requests = vec![generate(), generate(), request(Want::Logits)];
        spec
    }

    fn item(sequence: u64, first_position: u32, rows: usize) -> Item {
        let logits = match (sequence, first_position as usize + rows) {
            (2, _) => LogitRows::All,
            (_, 4..) => LogitRows::Last,
            _ => LogitRows::None,
        };
        let (sequence, tokens) = (SequenceId(sequence), vec![0; rows]);
        let blocks: Arc<[u32]> = [].into();
        Item {
            sequence,
            epoch: 0,
            first_position,
            prompt_tokens: 0,
            tokens,
            ring: blocks.clone(),
            blocks,
            logits,
        }
    }

    fn batch(id: u64, credit: u32, items: &[Item]) -> Arc<MicroBatch> {
        Arc::new(MicroBatch { id: MicroBatchId(id), credit, items: items.to_vec() })
    }

    fn enter(invariants: &mut Invariants<'_>, batch: &Arc<MicroBatch>) -> Result<(), String> {
        invariants.act(&RunAction::Enter { path: Path::Stages, micro_batch: Arc::clone(batch) })
    }

    fn emit(invariants: &mut Invariants<'_>, sequence: u64) -> Result<(), String> {
        invariants.act(&RunAction::Emit { sequence: SequenceId(sequence), token: 0 })
    }

    /// Records that a micro-batch passes through the whole pipeline and that its sequences get their tokens.
    fn pass(invariants: &mut Invariants<'_>, batch: &Arc<MicroBatch>) -> Result<(), String> {
        enter(invariants, batch)?;
        invariants.copied(batch)?;
        invariants.act(&RunAction::Collect { micro_batch: Arc::clone(batch) })?;
        invariants.collected(batch.id);
        let wanted = batch.items.iter().filter(|item| item.logits == LogitRows::Last);
        wanted.map(|item| item.sequence.0).try_for_each(|sequence| emit(invariants, sequence))
    }

    #[track_caller]
    fn refused(result: Result<(), String>, words: &str) {
        let what = result.unwrap_err();
        assert!(what.contains(words), "{what}");
    }

    #[test]
    fn micro_batches_beyond_a_bound_are_noticed() {
        let spec = spec();
        let first = |items: &[Item], credit| enter(&mut Invariants::new(&spec), &batch(0, credit, items));
        first(&[item(0, 0, 4)], 0).unwrap();
        refused(first(&[item(0, 0, 4), item(1, 0, 3)], 0), "7 rows where 6 fit");
        refused(first(&[item(0, 0, 4), item(1, 0, 1)], 0), "5 rows of a chunk where 4 fit");
        refused(first(&[item(0, 0, 1), item(1, 0, 1), item(2, 0, 1)], 0), "3 sequences where 2 fit");
        refused(first(&[item(0, 0, 2), item(0, 2, 2)], 0), "not one item for each");
        refused(first(&[], 0), "not one item for each");
        refused(first(&[item(0, 0, 4)], 3), "credit 3 is not free");
        refused(first(&[item(0, 1, 3)], 0), "where position 0 is next");
        refused(first(&[Item { logits: LogitRows::None, ..item(0, 0, 4) }], 0), "should have logits of Last");
        let few = SimSpec { run: RunShape { max_logit_rows: 3, ..spec.run.clone() }, ..spec.clone() };
        refused(
            enter(&mut Invariants::new(&few), &batch(0, 0, &[item(2, 0, 4)])),
            "4 logit rows where 3 fit",
        );

        let mut invariants = Invariants::new(&spec);
        enter(&mut invariants, &batch(0, 1, &[item(0, 0, 2)])).unwrap();
        refused(enter(&mut invariants, &batch(1, 1, &[item(0, 2, 2)])), "credit 1 is not free");
    }

    #[test]
    fn prompts_must_follow_decode_rows() {
        let spec = spec();
        let mut invariants = Invariants::new(&spec);
        refused(enter(&mut invariants, &batch(0, 0, &[item(0, 4, 1)])), "position 0 is next");
        pass(&mut invariants, &batch(0, 0, &[item(0, 0, 4)])).unwrap();
        refused(enter(&mut invariants, &batch(1, 1, &[item(1, 0, 3)])), "prompts overtake decode rows");
        let long = [item(0, 4, 1), item(1, 0, 3)];
        refused(enter(&mut invariants, &batch(1, 1, &long)), "4 rows of a chunk where 3 fit");
        enter(&mut invariants, &batch(1, 1, &[item(0, 4, 1), item(1, 0, 2)])).unwrap();
        refused(enter(&mut invariants, &batch(2, 2, &[item(0, 5, 1)])), "decodes without a token");
    }

    #[test]
    fn no_sequence_gets_two_tokens_while_another_waits() {
        let spec = spec();
        let mut invariants = Invariants::new(&spec);
        pass(&mut invariants, &batch(0, 0, &[item(0, 0, 4)])).unwrap();
        pass(&mut invariants, &batch(1, 0, &[item(0, 4, 1), item(1, 0, 2)])).unwrap();
        pass(&mut invariants, &batch(2, 0, &[item(0, 5, 1), item(1, 2, 2)])).unwrap();
        pass(&mut invariants, &batch(3, 0, &[item(0, 6, 1)])).unwrap();
        pass(&mut invariants, &batch(4, 0, &[item(0, 7, 1)])).unwrap();
        let late = pass(&mut invariants, &batch(5, 0, &[item(1, 4, 1)]));
        refused(late, "sequence 0 got 2 tokens between two of sequence 1");
    }

    #[test]
    fn logits_are_read_once_and_whole() {
        let spec = spec();
        let mut invariants = Invariants::new(&spec);
        let (half, rest) = (batch(0, 0, &[item(2, 0, 2)]), batch(1, 1, &[item(2, 2, 2)]));
        enter(&mut invariants, &half).unwrap();
        let collect = |batch: &Arc<MicroBatch>| RunAction::Collect { micro_batch: Arc::clone(batch) };
        refused(invariants.act(&collect(&half)), "None has written there");
        invariants.copied(&half).unwrap();
        refused(invariants.copied(&half), "overwrites the logits");
        invariants.act(&collect(&half)).unwrap();
        enter(&mut invariants, &rest).unwrap();
        let times = SequenceTimes::default();
        let finished = Finished {
            reason: FinishReason::LogitsDone,
            prompt_tokens: 4,
            new_tokens: 0,
            cached_tokens: 0,
            preemptions: 0,
            times,
        };
        refused(
            invariants.act(&RunAction::Finish { sequence: SequenceId(2), finished }),
            "got 2 rows of logits",
        );
        invariants.act(&RunAction::Stop).unwrap();
        refused(enter(&mut invariants, &batch(2, 2, &[item(0, 0, 4)])), "after the end");
    }
}
