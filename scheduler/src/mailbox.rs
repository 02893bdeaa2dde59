//! Mailboxes on which actors sleep. A mailbox has three queues: for urgent messages, for messages that wake
//! the owner, and for quiet messages that the owner reads only when it is awake. Sending never blocks.
//!
//! The waking queue and the quiet queue are bounded ([`crate::capacity`]). Credits and ring slots limit the
//! messages in flight. A full queue therefore indicates a bug, and sending returns an error. The urgent queue
//! is unbounded but receives few messages: a pipeline stops at most once, and each stage and each timeline
//! fails at most once.

use crate::capacity::Lanes;
use crate::error::Error;
use crossbeam_channel::{Receiver, Sender, TrySendError, after, bounded, never, select_biased, unbounded};
use ragtag_hal::{Awaited, Timeline};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

/// A message received from a mailbox.
pub(crate) enum Envelope<M, U> {
    Urgent(U),
    Normal(M),
}

/// The receiving end of a mailbox.
pub(crate) struct Mailbox<M, U> {
    waking: Receiver<M>,
    quiet: Receiver<M>,
    urgent: Receiver<U>,
}

/// The sending end of a mailbox.
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

/// Creates a mailbox. `lanes` gives the capacities of its waking and quiet queues. Its urgent queue is
/// unbounded.
pub(crate) fn mailbox<M, U>(lanes: Lanes) -> (Address<M, U>, Mailbox<M, U>) {
    let (waking, waking_inbox) = bounded(lanes.waking);
    let (quiet, quiet_inbox) = bounded(lanes.quiet);
    let (urgent, urgent_inbox) = unbounded();
    let mailbox = Mailbox { waking: waking_inbox, quiet: quiet_inbox, urgent: urgent_inbox };
    (Address { waking, quiet, urgent }, mailbox)
}

impl<M, U> Address<M, U> {
    /// Sends a message and wakes the owner. If the owner has ended, drops the message without an error.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the queue is full.
    pub(crate) fn send(&self, message: M) -> Result<(), Error> {
        put(&self.waking, message)
    }

    /// Sends a message without waking the owner. The owner reads it when it is awake for another reason.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the queue is full.
    pub(crate) fn send_quietly(&self, message: M) -> Result<(), Error> {
        put(&self.quiet, message)
    }

    /// Sends an urgent message. Its queue is unbounded, because the coordinator continues after a failure and
    /// must still receive the stop message. If the owner has ended, the message is dropped.
    pub(crate) fn send_urgent(&self, message: U) {
        let _ = self.urgent.send(message);
    }
}

fn put<M>(queue: &Sender<M>, message: M) -> Result<(), Error> {
    match queue.try_send(message) {
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        Err(TrySendError::Full(_)) => {
            let capacity = queue.capacity().unwrap_or(0);
            Err(Error::protocol(format!("a mailbox queue for {capacity} messages is full")))
        }
    }
}

impl<M, U> Mailbox<M, U> {
    /// Blocks until an urgent or waking message arrives, or until `limit` has passed.
    pub(crate) fn receive(&self, limit: Option<Duration>) -> Awaited<Envelope<M, U>> {
        select_biased! {
            recv(self.urgent) -> message => found(message.map(Envelope::Urgent)),
            recv(self.waking) -> message => found(message.map(Envelope::Normal)),
            recv(over(limit)) -> _ => Awaited::Nothing,
        }
    }

    /// Returns the next message, if any, without blocking. Urgent messages come first, then quiet messages.
    pub(crate) fn poll(&self) -> Option<Envelope<M, U>> {
        if let Ok(urgent) = self.urgent.try_recv() {
            return Some(Envelope::Urgent(urgent));
        }
        self.quiet.try_recv().or_else(|_| self.waking.try_recv()).ok().map(Envelope::Normal)
    }

    /// Returns the queues that wake the owner, for owners that also wait on other channels.
    pub(crate) fn waking_queues(&self) -> (&Receiver<M>, &Receiver<U>) {
        (&self.waking, &self.urgent)
    }
}

/// Time for which the owner of a mailbox polls it before it sleeps. If its CPU core has gone idle, waking the
/// thread costs both threads tens of microseconds. A step of a small model takes no longer than that.
pub(crate) const LINGER: Duration = Duration::from_micros(40);

/// Returns a channel that receives a message after `limit`. If `limit` is `None`, it never receives one.
pub(crate) fn over(limit: Option<Duration>) -> Receiver<Instant> {
    limit.map_or_else(never, after)
}

/// Converts the result of a receive operation on a channel.
pub(crate) fn found<T, E>(message: Result<T, E>) -> Awaited<T> {
    message.map_or(Awaited::Gone, Awaited::Found)
}

/// An atomic flag with its fence. A model checker replaces the standard library's flag in a test.
pub(crate) trait Flag: Default {
    fn load(&self) -> bool;
    fn store(&self, value: bool);
    fn swap(&self, value: bool) -> bool;
    /// Orders the accesses before the fence and after it with those around the fences of other threads.
    fn fence();
}

impl Flag for AtomicBool {
    fn load(&self) -> bool {
        self.load(Ordering::Relaxed)
    }

    fn store(&self, value: bool) {
        self.store(value, Ordering::Relaxed);
    }

    fn swap(&self, value: bool) -> bool {
        self.swap(value, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Notice of progress on timelines. It sends at most one message each time the owner arms it, and none while
/// it is not armed.
///
/// The owner arms the notice, checks the timelines again because they may have advanced before it was armed,
/// and then sleeps. Any number of points may pass before the message is sent. A notice that is not armed
/// never wakes its owner.
pub(crate) type Notice = NoticeOn<AtomicBool>;

/// A [`Notice`] on a flag of type `F`.
#[derive(Debug, Default)]
pub(crate) struct NoticeOn<F>(Arc<F>);

impl<F> Clone for NoticeOn<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Flag> NoticeOn<F> {
    /// Requests a message the next time a timeline advances. After this call, the caller must check whether
    /// one advanced before the call.
    pub(crate) fn arm(&self) {
        self.0.store(true);
        // Pairs with the fence in `take`. Either the owner sees all writes that precede the other thread's
        // fence, or the other thread sees that the notice is armed.
        F::fence();
    }

    /// Clears the request for a message and returns whether there was one. If it returns `true`, the caller
    /// must send the message.
    pub(crate) fn take(&self) -> bool {
        F::fence();
        // Load first, so that the cache line stays shared while no message is requested.
        self.0.load() && self.0.swap(false)
    }
}

impl Notice {
    /// Calls `moved` if `timeline` advances while the notice is armed. Calls `failed` if the timeline fails.
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
    fn urgent_and_quiet_messages_overtake_and_a_full_queue_is_an_error() {
        let (address, mailbox) = mailbox::<u32, &str>(Lanes { waking: 2, quiet: 1 });
        address.send(1).unwrap();
        address.send(2).unwrap();
        assert!(matches!(address.send(3), Err(Error::Protocol { .. })));
        address.send_quietly(7).unwrap();
        assert!(matches!(address.send_quietly(8), Err(Error::Protocol { .. })));
        address.send_urgent("stop");
        assert!(matches!(mailbox.poll(), Some(Envelope::Urgent("stop"))));
        assert!(matches!(mailbox.poll(), Some(Envelope::Normal(7))));
        assert!(matches!(mailbox.poll(), Some(Envelope::Normal(1))));
        assert!(matches!(mailbox.receive(Some(Duration::ZERO)), Awaited::Found(Envelope::Normal(2))));
        assert!(matches!(mailbox.receive(Some(Duration::ZERO)), Awaited::Nothing));
        drop(address);
        assert!(matches!(mailbox.receive(None), Awaited::Gone) && mailbox.poll().is_none());
    }

    #[test]
    fn a_stop_behind_many_failures_arrives() {
        let (address, mailbox) = mailbox::<u32, &str>(Lanes::default());
        (0..100).for_each(|_| address.send_urgent("failed"));
        address.send_urgent("stop");
        let messages = std::iter::from_fn(|| mailbox.poll());
        assert!(matches!(messages.last(), Some(Envelope::Urgent("stop"))));
    }

    #[test]
    fn progress_is_notified_once_and_only_on_request() {
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
        assert!(matches!(mailbox.poll(), Some(Envelope::Normal(1))));
        assert!(mailbox.poll().is_none());
        timeline.fail(ragtag_hal::Error::Lost { cause: "gone".into() });
        assert!(matches!(mailbox.poll(), Some(Envelope::Urgent(cause)) if cause.contains("gone")));
    }

    /// A flag of the model checker. Its fence does nothing if `FENCED` is false.
    #[derive(Debug, Default)]
    struct Modelled<const FENCED: bool>(loom::sync::atomic::AtomicBool);

    impl<const FENCED: bool> Flag for Modelled<FENCED> {
        fn load(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn store(&self, value: bool) {
            self.0.store(value, Ordering::Relaxed);
        }

        fn swap(&self, value: bool) -> bool {
            self.0.swap(value, Ordering::Relaxed)
        }

        fn fence() {
            if FENCED {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }
    }

    /// Checks all interleavings of an owner that arms a notice and of `advancing` threads that advance a
    /// timeline each.
    fn check_notice<const FENCED: bool>(advancing: usize) {
        loom::model(move || {
            let notice = NoticeOn::<Modelled<FENCED>>::default();
            let timelines: Vec<_> =
                (0..advancing).map(|_| loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(0))).collect();
            let threads: Vec<_> = timelines
                .iter()
                .map(|timeline| {
                    let (timeline, notice) = (timeline.clone(), notice.clone());
                    loom::thread::spawn(move || {
                        timeline.store(1, Ordering::Relaxed);
                        notice.take()
                    })
                })
                .collect();
            notice.arm();
            let seen = timelines.iter().filter(|timeline| timeline.load(Ordering::Relaxed) == 1).count();
            let sent = threads.into_iter().map(|thread| thread.join().unwrap());
            let sent = sent.filter(|sent| *sent).count();
            assert!(sent <= 1, "a notice sent {sent} messages");
            assert!(seen == advancing || sent == 1, "the owner sleeps although a timeline has advanced");
        });
    }

    #[test]
    fn no_interleaving_loses_or_repeats_a_notice() {
        check_notice::<true>(1);
        check_notice::<true>(2);
    }

    #[test]
    #[should_panic(expected = "the owner sleeps although a timeline has advanced")]
    fn the_model_finds_a_missing_fence() {
        check_notice::<false>(1);
    }
}
