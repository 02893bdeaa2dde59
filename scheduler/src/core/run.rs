//! The coordinator's core: events, micro-batches in flight, credits, token return and cancellation. `admit.rs` has
//! the queues, `form.rs` forms micro-batches, and `interruption.rs` survives the loss of the stages.

use crate::core::form::Formed;
use crate::core::pool::{Holding, Pools};
use crate::core::sequence::{FinishReason, Finished, Prompt, Rank, Sequence};
use crate::core::{Item, LogitRows, MicroBatch, MicroBatchId, Nanoseconds, Sampled, SequenceId};
use crate::error::{Error, Refusal, Result};
use ragtag_graph::KvRing;
use ragtag_graph::execution::{Chunks, KvUse};
use ragtag_hal::Point;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The coordinator's description of a pipeline. All numbers are at least 1, and no prefill chunk has more
/// than `max_rows` rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// Number of stages.
    pub stages: u32,
    /// Maximum number of in-flight micro-batches that have decode rows.
    pub decode_groups: u32,
    /// Maximum number of micro-batches in flight.
    pub credits: u32,
    /// Maximum length of a sequence, in tokens.
    pub context: u32,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Whether the last stages find the best logits of each row.
    #[serde(default)]
    pub has_picks: bool,
    /// Prefill chunks: the maximum number of rows of a micro-batch that has prompt rows.
    pub chunks: Chunks,
    /// Maximum number of rows in a micro-batch.
    pub max_rows: u32,
    /// Maximum number of logit rows in a micro-batch.
    pub max_logit_rows: u32,
    /// Maximum number of sequences in a micro-batch.
    pub max_sequences: u32,
    /// Number of blocks in the KV cache of layers that keep all positions.
    pub kv_blocks: u32,
    /// Use of these blocks.
    #[serde(default)]
    pub kv_use: KvUse,
    /// Limits of the requests that wait.
    #[serde(default)]
    pub limits: Limits,
    /// KV ring of the layers with a window. `None` if all layers keep all positions.
    #[serde(default)]
    pub kv_ring: Option<KvRing>,
    /// Minimum number of tokens of a prompt that the prefill stage computes. `None` without a prefill stage.
    #[serde(default)]
    pub prefill_from: Option<u32>,
    /// Length at which all keys of a sequence are computed again, because its RoPE frequencies change.
    #[serde(default)]
    pub recompute_at: Option<u32>,
}

impl RunShape {
    pub(crate) fn check(&self) -> Result<()> {
        let Self { stages, decode_groups, credits, context, vocabulary, .. } = *self;
        let Self { max_rows, max_logit_rows, max_sequences, kv_blocks, .. } = *self;
        let all = [
            stages,
            decode_groups,
            credits,
            context,
            vocabulary,
            max_rows,
            max_logit_rows,
            max_sequences,
            kv_blocks,
        ];
        if all.contains(&0) || self.chunks.check().is_err() || self.chunks.most_rows() > max_rows {
            return Err(Error::spec(format!("invalid pipeline shape: {self:?}")));
        }
        if let Some(ring) = self.kv_ring.filter(|ring| !ring.holds(max_rows) || ring.total < ring.blocks) {
            let KvRing { window, blocks, total } = ring;
            let what = format!(
                "a KV ring of {blocks} blocks ({total} for all sequences) for a window of {window} positions is \
                 too short for micro-batches of {max_rows} rows"
            );
            return Err(Error::spec(what));
        }
        Ok(())
    }
}

/// Limits of the requests that wait until they are admitted. A request beyond a limit is refused with
/// [`Refusal::Busy`]. An empty queue takes every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of waiting requests.
    pub requests: u32,
    /// Maximum number of their tokens.
    pub tokens: u64,
}

impl Default for Limits {
    /// Returns limits that only a defect or an attack reaches.
    fn default() -> Self {
        Self { requests: 1 << 16, tokens: 1 << 26 }
    }
}

/// Path of a micro-batch through the pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// All stages except the prefill stage, in order.
    #[default]
    Stages,
    /// The prefill stage alone.
    Prefill,
}

impl Path {
    /// All paths.
    pub const ALL: [Self; 2] = [Self::Stages, Self::Prefill];
}

/// Notice from the last stage of a path that it is about to submit the copy of a micro-batch's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
    /// Point on the download timeline of the path's last stage after which the logits are in host memory.
    pub ready: Point,
    /// Places of the logits.
    #[serde(default)]
    pub rows: ResultRows,
}

/// Rows of a micro-batch's results, and the credit that holds their host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultRows {
    /// The credit.
    pub credit: u32,
    /// Number of rows that the host reads whole. They come first.
    pub whole: u32,
    /// Number of all logit rows.
    pub all: u32,
}

impl ResultRows {
    /// Returns the rows of a micro-batch's results.
    pub fn of(batch: &MicroBatch) -> Self {
        Self { credit: batch.credit, whole: batch.whole_rows(), all: batch.logit_rows() }
    }
}

/// Inputs of the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunEvent {
    /// Submit a new sequence.
    Submit {
        /// Identifier of the sequence. It must be unused.
        sequence: SequenceId,
        /// The request.
        prompt: Prompt,
    },
    /// Cancel a sequence. The event is ignored if the sequence has already ended.
    Cancel {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The reader of a sequence is behind: compute no further rows of it until [`RunEvent::Resume`]. The
    /// sequence keeps its place. The event is ignored if the sequence has ended.
    Pause {
        /// The sequence.
        sequence: SequenceId,
    },
    /// The reader of a paused sequence has caught up. The event is ignored if the sequence is not paused.
    Resume {
        /// The sequence.
        sequence: SequenceId,
    },
    /// Time has passed: end the sequences whose deadline is over. See [`RunCore::next_deadline_ns`].
    Tick,
    /// The last stage announces the results of a micro-batch.
    Return(Return),
    /// The download timeline of a path's last stage has advanced.
    Progress {
        /// The path.
        path: Path,
        /// Value of the timeline.
        value: u64,
    },
    /// The results of a micro-batch have been read, as [`RunAction::Collect`] requested.
    Collected {
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Sampled tokens in item order. Items that are not current ([`RunCore::is_current`]) are absent.
        sampled: Vec<Sampled>,
    },
    /// A stage has failed, and other stages will replace all stages. The micro-batches in flight and the KV cache
    /// are lost. The sequences keep their tokens and wait. Further sequences may be submitted.
    Interrupted,
    /// Other stages have replaced those that were lost. Ends the sequences that do not fit them.
    Restarted {
        /// Shape of the new pipeline.
        shape: Box<RunShape>,
    },
    /// A stage has failed. This ends the run.
    Failed {
        /// The cause.
        error: Error,
    },
    /// Stop the run.
    Stop,
}

/// Actions of the coordinator, to be executed in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunAction {
    /// Send a micro-batch to the first stage of its path.
    Enter {
        /// The path.
        path: Path,
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// Read the logits of a micro-batch, and sample a token for each of its items that is current
    /// ([`RunCore::is_current`]) when this action is executed. The caller answers with
    /// [`RunEvent::Collected`].
    Collect {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// A sequence has a new token.
    Emit {
        /// The sequence.
        sequence: SequenceId,
        /// The token.
        token: u32,
    },
    /// A sequence has ended.
    Finish {
        /// The sequence.
        sequence: SequenceId,
        /// Result of the sequence.
        finished: Finished,
    },
    /// A sequence was rejected or failed.
    Fail {
        /// The sequence.
        sequence: SequenceId,
        /// The cause.
        error: Error,
    },
    /// The run has ended and every sequence has a result. Stop all stages.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flight {
    Entered,
    Returned(u64),
    Collecting,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) batch: Arc<MicroBatch>,
    /// Whether the micro-batch has decode rows.
    pub(super) decodes: bool,
    pub(super) path: Path,
    flight: Flight,
}

/// Current load of a coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
    /// Sequences waiting for cache blocks.
    pub waiting: u32,
    /// Tokens of these sequences.
    #[serde(default)]
    pub waiting_tokens: u64,
    /// Sequences that were preempted so far, each counted as often as it was.
    #[serde(default)]
    pub preempted: u64,
    /// Admitted sequences, which have cache blocks or will.
    pub active: u32,
    /// Micro-batches in the pipeline.
    pub in_flight: u32,
    /// Free entry credits.
    pub free_credits: u32,
    /// Cache blocks for layers that keep all positions and that no sequence uses.
    pub free_blocks: u32,
    /// Those of them that keep the keys and values of earlier sequences.
    #[serde(default)]
    pub cached_blocks: u32,
    /// Free cache blocks of KV rings.
    pub free_ring_blocks: u32,
}

pub(super) type Actions = Vec<RunAction>;

/// The coordinator's state machine.
#[derive(Debug)]
pub struct RunCore {
    pub(super) shape: RunShape,
    /// Time of the current event.
    pub(super) now: Nanoseconds,
    pub(super) pool: Pools,
    pub(super) sequences: FxHashMap<SequenceId, Sequence>,
    /// Sequences that are not admitted, in the order of their ranks, and the number of their tokens.
    pub(super) waiting: BTreeSet<Rank>,
    pub(super) waiting_tokens: u64,
    /// Whether a waiting sequence may be admitted that could not be before.
    pub(super) may_admit: bool,
    /// Blocks and ring blocks that the pool keeps for each admitted sequence that holds none yet, and their sums.
    pub(super) promised: FxHashMap<SequenceId, (u32, u32)>,
    pub(super) promised_blocks: (u32, u32),
    /// Admitted sequences whose tokens have not entered the pipeline completely, in admission order.
    pub(super) prefilling: VecDeque<SequenceId>,
    /// Sequences whose latest sampled token has not entered the pipeline, in the order in which the tokens
    /// were sampled.
    pub(super) ready: VecDeque<SequenceId>,
    /// Sequences that hold blocks. The last is preempted first: paused ones come after all others.
    pub(super) holders: BTreeSet<(bool, Rank)>,
    /// Number of preemptions so far.
    pub(super) preempted: u64,
    /// Number of admitted sequences that generate tokens.
    pub(super) generating: u32,
    pub(super) deadlines: BTreeSet<Rank>,
    pub(super) credits: VecDeque<u32>,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) next_id: u64,
    /// Value of the download timeline of the last stage of each path.
    pub(super) progress: [u64; Path::ALL.len()],
    /// Blocks of ended sequences and their computed positions, each with the id of the next micro-batch at that
    /// time. They become free once all earlier micro-batches have ended, because micro-batches overtake each
    /// other on different paths.
    pub(super) retired: Vec<(MicroBatchId, Holding, u32)>,
    /// Whether the stages are lost and have not been replaced.
    pub(super) is_interrupted: bool,
    /// Error with which the run ended. `None` while the run continues.
    ended: Option<Error>,
}

impl RunCore {
    /// Creates an idle coordinator.
    ///
    /// # Errors
    /// [`Error::Spec`] if a number in `shape` is 0, a prefill chunk is invalid, or the KV ring is too short.
    pub fn new(shape: RunShape) -> Result<Self> {
        shape.check()?;
        let RunShape { credits, kv_blocks, .. } = shape;
        Ok(Self {
            pool: Pools::new(kv_blocks, shape.kv_ring, shape.kv_use),
            sequences: FxHashMap::default(),
            waiting: BTreeSet::new(),
            waiting_tokens: 0,
            may_admit: false,
            promised: FxHashMap::default(),
            promised_blocks: (0, 0),
            prefilling: VecDeque::new(),
            ready: VecDeque::new(),
            holders: BTreeSet::new(),
            preempted: 0,
            generating: 0,
            deadlines: BTreeSet::new(),
            credits: (0..credits).collect(),
            in_flight: VecDeque::new(),
            next_id: 0,
            progress: [0; Path::ALL.len()],
            retired: Vec::new(),
            is_interrupted: false,
            ended: None,
            now: 0,
            shape,
        })
    }

    /// Returns whether the results of an item count. Those of a sequence that has ended do not. If a sequence was
    /// preempted after the item entered, its next token may come from this item, or from the one with which the
    /// sequence entered again. The first of them counts.
    pub fn is_current(&self, item: &Item) -> bool {
        self.sequences.get(&item.sequence).is_some_and(|sequence| match item.logits {
            LogitRows::None => item.end_position() <= sequence.tokens(),
            LogitRows::Last | LogitRows::Picks => item.end_position() == sequence.tokens(),
            // An earlier item may end in the middle of one of this epoch, so only those of this epoch count.
            LogitRows::All => item.epoch == sequence.epoch && item.first_position == sequence.delivered,
        })
    }

    /// Returns whether the sequence of an item has kept its blocks since the item entered.
    pub(crate) fn keeps_blocks(&self, item: &Item) -> bool {
        self.sequences.get(&item.sequence).is_some_and(|sequence| sequence.epoch == item.epoch)
    }

    /// Returns the time at which the next sequence must end, if any. The caller steps the core with
    /// [`RunEvent::Tick`] then.
    pub fn next_deadline_ns(&self) -> Option<Nanoseconds> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns whether the run has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether micro-batches are in the pipeline.
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns the current load.
    pub fn counts(&self) -> RunCounts {
        RunCounts {
            waiting: self.waiting.len() as u32,
            waiting_tokens: self.waiting_tokens,
            preempted: self.preempted,
            cached_blocks: self.pool.cached(),
            active: (self.holders.len() + self.promised.len()) as u32,
            in_flight: self.in_flight.len() as u32,
            free_credits: self.credits.len() as u32,
            free_blocks: self.pool.free(),
            free_ring_blocks: self.pool.free_ring(),
        }
    }

    /// Handles an event and appends the resulting actions.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that is not allowed in this state. The caller must then end the run
    /// with [`RunEvent::Failed`].
    pub fn step(&mut self, now: Nanoseconds, event: RunEvent, actions: &mut Actions) -> Result<()> {
        self.now = now;
        if let Some(error) = &self.ended {
            if let RunEvent::Submit { sequence, .. } = event {
                actions.push(RunAction::Fail { sequence, error: error.clone() });
            }
            return Ok(());
        }
        self.end_late(actions);
        match event {
            RunEvent::Submit { sequence, prompt } => self.submit(sequence, prompt, actions)?,
            RunEvent::Cancel { sequence } => {
                self.unqueue(sequence);
                self.finish(sequence, FinishReason::Cancelled, actions);
            }
            RunEvent::Pause { sequence } => self.pause(sequence, true),
            RunEvent::Resume { sequence } => self.pause(sequence, false),
            RunEvent::Tick => {}
            RunEvent::Return(returned) => self.returned(returned, actions)?,
            RunEvent::Progress { path, value } => {
                let progress = &mut self.progress[path as usize];
                *progress = value.max(*progress);
                self.collect(actions);
            }
            RunEvent::Collected { micro_batch, sampled } => {
                self.collected(micro_batch, &sampled, actions)?;
            }
            RunEvent::Interrupted => self.interrupt(),
            RunEvent::Restarted { shape } => self.restart_with(*shape, actions)?,
            RunEvent::Failed { error } => {
                for sequence in self.end(error.clone()) {
                    actions.push(RunAction::Fail { sequence, error: error.clone() });
                }
                actions.push(RunAction::Stop);
                return Ok(());
            }
            RunEvent::Stop => {
                for sequence in self.all() {
                    self.unqueue(sequence);
                    self.finish(sequence, FinishReason::Cancelled, actions);
                }
                self.end(Error::Stopped);
                actions.push(RunAction::Stop);
                return Ok(());
            }
        }
        if self.is_interrupted {
            return Ok(());
        }
        self.admit();
        while let Some(Formed { batch, decodes, path }) = self.form() {
            let batch = Arc::new(batch);
            let flight = Flight::Entered;
            self.in_flight.push_back(InFlight { batch: batch.clone(), decodes, path, flight });
            actions.push(RunAction::Enter { path, micro_batch: batch });
        }
        Ok(())
    }

    fn returned(&mut self, returned: Return, actions: &mut Actions) -> Result<()> {
        let path = self.in_flight.iter().find(|f| f.batch.id == returned.micro_batch).map(|f| f.path);
        let is_next = |f: &&mut InFlight| f.flight == Flight::Entered && Some(f.path) == path;
        match self.in_flight.iter_mut().find(is_next) {
            Some(next) if next.batch.id == returned.micro_batch => {
                next.flight = Flight::Returned(returned.ready.value);
                self.collect(actions);
                Ok(())
            }
            _ => Err(Error::protocol(format!("{} returned out of order", returned.micro_batch))),
        }
    }

    /// Requests the results of the next micro-batch whose `ready` point the download timeline has reached. One
    /// micro-batch is read at a time, because its results may decide which results of the next one count.
    fn collect(&mut self, actions: &mut Actions) {
        if self.in_flight.iter().any(|f| f.flight == Flight::Collecting) {
            return;
        }
        for path in Path::ALL {
            let first = self.in_flight.iter_mut().find(|f| f.path == path);
            let is_ready = |f: &&mut InFlight| matches!(f.flight, Flight::Returned(value) if value <= self.progress[path as usize]);
            if let Some(next) = first.filter(is_ready) {
                next.flight = Flight::Collecting;
                actions.push(RunAction::Collect { micro_batch: next.batch.clone() });
                return;
            }
        }
    }

    fn collected(&mut self, id: MicroBatchId, sampled: &[Sampled], actions: &mut Actions) -> Result<()> {
        let at = self.in_flight.iter().position(|f| f.flight == Flight::Collecting && f.batch.id == id);
        let Some(InFlight { batch, .. }) = at.and_then(|at| self.in_flight.remove(at)) else {
            return Err(Error::protocol(format!("{id} read out of order")));
        };
        self.return_credit(batch.credit);
        self.free_retired();
        let mut sampled = sampled.iter().peekable();
        for item in &batch.items {
            let token = sampled.next_if(|sampled| sampled.sequence == item.sequence);
            if !self.is_current(item) {
                continue;
            }
            if self.shape.prefill_from.is_some() && self.keeps_blocks(item) {
                self.publish(item, false);
            }
            let (now, end) = (self.now, item.end_position());
            let sequence = self.sequence(item.sequence);
            if item.logits == LogitRows::All {
                sequence.delivered = end;
            }
            if end < sequence.tokens() {
                continue;
            }
            sequence.times.prefilled_ns.get_or_insert(now);
            let limit = sequence.generation.as_ref().map(|g| (g.max_new_tokens, g.at_limit));
            // A sequence that was preempted in the meantime waits, or enters again.
            self.unqueue(item.sequence);
            match limit {
                None => self.finish(item.sequence, FinishReason::LogitsDone, actions),
                Some((0, at_limit)) => self.finish(item.sequence, at_limit, actions),
                Some(_) => match token {
                    Some(sampled) => self.emit(sampled, actions),
                    None => {
                        return Err(Error::protocol(format!("{id} without a token for {}", item.sequence)));
                    }
                },
            }
        }
        self.collect(actions);
        Ok(())
    }

    fn emit(&mut self, sampled: &Sampled, actions: &mut Actions) {
        let (id, vocabulary) = (sampled.sequence, self.shape.vocabulary);
        let sequence = self.sequence(id);
        let Some(generation) = &sequence.generation else { return };
        let position = sequence.tokens() as usize;
        let token = match sampled.token {
            Ok(token) if token < vocabulary => token,
            Ok(token) => {
                return self.fail(id, Refusal::UnknownToken { token, position, vocabulary }.into(), actions);
            }
            Err(ref cause) => {
                return self.fail(id, Error::Sampling { position, cause: cause.clone() }, actions);
            }
        };
        if generation.ends_with(token) {
            return self.finish(id, FinishReason::EndToken(token), actions);
        }
        let (most, at_limit) = (generation.max_new_tokens, generation.at_limit);
        sequence.push(token);
        actions.push(RunAction::Emit { sequence: id, token });
        if sampled.stops {
            self.finish(id, FinishReason::StopRule, actions);
        } else if sequence.new_tokens() == most {
            self.finish(id, at_limit, actions);
        } else if sequence.recompute_at.is_some_and(|at| sequence.tokens() >= at) {
            sequence.recompute_at = None;
            self.recompute(id);
        } else {
            self.enqueue(id);
        }
    }

    /// Lets a sequence start over, because its RoPE frequencies have changed. A sequence that shares no blocks keeps
    /// them.
    fn recompute(&mut self, id: SequenceId) {
        let sequence = self.sequence(id);
        match sequence.holding.as_ref().is_none_or(Holding::is_published) {
            true => self.restart(id),
            false => {
                sequence.start_over();
                self.enqueue(id);
            }
        }
    }

    pub(super) fn finish(&mut self, id: SequenceId, reason: FinishReason, actions: &mut Actions) {
        if let Some(sequence) = self.remove(id) {
            actions.push(RunAction::Finish { sequence: id, finished: sequence.finished(reason, self.now) });
        }
    }

    pub(super) fn fail(&mut self, id: SequenceId, error: Error, actions: &mut Actions) {
        self.remove(id);
        actions.push(RunAction::Fail { sequence: id, error });
    }

    /// Removes a sequence that is in no queue, and frees its cache blocks.
    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        self.let_go(id);
        let sequence = self.sequences.remove(&id)?;
        sequence.deadline_ns.map(|at| self.deadlines.remove(&(at, id)));
        Some(sequence)
    }

    /// Returns all sequences, in the order of their ids.
    pub(super) fn all(&self) -> Vec<SequenceId> {
        let mut all: Vec<_> = self.sequences.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Ends the run with the error `why` and returns the remaining sequences.
    fn end(&mut self, why: Error) -> Vec<SequenceId> {
        self.ended = Some(why);
        let all = self.all();
        for &id in &all {
            self.unqueue(id);
            self.remove(id);
        }
        while let Some(flight) = self.in_flight.pop_front() {
            self.return_credit(flight.batch.credit);
        }
        self.free_retired();
        all
    }

    fn return_credit(&mut self, credit: u32) {
        let is_lent = credit < self.shape.credits && !self.credits.contains(&credit);
        assert!(is_lent, "credit {credit} of {} is returned twice", self.shape.credits);
        self.credits.push_back(credit);
    }
}
