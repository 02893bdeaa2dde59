//! Prefill chunk sizes: the maximum number of rows in a micro-batch that contains prompt rows.
//!
//! A long chunk uses the arithmetic units better. A short chunk fills the pipeline sooner, and causes shorter
//! delays for sequences that are generating. Stages compile programs for all sizes, so the size can change
//! from one micro-batch to the next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The prefill chunks of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chunks {
    /// Chunks, ordered by the total length of the prompts in prefill. The first applies from 0 tokens on.
    pub by_prompt: Vec<PromptChunk>,
    /// Maximum number of prompt rows in a micro-batch while other sequences generate. It limits the delay of
    /// their next tokens.
    pub beside_decode: u32,
}

/// The chunk for prompts with at least a given total length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptChunk {
    /// Minimum total length of all prompts in prefill for which this chunk is used, in tokens.
    pub from_tokens: u32,
    /// Maximum number of rows in a micro-batch.
    pub rows: u32,
}

/// Reason why a list of chunks is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidChunks {
    /// The list is empty, or its first chunk does not start at 0 tokens.
    #[error("the first chunk must start at 0 tokens")]
    First,
    /// The chunks are not in ascending order of prompt length.
    #[error("chunks must be listed by ascending from_tokens")]
    Order,
    /// A chunk has zero rows.
    #[error("a chunk must have at least 1 row")]
    Empty,
}

impl Chunks {
    /// Returns a list in which every chunk has `rows` rows.
    pub fn fixed(rows: u32) -> Self {
        Self { by_prompt: vec![PromptChunk { from_tokens: 0, rows }], beside_decode: rows }
    }

    /// Returns the number of chunk rows if the prompts in prefill have `prompt_tokens` tokens in total.
    /// `generating` says whether other sequences are generating tokens.
    pub fn rows(&self, prompt_tokens: u64, generating: bool) -> u32 {
        let starts = |chunk: &&PromptChunk| u64::from(chunk.from_tokens) <= prompt_tokens;
        let rows = self.by_prompt.iter().rfind(starts).expect("the first chunk starts at 0 tokens").rows;
        if generating { rows.min(self.beside_decode) } else { rows }
    }

    /// Returns the number of rows of the shortest chunk.
    pub fn least_rows(&self) -> u32 {
        self.by_prompt.iter().map(|chunk| chunk.rows).min().unwrap_or(0)
    }

    /// Returns the number of rows of the longest chunk.
    pub fn most_rows(&self) -> u32 {
        self.by_prompt.iter().map(|chunk| chunk.rows).max().unwrap_or(0)
    }

    /// Returns the prompt length, in tokens, from which on all prompts get the same chunk.
    pub fn last_from_tokens(&self) -> u64 {
        self.by_prompt.last().map_or(0, |chunk| chunk.from_tokens.into())
    }

    /// Checks the list of chunks.
    ///
    /// # Errors
    /// Returns [`InvalidChunks`] for the first problem found.
    pub fn check(&self) -> Result<(), InvalidChunks> {
        if self.by_prompt.first().is_none_or(|chunk| chunk.from_tokens != 0) {
            return Err(InvalidChunks::First);
        }
        if self.by_prompt.windows(2).any(|pair| pair[0].from_tokens >= pair[1].from_tokens) {
            return Err(InvalidChunks::Order);
        }
        if self.beside_decode == 0 || self.by_prompt.iter().any(|chunk| chunk.rows == 0) {
            return Err(InvalidChunks::Empty);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_prompts_take_the_chunks_listed_for_them() {
        let chunk = |from_tokens, rows| PromptChunk { from_tokens, rows };
        let chunks =
            Chunks { by_prompt: vec![chunk(0, 64), chunk(65, 256), chunk(513, 128)], beside_decode: 100 };
        assert_eq!(chunks.check(), Ok(()));
        let rows = |tokens| [chunks.rows(tokens, false), chunks.rows(tokens, true)];
        assert_eq!(
            [1, 64, 65, 512, 513, 1 << 40].map(rows),
            [[64, 64], [64, 64], [256, 100], [256, 100], [128, 100], [128, 100]]
        );
        assert_eq!((chunks.most_rows(), Chunks::fixed(7).rows(9, true)), (256, 7));
    }

    #[test]
    fn invalid_lists_are_named() {
        let of = |list: &[(u32, u32)], beside_decode| {
            let by_prompt =
                list.iter().map(|&(from_tokens, rows)| PromptChunk { from_tokens, rows }).collect();
            Chunks { by_prompt, beside_decode }.check()
        };
        assert_eq!(of(&[], 1), Err(InvalidChunks::First));
        assert_eq!(of(&[(1, 8)], 1), Err(InvalidChunks::First));
        assert_eq!(of(&[(0, 8), (9, 16), (9, 32)], 1), Err(InvalidChunks::Order));
        assert_eq!(of(&[(0, 8), (9, 0)], 1), Err(InvalidChunks::Empty));
        assert_eq!(of(&[(0, 8)], 0), Err(InvalidChunks::Empty));
    }
}
