//! Parameter block of a micro-batch: all data that changes from step to step, in 32-bit words.
//!
//! Each slot in the parameter ring of a stage has one block. The *capacities* of a block are fixed when the
//! program is compiled. The *counts* in its header define the part that is in use. Kernels do not compute or
//! write rows beyond the counts. The block tables are packed at the end, and the draws follow them. So the words in
//! use are the start of the block, and only they are written and uploaded.
//!
//! | words | content |
//! | --- | --- |
//! | 0 | number of rows: one per token in the micro-batch |
//! | 1 | number of logit rows: rows that need logits |
//! | 2 | number of decode rows that split attention computes; [`attention`](crate::attention) skips these first rows |
//! | 3 | number of words of the block in use |
//! | rows | token id of each row |
//! | rows | position of each row in its sequence |
//! | rows | sequence of each row |
//! | logit rows | indices of the rows that need logits |
//! | rows | start of the block table of each row's sequence, in words from the first table |
//! | sequences × table blocks | block tables, without gaps: the cache blocks with the positions of a sequence, [`BLOCK_TOKENS`] per block |
//! | 3 × logit rows | draw from each row of logits, right behind the tables: see [`Draw`] |

use crate::picks::noise::Draw;

/// Number of positions per block of the KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// Index of the word that holds the number of rows.
pub const ROWS: u32 = 0;
/// Index of the word that holds the number of logit rows.
pub const LOGIT_ROWS: u32 = 1;
/// Index of the word that holds the number of decode rows that split attention computes.
pub const DECODE_ROWS: u32 = 2;
/// Index of the word that holds the number of words in use.
pub const USED_WORDS: u32 = 3;
/// Number of words in the header, before the lists.
pub const HEADER_WORDS: usize = 4;

/// Alignment in bytes of what follows the first parameter block. Every device can bind a range that starts at a multiple.
const ALIGNMENT_BYTES: u64 = 512;

/// Capacities of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsShape {
    /// Maximum number of rows.
    pub rows: u32,
    /// Maximum number of logit rows.
    pub logit_rows: u32,
    /// Maximum number of sequences.
    pub sequences: u32,
    /// Maximum number of cache blocks in the block table of each sequence.
    pub table_blocks: u32,
}

impl ParamsShape {
    /// Returns the index of the word that holds the first token id.
    pub fn tokens(&self) -> usize {
        HEADER_WORDS
    }

    /// Returns the index of the word that holds the first position.
    pub fn positions(&self) -> usize {
        self.tokens() + self.rows as usize
    }

    /// Returns the index of the word that holds the sequence of the first row.
    pub fn row_sequences(&self) -> usize {
        self.positions() + self.rows as usize
    }

    /// Returns the index of the word that holds the first entry of the list of logit rows.
    pub fn logit_rows(&self) -> usize {
        self.row_sequences() + self.rows as usize
    }

    /// Returns the index of the word that holds the start of the first row's block table.
    pub fn table_starts(&self) -> usize {
        self.logit_rows() + self.logit_rows as usize
    }

    /// Returns the index of the first word of the block tables.
    pub fn tables(&self) -> usize {
        self.table_starts() + self.rows as usize
    }

    /// Returns the number of words in the block.
    pub fn words(&self) -> usize {
        let tables = self.sequences as usize * self.table_blocks as usize;
        self.tables() + tables + Draw::WORDS * self.logit_rows as usize
    }

    /// Returns the number of bytes in the block.
    pub fn bytes(&self) -> u64 {
        self.words() as u64 * 4
    }

    /// Returns the offset in bytes of the second parameter block of models that have KV rings. Kernels that
    /// access a cache with a KV ring read this block. It differs from the first one only in its block tables.
    pub fn kv_ring_offset(&self) -> u64 {
        self.bytes().next_multiple_of(ALIGNMENT_BYTES)
    }

    /// Returns the offset in bytes of the RoPE frequencies that depend on the length of a sequence, f32
    /// `[sequences, pairs]`. They follow the parameter blocks.
    pub fn frequencies_offset(&self, has_ring: bool) -> u64 {
        self.all_bytes(has_ring, 0).next_multiple_of(ALIGNMENT_BYTES)
    }

    /// Returns the bytes of these frequencies, with `pairs` of them per sequence.
    pub fn frequencies_bytes(&self, pairs: u32) -> u64 {
        u64::from(self.sequences) * u64::from(pairs) * 4
    }

    /// Returns the bytes of all parameters: one block or, with KV rings, two, and `pairs` frequencies per
    /// sequence. `pairs` is 0 if frequencies do not depend on the length.
    pub fn all_bytes(&self, has_ring: bool, pairs: u32) -> u64 {
        match pairs {
            0 if has_ring => self.kv_ring_offset() + self.bytes(),
            0 => self.bytes(),
            _ => self.frequencies_offset(has_ring) + self.frequencies_bytes(pairs),
        }
    }
}
