//! Mailboxes: what an actor sleeps on. Each has three queues: urgent messages, messages that wake the owner, and quiet ones
//! that the owner finds when it wakes. Sending never blocks.
//!
//! [`crate::capacity`] bounds the last two: credits and ring slots limit what can be in flight, so a full queue is a defect
//! and an error. The urgent queue needs no bound: a pipeline stops once, and each stage and each timeline fails once.

use crate::capacity::Lanes;
use crate::error::Error;
use crossbeam_channel::{Receiver, Sender, TrySendError, after, bounded, never, select_biased, unbounded};
use ragtag_hal::{Outcome, Timeline};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

/// Something out of a mailbox.
pub(crate) enum Letter<M, U> {
    Urgent(U),
    Normal(M),
}

/// The owner's end.
pub(crate) struct Mailbox<M, U> {
    waking: Receiver<M>,
    quiet: Receiver<M>,
    urgent: Receiver<U>,
}

/// The senders' end.
pub(crate) struct Address<M, U> {
    waking: Sender<M>,
    quiet: Sender<M>,
    urgent: Sender<U>,
}

impl<M, U> Clone for Address<M, U> {
    fn clone(&self) -> Self {
        Self { waking: self.waking.clone(), quiet: self.quiet.clone(), urgent: self.urgent.clone() }
    }
}

/// A mailbox for so many messages, besides urgent ones.
pub(crate) fn mailbox<M, U>(lanes: Lanes) -> (Address<M, U>, Mailbox<M, U>) {
    let (waking, waking_inbox) = bounded(lanes.waking);
    let (quiet, quiet_inbox) = bounded(lanes.quiet);
    let (urgent, urgent_inbox) = unbounded();
    let mailbox = Mailbox { waking: waking_inbox, quiet: quiet_inbox, urgent: urgent_inbox };
    (Address { waking, quiet, urgent }, mailbox)
}

impl<M, U> Address<M, U> {
    /// Sends. An owner that has ended needs nothing any more, so that is no error.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the lane is full.
    pub(crate) fn send(&self, message: M) -> Result<(), Error> {
        put(&self.waking, message)
    }

    /// Sends what the owner need not wake up for: it finds it when it wakes for something else.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the lane is full.
    pub(crate) fn send_quietly(&self, message: M) -> Result<(), Error> {
        put(&self.quiet, message)
    }

    /// Sends an urgent message. The queue drops none: the coordinator goes on after a failure and still needs the order to
    /// stop. An owner that has ended ignores it.
    pub(crate) fn send_urgent(&self, message: U) {
        let _ = self.urgent.send(message);
    }
}

fn put<M>(lane: &Sender<M>, message: M) -> Result<(), Error> {
    match lane.try_send(message) {
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        Err(TrySendError::Full(_)) => {
            let capacity = lane.capacity().unwrap_or(0);
            Err(Error::protocol(format!("a mailbox lane for {capacity} messages is full")))
        }
    }
}

impl<M, U> Mailbox<M, U> {
    /// Sleeps until there is a message that wakes, for so long at most if there is a limit.
    pub(crate) fn receive(&self, limit: Option<Duration>) -> Outcome<Letter<M, U>> {
        select_biased! {
            recv(self.urgent) -> message => found(message.map(Letter::Urgent)),
            recv(self.waking) -> message => found(message.map(Letter::Normal)),
            recv(over(limit)) -> _ => Outcome::Nothing,
        }
    }

    /// The next message, if there is one now: urgent ones first, then quiet ones.
    pub(crate) fn poll(&self) -> Option<Letter<M, U>> {
        if let Ok(urgent) = self.urgent.try_recv() {
            return Some(Letter::Urgent(urgent));
        }
        self.quiet.try_recv().or_else(|_| self.waking.try_recv()).ok().map(Letter::Normal)
    }

    /// The lanes that wake, for an owner that listens to more than these.
    pub(crate) fn waking_lanes(&self) -> (&Receiver<M>, &Receiver<U>) {
        (&self.waking, &self.urgent)
    }
}

/// How long an owner that runs out of messages looks again before it sleeps. A thread that sleeps costs whoever wakes it,
/// and itself, some tens of microseconds where its core has gone idle; steps of a small model take no longer than that.
pub(crate) const LINGER: Duration = Duration::from_micros(40);

/// A message when a time is over; never, if there is no limit.
pub(crate) fn over(limit: Option<Duration>) -> Receiver<Instant> {
    limit.map_or_else(never, after)
}

/// What a channel gave.
pub(crate) fn found<T, E>(message: Result<T, E>) -> Outcome<T> {
    message.map_or(Outcome::Gone, Outcome::Found)
}

/// Turns progress of timelines into at most one message at a time: sent when they move while the owner asks to be told.
///
/// The owner arms it, looks at the timelines once more (they may have moved before it was armed), and sleeps. Between
/// that and the message any number of points may pass; an owner that does not care is never woken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notice(Arc<AtomicBool>);

impl Notice {
    /// Asks for a message at the next progress. What happened before is seen by whoever looks after this.
    pub(crate) fn arm(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence in `take`: either the owner, looking after this, sees what the other side did before its
        // own fence, or the other side sees that it is armed.
        fence(Ordering::SeqCst);
    }

    /// Whether a message was asked for. It is now owed: whoever gets `true` sends it.
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        // Looking first keeps the cache line shared while nobody asks.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }

    /// Has `timeline` call `moved` when it moves while armed, and `failed` when it fails.
    pub(crate) fn listen(
        &self,
        timeline: &Timeline,
        moved: impl Fn() + Send + 'static,
        failed: impl Fn(&ragtag_hal::Error) + Send + 'static,
    ) {
        let notice = self.clone();
        timeline.subscribe(move |progress| match &progress.failure {
            Some(error) => failed(error),
            None => {
                if notice.take() {
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
    fn urgent_and_quiet_messages_overtake_and_a_full_lane_is_an_error() {
        let (address, mailbox) = mailbox::<u32, &str>(Lanes { waking: 2, quiet: 1 });
        address.send(1).unwrap();
        address.send(2).unwrap();
        assert!(matches!(address.send(3), Err(Error::Protocol { .. })));
        address.send_quietly(7).unwrap();
        assert!(matches!(address.send_quietly(8), Err(Error::Protocol { .. })));
        address.send_urgent("stop");
        assert!(matches!(mailbox.poll(), Some(Letter::Urgent("stop"))));
        assert!(matches!(mailbox.poll(), Some(Letter::Normal(7))));
        assert!(matches!(mailbox.poll(), Some(Letter::Normal(1))));
        assert!(matches!(mailbox.receive(Some(Duration::ZERO)), Outcome::Found(Letter::Normal(2))));
        assert!(matches!(mailbox.receive(Some(Duration::ZERO)), Outcome::Nothing));
        drop(address);
        assert!(matches!(mailbox.receive(None), Outcome::Gone) && mailbox.poll().is_none());
    }

    #[test]
    fn a_stop_behind_many_failures_arrives() {
        let (address, mailbox) = mailbox::<u32, &str>(Lanes::default());
        (0..100).for_each(|_| address.send_urgent("failed"));
        address.send_urgent("stop");
        let messages = std::iter::from_fn(|| mailbox.poll());
        assert!(matches!(messages.last(), Some(Letter::Urgent("stop"))));
    }

    #[test]
    fn progress_is_told_once_and_only_when_asked() {
        let timeline = Timeline::new(TimelineId { device: DeviceId(0), queue: QueueKind::Compute });
        let (address, mailbox) = mailbox::<u32, String>(Lanes { waking: 1, quiet: 0 });
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
