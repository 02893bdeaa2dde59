//! Forms the next micro-batch.
//!
//! Decode rows come first, then prompt rows up to the length of the prefill chunk. The length of the chunk
//! depends on the entering prompts and on whether other sequences generate tokens. Decode rows leave room for
//! a prompt that waits, so that prompts never starve.
//!
//! Generating sequences are divided into decode groups to keep all stages busy. The plan's number of groups
//! limits both the number of decode rows per micro-batch and the number of in-flight micro-batches with
//! decode rows. More groups would make micro-batches smaller, and each micro-batch reads all weights.
//!
//! Prompts for the prefill stage enter in micro-batches of their own, which have as many rows as possible,
//! because each of them copies the streamed weights.

use crate::core::admit::Taken;
use crate::core::batch::{Item, LogitRows};
use crate::core::pool::Hit;
use crate::core::run::{RunCore, RunShape};
use crate::core::sequence::{Place, Sequence};
use crate::core::{MicroBatch, MicroBatchId, Path, SequenceId};
use ragtag_graph::execution::PREFILLS;
use ragtag_kernels::params::BLOCK_TOKENS;

/// A micro-batch that is about to enter the pipeline.
pub(super) struct Formed {
    pub(super) batch: MicroBatch,
    /// Whether the micro-batch has decode rows.
    pub(super) decodes: bool,
    pub(super) path: Path,
}

/// A micro-batch under construction, with its remaining capacity.
struct Draft {
    items: Vec<Item>,
    /// Number of its items that are decode rows. They come first.
    decodes: usize,
    rows_left: u32,
    logit_rows_left: u32,
    items_left: u32,
}

impl Draft {
    fn new(shape: &RunShape) -> Self {
        Self {
            items: Vec::new(),
            decodes: 0,
            rows_left: shape.max_rows,
            logit_rows_left: shape.max_logit_rows,
            items_left: shape.max_sequences,
        }
    }

    fn add(&mut self, item: Item) {
        let (rows, logit_rows) = (item.tokens.len() as u32, item.logit_rows());
        let fits = rows <= self.rows_left && logit_rows <= self.logit_rows_left && self.items_left > 0;
        assert!(fits, "{rows} rows of {} do not fit the micro-batch", item.sequence);
        self.rows_left -= rows;
        self.logit_rows_left -= logit_rows;
        self.items_left -= 1;
        self.items.push(item);
    }

    /// Removes the items of sequences that have lost their blocks.
    fn drop_preempted(&mut self, core: &RunCore) {
        let (mut at, decodes) = (0, self.decodes);
        self.items.retain(|item| {
            let keeps_blocks = core.keeps_blocks(item);
            if !keeps_blocks {
                self.rows_left += item.tokens.len() as u32;
                self.logit_rows_left += item.logit_rows();
                self.items_left += 1;
                self.decodes -= usize::from(at < decodes);
            }
            at += 1;
            keeps_blocks
        });
    }
}

impl RunCore {
    /// Returns the next micro-batch. Returns `None` if no sequence has rows to process or no credit is free.
    pub(super) fn form(&mut self) -> Option<Formed> {
        if self.credits.is_empty() || (self.ready.is_empty() && self.prefilling.is_empty()) {
            return None;
        }
        let mut draft = Draft::new(&self.shape);
        self.add_decode_rows(&mut draft);
        self.bound_prompt_rows(&mut draft);
        self.add_prompt_rows(&mut draft, Path::Stages);
        let mut path = Path::Stages;
        if draft.items.is_empty() && self.prefills() < PREFILLS {
            path = Path::Prefill;
            draft = Draft::new(&self.shape);
            self.add_prompt_rows(&mut draft, path);
        }
        if draft.items.is_empty() {
            return None;
        }
        let credit = self.credits.pop_front()?;
        let id = MicroBatchId(self.next_id);
        self.next_id += 1;
        let batch = MicroBatch { id, credit, items: draft.items };
        for item in &batch.items {
            self.sequences.entry(item.sequence).and_modify(|sequence| sequence.formed = item.end_position());
        }
        // On one path, the rows of later micro-batches are computed after these.
        if self.shape.prefill_from.is_none() {
            batch.items.iter().for_each(|item| self.publish(item, true));
        }
        Some(Formed { batch, decodes: draft.decodes > 0, path })
    }

    /// Makes the blocks that an item has filled known to later sequences.
    pub(super) fn publish(&mut self, item: &Item, swaps: bool) {
        let end = item.end_position();
        if item.tokens.len() == 1 && !(end as usize).is_multiple_of(BLOCK_TOKENS) {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&item.sequence).filter(|s| s.shares_prefix) else {
            return;
        };
        let Some(mut holding) = sequence.holding.take() else { return };
        let (root, token) = (sequence.root(self.shape.recompute_at), |at| sequence.token(at));
        let goes_on = self.pool.publish(&mut holding, root, token, end, swaps);
        (sequence.holding, sequence.shares_prefix) = (Some(holding), goes_on);
    }

    /// Returns the number of micro-batches at the prefill stage.
    fn prefills(&self) -> usize {
        self.in_flight.iter().filter(|f| f.path == Path::Prefill).count()
    }

    fn add_decode_rows(&mut self, draft: &mut Draft) {
        let decoding = self.in_flight.iter().filter(|f| f.decodes).count();
        if self.ready.is_empty() || decoding >= self.shape.decode_groups as usize {
            return;
        }
        let share = self.generating.div_ceil(self.shape.decode_groups);
        let rows = share.min(draft.rows_left).min(draft.logit_rows_left).min(draft.items_left);
        // Leave a row for a prompt.
        let is_whole = |left: u32| rows == left && rows > 1;
        let is_full = [draft.rows_left, draft.logit_rows_left, draft.items_left].into_iter().any(is_whole);
        let rows = rows - u32::from(is_full && !self.prefilling.is_empty());
        while draft.decodes < rows as usize {
            let Some(id) = self.ready.pop_front() else { return };
            let positions = self.sequence(id).tokens();
            match self.grow_in(draft, id, positions) {
                Taken::All => {}
                Taken::Preempted => continue,
                Taken::Later => return self.ready.push_front(id),
            }
            let logits = self.sequences[&id].last_row;
            assert!(self.sequences[&id].decodes(), "{id} is ready without a token");
            let item = self.item(id, 1, logits);
            draft.add(item);
            draft.decodes += 1;
            let sequence = self.sequence(id);
            (sequence.entered, sequence.place) = (positions, Place::Nowhere);
        }
    }

    /// Limits the prompt rows of a micro-batch to the chunk for the prompts that are entering.
    fn bound_prompt_rows(&self, draft: &mut Draft) {
        let most = self.shape.chunks.last_from_tokens();
        let mut tokens = 0;
        // Stop counting once more tokens cannot change the chunk.
        for sequence in self.prefilling.iter().filter_map(|id| self.sequences.get(id)) {
            tokens += u64::from(sequence.tokens());
            if tokens >= most {
                break;
            }
        }
        let is_decoding = draft.decodes > 0 || !self.ready.is_empty();
        let generating = is_decoding || self.in_flight.iter().any(|f| f.decodes);
        draft.rows_left = draft.rows_left.min(self.shape.chunks.rows(tokens, generating));
    }

    /// Adds rows of the prompts at the front of the queue, as long as they take `path`.
    fn add_prompt_rows(&mut self, draft: &mut Draft, path: Path) {
        while draft.rows_left > 0 && draft.items_left > 0 {
            let Some(&id) = self.prefilling.front() else { return };
            if self.sequences[&id].holding.is_none() {
                let hit = self.find(id);
                if self.will_share(id, &hit, draft) || !self.start(id, hit) {
                    return;
                }
            }
            if self.sequences[&id].path != path {
                return;
            }
            let Some((rows, logits)) = prompt_rows(&self.sequences[&id], draft) else { return };
            let end = self.sequences[&id].entered + rows;
            match self.grow_in(draft, id, end) {
                Taken::All => {}
                Taken::Preempted => continue,
                Taken::Later => return,
            }
            let item = self.item(id, rows, logits);
            draft.add(item);
            let sequence = self.sequence(id);
            sequence.entered = end;
            // What is left of it enters with a later micro-batch.
            if sequence.left() > 0 {
                return;
            }
            self.unqueue(id);
        }
    }

    /// Returns the next rows of a sequence.
    fn item(&mut self, id: SequenceId, rows: u32, logits: LogitRows) -> Item {
        let sequence = self.sequences.get_mut(&id).unwrap_or_else(|| panic!("{id} enters but has ended"));
        let holding = sequence.holding.as_mut().unwrap_or_else(|| panic!("{id} enters without blocks"));
        let ring = self.pool.enter(holding, sequence.entered);
        Item {
            sequence: id,
            epoch: sequence.epoch,
            first_position: sequence.entered,
            prompt_tokens: sequence.start_tokens,
            blocks: holding.full.clone(),
            tokens: sequence.tokens_from(sequence.entered).take(rows as usize).collect(),
            ring,
            logits,
            noise: sequence
                .noise
                .filter(|_| logits == LogitRows::Picks)
                .map(|noise| noise.after(sequence.new_tokens())),
        }
    }

    /// Lets a sequence have the blocks of its first positions. Removes the sequences that it preempts from the
    /// draft.
    fn grow_in(&mut self, draft: &mut Draft, id: SequenceId, positions: u32) -> Taken {
        let before = self.preempted;
        let taken = self.grow(id, positions);
        if self.preempted != before {
            draft.drop_preempted(self);
        }
        taken
    }

    /// Returns whether the micro-batch that is being formed computes most of what a prompt needs beside `hit`, for
    /// another sequence. Later micro-batches find it in the cache.
    fn will_share(&self, id: SequenceId, hit: &Hit, draft: &Draft) -> bool {
        let sequence = &self.sequences[&id];
        let half = hit.positions() + (sequence.tokens() - hit.positions()).div_ceil(2);
        // Only full blocks of a running sequence are found.
        let half = half.next_multiple_of(BLOCK_TOKENS as u32);
        let shares = |item: &Item| {
            let other = &self.sequences[&item.sequence];
            other.shares_prefix && item.end_position() >= half && sequence.common(other, half) == half
        };
        let is_one_path = self.shape.prefill_from.is_none();
        is_one_path && sequence.shares_prefix && draft.items[draft.decodes..].iter().any(shares)
    }

    /// Returns the path of a sequence that starts, and the cached prefix that it uses. The prefill stage computes
    /// a prompt from its first token on, and only if it is long. All chunks of a prompt take the same path, so
    /// that its keys and values are in one place.
    pub(super) fn path_of(&self, sequence: &Sequence, hit: Hit) -> (Path, Hit) {
        let left = sequence.tokens() - hit.positions();
        let is_long = self.shape.prefill_from.is_some_and(|from| left >= from);
        match is_long && sequence.generation.is_some() {
            true => (Path::Prefill, Hit::default()),
            false => (Path::Stages, hit),
        }
    }
}

/// Returns the number of the sequence's next prompt rows that fit into the draft, if any, and which of them
/// need logits.
fn prompt_rows(sequence: &Sequence, draft: &Draft) -> Option<(u32, LogitRows)> {
    let left = sequence.left();
    let rows = left.min(draft.rows_left);
    let entered = sequence.entered;
    let border = sequence.holding.as_ref().and_then(|held| held.next_snapshot(entered, entered + rows));
    let rows = border.map_or(rows, |border| border - entered);
    let (rows, logits) = match &sequence.generation {
        // The client has these logits from an earlier epoch.
        None if sequence.entered < sequence.delivered => {
            (rows.min(sequence.delivered - sequence.entered), LogitRows::None)
        }
        None => (rows.min(draft.logit_rows_left), LogitRows::All),
        // The last row waits for a micro-batch that has a free logit row.
        Some(generation) if rows == left && generation.max_new_tokens > 0 => match draft.logit_rows_left {
            0 => (rows - 1, LogitRows::None),
            _ => (rows, sequence.last_row),
        },
        Some(_) => (rows, LogitRows::None),
    };
    (rows > 0).then_some((rows, logits))
}
