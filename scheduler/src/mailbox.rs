//! Mailboxes: what an actor sleeps on. Bounded, with a lane for what cannot wait; sending never blocks.
//!
//! The bound comes from [`crate::capacity`]: credits and ring slots limit what can be in flight, so a full mailbox is a
//! defect, reported as such and not waited out.

use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select_biased};
use ragtag_hal::Timeline;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages of the urgent lane that are kept: an actor stops at the first.
const URGENT: usize = 8;

/// Something out of a mailbox.
pub(crate) enum Letter<M, U> {
    Urgent(U),
    Normal(M),
}

/// The owner's end.
pub(crate) struct Mailbox<M, U> {
    normal: Receiver<M>,
    urgent: Receiver<U>,
}

/// The senders' end.
pub(crate) struct Address<M, U> {
    normal: Sender<M>,
    urgent: Sender<U>,
}

impl<M, U> Clone for Address<M, U> {
    fn clone(&self) -> Self {
        Self { normal: self.normal.clone(), urgent: self.urgent.clone() }
    }
}

/// A mailbox for at most `capacity` messages, besides urgent ones.
pub(crate) fn mailbox<M, U>(capacity: usize) -> (Address<M, U>, Mailbox<M, U>) {
    let (normal, normal_inbox) = bounded(capacity);
    let (urgent, urgent_inbox) = bounded(URGENT);
    (Address { normal, urgent }, Mailbox { normal: normal_inbox, urgent: urgent_inbox })
}

impl<M, U> Address<M, U> {
    /// Sends. An owner that has ended needs nothing any more, so that is no error.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the mailbox is full.
    pub(crate) fn send(&self, message: M) -> Result<()> {
        match self.normal.try_send(message) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(_)) => {
                let capacity = self.normal.capacity().unwrap_or(0);
                Err(Error::protocol(format!("a mailbox for {capacity} messages is full")))
            }
        }
    }

    /// Sends on the urgent lane. If that is full, the owner has reason enough to stop already.
    pub(crate) fn send_urgent(&self, message: U) {
        let _ = self.urgent.try_send(message);
    }
}

impl<M, U> Mailbox<M, U> {
    /// The next message, urgent ones first; `None` when nobody can send any more.
    pub(crate) fn receive(&self) -> Option<Letter<M, U>> {
        if let Some(letter) = self.poll() {
            return Some(letter);
        }
        select_biased! {
            recv(self.urgent) -> message => message.ok().map(Letter::Urgent),
            recv(self.normal) -> message => message.ok().map(Letter::Normal),
        }
    }

    /// The next message, if there is one now.
    pub(crate) fn poll(&self) -> Option<Letter<M, U>> {
        if let Ok(urgent) = self.urgent.try_recv() {
            return Some(Letter::Urgent(urgent));
        }
        self.normal.try_recv().ok().map(Letter::Normal)
    }

    /// Both lanes, for an owner that listens to more than these.
    pub(crate) fn lanes(&self) -> (&Receiver<M>, &Receiver<U>) {
        (&self.normal, &self.urgent)
    }
}

/// Turns progress of timelines into at most one message at a time: sent when they move while the owner asks to be told.
///
/// The owner arms it, looks at the timelines once more (they may have moved before it was armed), and sleeps. Between
/// that and the message any number of points may pass; an owner that does not care is never woken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notice(Arc<AtomicBool>);

impl Notice {
    /// Asks for a message at the next progress.
    pub(crate) fn arm(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Has `timeline` call `moved` when it moves while armed, and `failed` when it fails.
    pub(crate) fn listen(
        &self,
        timeline: &Timeline,
        moved: impl Fn() + Send + 'static,
        failed: impl Fn(&ragtag_hal::Error) + Send + 'static,
    ) {
        let armed = Arc::clone(&self.0);
        timeline.subscribe(move |progress| match &progress.failure {
            Some(error) => failed(error),
            None => {
                if armed.swap(false, Ordering::SeqCst) {
                    moved();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::{DeviceId, QueueKind, TimelineId};

    #[test]
    fn urgent_messages_overtake_and_a_full_mailbox_is_an_error() {
        let (address, mailbox) = mailbox::<u32, &str>(2);
        address.send(1).unwrap();
        address.send(2).unwrap();
        assert!(matches!(address.send(3), Err(Error::Protocol { .. })));
        address.send_urgent("stop");
        assert!(matches!(mailbox.receive(), Some(Letter::Urgent("stop"))));
        assert!(matches!(mailbox.receive(), Some(Letter::Normal(1))));
        drop(address);
        assert!(matches!(mailbox.receive(), Some(Letter::Normal(2))));
        assert!(mailbox.receive().is_none());
    }

    #[test]
    fn progress_is_told_once_and_only_when_asked() {
        let timeline = Timeline::new(TimelineId { device: DeviceId(0), queue: QueueKind::Compute });
        let (address, mailbox) = mailbox::<u32, String>(1);
        let notice = Notice::default();
        let (moved, failed) = (address.clone(), address);
        notice.listen(&timeline, move || moved.send(1).unwrap(), move |e| failed.send_urgent(e.to_string()));
        timeline.advance(1);
        assert!(mailbox.poll().is_none());
        notice.arm();
        timeline.advance(2);
        timeline.advance(3);
        assert!(matches!(mailbox.poll(), Some(Letter::Normal(1))));
        assert!(mailbox.poll().is_none());
        timeline.fail(ragtag_hal::Error::Lost { cause: "gone".into() });
        assert!(matches!(mailbox.poll(), Some(Letter::Urgent(cause)) if cause.contains("gone")));
    }
}
