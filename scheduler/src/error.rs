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

/// Memory that a device refused while its stage was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedMemory<'a> {
    /// The device's label.
    pub device: &'a str,
    /// Bytes asked for.
    pub wanted_bytes: u64,
    /// Bytes that the device said were free then, if it says such things.
    pub free_bytes: Option<u64>,
    /// Bytes that the stage's buffers had taken.
    pub held_bytes: u64,
    /// Bytes that all of its buffers take.
    pub needed_bytes: u64,
}

/// What is not asked for again of memory that was had once is one part in so many: drivers and other programs take some.
const MARGIN: u64 = 32;

impl RefusedMemory<'_> {
    /// Whether the device says that it has less than what it refused. Of others what they say is worth nothing.
    pub fn is_plausible(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < self.wanted_bytes)
    }

    /// Bytes that a stage's buffers may take of the device, as far as is known now: what they had, and what the device says is
    /// free beside that if it is `believed`; else what they had less a margin.
    pub fn available_bytes(&self, believed: bool) -> u64 {
        let known = match self.free_bytes.filter(|_| believed) {
            Some(free) => self.held_bytes.saturating_add(free),
            None => self.held_bytes - self.held_bytes.div_ceil(MARGIN),
        };
        // If all buffers were there, it was something else that needs room beside them: as much as it wanted, at most.
        let beside = if self.held_bytes < self.needed_bytes { 0 } else { self.wanted_bytes };
        known - beside.min(known / 2)
    }
}

impl Error {
    /// What a device refused while its stage was loaded, if that is what went wrong.
    pub fn refused_memory(&self) -> Option<RefusedMemory<'_>> {
        let Error::Memory { device, cause, held_bytes, needed_bytes, .. } = self else { return None };
        let (wanted_bytes, free_bytes) = match *cause.root() {
            ragtag_hal::Error::OutOfMemory { wanted, free } => (wanted, free),
            ragtag_hal::Error::AllocationTooLarge { wanted, .. } => (wanted, None),
            _ => return None,
        };
        let (held_bytes, needed_bytes) = (*held_bytes, *needed_bytes);
        Some(RefusedMemory { device, wanted_bytes, free_bytes, held_bytes, needed_bytes })
    }

    /// The same for what went wrong while a stage was loaded: want of memory is told with what its buffers had taken, and
    /// what they take in all.
    pub(crate) fn while_loading(self, held_bytes: u64, needed_bytes: u64) -> Self {
        match self {
            Error::Stage { stage, device, cause } if cause.is_out_of_memory() => {
                Error::Memory { stage, device, cause: cause.root().clone(), held_bytes, needed_bytes }
            }
            other => other,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_gave_is_known_and_what_it_says_is_believed_once() {
        let refused = |free_bytes, held_bytes| RefusedMemory {
            device: "a",
            wanted_bytes: 1000,
            free_bytes,
            held_bytes,
            needed_bytes: 6400,
        };
        assert_eq!(refused(Some(10), 3200).available_bytes(true), 3210);
        assert_eq!(refused(Some(10), 3200).available_bytes(false), 3100);
        assert_eq!(refused(None, 3200).available_bytes(true), 3100);
        assert!(refused(Some(999), 0).is_plausible());
        assert!(!refused(Some(1000), 0).is_plausible(), "it has what it refuses");
        assert!(!refused(None, 0).is_plausible());
        assert_eq!(refused(None, 0).available_bytes(true), 0);
        assert_eq!(refused(None, 6400).available_bytes(true), 5200, "room for what is no buffer");
        assert_eq!(refused(Some(100), 6400).available_bytes(true), 5500);
        assert_eq!(RefusedMemory { wanted_bytes: 6000, ..refused(None, 6400) }.available_bytes(false), 3100);
        assert_eq!(refused(None, 1).available_bytes(true), 0);
    }

    #[test]
    fn want_of_memory_while_loading_is_told_with_sizes_and_nothing_else_is() {
        let stage = |cause| Error::Stage { stage: 1, device: "a".into(), cause };
        let error = stage(ragtag_hal::Error::OutOfMemory { wanted: 8, free: None }).while_loading(3, 20);
        let refused = error.refused_memory().unwrap();
        assert_eq!((refused.device, refused.wanted_bytes, refused.free_bytes), ("a", 8, None));
        assert_eq!((refused.held_bytes, refused.needed_bytes), (3, 20));
        let lost = stage(ragtag_hal::Error::Lost { cause: "unplugged".into() });
        assert_eq!(lost.clone().while_loading(3, 20), lost);
        assert_eq!(lost.refused_memory(), None);
    }
}
