//! Timelines that tell of a device's progress late: a small thread hears the device's own timelines and advances these.
//!
//! This module must not know what is submitted, only what points are to pass and when.

use crate::backend::Device;
use crate::error::{Error, Result};
use crate::ids::{DeviceId, Point, QueueKind, TimelineId};
use crate::timeline::Timeline;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is to be told of a queue next.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// Its work is done so far: told this long after it is so.
    Done {
        /// The value that passes.
        value: u64,
        /// How much later.
        delay: Duration,
    },
    /// The device is lost.
    Loss,
}

/// What the thread shares with the device.
struct Shared {
    device: DeviceId,
    /// The device's own timelines.
    real: [Arc<Timeline>; 3],
    /// What everyone else takes for them.
    told: [Arc<Timeline>; 3],
    /// The same again, under another device's name: the device itself waits for these, as if they were foreign.
    inward: [Arc<Timeline>; 3],
    /// Held while a loss is told, so that timelines and calls tell of it at once. Whoever listens to timelines makes no calls
    /// meanwhile.
    telling: Mutex<()>,
    news: Mutex<[VecDeque<News>; 3]>,
    closing: AtomicBool,
}

/// The timelines of a device as others are to see them.
pub(super) struct Mirror {
    shared: Arc<Shared>,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

/// A name that no device has that was numbered from 0 on.
fn stranger(device: DeviceId) -> DeviceId {
    DeviceId(device.0 ^ 0x8000)
}

impl Mirror {
    /// Mirrors a device to which nothing has been submitted.
    ///
    /// # Errors
    /// If the device does not import the mirrors, or the system gives no thread.
    pub(super) fn new(device: &mut dyn Device) -> Result<Self> {
        let id = device.id();
        let timelines = |device| QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device, queue }));
        let shared = Arc::new(Shared {
            device: id,
            real: QueueKind::ALL.map(|queue| device.timeline(queue)),
            told: timelines(id),
            inward: timelines(stranger(id)),
            telling: Mutex::default(),
            news: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        shared.inward.iter().try_for_each(|timeline| device.import_timeline(Arc::clone(timeline)))?;
        // One reminder is as good as many.
        let (wake, reminders) = sync_channel(1);
        for timeline in &shared.real {
            let wake = wake.clone();
            timeline.subscribe(move |_| {
                let _ = wake.try_send(());
            });
        }
        let theirs = Arc::clone(&shared);
        let name = format!("faults of {id}");
        let thread = std::thread::Builder::new().name(name).spawn(move || theirs.serve(&reminders));
        let code = |error: std::io::Error| i64::from(error.raw_os_error().unwrap_or(0));
        let thread = thread.map_err(|e| Error::Api { call: "starting a thread".into(), code: code(e) })?;
        Ok(Self { shared, wake, thread: Some(thread) })
    }

    pub(super) fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.shared.told[queue.index()])
    }

    /// The error with which the device was lost, once it is known.
    pub(super) fn loss(&self) -> Option<Error> {
        self.shared.loss()
    }

    /// The next thing to be told of a queue.
    pub(super) fn expect(&self, queue: QueueKind, news: News) {
        self.shared.news()[queue.index()].push_back(news);
        let _ = self.wake.try_send(());
    }

    /// Ends a queue's timeline.
    pub(super) fn fail(&self, queue: QueueKind, error: &Error) {
        self.shared.fail(queue.index(), error);
    }

    /// Has waits for the device's own points wait for their mirrors.
    pub(super) fn redirect(&self, waits: &mut [Point]) {
        for point in waits.iter_mut().filter(|p| p.timeline.device == self.shared.device) {
            point.timeline.device = stranger(self.shared.device);
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let _ = self.wake.try_send(());
        if let Some(thread) = self.thread.take() {
            // It calls nothing that panics.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn news(&self) -> MutexGuard<'_, [VecDeque<News>; 3]> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What calls say of a loss.
    fn loss(&self) -> Option<Error> {
        let _told = self.telling();
        self.inward[0].failure().filter(|error| matches!(error, Error::Lost { .. }))
    }

    /// The body of the thread: sleeps until something is due or the device's timelines move.
    fn serve(&self, reminders: &Receiver<()>) {
        // For each queue when its next news are due, once their work is done.
        let mut due = [None; 3];
        while !self.closing.load(Ordering::Acquire) {
            let next = (0..due.len()).filter_map(|queue| self.tell(queue, &mut due[queue])).min();
            let woken = match next {
                Some(at) => reminders.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => reminders.recv().map_err(RecvTimeoutError::from),
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                break;
            }
        }
        self.fail_all(&Error::Closed { cause: "the device was closed".into() });
    }

    /// Tells what is due on a queue; when the next news are due, if that is known.
    fn tell(&self, queue: usize, due: &mut Option<Instant>) -> Option<Instant> {
        loop {
            let news = self.news()[queue].front().copied()?;
            let News::Done { value, delay } = news else {
                self.fail_all(&Error::Lost { cause: "by a fault on demand".into() });
                return None;
            };
            let failure = self.real[queue].failure();
            // Looked at after the failure: what passed before it has passed.
            if self.real[queue].value() < value {
                if let Some(error) = failure {
                    self.fail(queue, &self.as_told(error));
                }
                return None;
            }
            let now = Instant::now();
            let at = *due.get_or_insert(now + delay);
            if at > now {
                return Some(at);
            }
            *due = None;
            self.news()[queue].pop_front();
            self.inward[queue].advance(value);
            self.told[queue].advance(value);
        }
    }

    fn fail(&self, queue: usize, error: &Error) {
        self.told[queue].fail(error.clone());
        self.inward[queue].fail(error.clone());
        self.news()[queue].clear();
    }

    fn fail_all(&self, error: &Error) {
        // Whoever hears of a loss by a call ends the timelines that the device has told so far, as its own end; the loss is to
        // be there before. And whoever hears of it by a timeline is to hear the same by the next call.
        let _telling = self.telling();
        self.told.iter().for_each(|timeline| timeline.fail(error.clone()));
        (0..self.told.len()).for_each(|queue| self.fail(queue, error));
    }

    /// An error with the points of the mirrors by their usual names.
    fn as_told(&self, error: Error) -> Error {
        match error {
            Error::Poisoned { mut point, cause } => {
                if point.timeline.device == stranger(self.device) {
                    point.timeline.device = self.device;
                }
                Error::Poisoned { point, cause: Box::new(self.as_told(*cause)) }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    /// A mirror's share, without a device behind it.
    fn shared() -> Arc<Shared> {
        let timelines = |device| QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device, queue }));
        Arc::new(Shared {
            device: DEVICE,
            real: timelines(DEVICE),
            told: timelines(DEVICE),
            inward: timelines(stranger(DEVICE)),
            telling: Mutex::default(),
            news: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    fn unplugged() -> Error {
        Error::Lost { cause: "unplugged".into() }
    }

    /// A call that is made when a timeline has told.
    #[test]
    fn after_any_timeline_calls_tell_of_a_loss_too() {
        let shared = shared();
        let (sender, calls) = std::sync::mpsc::channel();
        for timeline in &shared.told {
            let (theirs, sender) = (Arc::clone(&shared), sender.clone());
            timeline.subscribe(move |progress| {
                if progress.failure.is_some() {
                    let (theirs, sender) = (Arc::clone(&theirs), sender.clone());
                    std::thread::spawn(move || sender.send(theirs.loss()));
                    // Time enough for a call that does not wait until all are told.
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        drop(sender);
        shared.fail_all(&unplugged());
        let said: Vec<_> = (0..3).map(|_| calls.recv().unwrap()).collect();
        assert_eq!(said, [Some(unplugged()), Some(unplugged()), Some(unplugged())]);
    }

    #[test]
    fn every_timeline_tells_of_a_loss_before_any_call_does() {
        let shared = shared();
        let heard = Arc::new(Mutex::new(Vec::new()));
        for timeline in &shared.told {
            let (theirs, heard) = (Arc::clone(&shared), Arc::clone(&heard));
            timeline.subscribe(move |progress| {
                if progress.failure.is_some() {
                    heard.lock().unwrap().push(theirs.inward.iter().all(|inward| inward.failure().is_none()));
                }
            });
        }
        shared.fail_all(&unplugged());
        assert_eq!(*heard.lock().unwrap(), [true; 3]);
        assert!(shared.inward.iter().all(|inward| matches!(inward.failure(), Some(Error::Lost { .. }))));
    }
}
