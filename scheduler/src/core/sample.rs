//! Interface for sampling a token from one row of logits.

use crate::core::SequenceId;
use crate::sampling::shaping::LogProbabilities;
use crate::sampling::{Noise, Picks, Sampling};
use serde::{Deserialize, Serialize};

/// Selects the next tokens of one sequence. Each request has its own sampler, with its own settings and
/// random generator.
pub trait Sample: Send {
    /// Returns the number of recent tokens that this sampler reads.
    fn window(&self) -> usize {
        usize::MAX
    }

    /// Returns the token that follows `history`. `logits` are those of the last position. `history` holds the
    /// prompt and all tokens generated so far, or at least the last [`window`](Self::window) of them.
    ///
    /// # Errors
    /// Returns a message if no token can be selected. The sequence then ends.
    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String>;

    /// Returns whether the sampler reads whole rows of logits. Otherwise it reads their best logits
    /// ([`sample_picks`](Self::sample_picks)) where the device finds them.
    fn wants_rows(&self) -> bool {
        true
    }

    /// Returns the noise with which the device draws all tokens, if the whole distribution counts.
    fn noise(&self) -> Option<Noise> {
        None
    }

    /// Like [`sample`](Self::sample), but from the best logits.
    ///
    /// # Errors
    /// Returns a message if no token can be selected, or if the sampler reads whole rows.
    fn sample_picks(&mut self, _picks: &Picks<'_>, _history: &[u32]) -> Result<u32, String> {
        Err("the sampler reads whole rows of logits".into())
    }

    /// Returns whether the sequence is complete with the last sampled token.
    fn is_done(&self) -> bool {
        false
    }

    /// Returns the settings with the seed, if they alone determine the tokens.
    fn settings(&self) -> Option<Sampling> {
        None
    }

    /// Takes the log probabilities of the last sampled token, if the request wants them.
    fn report(&mut self) -> Option<LogProbabilities> {
        None
    }
}

impl Sample for crate::sampling::Sampler {
    fn window(&self) -> usize {
        crate::sampling::Sampler::window(self)
    }

    fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, String> {
        crate::sampling::Sampler::sample(self, logits, history).map_err(|e| e.to_string())
    }

    fn wants_rows(&self) -> bool {
        crate::sampling::Sampler::wants_rows(self)
    }

    fn noise(&self) -> Option<Noise> {
        crate::sampling::Sampler::noise(self)
    }

    fn sample_picks(&mut self, picks: &Picks<'_>, history: &[u32]) -> Result<u32, String> {
        crate::sampling::Sampler::sample_picks(self, picks, history).map_err(|e| e.to_string())
    }

    fn settings(&self) -> Option<Sampling> {
        Some(Sampling { seed: Some(self.seed()), ..*crate::sampling::Sampler::settings(self) })
    }
}

/// A token sampled for a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The sequence.
    pub sequence: SequenceId,
    /// Token id, or the reason why no token was selected.
    pub token: Result<u32, String>,
    /// Whether this token completes a match of the request's stop rule. The sequence then ends after it.
    #[serde(default)]
    pub stops: bool,
}
