//! What can go wrong in a pipeline: requests that it refuses, and the failures that end a run.

use serde::{Deserialize, Serialize};

/// Result of the scheduler's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request was not accepted. The pipeline goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// Nothing to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context}: shorten it, or plan for a longer context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Longest sequence, in tokens.
        context: u32,
    },
    /// Even an empty cache is too small.
    #[error("the sequence needs {wanted} blocks of the key-value cache, which has {total}")]
    TooManyBlocks {
        /// Blocks for the prompt and the new tokens.
        wanted: u32,
        /// All blocks of the cache.
        total: u32,
    },
    /// A token id that the model does not have.
    #[error("token {token} at position {position} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Where in the prompt.
        position: usize,
        /// Number of ids.
        vocabulary: u32,
    },
}

/// A refused request, or the failure of a whole run. `Clone`, because every sequence of a failed run is told.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// This request was not accepted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No token could be chosen for this sequence. The pipeline goes on.
    #[error("no token for position {position}: {cause}")]
    Sampling {
        /// Where in the sequence.
        position: usize,
        /// What the sampler said.
        cause: String,
    },
    /// A device failed; the run has ended.
    #[error("stage {stage} on {device}: {cause}")]
    Stage {
        /// Which stage.
        stage: u32,
        /// Its device's label.
        device: String,
        /// What the device said.
        cause: ragtag_hal::Error,
    },
    /// A device has too little memory for its stage; found out before anything ran.
    #[error(
        "stage {stage} on {device}: {cause}; the stage held {held_bytes} of the {needed_bytes} bytes that it needs"
    )]
    Memory {
        /// Which stage.
        stage: u32,
        /// Its device's label.
        device: String,
        /// What the device said.
        cause: ragtag_hal::Error,
        /// Bytes that its buffers had taken.
        held_bytes: u64,
        /// Bytes that all of its buffers take.
        needed_bytes: u64,
    },
    /// A weight could not be read or packed.
    #[error("stage {stage} on {device}: weight `{weight}`: {cause}")]
    Weight {
        /// Which stage.
        stage: u32,
        /// Its device's label.
        device: String,
        /// The weight's name.
        weight: String,
        /// What the source said.
        cause: String,
    },
    /// The stages or options given cannot make a pipeline.
    #[error("{what}")]
    Spec {
        /// Which of them, and why.
        what: String,
    },
    /// A core was told something that its protocol does not allow: a defect of this crate.
    #[error("internal: {what}")]
    Protocol {
        /// Which rule, with the values.
        what: String,
    },
    /// The pipeline has been shut down.
    #[error("the pipeline has been shut down")]
    Stopped,
}

impl Error {
    /// The device that had too little memory, and the bytes that a stage may take of it as far as is known now.
    pub fn shortage(&self) -> Option<(&str, u64)> {
        let Error::Memory { device, cause, held_bytes, .. } = self else { return None };
        let free = match cause.root() {
            ragtag_hal::Error::OutOfMemory { free, .. } => free.unwrap_or(0),
            _ => 0,
        };
        Some((device, held_bytes.saturating_add(free)))
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Error::Protocol { what: what.into() }
    }
}

impl From<ragtag_transfer::Error> for Error {
    fn from(error: ragtag_transfer::Error) -> Self {
        Error::protocol(error.to_string())
    }
}
