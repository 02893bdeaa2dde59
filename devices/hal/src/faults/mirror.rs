//! Timelines that tell of a device's progress late: a small thread hears the device's own timelines and advances these.
//!
//! This module must not know what is submitted, only what points are to pass and when.

use crate::backend::Device;
use crate::error::{Error, Result};
use crate::ids::{DeviceId, Point, QueueKind, TimelineId};
use crate::throttle::{Pace, Throttle};
use crate::timeline::Timeline;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The place of the throttled link behind those of the queues.
const LINK: usize = 3;

/// What is to be told of a queue next.
#[derive(Debug)]
pub(super) enum News {
    /// Its work is done so far: told later than it is so.
    Done {
        /// The value that passes.
        value: u64,
        /// How much later.
        due: Due,
    },
    /// The device is lost.
    Loss,
}

/// When finished work is told of.
#[derive(Debug)]
pub(super) enum Due {
    /// This long after its end.
    After(Duration),
    /// When the queue has rested from it. It began then, or begins when these points have passed.
    Rested(Option<Instant>, Vec<(Arc<Timeline>, u64)>),
    /// When the link has carried these bytes.
    Carried(u64),
}

/// The first of a queue's news, as far as it is known.
#[derive(Default)]
struct First {
    begun: Option<Instant>,
    ended: Option<Instant>,
    due: Option<Instant>,
}

/// What the thread shares with the device.
struct Shared {
    device: DeviceId,
    /// The device's own timelines; the link's is that of the downloads.
    real: [Arc<Timeline>; 4],
    /// What everyone else takes for them.
    told: [Arc<Timeline>; 4],
    /// Those of the queues again, under another device's name: the device itself waits for these, as if they were foreign.
    inward: [Arc<Timeline>; 3],
    /// The places that are told of at all.
    places: Range<usize>,
    /// Held while a loss is told, so that timelines and calls tell of it at once. Whoever listens to timelines makes no calls
    /// meanwhile.
    telling: Mutex<()>,
    news: Mutex<[VecDeque<News>; 4]>,
    closing: AtomicBool,
}

/// The timelines of a device as others are to see them.
pub(super) struct Mirror {
    shared: Arc<Shared>,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

/// A name that no device has that was numbered from 0 on, and no other mirror.
fn stranger() -> DeviceId {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    DeviceId(NEXT.fetch_add(1, Ordering::Relaxed) | 0x8000)
}

impl Mirror {
    /// Mirrors a device to which nothing has been submitted: its queues, the throttled link, or both.
    ///
    /// # Errors
    /// If the device does not import the mirrors, or the system gives no thread.
    pub(super) fn new(device: &mut dyn Device, queues: bool, throttle: Throttle) -> Result<Self> {
        let id = device.id();
        let end = if throttle.link_bytes_per_s.is_some() { LINK + 1 } else { LINK };
        let shared = Shared::new(|queue| device.timeline(queue), id, if queues { 0 } else { LINK }..end);
        if queues {
            shared.inward.iter().try_for_each(|timeline| device.import_timeline(Arc::clone(timeline)))?;
        }
        // One reminder is as good as many.
        let (wake, reminders) = sync_channel(1);
        let (theirs, pace) = (Arc::clone(&shared), Pace::new(throttle));
        let name = format!("faults of {id}");
        let thread = std::thread::Builder::new().name(name).spawn(move || theirs.serve(&reminders, pace));
        let code = |error: std::io::Error| i64::from(error.raw_os_error().unwrap_or(0));
        let thread = thread.map_err(|e| Error::Api { call: "starting a thread".into(), code: code(e) })?;
        let mirror = Self { shared, wake, thread: Some(thread) };
        mirror.shared.real[..LINK].iter().for_each(|timeline| mirror.listen(timeline));
        Ok(mirror)
    }

    /// Looks again whenever this timeline moves.
    pub(super) fn listen(&self, timeline: &Timeline) {
        let wake = self.wake.clone();
        timeline.subscribe(move |_| {
            let _ = wake.try_send(());
        });
    }

    /// Whether it stands for the device's queues, not for its link alone.
    pub(super) fn has_queues(&self) -> bool {
        self.shared.places.start == 0
    }

    /// The timeline of the throttled link.
    pub(super) fn link(&self) -> Arc<Timeline> {
        Arc::clone(&self.shared.told[LINK])
    }

    /// The next thing to be told of the throttled link.
    pub(super) fn expect_on_link(&self, news: News) {
        self.shared.news()[LINK].push_back(news);
        let _ = self.wake.try_send(());
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
            point.timeline.device = self.shared.stranger();
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
    fn new(real: impl Fn(QueueKind) -> Arc<Timeline>, device: DeviceId, places: Range<usize>) -> Arc<Self> {
        let [compute, upload, download] = QueueKind::ALL;
        let all = [compute, upload, download, download];
        let stranger = stranger();
        Arc::new(Self {
            device,
            real: all.map(real),
            told: all.map(|queue| Timeline::new(TimelineId { device, queue })),
            inward: QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: stranger, queue })),
            places,
            telling: Mutex::default(),
            news: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    fn stranger(&self) -> DeviceId {
        self.inward[0].id().device
    }

    fn news(&self) -> MutexGuard<'_, [VecDeque<News>; 4]> {
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
    fn serve(&self, reminders: &Receiver<()>, mut pace: Pace) {
        let mut firsts: [First; 4] = Default::default();
        while !self.closing.load(Ordering::Acquire) {
            let places = self.places.clone();
            let next = places.filter_map(|place| self.tell(place, &mut firsts[place], &mut pace)).min();
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

    /// Tells what is due at a place; when the next news are due, if that is known.
    fn tell(&self, place: usize, first: &mut First, pace: &mut Pace) -> Option<Instant> {
        loop {
            let mut news = self.news();
            let News::Done { value, due } = news[place].front()? else {
                drop(news);
                self.fail_all(&Error::Lost { cause: "by a fault on demand".into() });
                return None;
            };
            let (value, now) = (*value, Instant::now());
            let passed = |(timeline, value): &(Arc<Timeline>, u64)| timeline.value() >= *value;
            if let Due::Rested(begun, waits) = due {
                let begins = || waits.iter().all(passed).then_some(now);
                first.begun = first.begun.or(*begun).or_else(begins);
            }
            let failure = self.real[place].failure();
            // Looked at after the failure: what passed before it has passed.
            if self.real[place].value() < value {
                drop(news);
                if let Some(error) = failure {
                    self.fail(place, &self.as_told(error));
                }
                return None;
            }
            let ended = *first.ended.get_or_insert(now);
            if first.due.is_none() {
                first.due = match due {
                    Due::After(delay) => now.checked_add(*delay),
                    Due::Rested(..) => now.checked_add(pace.rest(now - first.begun.unwrap_or(now))),
                    Due::Carried(bytes) => pace.passed(now, *bytes),
                };
            }
            let at = first.due?;
            if at > now {
                return Some(at);
            }
            if matches!(due, Due::Rested(..)) {
                pace.rested(now - ended);
            }
            *first = First::default();
            news[place].pop_front();
            drop(news);
            self.inward.get(place).iter().for_each(|inward| inward.advance(value));
            self.told[place].advance(value);
        }
    }

    fn fail(&self, place: usize, error: &Error) {
        self.told[place].fail(error.clone());
        self.inward.get(place).iter().for_each(|inward| inward.fail(error.clone()));
        self.news()[place].clear();
    }

    fn fail_all(&self, error: &Error) {
        // Whoever hears of a loss by a call ends the timelines that the device has told so far, as its own end; the loss is to
        // be there before. And whoever hears of it by a timeline is to hear the same by the next call.
        let _telling = self.telling();
        self.told[self.places.clone()].iter().for_each(|timeline| timeline.fail(error.clone()));
        self.places.clone().for_each(|place| self.fail(place, error));
    }

    /// An error with the points of the mirrors by their usual names.
    fn as_told(&self, error: Error) -> Error {
        match error {
            Error::Poisoned { mut point, cause } => {
                if point.timeline.device == self.stranger() {
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
        Shared::new(|queue| Timeline::new(TimelineId { device: DEVICE, queue }), DEVICE, 0..LINK)
    }

    fn unplugged() -> Error {
        Error::Lost { cause: "unplugged".into() }
    }

    /// A call that is made when a timeline has told.
    #[test]
    fn after_any_timeline_calls_tell_of_a_loss_too() {
        let shared = shared();
        let (sender, calls) = std::sync::mpsc::channel();
        for timeline in &shared.told[..LINK] {
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
        for timeline in &shared.told[..LINK] {
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
