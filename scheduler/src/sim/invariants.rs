//! Checks invariants of the coordinator at each of its actions.
//!
//! The checks keep their own record of the micro-batches in flight and of the sequences. From the coordinator, they
//! only learn which sequences have lost their blocks, and how many are admitted.

use crate::core::{
    FinishReason, Item, LogitRows, MicroBatch, MicroBatchId, Nanoseconds, Path, Priority, RunAction,
    RunCounts, RunEvent, RunShape, SequenceId, Want,
};
use crate::sim::observe::CacheWork;
use crate::sim::request::SimRequest;
use crate::sim::spec::SimSpec;
use ragtag_graph::execution::{PREFILLS, Reserve};
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Maximum number of consecutive micro-batches that have decode rows and no prompt rows, while a prompt could
/// enter.
const MOST_WITHOUT_PROMPTS: u32 = 16;

/// Progress of a sequence, derived from its micro-batches and tokens.
#[derive(Debug, Default)]
struct Progress {
    /// The item that entered last.
    latest: Option<Item>,
    /// Path of the prompt in this epoch.
    path: Path,
    /// Number of tokens that enter as a prompt does: those before the first token that the epoch has to itself.
    start_tokens: u32,
    /// Next position that will enter the pipeline.
    next_position: u32,
    /// Number of logit rows that the host has read for a request for logits.
    logit_rows: u32,
    new_tokens: u32,
    /// Whether it has received a token in this epoch.
    has_token: bool,
    /// For each other sequence, the number of tokens that it has received since this sequence's last token.
    others: BTreeMap<SequenceId, u32>,
}

/// A micro-batch in flight.
#[derive(Debug)]
struct Flight {
    path: Path,
    batch: Arc<MicroBatch>,
    /// Whether it has decode rows.
    decodes: bool,
}

/// Record of the coordinator's past actions. Later actions are checked against this record.
#[derive(Debug)]
pub(super) struct Invariants<'a> {
    shape: &'a RunShape,
    requests: &'a [SimRequest],
    /// Sequences that have entered and not ended.
    sequences: BTreeMap<SequenceId, Progress>,
    /// Sequences whose reader is behind.
    paused: BTreeSet<SequenceId>,
    /// Sequences that have lost their blocks and not entered again, now and before the current step.
    preempted: BTreeSet<SequenceId>,
    preempted_before: BTreeSet<SequenceId>,
    /// Sequences that entered before the current step and have their blocks after it.
    held: Vec<SequenceId>,
    /// Places of the sequences among the waiting ones.
    ranks: BTreeMap<SequenceId, (Nanoseconds, SequenceId)>,
    in_flight: VecDeque<Flight>,
    /// Number of micro-batches with decode rows since one had prompt rows, or no prompt could enter.
    without_prompts: u32,
    /// For each credit, the micro-batch whose unread logits are in the host memory of that credit.
    logits: BTreeMap<u32, MicroBatchId>,
    /// Events of the cache, and those before the current step.
    pub(super) cache: CacheWork,
    cache_before: CacheWork,
    stopped: bool,
}

impl<'a> Invariants<'a> {
    pub(super) fn new(spec: &'a SimSpec) -> Self {
        Self {
            shape: &spec.run,
            requests: &spec.requests,
            sequences: BTreeMap::new(),
            paused: BTreeSet::new(),
            preempted: BTreeSet::new(),
            preempted_before: BTreeSet::new(),
            held: Vec::new(),
            ranks: BTreeMap::new(),
            in_flight: VecDeque::new(),
            without_prompts: 0,
            logits: BTreeMap::new(),
            cache: CacheWork::default(),
            cache_before: CacheWork::default(),
            stopped: false,
        }
    }

    /// Records an event that the coordinator is about to handle.
    pub(super) fn event(&mut self, now: Nanoseconds, event: &RunEvent) {
        match event {
            RunEvent::Submit { sequence, prompt } => {
                let after_s = match prompt.priority {
                    Priority::High => 0,
                    Priority::Normal => 10,
                    Priority::Low => 70,
                };
                self.ranks.insert(*sequence, (now + after_s * 1_000_000_000, *sequence));
            }
            RunEvent::Collected { micro_batch, .. } => {
                self.in_flight.retain(|flight| flight.batch.id != *micro_batch);
            }
            RunEvent::Pause { sequence } => {
                self.paused.insert(*sequence);
                self.cache.paused += u64::from(self.sequences.contains_key(sequence));
                self.forget_others(*sequence);
            }
            RunEvent::Resume { sequence } => drop(self.paused.remove(sequence)),
            RunEvent::Interrupted => {
                self.in_flight.clear();
                self.logits.clear();
                self.without_prompts = 0;
            }
            _ => {}
        }
    }

    /// Records that another pipeline replaces the one that has failed.
    pub(super) fn replace(&mut self, spec: &'a SimSpec) {
        (self.shape, self.requests) = (&spec.run, &spec.requests);
    }

    /// Records which sequences the coordinator has preempted in a step, before its actions are checked.
    pub(super) fn stepped(&mut self, keeps_blocks: impl Fn(&Item) -> bool) {
        let keeps = |id: &SequenceId| self.sequences[id].latest.as_ref().is_some_and(&keeps_blocks);
        let (held, lost): (Vec<_>, Vec<_>) = self.sequences.keys().copied().partition(keeps);
        let lost = lost.into_iter().collect();
        (self.held, self.preempted_before) = (held, std::mem::replace(&mut self.preempted, lost));
        for id in self.preempted.clone() {
            self.forget_others(id);
        }
        self.cache_before = self.cache;
    }

    /// Checks one action and records it.
    pub(super) fn act(
        &mut self,
        action: &RunAction,
        is_current: impl Fn(&Item) -> bool,
    ) -> Result<(), String> {
        if self.stopped && !matches!(action, RunAction::Fail { .. }) {
            return Err(format!("after the end: {action:?}"));
        }
        match action {
            RunAction::Enter { path, micro_batch } => {
                self.enter(*path, micro_batch).map_err(|what| format!("{} enters: {what}", micro_batch.id))
            }
            RunAction::Collect { micro_batch } => self.collect(micro_batch, is_current),
            RunAction::Emit { sequence, .. } => self.emit(*sequence),
            RunAction::Finish { sequence, finished } => {
                let read = self.end(*sequence).map_or(0, |progress| progress.logit_rows);
                let all = finished.reason == FinishReason::LogitsDone;
                if all && read != finished.prompt_tokens {
                    return Err(format!("{sequence} got {read} rows of logits"));
                }
                Ok(())
            }
            RunAction::Fail { sequence, .. } => {
                self.end(*sequence);
                Ok(())
            }
            RunAction::Stop => {
                self.stopped = true;
                Ok(())
            }
        }
    }

    /// Checks that a step has preempted the youngest sequences that were not paused. A sequence also starts over when
    /// its frequencies change.
    fn check_preempted(&self) -> Result<(), String> {
        let rank = |id: &SequenceId| self.ranks.get(id).filter(|_| !self.paused.contains(id));
        let lost = self.preempted.difference(&self.preempted_before).filter_map(rank).min();
        let lost = lost.filter(|_| self.shape.recompute_at.is_none());
        match self.held.iter().filter(|id| self.sequences.contains_key(id)).filter_map(rank).max() {
            Some(kept) if lost.is_some_and(|lost| lost < kept) => {
                Err(format!("{kept:?} keeps its blocks, but {lost:?} is preempted"))
            }
            _ => Ok(()),
        }
    }

    /// Checks after the actions of a step that prompts enter from time to time while sequences decode. `counts` are
    /// those before and after the step. Prompts may wait for the prefill stage, and for the only place of a micro-batch.
    pub(super) fn check_step(&mut self, [before, after]: [RunCounts; 2]) -> Result<(), String> {
        self.check_preempted()?;
        self.cache.preempted = after.preempted;
        if self.cache.reused == self.cache_before.reused {
            self.cache.evicted += u64::from(before.cached_blocks.saturating_sub(after.cached_blocks));
        }
        let started = self.sequences.iter().filter(|(id, _)| !self.preempted.contains(id));
        let enters = |(id, progress): (&SequenceId, &Progress)| {
            progress.next_position < progress.start_tokens && !self.paused.contains(id)
        };
        let waits = started.clone().any(enters) || after.active as usize > started.count();
        let RunShape { max_rows, max_logit_rows, max_sequences, prefill_from, .. } = *self.shape;
        let is_narrow = max_rows.min(max_logit_rows).min(max_sequences) == 1;
        if !waits || is_narrow || prefill_from.is_some() {
            self.without_prompts = 0;
        }
        match self.without_prompts {
            0..=MOST_WITHOUT_PROMPTS => Ok(()),
            more => Err(format!("no prompt rows in {more} micro-batches, while a prompt waits")),
        }
    }

    /// Records that the last stage has copied a micro-batch's logits to the host memory of its credit.
    pub(super) fn copied(&mut self, batch: &MicroBatch) -> Result<(), String> {
        match self.logits.insert(batch.credit, batch.id) {
            Some(unread) => Err(format!("{} overwrites the logits of {unread}", batch.id)),
            None => Ok(()),
        }
    }

    fn end(&mut self, sequence: SequenceId) -> Option<Progress> {
        self.paused.remove(&sequence);
        self.preempted.remove(&sequence);
        self.sequences.remove(&sequence)
    }

    /// A sequence that paused or was preempted may get its next token late.
    fn forget_others(&mut self, sequence: SequenceId) {
        if let Some(progress) = self.sequences.get_mut(&sequence) {
            progress.others.clear();
        }
    }

    /// Returns the number of tokens of a sequence, prompt and output together.
    fn tokens(&self, sequence: SequenceId) -> u32 {
        let new_tokens = self.sequences.get(&sequence).map_or(0, |progress| progress.new_tokens);
        self.requests[sequence.0 as usize].prompt_tokens + new_tokens
    }

    /// Returns the progress of an item's sequence in the epoch of the item. `None` if the item begins an epoch.
    fn same_epoch(&self, item: &Item) -> Option<(&Progress, &Item)> {
        let progress = self.sequences.get(&item.sequence)?;
        let latest = progress.latest.as_ref().filter(|latest| latest.epoch == item.epoch)?;
        Some((progress, latest))
    }

    /// Returns whether an item that enters is a decode row.
    fn decodes(&self, item: &Item) -> bool {
        self.same_epoch(item).is_some_and(|(progress, _)| item.first_position >= progress.start_tokens)
    }

    /// Returns whether the latest token of a sequence could enter. With a prefill stage, blocks of ended sequences
    /// become free later. So a row that needs a further block may wait, and with it the rows behind it.
    fn is_any_ready(&self) -> bool {
        let is_ready = |(id, progress): &(&SequenceId, &Progress)| {
            let next = progress.next_position;
            let is_stopped = self.paused.contains(id) || self.preempted.contains(id);
            !is_stopped && next >= progress.start_tokens && next < self.tokens(**id)
        };
        let has_blocks = |(_, progress): (&SequenceId, &Progress)| {
            let held = progress.latest.as_ref().map_or(0, |item| item.blocks.len() * BLOCK_TOKENS);
            self.shape.prefill_from.is_none() || progress.next_position < held as u32
        };
        let mut ready = self.sequences.iter().filter(is_ready).peekable();
        ready.peek().is_some() && ready.all(has_blocks)
    }

    fn enter(&mut self, path: Path, batch: &Arc<MicroBatch>) -> Result<(), String> {
        self.check_path(path, batch)?;
        self.check_sizes(path, batch)?;
        self.check_order(batch)?;
        let has_prompts = batch.items.iter().any(|item| !self.decodes(item));
        self.without_prompts = if has_prompts { 0 } else { self.without_prompts + 1 };
        let decodes = batch.items.iter().any(|item| self.decodes(item));
        for item in &batch.items {
            self.check_item(item)?;
            let (tokens, held) = (self.tokens(item.sequence), self.same_epoch(item));
            let held = held.map(|(_, latest)| latest.blocks.len());
            let begins = held.is_none();
            self.cache.grown += u64::from(held.is_some_and(|held| held < item.blocks.len()));
            let progress = self.sequences.entry(item.sequence).or_default();
            if begins {
                (progress.path, progress.start_tokens, progress.has_token) = (path, tokens, false);
                self.preempted.remove(&item.sequence);
                let reuses = u64::from(item.first_position > 0);
                self.cache.reused += reuses;
                self.cache.rings += if item.ring.is_empty() { 0 } else { reuses };
            }
            (progress.latest, progress.next_position) = (Some(item.clone()), item.end_position());
        }
        self.in_flight.push_back(Flight { path, batch: Arc::clone(batch), decodes });
        Ok(())
    }

    /// Checks the positions, the blocks and the logits of an item that enters.
    fn check_item(&self, item: &Item) -> Result<(), String> {
        let (sequence, request) = (item.sequence, &self.requests[item.sequence.0 as usize]);
        let (tokens, same_epoch) = (self.tokens(sequence), self.same_epoch(item));
        let latest = self.sequences.get(&sequence).and_then(|progress| progress.latest.as_ref());
        // Rings go on only at block borders.
        let is_border = item.first_position.is_multiple_of(BLOCK_TOKENS as u32);
        let is_place = is_border || self.shape.kv_ring.is_none_or(|ring| ring.is_states());
        let goes_on = is_place && request.reuses(self.shape);
        let follows = match (same_epoch, latest) {
            (Some((_, latest)), _) => item.first_position == latest.end_position(),
            (None, Some(latest)) if latest.epoch > item.epoch => false,
            (None, _) => item.first_position == 0 || goes_on,
        };
        if !follows || item.tokens.is_empty() {
            let next = latest.map_or(0, Item::end_position);
            return Err(format!("{item:?} where position {next} is next"));
        }
        if self.paused.contains(&sequence) {
            return Err(format!("{item:?} of a paused sequence"));
        }
        if item.end_position() > tokens {
            return Err(format!("{item:?} goes on after {tokens} tokens"));
        }
        let wanted = self.wanted_logits(item);
        if item.logits != wanted {
            return Err(format!("{item:?} should have logits of {wanted:?}"));
        }
        let grows = same_epoch.is_some_and(|(_, latest)| latest.blocks.len() < item.blocks.len());
        if grows && self.shape.kv_use.reserve == Reserve::Full {
            return Err(format!("{item:?} takes further blocks"));
        }
        Ok(())
    }

    /// Checks that every item takes the path of its prompt, and decode rows take the path through all stages.
    /// Checks the number of micro-batches at the prefill stage.
    fn check_path(&self, path: Path, batch: &MicroBatch) -> Result<(), String> {
        for item in &batch.items {
            let generates = self.requests[item.sequence.0 as usize].want != Want::Logits;
            let prompt_path = self.same_epoch(item).map(|(progress, _)| progress.path);
            let takes_prefill = match prompt_path {
                Some(prompt_path) => prompt_path == Path::Prefill && !self.decodes(item),
                // With other frequencies, a sequence may go on in its blocks and on its path.
                None if self.shape.recompute_at.is_some() && item.epoch > 0 => path == Path::Prefill,
                None => {
                    let left = self.tokens(item.sequence).saturating_sub(item.first_position);
                    generates && self.shape.prefill_from.is_some_and(|from| left >= from)
                }
            };
            let is_whole = path == Path::Stages || prompt_path.is_some() || item.first_position == 0;
            if takes_prefill != (path == Path::Prefill) || !is_whole {
                return Err(format!("{item:?} takes the path {path:?}"));
            }
        }
        let prefills = self.in_flight.iter().filter(|flight| flight.path == Path::Prefill).count();
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
        let generating = self.is_any_ready()
            || batch.items.iter().any(|item| self.decodes(item))
            || self.in_flight.iter().any(|flight| flight.decodes);
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
            || self.in_flight.iter().any(|flight| flight.batch.credit == batch.credit)
        {
            return Err(format!("credit {} is not free", batch.credit));
        }
        Ok(())
    }

    /// Checks that decode rows enter before prompt rows. Also checks that the number of micro-batches with
    /// decode rows does not exceed the number of decode groups.
    fn check_order(&self, batch: &MicroBatch) -> Result<(), String> {
        let groups = self.in_flight.iter().filter(|flight| flight.decodes).count() as u32;
        let full = groups >= self.shape.decode_groups;
        match batch.items.iter().any(|item| self.decodes(item)) {
            true if full => Err(format!("decode rows while {groups} groups are in flight")),
            // A prompt may preempt the sequence of a decode row that was about to enter.
            false if !full && self.is_any_ready() && self.preempted.is_subset(&self.preempted_before) => {
                Err("prompts overtake decode rows".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the rows of an item that need logits. The client has the logits of the first rows of a request for
    /// logits that starts over.
    fn wanted_logits(&self, item: &Item) -> LogitRows {
        let read = self.sequences.get(&item.sequence).map_or(0, |progress| progress.logit_rows);
        match self.requests[item.sequence.0 as usize].want {
            Want::Logits if item.end_position() <= read => LogitRows::None,
            Want::Logits => LogitRows::All,
            Want::Generate { max_new_tokens: 1.., .. }
                if item.end_position() == self.tokens(item.sequence) =>
            {
                let request = &self.requests[item.sequence.0 as usize];
                if request.whole_rows || !self.shape.has_picks { LogitRows::Last } else { LogitRows::Picks }
            }
            Want::Generate { .. } => LogitRows::None,
        }
    }

    /// Checks that the host may read the logits of a micro-batch, and records the read. Each row of a request for
    /// logits is read once, in order.
    fn collect(&mut self, batch: &MicroBatch, is_current: impl Fn(&Item) -> bool) -> Result<(), String> {
        let found = self.logits.remove(&batch.credit);
        if found != Some(batch.id) {
            return Err(format!("logits of {} are read, but {found:?} has written there", batch.id));
        }
        for item in batch.items.iter().filter(|item| item.logits == LogitRows::All && is_current(item)) {
            let Some(progress) = self.sequences.get_mut(&item.sequence) else { continue };
            if item.first_position != progress.logit_rows {
                return Err(format!("logits of {item:?} are read after {} rows", progress.logit_rows));
            }
            progress.logit_rows += item.logit_rows();
        }
        Ok(())
    }

    /// Records a new token of `sequence`. Checks that no other sequence has received two tokens since the
    /// last token of `sequence`. This must hold, because a sequence that gets a token goes to the end of the
    /// queue. The first token of a sequence from the prefill stage may take longer. A sequence that starts over
    /// gets its first token, and one of a row that entered before, at any time.
    fn emit(&mut self, sequence: SequenceId) -> Result<(), String> {
        let progress =
            self.sequences.get_mut(&sequence).ok_or("a token for a sequence that never entered")?;
        let is_early =
            progress.next_position < progress.start_tokens || self.preempted_before.contains(&sequence);
        let is_first = !is_early && !std::mem::replace(&mut progress.has_token, true);
        let most = if is_first && progress.path == Path::Prefill { u32::MAX } else { 1 };
        let unfair = std::mem::take(&mut progress.others).into_iter().find(|(_, tokens)| *tokens > most);
        if let Some((other, tokens)) = unfair {
            return Err(format!("{other} got {tokens} tokens between two of {sequence}"));
        }
        progress.new_tokens += 1;
        progress.start_tokens += u32::from(is_early);
        if is_early || is_first && progress.latest.as_ref().is_some_and(|item| item.epoch > 0) {
            return Ok(());
        }
        for (id, progress) in &mut self.sequences {
            // The sequence has received a token, or its whole prompt is in flight.
            let generates = progress.next_position >= progress.start_tokens
                && !self.paused.contains(id)
                && !self.preempted.contains(id);
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
    use crate::core::{Finished, Prompt, SequenceTimes};
    use ragtag_graph::KvRing;
    use ragtag_graph::execution::{Chunks, Eviction, KvUse};

    /// Returns a specification with three requests of four tokens each. The last one asks for logits.
    fn spec() -> SimSpec {
        let mut spec = SimSpec::random(0);
        let chunks = Chunks { beside_decode: 3, ..Chunks::fixed(4) };
        spec.run = RunShape {
            decode_groups: 2,
            credits: 3,
            has_picks: false,
            chunks,
            max_rows: 6,
            max_logit_rows: 5,
            max_sequences: 2,
            prefill_from: None,
            recompute_at: None,
            kv_ring: None,
            kv_use: KvUse { reserve: Reserve::Grow, prefixes: Some(Eviction::Lru) },
            ..spec.run
        };
        let request = |want| SimRequest { shares_prefix: false, ..SimRequest::new(0, 4, want) };
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
            noise: None,
        }
    }

    fn batch(id: u64, credit: u32, items: &[Item]) -> Arc<MicroBatch> {
        Arc::new(MicroBatch { id: MicroBatchId(id), credit, items: items.to_vec() })
    }

    fn act(invariants: &mut Invariants<'_>, action: &RunAction) -> Result<(), String> {
        invariants.act(action, |_| true)
    }

    fn enter(invariants: &mut Invariants<'_>, batch: &Arc<MicroBatch>) -> Result<(), String> {
        act(invariants, &RunAction::Enter { path: Path::Stages, micro_batch: Arc::clone(batch) })
    }

    fn emit(invariants: &mut Invariants<'_>, sequence: u64) -> Result<(), String> {
        act(invariants, &RunAction::Emit { sequence: SequenceId(sequence), token: 0 })
    }

    fn collect(batch: &Arc<MicroBatch>) -> RunAction {
        RunAction::Collect { micro_batch: Arc::clone(batch) }
    }

    /// Records that a micro-batch passes through the whole pipeline and that its sequences get their tokens.
    fn pass(invariants: &mut Invariants<'_>, batch: &Arc<MicroBatch>) -> Result<(), String> {
        enter(invariants, batch)?;
        invariants.copied(batch)?;
        act(invariants, &collect(batch))?;
        invariants.event(0, &RunEvent::Collected { micro_batch: batch.id, sampled: Vec::new() });
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
        let long = [item(0, 4, 1), item(1, 0, 4)];
        refused(enter(&mut invariants, &batch(1, 1, &long)), "4 rows of a chunk where 3 fit");
        enter(&mut invariants, &batch(1, 1, &[item(0, 4, 1), item(1, 0, 2)])).unwrap();
        refused(enter(&mut invariants, &batch(2, 2, &[item(0, 5, 1)])), "goes on after 5 tokens");
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
        refused(act(&mut invariants, &collect(&half)), "None has written there");
        invariants.copied(&half).unwrap();
        refused(invariants.copied(&half), "overwrites the logits");
        act(&mut invariants, &collect(&half)).unwrap();
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
            act(&mut invariants, &RunAction::Finish { sequence: SequenceId(2), finished }),
            "got 2 rows of logits",
        );
        act(&mut invariants, &RunAction::Stop).unwrap();
        refused(enter(&mut invariants, &batch(2, 2, &[item(0, 0, 4)])), "after the end");
    }

    /// Returns an item of a sequence that was preempted once and has had `rows` tokens since.
    fn again(sequence: u64, first_position: u32, rows: usize) -> Item {
        Item { epoch: 1, ..item(sequence, first_position, rows) }
    }

    #[test]
    fn a_preempted_sequence_starts_over() {
        let spec = spec();
        let preempted = || {
            let mut invariants = Invariants::new(&spec);
            pass(&mut invariants, &batch(0, 0, &[item(0, 0, 4)])).unwrap();
            invariants.stepped(|_| false);
            invariants
        };
        let enters = |item: Item| enter(&mut preempted(), &batch(1, 1, &[item]));
        refused(enters(again(0, 3, 2)), "where position 4 is next");
        refused(enters(again(0, 0, 5)), "5 rows of a chunk where 4 fit");
        refused(enters(Item { logits: LogitRows::None, ..again(0, 4, 1) }), "where position 4 is next");
        let mut invariants = preempted();
        enter(&mut invariants, &batch(1, 1, &[Item { logits: LogitRows::None, ..again(0, 0, 4) }])).unwrap();
        refused(enter(&mut invariants, &batch(2, 2, &[item(0, 4, 1)])), "where position 4 is next");
        refused(enter(&mut invariants, &batch(2, 2, &[again(0, 4, 2)])), "goes on after 5 tokens");
        pass(&mut invariants, &batch(2, 2, &[again(0, 4, 1)])).unwrap();
        // Its token does not keep prompts waiting.
        let mut invariants = preempted();
        enter(&mut invariants, &batch(1, 1, &[item(1, 0, 4)])).unwrap();
    }

    #[test]
    fn the_youngest_sequence_is_preempted() {
        let spec = spec();
        let lose = |lost: u64| {
            let mut invariants = Invariants::new(&spec);
            for (sequence, priority) in [(0, Priority::Normal), (1, Priority::High)] {
                let prompt = Prompt { priority, ..Prompt::new([0; 4].into(), Want::Logits) };
                invariants.event(0, &RunEvent::Submit { sequence: SequenceId(sequence), prompt });
                pass(&mut invariants, &batch(sequence, 0, &[item(sequence, 0, 2)]))?;
            }
            invariants.stepped(|item| item.sequence != SequenceId(lost));
            invariants.check_step([RunCounts::default(); 2])
        };
        lose(0).unwrap();
        refused(lose(1), "keeps its blocks");
    }

    #[test]
    fn a_sequence_begins_after_a_shared_prefix() {
        let mut spec = spec();
        spec.requests[1].prompt_tokens = 40;
        spec.requests[0] = SimRequest { shares_prefix: true, ..spec.requests[1].clone() };
        let begins = |spec: &SimSpec, item: Item| {
            let item = Item { logits: LogitRows::None, ..item };
            enter(&mut Invariants::new(spec), &batch(0, 0, &[item]))
        };
        begins(&spec, item(0, 31, 4)).unwrap();
        refused(begins(&spec, item(0, 48, 1)), "goes on after 40 tokens");
        refused(begins(&spec, item(1, 32, 4)), "where position 0 is next");
        let mut windowed = spec.clone();
        windowed.run.kv_ring = Some(KvRing { window: 20, blocks: 4, total: 4 });
        begins(&windowed, item(0, 32, 4)).unwrap();
        refused(begins(&windowed, item(0, 31, 4)), "where position 0 is next");
    }

    #[test]
    fn paused_sequences_neither_enter_nor_hinder_others() {
        let spec = spec();
        let mut invariants = Invariants::new(&spec);
        let [pause, resume] =
            [RunEvent::Pause { sequence: SequenceId(0) }, RunEvent::Resume { sequence: SequenceId(0) }];
        pass(&mut invariants, &batch(0, 0, &[item(0, 0, 4)])).unwrap();
        invariants.event(0, &pause);
        refused(enter(&mut invariants, &batch(1, 1, &[item(0, 4, 1)])), "of a paused sequence");
        pass(&mut invariants, &batch(1, 0, &[item(1, 0, 4)])).unwrap();
        pass(&mut invariants, &batch(2, 0, &[item(1, 4, 1)])).unwrap();
        invariants.event(0, &resume);
        pass(&mut invariants, &batch(3, 0, &[item(0, 4, 1)])).unwrap();
    }

    #[test]
    fn prompts_do_not_starve() {
        let spec = spec();
        let counts = RunCounts { active: 2, ..RunCounts::default() };
        let mut invariants = Invariants::new(&spec);
        pass(&mut invariants, &batch(0, 0, &[item(0, 0, 4)])).unwrap();
        let mut decode = |at: u32| {
            pass(&mut invariants, &batch(at.into(), 0, &[item(0, at, 1)]))?;
            invariants.check_step([counts; 2])
        };
        (4..20).try_for_each(&mut decode).unwrap();
        refused(decode(20), "no prompt rows in 17 micro-batches");
    }

    #[test]
    fn blocks_that_are_reserved_do_not_grow() {
        let mut spec = spec();
        let run = |spec: &SimSpec| {
            let mut invariants = Invariants::new(spec);
            enter(&mut invariants, &batch(0, 0, &[item(0, 0, 2)]))?;
            enter(&mut invariants, &batch(1, 1, &[Item { blocks: [0].into(), ..item(0, 2, 2) }]))
        };
        run(&spec).unwrap();
        spec.run.kv_use.reserve = Reserve::Full;
        refused(run(&spec), "takes further blocks");
    }

    #[test]
    fn logits_that_were_read_are_not_computed_again() {
        let spec = spec();
        let mut invariants = Invariants::new(&spec);
        pass(&mut invariants, &batch(0, 0, &[item(2, 0, 2)])).unwrap();
        let stale = batch(1, 1, &[item(2, 2, 1)]);
        enter(&mut invariants, &stale).unwrap();
        invariants.stepped(|_| false);
        refused(enter(&mut invariants, &batch(2, 2, &[again(2, 0, 2)])), "should have logits of None");
        let known = Item { logits: LogitRows::None, ..again(2, 0, 2) };
        enter(&mut invariants, &batch(2, 2, &[known])).unwrap();
        invariants.copied(&stale).unwrap();
        invariants.act(&collect(&stale), |_| false).unwrap();
        let rest = batch(3, 0, &[again(2, 2, 2)]);
        pass(&mut invariants, &rest).unwrap();
        invariants.copied(&rest).unwrap();
        refused(act(&mut invariants, &collect(&rest)), "are read after 4 rows");
    }
}
