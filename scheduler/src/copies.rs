//! Copies in flight. The coordinator uses them to name the edge of a failed copy, and to find copies that do
//! not complete.
//!
//! A copy stalls if all points that it waits for have passed and it is the next work of its queue, but its
//! own point does not pass. Time in which its device computes does not count, because some devices have a
//! single hardware queue.

use crate::error::Error;
use ragtag_hal::{DeviceId, Point, QueueKind, Timeline, TimelineId};
use ragtag_transfer::Route;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time between two checks for stalled copies.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Queues that copy activations.
const QUEUES: [QueueKind; 2] = [QueueKind::Upload, QueueKind::Download];

/// Contents of a watched copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Copied {
    /// Activations, over this edge and route. Edge `n` leaves stage `n`.
    Activations(u32, Route),
    /// Streamed weights.
    Weights,
    /// Streamed weights, from the model's file to host memory.
    FromFile,
    /// Logits.
    Logits,
    /// Keys and values that pass to or from the stage.
    KeysAndValues,
    /// A checksum of activations, or of keys and values.
    Checksum,
}

/// A copy or a computation that may not have completed.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) signal: Point,
    pub(crate) waits: Vec<Point>,
    /// Index of the stage.
    pub(crate) stage: u32,
    /// Present for a copy.
    pub(crate) copied: Option<Copied>,
}

/// Copies and computations of one device. The device's actor adds them, and the coordinator reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies(Arc<Mutex<[VecDeque<Pending>; 3]>>);

impl Copies {
    /// Adds work, and removes the work that has completed. `value` is the current value of its queue's
    /// timeline.
    pub(crate) fn add(&self, work: Pending, value: u64) {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = &mut queues[work.signal.timeline.queue.index()];
        while queue.pop_front_if(|work| work.signal.value <= value).is_some() {}
        queue.push_back(work);
    }
}

/// A device whose copies are watched.
pub(crate) struct WatchedDevice {
    pub(crate) copies: Copies,
    /// Timelines of the device's queues.
    pub(crate) own: [Arc<Timeline>; 3],
}

impl WatchedDevice {
    /// Returns the next work of a queue, if it is watched.
    fn next(&self, queue: QueueKind) -> Option<Pending> {
        let next = self.own[queue.index()].value() + 1;
        let queues = self.copies.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues[queue.index()].iter().find(|work| work.signal.value == next).cloned()
    }
}

/// Reads of one stage from the model's file.
#[derive(Clone)]
pub(crate) struct FileReads {
    /// Its id belongs to no device.
    pub(crate) timeline: Arc<Timeline>,
    /// Reads in flight.
    pub(crate) copies: Copies,
}

impl FileReads {
    /// Returns the host as a device that does nothing but these reads.
    pub(crate) fn watched(&self) -> WatchedDevice {
        let own = std::array::from_fn(|_| Arc::clone(&self.timeline));
        WatchedDevice { copies: self.copies.clone(), own }
    }
}

/// Watches the copies of all devices.
pub(crate) struct Watch {
    devices: Vec<WatchedDevice>,
    /// Timelines for which devices wait.
    awaited: BTreeMap<TimelineId, Arc<Timeline>>,
    /// Label of the device of each stage.
    labels: Vec<String>,
    /// Time after which a copy has stalled. `None` disables the check.
    limit: Option<Duration>,
    /// Copies that were due at the latest check, each with the time at which they were first found due.
    due: BTreeMap<Point, Instant>,
}

impl Watch {
    pub(crate) fn new(
        devices: Vec<WatchedDevice>,
        awaited: impl IntoIterator<Item = Arc<Timeline>>,
        labels: Vec<String>,
        limit: Option<Duration>,
    ) -> Self {
        let awaited = awaited.into_iter().map(|timeline| (timeline.id(), timeline)).collect();
        Self { devices, awaited, labels, limit, due: BTreeMap::new() }
    }

    /// Returns the time until the next check, or `None` if stalled copies are allowed.
    pub(crate) fn tick(&self) -> Option<Duration> {
        self.limit.map(|limit| (limit / 4).clamp(Duration::from_millis(1), LONGEST_TICK))
    }

    /// Returns the error for the first copy that has been due for longer than the limit.
    pub(crate) fn stalled(&mut self, now: Instant) -> Option<Error> {
        let limit = self.limit?;
        let mut due = BTreeMap::new();
        let mut error = None;
        for Pending { signal, stage, copied, .. } in
            self.devices.iter().flat_map(|device| self.due_on(device))
        {
            let since = *self.due.get(&signal).unwrap_or(&now);
            due.insert(signal, since);
            if let Some(copied) = copied.filter(|_| now.saturating_duration_since(since) >= limit) {
                let seconds = limit.as_millis().div_ceil(1000) as u64;
                let (device, stalled) = (self.label(stage), |what: &str, device| Error::StalledCopy {
                    what: what.into(),
                    device,
                    seconds,
                });
                error = error.or(Some(match copied {
                    Copied::Activations(edge, route) => {
                        let [from, to] = self.ends(edge);
                        Error::Stalled { from, to, route, seconds }
                    }
                    Copied::Weights => stalled("streamed weights", device),
                    Copied::FromFile => Error::StalledRead { device, seconds },
                    Copied::Logits => stalled("logits", device),
                    Copied::KeysAndValues => stalled("keys and values", device),
                    Copied::Checksum => stalled("checksum", device),
                }));
            }
        }
        self.due = due;
        error
    }

    /// Returns the copies of a device that nothing delays but the copy itself.
    fn due_on<'a>(&'a self, device: &'a WatchedDevice) -> impl Iterator<Item = Pending> + 'a {
        let computes = device.next(QueueKind::Compute).is_some_and(|work| self.runs(&work));
        let copies = QUEUES.into_iter().filter(move |_| !computes);
        copies.filter_map(|queue| device.next(queue)).filter(|work| self.runs(work))
    }

    /// Returns whether all points that the next work of a queue waits for have passed.
    fn runs(&self, work: &Pending) -> bool {
        let passed = |point: &Point| {
            self.awaited.get(&point.timeline).is_some_and(|timeline| timeline.value() >= point.value)
        };
        work.waits.iter().all(passed)
    }

    /// Returns the error for the work that failed on `device` with `cause`. It names the edge or the stage of
    /// the work. `of` is the stage of the work, if it is known. Returns `None` if work of several stages may
    /// have failed, or if no work was running.
    pub(crate) fn failed(
        &self,
        device: DeviceId,
        cause: &ragtag_hal::Error,
        of: Option<u32>,
    ) -> Option<Error> {
        let is_own = |one: &&WatchedDevice| one.own[0].id().device == device;
        let device = self.devices.iter().find(is_own)?;
        let has_failed = |queue: &QueueKind| device.own[queue.index()].failure().as_ref() == Some(cause);
        let failed = QueueKind::ALL.into_iter().filter(has_failed).filter_map(|queue| device.next(queue));
        // The loss of a device fails all its queues, whatever they were doing.
        let is_lost = matches!(cause, ragtag_hal::Error::Lost { .. } | ragtag_hal::Error::Closed { .. });
        let may_fail = |work: &Pending| !is_lost || self.runs(work);
        let is_of = |work: &Pending| of.is_none_or(|stage| stage == work.stage);
        let failed: Vec<_> = failed.filter(|work| may_fail(work) && is_of(work)).collect();
        let (stage, cause) = (failed.first()?.stage, cause.clone());
        let copy = failed.iter().filter(|_| !is_lost).find_map(|work| Some((work.stage, work.copied?)));
        match copy {
            Some((_, Copied::Activations(edge, route))) => {
                let [from, to] = self.ends(edge);
                Some(Error::Transfer { from, to, route, cause })
            }
            Some((stage, Copied::KeysAndValues)) => {
                Some(Error::KeysAndValues { stage, device: self.label(stage), cause })
            }
            _ if failed.iter().any(|work| work.stage != stage) => None,
            _ => Some(Error::Stage { stage, device: self.label(stage), cause }),
        }
    }

    /// Returns the labels of the devices at both ends of an edge.
    fn ends(&self, edge: u32) -> [String; 2] {
        [edge, edge + 1].map(|stage| self.label(stage))
    }

    /// Returns the label of a stage's device.
    fn label(&self, stage: u32) -> String {
        self.labels.get(stage as usize).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(10);

    /// Creates two devices. The first sends to the second. Returns the watch, the copies of both devices, and
    /// the compute and download timelines of the first and the upload timeline of the second.
    fn watch(limit: Option<Duration>) -> (Watch, [Copies; 2], [Arc<Timeline>; 3]) {
        let own = [0, 1].map(|device| {
            QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: DeviceId(device), queue }))
        });
        let copies = [Copies::default(), Copies::default()];
        let device = |at: usize| WatchedDevice { copies: copies[at].clone(), own: own[at].clone() };
        let labels = ["a", "b"].map(String::from).to_vec();
        let watch = Watch::new(vec![device(0), device(1)], own.iter().flatten().cloned(), labels, limit);
        let [compute, upload, download] = QueueKind::ALL.map(QueueKind::index);
        (watch, copies, [&own[0][compute], &own[0][download], &own[1][upload]].map(Arc::clone))
    }

    fn copy(signal: Point, waits: Vec<Point>) -> Pending {
        Pending { signal, waits, stage: 0, copied: Some(Copied::Activations(0, Route::HOST_STAGED)) }
    }

    fn computation(signal: Point, waits: Vec<Point>) -> Pending {
        Pending { copied: None, ..copy(signal, waits) }
    }

    #[test]
    fn only_time_after_all_awaited_points_counts_as_a_stall() {
        let (mut watch, [from, to], [computed, downloaded, uploaded]) = watch(Some(2 * STEP));
        let [one, two, there] = [downloaded.id().at(1), downloaded.id().at(2), uploaded.id().at(1)];
        from.add(copy(one, vec![computed.id().at(1)]), 0);
        from.add(copy(two, vec![computed.id().at(1)]), 0);
        from.add(computation(computed.id().at(1), Vec::new()), 0);
        from.add(computation(computed.id().at(2), vec![two]), 0);
        to.add(copy(there, vec![one]), 0);
        let start = Instant::now();
        // The computation takes long.
        for step in 0..9 {
            assert_eq!(watch.stalled(start + step * STEP), None);
        }
        computed.advance(1);
        let start = start + 9 * STEP;
        assert_eq!([0, 1].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        // The first copy has ended late. The second and the upload are due from then on.
        downloaded.advance(1);
        let start = start + 2 * STEP;
        assert_eq!([0, 1].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        downloaded.advance(2);
        let (from, to) = ("a".into(), "b".into());
        let error = watch.stalled(start + 2 * STEP).unwrap();
        assert_eq!(error, Error::Stalled { from, to, route: Route::HOST_STAGED, seconds: 20 });
        assert_eq!(error.to_string(), "no activations from a to b over the staged route for 20 s");
        uploaded.advance(1);
        assert_eq!(watch.stalled(start + 3 * STEP), None);
        assert_eq!(watch.tick(), Some(LONGEST_TICK));
    }

    #[test]
    fn a_device_that_computes_has_no_stalled_copies() {
        let (mut watch, [from, _], [computed, downloaded, _]) = watch(Some(STEP));
        from.add(copy(downloaded.id().at(1), Vec::new()), 0);
        from.add(computation(computed.id().at(1), Vec::new()), 0);
        // This computation waits for the copy, so it does not run.
        from.add(computation(computed.id().at(2), vec![downloaded.id().at(1)]), 0);
        let start = Instant::now();
        assert_eq!([0, 1, 2].map(|step| watch.stalled(start + step * STEP)), [None, None, None]);
        computed.advance(1);
        assert_eq!(watch.stalled(start + 3 * STEP), None);
        assert!(watch.stalled(start + 4 * STEP).is_some());
    }

    #[test]
    fn streamed_weights_stall_and_delay_the_copies_behind_them() {
        let (mut watch, [_, to], [_, _, uploaded]) = watch(Some(STEP));
        let (stage, copied) = (1, Some(Copied::Weights));
        let weights = Pending { stage, copied, ..copy(uploaded.id().at(1), Vec::new()) };
        to.add(weights, 0);
        to.add(copy(uploaded.id().at(2), Vec::new()), 0);
        let start = Instant::now();
        assert_eq!(watch.stalled(start), None);
        let error = watch.stalled(start + STEP).unwrap();
        let what = "streamed weights".into();
        assert_eq!(error, Error::StalledCopy { what, device: "b".into(), seconds: 10 });
        assert!(error.to_string().starts_with("b has copied no streamed weights for 10 s"), "{error}");
        uploaded.fail(ragtag_hal::Error::Api { call: "copy".into(), code: 7 });
        let cause = ragtag_hal::Error::Api { call: "copy".into(), code: 7 };
        let of_stage = Error::Stage { stage: 1, device: "b".into(), cause: cause.clone() };
        assert_eq!(watch.failed(DeviceId(1), &cause, None), Some(of_stage));
    }

    #[test]
    fn failed_copies_of_keys_and_values_name_their_stage() {
        let (watch, [from, _], [_, downloaded, _]) = watch(None);
        // The prefill stage is stage 1 here, and not the first stage of its device.
        let (stage, copied) = (1, Some(Copied::KeysAndValues));
        from.add(Pending { stage, copied, ..copy(downloaded.id().at(1), Vec::new()) }, 0);
        let cause = ragtag_hal::Error::Api { call: "copy".into(), code: 7 };
        downloaded.fail(cause.clone());
        let error = watch.failed(DeviceId(0), &cause, None).unwrap();
        let said = "keys and values of stage 1 on b: copy failed with code 7";
        assert!(error.to_string().starts_with(said), "{error}");
    }

    #[test]
    fn without_a_limit_nothing_stalls() {
        let (mut watch, [from, _], [_, downloaded, _]) = watch(None);
        from.add(copy(downloaded.id().at(1), Vec::new()), 0);
        let start = Instant::now();
        assert_eq!([0, 900].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        assert_eq!(watch.tick(), None);
    }

    #[test]
    fn a_failed_copy_is_named_but_no_other_work() {
        let cause = ragtag_hal::Error::Api { call: "copy".into(), code: 7 };
        let (watch, [from, _], [computed, downloaded, _]) = watch(None);
        from.add(copy(downloaded.id().at(1), Vec::new()), 0);
        from.add(copy(downloaded.id().at(3), Vec::new()), 0);
        downloaded.advance(1);
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "no queue has failed");
        computed.fail(cause.clone());
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "a computation has failed");
        downloaded.fail(cause.clone());
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "point 2 is no copy of activations");

        let (watch, [from, _], [_, downloaded, _]) = super::tests::watch(None);
        from.add(copy(downloaded.id().at(1), Vec::new()), 0);
        downloaded.fail(cause.clone());
        let error = watch.failed(DeviceId(0), &cause, None).unwrap();
        let said = "activations from a to b over the staged route: copy failed with code 7; no other route";
        assert!(error.to_string().starts_with(said), "{error}");
        let lost = ragtag_hal::Error::Lost { cause: "unplugged".into() };
        assert_eq!(
            [watch.failed(DeviceId(0), &lost, None), watch.failed(DeviceId(1), &cause, None)],
            [None, None]
        );
    }

    #[test]
    fn failed_work_names_its_stage_unless_several_stages_were_running() {
        let (watch, [on_a, _], [computed, downloaded, _]) = watch(None);
        let of_stage = |stage, work| Pending { stage, ..work };
        // Stages 0, 2 and 4 are on one device.
        on_a.add(of_stage(2, computation(computed.id().at(1), Vec::new())), 0);
        on_a.add(of_stage(0, computation(computed.id().at(2), Vec::new())), 0);
        let download = Pending { copied: Some(Copied::Logits), ..copy(downloaded.id().at(1), Vec::new()) };
        on_a.add(of_stage(4, Pending { waits: vec![computed.id().at(1)], ..download }), 0);
        let cause = ragtag_hal::Error::Lost { cause: "unplugged".into() };
        [&computed, &downloaded].iter().for_each(|timeline| timeline.fail(cause.clone()));
        let failed = |of| match watch.failed(DeviceId(0), &cause, of) {
            Some(Error::Stage { stage, .. }) => Some(stage),
            _ => None,
        };
        assert_eq!(failed(None), Some(2), "the download was waiting");
        assert_eq!([failed(Some(2)), failed(Some(0))], [Some(2), None]);
        on_a.0.lock().unwrap()[QueueKind::Download.index()][0].waits.clear();
        assert_eq!(failed(None), None, "stages 2 and 4 were running");
    }

    #[test]
    fn completed_copies_are_forgotten() {
        let copies = Copies::default();
        let id = TimelineId { device: DeviceId(0), queue: QueueKind::Upload };
        for value in 1..100 {
            copies.add(copy(id.at(value), Vec::new()), value - 1);
        }
        assert_eq!(copies.0.lock().unwrap().iter().map(VecDeque::len).sum::<usize>(), 1);
    }
}
