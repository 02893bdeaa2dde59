//! Mirrored timelines that report a device's progress late. A thread follows the device's own timelines and
//! advances the mirrored timelines.
//!
//! This module knows the points of submissions, but nothing about their work.

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

/// Index of the timeline of the throttled link. Indices 0 to 2 are the queues.
const LINK: usize = 3;

/// Pending event on a mirrored timeline.
#[derive(Debug)]
pub(super) enum News {
    /// All work up to this value ends. The mirror reports the value late.
    Done {
        /// Value to report.
        value: u64,
        /// Time of the report.
        due: Due,
    },
    /// The device is lost.
    Loss,
    /// The queue fails.
    Failure(Error),
}

/// Time at which the mirror reports that work is done.
#[derive(Debug)]
pub(super) enum Due {
    /// This delay after the end of the work.
    After(Duration),
    /// The end of the rest period that the duty cycle requires after the work. The work started at this
    /// instant. If there is no instant, it started when all of these points had passed.
    Rested(Option<Instant>, Vec<(Arc<Timeline>, u64)>),
    /// The time at which the throttled link has transferred this number of bytes.
    Carried(u64),
}

/// Times of the first pending event of a timeline, as far as they are known: the start and end of its work,
/// and the time at which the mirror reports it.
#[derive(Default)]
struct First {
    begun: Option<Instant>,
    ended: Option<Instant>,
    due: Option<Instant>,
}

/// State that the thread and the device share.
struct Shared {
    device: DeviceId,
    /// The device's own timelines. The link follows the timeline of the download queue.
    real: [Arc<Timeline>; 4],
    /// Mirrored timelines, which callers see in place of the device's own timelines.
    visible: [Arc<Timeline>; 4],
    /// Second mirrors of the queues, with a different device ID. The device imports them so that its own
    /// submissions can wait for them.
    inward: [Arc<Timeline>; 3],
    /// Indices of the mirrored timelines.
    places: Range<usize>,
    /// Lock that is held while the timelines fail because of a loss. It prevents device calls from reporting
    /// the loss before all timelines have failed. Subscribers of timelines must not call the device.
    reporting: Mutex<()>,
    news: Mutex<[VecDeque<News>; 4]>,
    closing: AtomicBool,
}

/// Mirrored timelines of a device.
pub(super) struct Mirror {
    shared: Arc<Shared>,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

/// Returns a device ID of at least 0x8000 that no other mirror uses. Opened devices are numbered from 0.
fn foreign_id() -> DeviceId {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    DeviceId(NEXT.fetch_add(1, Ordering::Relaxed) | 0x8000)
}

impl Mirror {
    /// Mirrors the queues of a device, the throttled link, or both. The device must not have submissions yet.
    ///
    /// # Errors
    /// Returns an error if the device cannot import the mirrors, or the system cannot start the thread.
    pub(super) fn new(device: &mut dyn Device, queues: bool, throttle: Throttle) -> Result<Self> {
        let id = device.id();
        let end = if throttle.link_bytes_per_s.is_some() { LINK + 1 } else { LINK };
        let shared = Shared::new(|queue| device.timeline(queue), id, if queues { 0 } else { LINK }..end);
        if queues {
            shared.inward.iter().try_for_each(|timeline| device.import_timeline(Arc::clone(timeline)))?;
        }
        // One pending wake-up is enough.
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

    /// Wakes the thread whenever this timeline changes.
    pub(super) fn listen(&self, timeline: &Timeline) {
        let wake = self.wake.clone();
        timeline.subscribe(move |_| {
            let _ = wake.try_send(());
        });
    }

    /// Returns true if the queues are mirrored. Returns false if only the link is mirrored.
    pub(super) fn has_queues(&self) -> bool {
        self.shared.places.start == 0
    }

    /// Returns the timeline of the throttled link.
    pub(super) fn link(&self) -> Arc<Timeline> {
        Arc::clone(&self.shared.visible[LINK])
    }

    /// Appends an event to the throttled link.
    pub(super) fn expect_on_link(&self, news: News) {
        self.shared.news()[LINK].push_back(news);
        let _ = self.wake.try_send(());
    }

    pub(super) fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.shared.visible[queue.index()])
    }

    /// Returns the error of the device loss, if the device is lost.
    pub(super) fn loss(&self) -> Option<Error> {
        self.shared.loss()
    }

    /// Appends an event to a queue.
    pub(super) fn expect(&self, queue: QueueKind, news: News) {
        self.shared.news()[queue.index()].push_back(news);
        let _ = self.wake.try_send(());
    }

    /// Fails a queue's timeline.
    pub(super) fn fail(&self, queue: QueueKind, error: &Error) {
        self.shared.fail(queue.index(), error);
    }

    /// Replaces waits for the device's own points with waits for their mirrors.
    pub(super) fn redirect(&self, waits: &mut [Point]) {
        for point in waits.iter_mut().filter(|p| p.timeline.device == self.shared.device) {
            point.timeline.device = self.shared.foreign_id();
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let _ = self.wake.try_send(());
        if let Some(thread) = self.thread.take() {
            // The result is ignored, because the thread does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(real: impl Fn(QueueKind) -> Arc<Timeline>, device: DeviceId, places: Range<usize>) -> Arc<Self> {
        let [compute, upload, download] = QueueKind::ALL;
        let all = [compute, upload, download, download];
        let foreign_id = foreign_id();
        Arc::new(Self {
            device,
            real: all.map(real),
            visible: all.map(|queue| Timeline::new(TimelineId { device, queue })),
            inward: QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: foreign_id, queue })),
            places,
            reporting: Mutex::default(),
            news: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    fn foreign_id(&self) -> DeviceId {
        self.inward[0].id().device
    }

    fn news(&self) -> MutexGuard<'_, [VecDeque<News>; 4]> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reporting(&self) -> MutexGuard<'_, ()> {
        self.reporting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the loss that device calls report, if any.
    fn loss(&self) -> Option<Error> {
        let _guard = self.reporting();
        self.inward[0].failure().filter(|error| matches!(error, Error::Lost { .. }))
    }

    /// Runs the mirror's thread. The thread sleeps until an event is due or a timeline of the device changes.
    fn serve(&self, reminders: &Receiver<()>, mut pace: Pace) {
        let mut firsts: [First; 4] = Default::default();
        while !self.closing.load(Ordering::Acquire) {
            let places = self.places.clone();
            let next = places.filter_map(|place| self.report(place, &mut firsts[place], &mut pace)).min();
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

    /// Reports the due events of a timeline. Returns the time at which the next event is due, if known.
    fn report(&self, place: usize, first: &mut First, pace: &mut Pace) -> Option<Instant> {
        loop {
            let mut news = self.news();
            let (value, due) = match news[place].front()? {
                News::Done { value, due } => (value, due),
                News::Failure(error) => {
                    let error = error.clone();
                    drop(news);
                    self.fail(place, &error);
                    return None;
                }
                News::Loss => {
                    drop(news);
                    self.fail_all(&Error::Lost { cause: "injected fault".into() });
                    return None;
                }
            };
            let (value, now) = (*value, Instant::now());
            let passed = |(timeline, value): &(Arc<Timeline>, u64)| timeline.value() >= *value;
            if let Due::Rested(begun, waits) = due {
                let begins = || waits.iter().all(passed).then_some(now);
                first.begun = first.begun.or(*begun).or_else(begins);
            }
            let failure = self.real[place].failure();
            // The value is read after the failure, so that a point that passed before the failure counts as
            // passed.
            if self.real[place].value() < value {
                drop(news);
                if let Some(error) = failure {
                    self.fail(place, &self.with_public_names(error));
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
            self.visible[place].advance(value);
        }
    }

    fn fail(&self, place: usize, error: &Error) {
        self.visible[place].fail(error.clone());
        self.inward.get(place).iter().for_each(|inward| inward.fail(error.clone()));
        self.news()[place].clear();
    }

    fn fail_all(&self, error: &Error) {
        // The visible timelines fail first, because a device call that reports the loss fails them as well.
        // The lock delays such calls until all timelines have failed. A call that a subscriber's thread makes
        // next therefore reports the same error.
        let _reporting = self.reporting();
        self.visible[self.places.clone()].iter().for_each(|timeline| timeline.fail(error.clone()));
        self.places.clone().for_each(|place| self.fail(place, error));
    }

    /// Replaces the device ID of the second mirrors in `error` with the device's own ID.
    fn with_public_names(&self, error: Error) -> Error {
        match error {
            Error::Poisoned { mut point, cause } => {
                if point.timeline.device == self.foreign_id() {
                    point.timeline.device = self.device;
                }
                Error::Poisoned { point, cause: Box::new(self.with_public_names(*cause)) }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    /// Returns the state of a mirror without a device.
    fn shared() -> Arc<Shared> {
        Shared::new(|queue| Timeline::new(TimelineId { device: DEVICE, queue }), DEVICE, 0..LINK)
    }

    fn unplugged() -> Error {
        Error::Lost { cause: "unplugged".into() }
    }

    /// Checks that calls report a loss as soon as any timeline has reported it.
    #[test]
    fn calls_report_a_loss_after_any_timeline_has() {
        let shared = shared();
        let (sender, calls) = std::sync::mpsc::channel();
        for timeline in &shared.visible[..LINK] {
            let (theirs, sender) = (Arc::clone(&shared), sender.clone());
            timeline.subscribe(move |progress| {
                if progress.failure.is_some() {
                    let (theirs, sender) = (Arc::clone(&theirs), sender.clone());
                    std::thread::spawn(move || sender.send(theirs.loss()));
                    // A call that does not wait until all timelines have failed would return within this
                    // time.
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
    fn every_timeline_reports_a_loss_before_any_call() {
        let shared = shared();
        let heard = Arc::new(Mutex::new(Vec::new()));
        for timeline in &shared.visible[..LINK] {
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
