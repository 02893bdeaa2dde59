//! The edge on which tokens return: how a row of logits becomes a token.

use crate::core::SequenceId;
use serde::{Deserialize, Serialize};

/// Chooses the next token of one sequence. Each request brings its own, with its own settings and generator.
pub trait Sample: Send {
    /// The token after `history` (prompt and tokens so far), given the logits of the last position.
    ///
    /// # Errors
    /// In words, if nothing can be chosen from these logits. The sequence ends with them.
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String>;
}

impl Sample for crate::sampling::Sampler {
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String> {
        crate::sampling::Sampler::sample(self, logits, history).map_err(|e| e.to_string())
    }
}

/// A token chosen for a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Whose token.
    pub sequence: SequenceId,
    /// Its id, or why there is none.
    pub token: Result<u32, String>,
}
