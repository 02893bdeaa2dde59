//! What users of a pipeline hand in and get back.

use crate::core::{Finished, Sample};
use crate::error::Error;

/// What to do with a prompt.
pub enum Job {
    /// Go on from it.
    Generate {
        /// At most so many new tokens. With 0 the prompt is processed and nothing is sampled.
        max_new_tokens: u32,
        /// Tokens that end the sequence; they are not emitted.
        end_tokens: Vec<u32>,
        /// Chooses the tokens.
        sampler: Box<dyn Sample>,
    },
    /// Deliver the logits of every position, and no new token.
    Logits,
}

/// Where replies go. Called on the coordinator's thread, which all sequences share: it must not block, and must not call
/// the pipeline. A channel with enough room is the usual thing.
pub type ReplySink = Box<dyn FnMut(Reply) + Send>;

/// A request.
pub struct Request {
    /// The token ids to start from.
    pub prompt: Vec<u32>,
    /// What to do with them.
    pub job: Job,
    /// Where replies go.
    pub reply: ReplySink,
}

/// Something about a sequence. The last reply is [`Reply::Finished`] or [`Reply::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A new token.
    Token {
        /// Its id.
        id: u32,
    },
    /// The logits of a position, in the order of the positions.
    Logits {
        /// Which.
        position: u32,
        /// One for each token of the vocabulary.
        row: Vec<f32>,
    },
    /// The sequence has ended. Times are on the clock of [`ragtag_hal::Timing::now_ns`].
    Finished(Finished),
    /// The request was refused, or the run has failed.
    Failed(Error),
}

/// What the coordinator's thread keeps of a request.
pub(crate) struct Client {
    pub(crate) prompt_tokens: u32,
    /// Prompt and tokens so far.
    pub(crate) history: Vec<u32>,
    pub(crate) sampler: Option<Box<dyn Sample>>,
    /// The last of them, which the client has not been told.
    pub(crate) untold: Vec<u32>,
    pub(crate) reply: ReplySink,
}

impl Client {
    /// Tells what is untold.
    pub(crate) fn tell(&mut self) {
        self.untold.drain(..).for_each(|id| (self.reply)(Reply::Token { id }));
    }
}
