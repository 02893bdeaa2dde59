//! Micro-batches, and the parameter blocks that kernels read for them.

use crate::sampling::Noise;
use ragtag_kernels::params::{BLOCK_TOKENS, HEADER_WORDS, LOGIT_ROWS, ParamsShape, ROWS, USED_WORDS};
use ragtag_kernels::picks::noise::Draw;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Identifier of a sequence. Unique for the lifetime of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// Identifier of a micro-batch. Micro-batches enter the pipeline in ascending order of their identifiers, and
/// every stage keeps this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MicroBatchId(pub u64);

impl fmt::Display for MicroBatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batch {}", self.0)
    }
}

/// Rows of an item that need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogitRows {
    /// No row, because more of the prompt follows.
    None,
    /// The last row only. The next token is sampled from its logits.
    Last,
    /// The last row only. The next token is sampled from its best logits.
    Picks,
    /// All rows.
    All,
}

/// Consecutive tokens of one sequence in a micro-batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The sequence.
    pub sequence: SequenceId,
    /// Epoch of the sequence when the item entered: the number of times that it had lost its cache blocks.
    #[serde(default)]
    pub epoch: u32,
    /// Position of the first token in its sequence.
    pub first_position: u32,
    /// Number of tokens of the sequence when its epoch began. They count for RoPE frequencies that depend on the
    /// length.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// The tokens. Each is one row.
    pub tokens: Vec<u32>,
    /// The cache blocks of the sequence in layers that keep all positions, in position order.
    pub blocks: Arc<[u32]>,
    /// The blocks of the sequence's KV ring. Empty if the model has none.
    #[serde(default)]
    pub ring: Arc<[u32]>,
    /// The rows that need logits.
    pub logits: LogitRows,
    /// Noise with which the device draws a token from the last row.
    #[serde(default)]
    pub noise: Option<Noise>,
}

impl Item {
    /// Returns the number of rows that need logits.
    pub fn logit_rows(&self) -> u32 {
        match self.logits {
            LogitRows::None => 0,
            LogitRows::Last | LogitRows::Picks => 1,
            LogitRows::All => self.tokens.len() as u32,
        }
    }

    /// Returns the number of rows whose logits the host reads whole.
    pub fn whole_rows(&self) -> u32 {
        if self.logits == LogitRows::Picks { 0 } else { self.logit_rows() }
    }

    /// Returns the cache block that holds the positions from `index` · [`BLOCK_TOKENS`] on, in layers that
    /// keep all positions or, if `in_ring` is set, in layers with a window. Returns `None` if the sequence
    /// does not have the block.
    pub fn block(&self, index: usize, in_ring: bool) -> Option<u32> {
        let block =
            if in_ring { self.ring.get(index % self.ring.len().max(1)) } else { self.blocks.get(index) };
        block.copied()
    }

    /// Returns the length that determines the RoPE frequencies of all rows.
    pub fn length(&self) -> u32 {
        self.prompt_tokens.max(self.end_position())
    }

    /// Returns the position after the last token.
    pub fn end_position(&self) -> u32 {
        self.first_position + self.tokens.len() as u32
    }
}

/// The unit of work in the pipeline. All stages share it, and no stage changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicroBatch {
    /// Identifier.
    pub id: MicroBatchId,
    /// Credit that the micro-batch holds until its results are read. It is also the index of per-micro-batch
    /// resources, such as the host memory for logits.
    pub credit: u32,
    /// The items. Each belongs to a different sequence.
    pub items: Vec<Item>,
}

impl MicroBatch {
    /// Returns the number of rows of all items together.
    pub fn rows(&self) -> u32 {
        self.items.iter().map(|i| i.tokens.len() as u32).sum()
    }

    /// Returns the number of rows that need logits, over all items.
    pub fn logit_rows(&self) -> u32 {
        self.items.iter().map(Item::logit_rows).sum()
    }

    /// Returns the number of rows whose logits the host reads whole, over all items. They come first in the list of
    /// logit rows, so that they are adjacent in memory.
    pub fn whole_rows(&self) -> u32 {
        self.items.iter().map(Item::whole_rows).sum()
    }

    /// Returns the items, each with the places of its rows in the list of logit rows.
    pub fn with_logit_rows(&self) -> impl Iterator<Item = (&Item, Range<u32>)> {
        let (mut whole, mut picks) = (0, self.whole_rows());
        self.items.iter().map(move |item| {
            let next = if item.logits == LogitRows::Picks { &mut picks } else { &mut whole };
            let first = *next;
            *next += item.logit_rows();
            (item, first..*next)
        })
    }

    /// Returns the number of first rows that are single rows of their sequences.
    pub fn decode_rows(&self) -> u32 {
        self.items.iter().take_while(|item| item.tokens.len() == 1).count() as u32
    }

    /// Returns whether every row is a decode step.
    pub fn decodes_only(&self) -> bool {
        self.items.iter().all(|i| i.tokens.len() == 1 && i.first_position > 0)
    }
}

/// Error for a micro-batch that exceeds a capacity of the parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} {what} exceed the capacity of a parameter block, {capacity}")]
pub struct ParamsTooSmall {
    /// Name of the exceeded quantity.
    pub what: &'static str,
    /// Amount in the micro-batch.
    pub wanted: usize,
    /// Capacity of the block.
    pub capacity: usize,
}

/// Writes a parameter block of a micro-batch in the layout of [`ragtag_kernels::params`]. If `in_ring` is
/// set, the block tables list the blocks of KV rings, which repeat. `words` must have at least
/// [`ParamsShape::words`] words. Words beyond the used part of each list are unchanged, because no kernel
/// reads them. Returns the number of words in use.
///
/// # Errors
/// [`ParamsTooSmall`] if the micro-batch exceeds a capacity or `words` is too short. The contents of `words`
/// are unspecified after an error.
pub fn write_params(
    batch: &MicroBatch,
    shape: &ParamsShape,
    in_ring: bool,
    words: &mut [u32],
) -> Result<usize, ParamsTooSmall> {
    let fits = |what, wanted: usize, capacity: usize| {
        if wanted <= capacity { Ok(()) } else { Err(ParamsTooSmall { what, wanted, capacity }) }
    };
    let (rows, logit_rows) = (batch.rows() as usize, batch.logit_rows() as usize);
    fits("rows", rows, shape.rows as usize)?;
    fits("logit rows", logit_rows, shape.logit_rows as usize)?;
    fits("sequences", batch.items.len(), shape.sequences as usize)?;
    fits("words", shape.words(), words.len())?;
    words[..HEADER_WORDS].fill(0);
    words[ROWS as usize] = rows as u32;
    words[LOGIT_ROWS as usize] = logit_rows as u32;

    let (mut row, mut end) = (0, shape.tables());
    for (index, (item, logits)) in batch.with_logit_rows().enumerate() {
        // A sequence may own more blocks than its positions fill. The table holds only the blocks that
        // kernels look up.
        let used = (item.end_position() as usize).div_ceil(BLOCK_TOKENS);
        fits("cache blocks", used, shape.table_blocks as usize)?;
        let start = end;
        end += used;
        let table = &mut words[start..end];
        for (at, entry) in table.iter_mut().enumerate() {
            let held = if in_ring { item.ring.len() } else { item.blocks.len() };
            let missing = ParamsTooSmall { what: "cache blocks", wanted: used, capacity: held };
            *entry = item.block(at, in_ring).ok_or(missing)?;
        }
        for (i, &token) in item.tokens.iter().enumerate() {
            words[shape.tokens() + row] = token;
            words[shape.positions() + row] = item.first_position + i as u32;
            words[shape.row_sequences() + row] = index as u32;
            words[shape.table_starts() + row] = (start - shape.tables()) as u32;
            row += 1;
        }
        // The last rows of the item.
        let first_row = row - logits.len();
        for (place, row) in logits.zip(first_row..) {
            words[shape.logit_rows() + place as usize] = row as u32;
        }
    }
    for (item, logits) in batch.with_logit_rows() {
        let draw = item.noise.map_or([0; Draw::WORDS], |noise| noise.draw().words());
        for place in logits {
            words[end + Draw::WORDS * place as usize..][..Draw::WORDS].copy_from_slice(&draw);
        }
    }
    end += Draw::WORDS * logit_rows;
    words[USED_WORDS as usize] = end as u32;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(sequence: u64, first_position: u32, tokens: &[u32], blocks: &[u32], logits: LogitRows) -> Item {
        Item {
            sequence: SequenceId(sequence),
            epoch: 0,
            first_position,
            prompt_tokens: 0,
            tokens: tokens.into(),
            blocks: blocks.into(),
            ring: [11, 12].into(),
            logits,
            noise: None,
        }
    }

    #[test]
    fn a_parameter_block_describes_its_micro_batch() {
        let batch = MicroBatch {
            id: MicroBatchId(1),
            credit: 0,
            items: vec![
                item(7, 15, &[70, 71], &[4, 9, 2], LogitRows::Last),
                item(8, 0, &[80], &[5], LogitRows::None),
                item(9, 3, &[90, 91], &[6], LogitRows::All),
            ],
        };
        assert_eq!((batch.rows(), batch.logit_rows(), batch.whole_rows()), (5, 3, 3));
        let shape = ParamsShape { rows: 6, logit_rows: 4, sequences: 3, table_blocks: 3 };
        let mut words = vec![u32::MAX; shape.words()];
        let used = write_params(&batch, &shape, false, &mut words).unwrap();
        let list = |at: usize, n: usize| &words[at..at + n];
        assert_eq!(list(0, 4), [5, 3, 0, used as u32]);
        assert_eq!(list(shape.tokens(), 6), [70, 71, 80, 90, 91, u32::MAX]);
        assert_eq!(list(shape.positions(), 5), [15, 16, 0, 3, 4]);
        assert_eq!(list(shape.row_sequences(), 5), [0, 0, 1, 2, 2]);
        assert_eq!(list(shape.logit_rows(), 4), [1, 3, 4, u32::MAX]);
        // Position 16 is in the second block. The sequence owns the third block but has not reached it.
        assert_eq!(list(shape.table_starts(), 6), [0, 0, 2, 3, 3, u32::MAX]);
        // Nothing is drawn from the three rows of logits.
        assert_eq!(list(shape.tables(), 14), [&[4, 9, 5, 6][..], &[0; 9], &[u32::MAX]].concat());
        assert_eq!(used, shape.tables() + 4 + 9);
        let word = u32::MAX;
        let mut words = vec![word; shape.words()];
        write_params(&batch, &shape, true, &mut words).unwrap();
        let list = |at: usize, n: usize| &words[at..at + n];
        assert_eq!(list(0, 4), [5, 3, 0, used as u32]);
        assert_eq!(list(shape.tables(), 14), [&[11, 12, 11, 11][..], &[0; 9], &[word]].concat());
    }

    #[test]
    fn whole_rows_come_first_among_logit_rows() {
        let noise = Noise { seed: 5 << 32 | 4, scale: 0.5f32.to_bits() };
        let items = vec![
            Item { noise: Some(noise), ..item(7, 15, &[70, 71], &[4, 9], LogitRows::Picks) },
            item(8, 0, &[80], &[5], LogitRows::Last),
            item(9, 0, &[90], &[6], LogitRows::None),
            item(10, 3, &[91, 92], &[6], LogitRows::All),
            item(11, 3, &[93], &[7], LogitRows::Picks),
        ];
        let batch = MicroBatch { id: MicroBatchId(1), credit: 0, items };
        assert_eq!((batch.logit_rows(), batch.whole_rows()), (5, 3));
        let places: Vec<_> = batch.with_logit_rows().map(|(_, places)| places).collect();
        assert_eq!(places, [3..4, 0..1, 1..1, 1..3, 4..5]);
        let shape = ParamsShape { rows: 8, logit_rows: 5, sequences: 5, table_blocks: 3 };
        let mut words = vec![u32::MAX; shape.words()];
        let used = write_params(&batch, &shape, false, &mut words).unwrap();
        assert_eq!(words[shape.logit_rows()..][..5], [2, 4, 5, 1, 6]);
        let draws = [&[0; 9][..], &[4, 5, noise.scale], &[0; 3]].concat();
        assert_eq!(words[used - draws.len()..used], draws);
    }

    #[test]
    fn the_blocks_of_a_ring_repeat() {
        let item = item(7, 60, &[70], &[4, 9, 2, 3], LogitRows::Last);
        assert_eq!([0, 1, 2, 3].map(|at| item.block(at, true)), [11, 12, 11, 12].map(Some));
        assert_eq!([0, 3, 4].map(|at| item.block(at, false)), [Some(4), Some(3), None]);
        let without = Item { ring: [].into(), ..item };
        assert_eq!(without.block(0, true), None);
        let batch = MicroBatch { id: MicroBatchId(1), credit: 0, items: vec![without] };
        let shape = ParamsShape { rows: 1, logit_rows: 1, sequences: 1, table_blocks: 4 };
        let refused = write_params(&batch, &shape, true, &mut vec![0; shape.words()]);
        assert_eq!(refused.unwrap_err().what, "cache blocks");
    }

    #[test]
    fn a_micro_batch_with_prompt_rows_is_not_decode_only() {
        let decodes_only = |items: &[Item]| {
            MicroBatch { id: MicroBatchId(1), credit: 0, items: items.to_vec() }.decodes_only()
        };
        let decode = item(1, 9, &[7], &[0], LogitRows::Last);
        let first = item(2, 0, &[7], &[1], LogitRows::Last);
        let chunk = item(2, 4, &[7, 8], &[1], LogitRows::Last);
        assert!(decodes_only(&[decode.clone(), item(3, 1, &[7], &[2], LogitRows::Last)]));
        assert!(!decodes_only(&[decode.clone(), first]));
        assert!(!decodes_only(&[decode.clone(), chunk.clone()]));
        let mixed = |items: &[Item]| MicroBatch { id: MicroBatchId(1), credit: 0, items: items.to_vec() };
        assert_eq!(mixed(&[decode.clone(), decode.clone(), chunk.clone()]).decode_rows(), 2);
        assert_eq!(mixed(&[chunk, decode]).decode_rows(), 0);
    }

    #[test]
    fn micro_batches_beyond_a_capacity_are_refused() {
        let batch = MicroBatch {
            id: MicroBatchId(1),
            credit: 0,
            items: vec![
                item(1, 16, &[1, 2], &[0, 1], LogitRows::All),
                item(2, 0, &[3], &[2], LogitRows::None),
            ],
        };
        let fitting = ParamsShape { rows: 3, logit_rows: 2, sequences: 2, table_blocks: 2 };
        let mut words = vec![0; fitting.words()];
        write_params(&batch, &fitting, false, &mut words).unwrap();
        let what =
            |shape: ParamsShape| write_params(&batch, &shape, false, &mut vec![0; 100]).unwrap_err().what;
        assert_eq!(what(ParamsShape { rows: 2, ..fitting }), "rows");
        assert_eq!(what(ParamsShape { logit_rows: 1, ..fitting }), "logit rows");
        assert_eq!(what(ParamsShape { sequences: 1, ..fitting }), "sequences");
        assert_eq!(what(ParamsShape { table_blocks: 1, ..fitting }), "cache blocks");
        assert_eq!(write_params(&batch, &fitting, false, &mut words[1..]).unwrap_err().what, "words");
    }
}
