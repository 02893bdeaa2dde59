//! Sampling interface: a row of logits becomes a token.

use crate::core::SequenceId;
use serde::{Deserialize, Serialize};

/// Selects the next token of one sequence. Each request has its own, with its own settings and generator.
pub trait Sample: Send {
    /// Returns the token after `history` (prompt and tokens so far), given the logits of the last position.
    ///
    /// # Errors
    /// A message if no token can be selected. It ends the sequence.
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String>;
}

impl Sample for crate::sampling::Sampler {
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String> {
        crate::sampling::Sampler::sample(self, logits, history).map_err(|e| e.to_string())
    }
}

/// A token sampled for a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its id, or the reason why there is none.
    pub token: Result<u32, String>,
}
