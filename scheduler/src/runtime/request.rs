//! Requests and replies of a pipeline.

use crate::core::{Finished, Sample};
use crate::error::Error;

/// Work of a request.
pub enum Job {
    /// Generate tokens after the prompt.
    Generate {
        /// Largest number of new tokens. If 0, the prompt is processed and no token is sampled.
        max_new_tokens: u32,
        /// Tokens that end the sequence. They are not emitted.
        end_tokens: Vec<u32>,
        /// Sampler that selects the tokens.
        sampler: Box<dyn Sample>,
    },
    /// Deliver the logits of every prompt position, and generate nothing.
    Logits,
}

/// Callback for replies. The coordinator's thread calls it, and all sequences share that thread. It must not
/// block or call the pipeline. Usually it sends to a channel with enough capacity.
pub type ReplySink = Box<dyn FnMut(Reply) + Send>;

/// A request.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Work to be done for the prompt.
    pub job: Job,
    /// Callback for replies.
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
    /// The request was refused, or the run has failed.
    Failed(Error),
}

/// State of a request in the coordinator's thread.
pub(crate) struct Client {
    pub(crate) prompt_tokens: u32,
    /// Prompt tokens, followed by the new tokens so far.
    pub(crate) history: Vec<u32>,
    pub(crate) sampler: Option<Box<dyn Sample>>,
    /// New tokens that the client has not received yet.
    pub(crate) untold: Vec<u32>,
    pub(crate) reply: ReplySink,
}

impl Client {
    /// Sends the new tokens.
    pub(crate) fn tell(&mut self) {
        self.untold.drain(..).for_each(|id| (self.reply)(Reply::Token { id }));
    }
}
