//! The parameter block of a micro-batch: all that changes from step to step, as 32-bit words.
//!
//! One block per slot of a stage's parameter ring. Its *capacities* are fixed when a program is compiled; the *counts*
//! in its header say how much of them this micro-batch uses, and no kernel computes or writes beyond the counts.
//!
//! | words | content |
//! | --- | --- |
//! | 0 | rows: tokens in the micro-batch |
//! | 1 | logit rows: rows of which logits are wanted |
//! | 2 | sequences |
//! | 3 | zero |
//! | rows | token ids |
//! | rows | positions in their sequence |
//! | rows | for each row its sequence: an index into the tables |
//! | logit rows | the rows of which logits are wanted |
//! | sequences × table blocks | for each sequence the cache blocks that hold its positions, [`BLOCK_TOKENS`] each |

/// Positions in one block of the key-value cache.
pub const BLOCK_TOKENS: usize = 16;

/// Word that holds the number of rows.
pub const ROWS: u32 = 0;
/// Word that holds the number of logit rows.
pub const LOGIT_ROWS: u32 = 1;
/// Word that holds the number of sequences.
pub const SEQUENCES: u32 = 2;
/// Words before the lists.
pub const HEADER_WORDS: usize = 4;

/// Capacities of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsShape {
    /// Most rows.
    pub rows: u32,
    /// Most logit rows.
    pub logit_rows: u32,
    /// Most sequences.
    pub sequences: u32,
    /// Cache blocks per sequence.
    pub table_blocks: u32,
}

impl ParamsShape {
    /// First word of the token ids.
    pub fn tokens(&self) -> usize {
        HEADER_WORDS
    }

    /// First word of the positions.
    pub fn positions(&self) -> usize {
        self.tokens() + self.rows as usize
    }

    /// First word of the rows' sequences.
    pub fn row_sequences(&self) -> usize {
        self.positions() + self.rows as usize
    }

    /// First word of the logit rows.
    pub fn logit_rows(&self) -> usize {
        self.row_sequences() + self.rows as usize
    }

    /// First word of the block tables.
    pub fn tables(&self) -> usize {
        self.logit_rows() + self.logit_rows as usize
    }

    /// Words in all.
    pub fn words(&self) -> usize {
        self.tables() + self.sequences as usize * self.table_blocks as usize
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.words() as u64 * 4
    }
}
