//! Forms the next micro-batch.
//!
//! Decode rows come first, then prompt rows up to the length of the prefill chunk. The length of the chunk
//! depends on the entering prompts and on whether other sequences generate tokens.
//!
//! Generating sequences are divided into decode groups to keep all stages busy. The plan's number of groups
//! limits both the number of decode rows per micro-batch and the number of in-flight micro-batches with
//! decode rows. More groups would make micro-batches smaller, and each micro-batch reads all weights.
//!
//! Prompts for the prefill stage enter in micro-batches of their own, which have as many rows as possible,
//! because each of them copies the streamed weights.

use crate::core::batch::{Item, LogitRows};
use crate::core::run::{RunCore, RunShape};
use crate::core::sequence::Sequence;
use crate::core::{MicroBatch, MicroBatchId, Path, SequenceId};
use ragtag_graph::execution::PREFILLS;

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
    rows_left: u32,
    logit_rows_left: u32,
    items_left: u32,
}

impl Draft {
    fn new(shape: &RunShape) -> Self {
        Self {
            items: Vec::new(),
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
}

impl RunCore {
    /// Returns the next micro-batch. Returns `None` if no sequence has rows to process or no credit is free.
    pub(super) fn form(&mut self) -> Option<Formed> {
        if self.credits.is_empty() || (self.ready.is_empty() && self.prefilling.is_empty()) {
            return None;
        }
        let mut draft = Draft::new(&self.shape);
        self.add_decode_rows(&mut draft);
        let decodes = !draft.items.is_empty();
        let taken = self.shape.max_rows - draft.rows_left;
        draft.rows_left = self.chunk_rows(decodes).saturating_sub(taken);
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
        Some(Formed { batch: MicroBatch { id, credit, items: draft.items }, decodes, path })
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
        for _ in 0..rows {
            let Some(id) = self.ready.pop_front() else { return };
            let sequence = self.sequences.get(&id).unwrap_or_else(|| panic!("{id} is ready but has ended"));
            let (Some(generation), Some(blocks)) = (&sequence.generation, &sequence.blocks) else {
                panic!("{id} is ready but generates nothing, or has no blocks");
            };
            assert!(generation.new_tokens > 0, "{id} is ready without a token");
            draft.add(Item {
                sequence: id,
                epoch: sequence.epoch,
                first_position: sequence.prompt_tokens + generation.new_tokens - 1,
                prompt_tokens: sequence.prompt.len() as u32,
                tokens: vec![generation.last_token],
                blocks: blocks.full.clone(),
                ring: blocks.ring.clone(),
                logits: LogitRows::Last,
            });
        }
    }

    /// Returns the length of the prefill chunk for the prompts that are entering. `decodes` says whether the
    /// micro-batch has decode rows.
    fn chunk_rows(&self, decodes: bool) -> u32 {
        let most = self.shape.chunks.last_from_tokens();
        let mut tokens = 0;
        // Stop counting once more tokens cannot change the chunk.
        for sequence in self.prefilling.iter().filter_map(|id| self.sequences.get(id)) {
            tokens += sequence.prompt.len() as u64;
            if tokens >= most {
                break;
            }
        }
        let generating = decodes || !self.ready.is_empty() || self.in_flight.iter().any(|f| f.decodes);
        self.shape.chunks.rows(tokens, generating)
    }

    /// Adds rows of the prompts at the front of the queue, as long as they take `path`.
    fn add_prompt_rows(&mut self, draft: &mut Draft, path: Path) {
        while draft.rows_left > 0 && draft.items_left > 0 {
            let Some(&id) = self.prefilling.front() else { return };
            let sequence = self.sequences.get_mut(&id).unwrap_or_else(|| panic!("{id} enters but has ended"));
            if sequence.prefill_path(self.shape.prefill_from) != path {
                return;
            }
            let Some(item) = prompt_item(id, sequence, draft) else { return };
            sequence.entered += item.tokens.len() as u32;
            if sequence.entered == sequence.prompt.len() as u32 {
                self.prefilling.pop_front();
            }
            draft.add(item);
        }
    }
}

/// Returns the sequence's next prompt rows that fit into the draft, if any.
fn prompt_item(id: SequenceId, sequence: &Sequence, draft: &Draft) -> Option<Item> {
    let left = sequence.prompt.len() as u32 - sequence.entered;
    let mut rows = left.min(draft.rows_left);
    let logits = match &sequence.generation {
        None => {
            rows = rows.min(draft.logit_rows_left);
            LogitRows::All
        }
        Some(generation) if rows == left && generation.max_new_tokens > 0 => {
            if draft.logit_rows_left > 0 {
                LogitRows::Last
            } else {
                // The last row waits for a micro-batch that has a free logit row.
                rows -= 1;
                LogitRows::None
            }
        }
        Some(_) => LogitRows::None,
    };
    let blocks = sequence.blocks.as_ref().filter(|_| rows > 0)?;
    let first = sequence.entered as usize;
    Some(Item {
        sequence: id,
        epoch: sequence.epoch,
        first_position: sequence.entered,
        prompt_tokens: sequence.prompt.len() as u32,
        tokens: sequence.prompt[first..first + rows as usize].to_vec(),
        blocks: blocks.full.clone(),
        ring: blocks.ring.clone(),
        logits,
    })
}
