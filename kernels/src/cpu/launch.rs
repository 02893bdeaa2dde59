//! The row counts and lists in the parameter block.

use crate::params::ParamsShape;

/// Returns the count in word `word` of the parameters, limited to `capacity`. The word is in the header.
#[inline(always)]
pub(super) fn count(params: &[u32], word: u32, capacity: u32) -> usize {
    params[word as usize].min(capacity) as usize
}

/// Lists in a parameter block. They are untrusted: any word may have any value.
#[derive(Clone, Copy)]
pub(super) struct Lists<'a> {
    words: &'a [u32],
    shape: ParamsShape,
}

impl<'a> Lists<'a> {
    #[inline(always)]
    pub fn new(words: &'a [u32], [rows, sequences, table_blocks, logit_rows]: [u32; 4]) -> Self {
        Self { words, shape: ParamsShape { rows, logit_rows, sequences, table_blocks } }
    }

    /// Returns the number of rows in use.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        count(self.words, crate::params::ROWS, self.shape.rows)
    }

    /// Returns the number of rows that split attention computes.
    #[inline(always)]
    pub fn decode_rows(&self) -> usize {
        count(self.words, crate::params::DECODE_ROWS, self.shape.rows)
    }

    #[inline(always)]
    pub fn token(&self, row: usize) -> usize {
        self.words[self.shape.tokens() + row] as usize
    }

    #[inline(always)]
    pub fn position(&self, row: usize) -> usize {
        self.words[self.shape.positions() + row] as usize
    }

    #[inline(always)]
    pub fn sequence(&self, row: usize) -> usize {
        self.words[self.shape.row_sequences() + row] as usize
    }

    #[inline(always)]
    pub fn logit_row(&self, i: usize) -> usize {
        self.words[self.shape.logit_rows() + i] as usize
    }

    /// Returns the block table of a row's sequence and the words after it, as many as the longest table has.
    /// Returns `None` if the sequence does not exist.
    #[inline(always)]
    pub fn table(&self, row: usize) -> Option<&'a [u32]> {
        let (sequences, blocks) = (self.shape.sequences as usize, self.shape.table_blocks as usize);
        let start = self.words[self.shape.table_starts() + row] as usize;
        let at = self.shape.tables() + start.min(sequences.checked_sub(1)?.checked_mul(blocks)?);
        if self.sequence(row) < sequences { self.words.get(at..at + blocks) } else { None }
    }
}
