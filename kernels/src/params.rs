//! Parameter block of a micro-batch. It holds all data that changes from step to step, as 32-bit words.
//!
//! Each slot of a stage's parameter ring has one block. The *capacities* of the block are fixed at compile
//! time. The *counts* in its header give the used part. No kernel computes or writes beyond the counts.
//!
//! | words | content |
//! | --- | --- |
//! | 0 | rows: tokens in the micro-batch |
//! | 1 | logit rows: rows that need logits |
//! | 2 | sequences |
//! | 3 | zero |
//! | rows | token ids |
//! | rows | positions in their sequence |
//! | rows | sequence of each row: an index into the tables |
//! | logit rows | rows that need logits |
//! | sequences × table blocks | cache blocks of each sequence's positions, [`BLOCK_TOKENS`] each |

/// Positions per block of the KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// Word with the number of rows.
pub const ROWS: u32 = 0;
/// Word with the number of logit rows.
pub const LOGIT_ROWS: u32 = 1;
/// Word with the number of sequences.
pub const SEQUENCES: u32 = 2;
/// Words before the lists.
pub const HEADER_WORDS: usize = 4;

/// Capacities of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsShape {
    /// Maximum rows.
    pub rows: u32,
    /// Maximum logit rows.
    pub logit_rows: u32,
    /// Maximum sequences.
    pub sequences: u32,
    /// Cache blocks per sequence.
    pub table_blocks: u32,
}

impl ParamsShape {
    /// Returns the first word of the token ids.
    pub fn tokens(&self) -> usize {
        HEADER_WORDS
    }

    /// Returns the first word of the positions.
    pub fn positions(&self) -> usize {
        self.tokens() + self.rows as usize
    }

    /// Returns the first word of the rows' sequences.
    pub fn row_sequences(&self) -> usize {
        self.positions() + self.rows as usize
    }

    /// Returns the first word of the logit rows.
    pub fn logit_rows(&self) -> usize {
        self.row_sequences() + self.rows as usize
    }

    /// Returns the first word of the block tables.
    pub fn tables(&self) -> usize {
        self.logit_rows() + self.logit_rows as usize
    }

    /// Returns the total number of words.
    pub fn words(&self) -> usize {
        self.tables() + self.sequences as usize * self.table_blocks as usize
    }

    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        self.words() as u64 * 4
    }
}
