//! A running sequence: its replies, which its reader takes at its own pace, and its end.

use crate::error::{Error, Result};
use crate::held::HeldPipeline;
use ragtag_scheduler::core::SequenceId;
use ragtag_scheduler::{Flow, Reply, ReplySink};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// Number of unread tokens at which a sequence pauses. It continues when half of them are left.
const MOST_TOKENS: u64 = 1024;
/// Bytes of unread logits at which a sequence pauses. It continues when half of them are left.
const MOST_LOGIT_BYTES: u64 = 64 << 20;

/// Replies of a sequence.
#[derive(Debug)]
pub(crate) struct Replies {
    receiver: UnboundedReceiver<Reply>,
    unread: Arc<Mutex<Unread>>,
}

/// Replies that have not been read, which pause their sequence if they are too many.
#[derive(Debug, Default)]
struct Unread {
    amount: u64,
    is_paused: bool,
}

impl Unread {
    /// Returns the share of a reply in the amount, and the amount at which the sequence pauses.
    fn amount(reply: &Reply) -> (u64, u64) {
        match reply {
            Reply::Token { .. } => (1, MOST_TOKENS),
            Reply::Logits { row, .. } => (size_of_val(&row[..]) as u64, MOST_LOGIT_BYTES),
            Reply::Finished(_) | Reply::Failed(_) => (0, u64::MAX),
        }
    }

    fn add(&mut self, reply: &Reply) -> Flow {
        let (amount, most) = Self::amount(reply);
        self.amount += amount;
        if self.is_paused || self.amount < most {
            return Flow::Go;
        }
        self.is_paused = true;
        Flow::Pause
    }

    /// Returns whether the sequence continues.
    fn take(&mut self, reply: &Reply) -> bool {
        let (amount, most) = Self::amount(reply);
        self.amount -= amount;
        let resumes = self.is_paused && self.amount <= most / 2;
        self.is_paused &= !resumes;
        resumes
    }
}

fn lock(unread: &Mutex<Unread>) -> MutexGuard<'_, Unread> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a reply sink, and the replies that it receives.
pub(crate) fn replies() -> (ReplySink, Replies) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::<Mutex<Unread>>::default();
    let added = Arc::clone(&unread);
    let sink = Box::new(move |reply| {
        // The reader cannot resume the sequence too early: the pipeline handles the pause before any request.
        let flow = lock(&added).add(&reply);
        // Sending fails only if the receiver was dropped.
        let _ = sender.send(reply);
        flow
    });
    (sink, Replies { receiver, unread })
}

/// A running sequence. Dropping it before the sequence ends cancels the sequence.
#[derive(Debug)]
pub(crate) struct Running {
    pipeline: Arc<HeldPipeline>,
    id: SequenceId,
    replies: Replies,
    ended: bool,
}

impl Running {
    pub(crate) fn new(pipeline: &Arc<HeldPipeline>, id: SequenceId, replies: Replies) -> Self {
        Self { pipeline: Arc::clone(pipeline), id, replies, ended: false }
    }

    /// Returns whether the last reply has been read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn cancel(&self) {
        self.pipeline.cancel(self.id);
    }

    /// Polls for the next reply. [`Reply::Finished`] is the last one, [`Reply::Failed`] becomes an error.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Reply>> {
        let reply = ready!(self.replies.receiver.poll_recv(context));
        Poll::Ready(self.read(reply))
    }

    /// Blocks until the next reply.
    pub(crate) fn blocking_next(&mut self) -> Result<Reply> {
        let reply = self.replies.receiver.blocking_recv();
        self.read(reply)
    }

    fn read(&mut self, reply: Option<Reply>) -> Result<Reply> {
        let reply = reply.unwrap_or(Reply::Failed(ragtag_scheduler::Error::Stopped));
        if lock(&self.replies.unread).take(&reply) {
            self.pipeline.resume(self.id);
        }
        self.ended = matches!(reply, Reply::Finished(_) | Reply::Failed(_));
        match reply {
            Reply::Failed(error) => Err(Error::Run(error)),
            reply => Ok(reply),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_behind_pauses_its_sequence_until_it_has_read_half() {
        let mut unread = Unread::default();
        let token = Reply::Token { id: 0, log_probabilities: None };
        for _ in 1..MOST_TOKENS {
            assert_eq!(unread.add(&token), Flow::Go);
        }
        assert_eq!(unread.add(&token), Flow::Pause);
        assert_eq!(unread.add(&token), Flow::Go, "it is paused already");
        let read = (0..=MOST_TOKENS).position(|_| unread.take(&token));
        assert_eq!(read, Some(MOST_TOKENS as usize / 2), "half of {MOST_TOKENS} are left");
        assert!(!unread.take(&token));
        let row = Reply::Logits { position: 0, row: vec![0.0; 1 << 20] };
        let rows = (0..100).position(|_| Unread::add(&mut unread, &row) == Flow::Pause);
        assert_eq!(rows, Some(15));
    }
}
