//! Errors of a pipeline: rejected requests, and failures that end the run.

use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why the pipeline rejected a request. The pipeline continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context}: shorten it, or plan for a longer context"
    )]
    PromptTooLong {
        /// Number of tokens in the prompt.
        tokens: usize,
        /// Maximum length of a sequence, in tokens.
        context: u32,
    },
    /// The sequence needs more blocks than the KV cache has.
    #[error("the sequence needs {wanted} blocks of the KV cache, which has only {total}")]
    TooManyBlocks {
        /// Number of blocks needed for the prompt and the new tokens.
        wanted: u32,
        /// Total number of blocks in the cache.
        total: u32,
    },
    /// The tokens of the sequence do not fit the pipeline that has replaced a lost one.
    #[error(
        "the sequence has {tokens} tokens, but since the loss of a device, the context holds only {context}: \
         submit a shorter prompt, or plan for a longer context"
    )]
    NoLongerFits {
        /// Number of tokens of the sequence.
        tokens: u32,
        /// Maximum length of a sequence, in tokens.
        context: u32,
    },
    /// Too many requests wait.
    #[error("{requests} requests with {tokens} tokens are waiting: try again later")]
    Busy {
        /// Number of waiting requests.
        requests: u32,
        /// Number of their tokens.
        tokens: u64,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} at position {position} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token id.
        token: u32,
        /// Position of the token in the sequence.
        position: usize,
        /// Number of tokens in the vocabulary.
        vocabulary: u32,
    },
}

/// A rejected request or a failure of the run. It implements `Clone` because every sequence of a failed run
/// receives the same error.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The request was rejected.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The sampler failed for one sequence. The pipeline continues.
    #[error("no token for position {position}: {cause}")]
    Sampling {
        /// Position in the sequence for which no token was sampled.
        position: usize,
        /// Message of the sampler.
        cause: String,
    },
    /// A device failed. This ends the run.
    #[error("stage {stage} on {device}: {cause}")]
    Stage {
        /// Index of the stage.
        stage: u32,
        /// Label of the stage's device.
        device: String,
        /// Error that the device reported.
        cause: ragtag_hal::Error,
    },
    /// A device with several stages failed, and the work of several of them was running, or of none.
    #[error("stages {} on {device}: {cause}", listed(stages))]
    Device {
        /// Indices of the stages, in ascending order.
        stages: Box<[u32]>,
        /// Label of the device.
        device: String,
        /// Error that the device reported.
        cause: ragtag_hal::Error,
    },
    /// A device ran out of memory while its stage was loaded.
    #[error(
        "stage {stage} on {device}: {cause}; the stage held {held_bytes} of the {needed_bytes} bytes that it needs"
    )]
    Memory {
        /// Index of the stage.
        stage: u32,
        /// Label of the stage's device.
        device: String,
        /// Error that the device reported.
        cause: ragtag_hal::Error,
        /// Total bytes of the stage's buffers that were already allocated.
        held_bytes: u64,
        /// Total bytes of all buffers that the stage needs.
        needed_bytes: u64,
    },
    /// A weight could not be read or packed.
    #[error("stage {stage} on {device}: weight `{weight}`: {cause}")]
    Weight {
        /// Index of the stage.
        stage: u32,
        /// Label of the stage's device.
        device: String,
        /// Name of the weight tensor.
        weight: String,
        /// Message from the source of the weights.
        cause: String,
    },
    /// Activations arrived with wrong bytes again after they were sent once more, and the edge has no other
    /// route.
    #[error(
        "activations from {from} to {to} arrive with wrong bytes over the {} route, also when sent again",
        route.name()
    )]
    Corrupted {
        /// Label of the device that sends the activations.
        from: String,
        /// Label of the device that receives the activations.
        to: String,
        /// The last route.
        route: Route,
    },
    /// A copy of activations failed, and no other route can replace its route.
    #[error(
        "activations from {from} to {to} over the {} route: {cause}; no other route can replace it, because \
         {}",
        route.name(),
        irreplaceable(cause)
    )]
    Transfer {
        /// Label of the device that sends the activations.
        from: String,
        /// Label of the device that receives the activations.
        to: String,
        /// Route of the copy.
        route: Route,
        /// Error that the copying device reported.
        cause: ragtag_hal::Error,
    },
    /// A copy of keys and values failed. A prefill stage passes them to the stages that decode.
    #[error("keys and values of stage {stage} on {device}: {cause}")]
    KeysAndValues {
        /// Index of the stage whose device made the copy. The prefill stage comes after the other stages.
        stage: u32,
        /// Label of the device.
        device: String,
        /// Error that the device reported.
        cause: ragtag_hal::Error,
    },
    /// Keys and values from the prefill stage arrived with wrong bytes at a stage that decodes.
    #[error(
        "keys and values of the prefill stage on {from} arrive with wrong bytes at stage {stage} on {to}"
    )]
    WrongKeysAndValues {
        /// Label of the device of the prefill stage.
        from: String,
        /// Index of the stage that decodes.
        stage: u32,
        /// Label of its device.
        to: String,
    },
    /// A copy of activations did not complete within the limit.
    #[error("no activations from {from} to {to} over the {} route for {seconds} s", route.name())]
    Stalled {
        /// Label of the device that sends the activations.
        from: String,
        /// Label of the device that receives the activations.
        to: String,
        /// Route of the copy.
        route: Route,
        /// The limit in seconds, rounded up.
        seconds: u64,
    },
    /// A copy other than one of activations did not complete within the limit.
    #[error("{device} has copied no {what} for {seconds} s")]
    StalledCopy {
        /// Contents of the copy.
        what: String,
        /// Label of the device.
        device: String,
        /// The limit in seconds, rounded up.
        seconds: u64,
    },
    /// A read of streamed weights from the model's file did not complete within the limit.
    #[error("the model's file has given {device} no weights for {seconds} s; check its drive or network")]
    StalledRead {
        /// Label of the device that streams the weights.
        device: String,
        /// The limit in seconds, rounded up.
        seconds: u64,
    },
    /// A computation did not complete within the limit.
    #[error("stage {stage} on {device} has not completed a computation for {seconds} s")]
    StalledCompute {
        /// Index of the stage.
        stage: u32,
        /// Label of the stage's device.
        device: String,
        /// The limit in seconds, rounded up.
        seconds: u64,
    },
    /// The stages or the options are invalid.
    #[error("{what}")]
    Spec {
        /// Description of the problem, for the message.
        what: String,
    },
    /// A core received an event that its protocol does not allow. This indicates a bug in this crate.
    #[error("internal: {what}")]
    Protocol {
        /// Description of the violated rule, with the offending values.
        what: String,
    },
    /// The pipeline has been shut down.
    #[error("the pipeline has been shut down")]
    Stopped,
}

/// Returns the numbers of stages, for a message.
fn listed(stages: &[u32]) -> String {
    stages.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the reason why no other route can replace the route of a failed copy.
fn irreplaceable(cause: &ragtag_hal::Error) -> &'static str {
    match cause {
        ragtag_hal::Error::Refused { .. } => "none is left or the other stage already relies on the copy",
        _ => "the failure ends a queue of the device, and all routes use this queue",
    }
}

/// An allocation that failed while a stage was loaded, because the device was out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedMemory<'a> {
    /// Label of the device.
    pub device: &'a str,
    /// Number of bytes that the allocation requested.
    pub wanted_bytes: u64,
    /// Free bytes that the device reported after the failed allocation. `None` if the device does not report
    /// them.
    pub free_bytes: Option<u64>,
    /// Total bytes of the stage's buffers that were already allocated.
    pub held_bytes: u64,
    /// Total bytes of all buffers that the stage needs.
    pub needed_bytes: u64,
}

/// Reciprocal of the fraction of previously held memory that a retry leaves unrequested, because drivers and
/// other programs may use that memory in the meantime.
const MARGIN: u64 = 32;

impl RefusedMemory<'_> {
    /// Returns whether the device reports less free memory than the failed allocation requested. A report of
    /// more free memory contradicts the failure and is unreliable.
    pub fn is_plausible(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < self.wanted_bytes)
    }

    /// Returns the bytes that the stage's buffers may use on retry. If `believed` is true and the device
    /// reported free bytes, the result is the held bytes plus the free bytes. Otherwise it is the held bytes
    /// minus a margin. If all buffers were allocated, the failed allocation was for another object. The
    /// function then also subtracts the bytes of that allocation, but at most half of the result.
    pub fn available_bytes(&self, believed: bool) -> u64 {
        let known = match self.free_bytes.filter(|_| believed) {
            Some(free) => self.held_bytes.saturating_add(free),
            None => self.held_bytes - self.held_bytes.div_ceil(MARGIN),
        };
        // If all buffers were allocated, the failed allocation was for another object. Reserve the bytes that
        // it requested.
        let beside = if self.held_bytes < self.needed_bytes { 0 } else { self.wanted_bytes };
        known - beside.min(known / 2)
    }
}

impl Error {
    /// Returns the failed allocation if the error is an out-of-memory error during loading.
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

    /// Converts an out-of-memory error during loading to [`Error::Memory`] with `held_bytes` and
    /// `needed_bytes`.
    pub(crate) fn while_loading(self, held_bytes: u64, needed_bytes: u64) -> Self {
        match self {
            Error::Stage { stage, device, cause } if cause.is_out_of_memory() => {
                Error::Memory { stage, device, cause: cause.root().clone(), held_bytes, needed_bytes }
            }
            other => other,
        }
    }

    /// Returns the error for the failure of a device that runs `stages`.
    pub(crate) fn of_device(stages: Vec<u32>, device: String, cause: ragtag_hal::Error) -> Self {
        match stages[..] {
            [stage] => Error::Stage { stage, device, cause },
            _ => Error::Device { stages: stages.into(), device, cause },
        }
    }

    pub(crate) fn spec(what: impl Into<String>) -> Self {
        Error::Spec { what: what.into() }
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
    fn available_memory_follows_from_held_and_reported_bytes() {
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
    fn only_out_of_memory_errors_gain_sizes_during_loading() {
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
