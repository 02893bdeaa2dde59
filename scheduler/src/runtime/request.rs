//! Requests and replies of a pipeline.

use crate::core::{Finished, Sample};
use crate::error::Error;

/// The work of a request.
pub enum Job {
    /// Generate tokens after the prompt.
    Generate {
        /// Most new tokens. With 0 the prompt is processed and nothing is sampled.
        max_new_tokens: u32,
        /// Tokens that end the sequence; they are not emitted.
        end_tokens: Vec<u32>,
        /// Selects the tokens.
        sampler: Box<dyn Sample>,
    },
    /// Deliver the logits of every position, without new tokens.
    Logits,
}

/// Destination of replies. Called on the coordinator's thread, which all sequences share: it must not block
/// or call the pipeline. Usually a channel with enough capacity.
pub type ReplySink = Box<dyn FnMut(Reply) + Send>;

/// A request.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// The work.
    pub job: Job,
    /// Destination of replies.
    pub reply: ReplySink,
}

/// A reply about a sequence. The last one is [`Reply::Finished`] or [`Reply::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A new token.
    Token {
        /// Its id.
        id: u32,
    },
    /// The logits of a position, in position order.
    Logits {
        /// The position.
        position: u32,
        /// One logit for each token of the vocabulary.
        row: Vec<f32>,
    },
    /// The sequence has ended. Times are on the clock of [`ragtag_hal::Timing::now_ns`].
    Finished(Finished),
    /// The request was refused, or the run has failed.
    Failed(Error),
}

/// State of a request in the coordinator's thread.
pub(crate) struct Client {
    pub(crate) prompt_tokens: u32,
    /// Prompt and tokens so far.
    pub(crate) history: Vec<u32>,
    pub(crate) sampler: Option<Box<dyn Sample>>,
    /// New tokens that the client has not received.
    pub(crate) untold: Vec<u32>,
    pub(crate) reply: ReplySink,
}

impl Client {
    /// Sends the new tokens.
    pub(crate) fn tell(&mut self) {
        self.untold.drain(..).for_each(|id| (self.reply)(Reply::Token { id }));
    }
}
