//! Requests to a pipeline, and its replies.

use crate::core::{Finished, Prompt, Sample, SequenceId};
use crate::error::Error;

/// Output that a request asks for.
pub enum Job {
    /// Generate tokens after the prompt.
    Generate {
        /// Maximum number of new tokens. If it is 0, the pipeline processes the prompt and samples no token.
        max_new_tokens: u32,
        /// Tokens that end the sequence. They are not emitted.
        end_tokens: Vec<u32>,
        /// Sampler that selects the tokens.
        sampler: Box<dyn Sample>,
    },
    /// Deliver the logits of every prompt position, and generate no tokens.
    Logits,
}

/// Callback that receives the replies to a request. The coordinator's thread calls it and serves all
/// sequences, so the callback must not block or call the pipeline. Usually it sends to a channel with enough
/// capacity.
pub type ReplySink = Box<dyn FnMut(Reply) + Send>;

/// A request to a pipeline.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Output that the request asks for.
    pub job: Job,
    /// Callback that receives the replies.
    pub reply: ReplySink,
}

/// A reply about a sequence. The last reply is [`Reply::Finished`] or [`Reply::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A new token.
    Token {
        /// Token id.
        id: u32,
    },
    /// The logits of one position. Positions arrive in ascending order.
    Logits {
        /// The position.
        position: u32,
        /// One logit for each token of the vocabulary.
        row: Vec<f32>,
    },
    /// The sequence has ended. Its times are on the clock of [`ragtag_hal::Timing::now_ns`].
    Finished(Finished),
    /// The request was rejected, or the run has failed.
    Failed(Error),
}

/// Messages from the users of a pipeline to the coordinator.
pub(super) enum RequestMessage {
    /// Submit a new sequence.
    Submit { sequence: SequenceId, prompt: Prompt, client: Client },
    /// Cancel a sequence.
    Cancel { sequence: SequenceId },
}

/// State of a request in the coordinator's thread.
pub(super) struct Client {
    pub(super) prompt_tokens: u32,
    /// Prompt tokens, followed by the tokens generated so far.
    pub(super) history: Vec<u32>,
    pub(super) sampler: Option<Box<dyn Sample>>,
    /// New tokens that have not been sent to the client yet.
    pub(super) untold: Vec<u32>,
    pub(super) reply: ReplySink,
}

impl Client {
    /// Sends the new tokens to the client.
    pub(super) fn tell(&mut self) {
        self.untold.drain(..).for_each(|id| (self.reply)(Reply::Token { id }));
    }
}
