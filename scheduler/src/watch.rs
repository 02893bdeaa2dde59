//! Watch over the work in flight. The coordinator uses it to name the edge or the stage of failed work, and to find
//! work that does not complete.
//!
//! Work stalls if all points that it waits for have passed and it is the next work of its queue, but its own point
//! does not pass within a limit. The limit of a computation therefore starts when the previous computation of the
//! device ends. For a copy, time in which its device computes does not count, because some devices have a single
//! hardware queue. If a copy uses memory of two devices, time in which either of them computes does not count.

use crate::copies::{Copied, Pending, WatchedDevice};
use crate::error::Error;
use ragtag_hal::{DeviceId, Point, QueueKind, Timeline, TimelineId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time between two checks for stalled work.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Queues that copy activations.
const QUEUES: [QueueKind; 2] = [QueueKind::Upload, QueueKind::Download];

/// Time in which a device must make progress while the pipeline stops.
pub(crate) const STOP_LIMIT: Duration = Duration::from_millis(800);

/// Number of predicted times that a device may take for each computation in flight while the pipeline stops.
const STOP_TIMES: u32 = 2;

/// A stage whose work is watched.
pub(crate) struct WatchedStage {
    /// Index of the stage's device.
    pub(crate) device: usize,
    /// Label of the stage's device.
    pub(crate) label: String,
    /// Predicted time of the longest computation, if it is known.
    pub(crate) longest: Option<Duration>,
    /// Time after which a computation has stalled. `None` disables the check.
    pub(crate) limit: Option<Duration>,
}

/// Watches the work of all devices.
pub(crate) struct Watch {
    devices: Vec<WatchedDevice>,
    /// Timelines for which devices wait.
    awaited: BTreeMap<TimelineId, Arc<Timeline>>,
    stages: Vec<WatchedStage>,
    /// Time after which a copy has stalled. `None` disables the check.
    limit: Option<Duration>,
    tick: Option<Duration>,
    /// Work that was due at the latest check, each with the time at which it was first found due.
    due: BTreeMap<Point, (Pending, Instant)>,
}

impl Watch {
    pub(crate) fn new(
        devices: Vec<WatchedDevice>,
        awaited: impl IntoIterator<Item = Arc<Timeline>>,
        stages: Vec<WatchedStage>,
        limit: Option<Duration>,
    ) -> Self {
        let awaited = awaited.into_iter().map(|timeline| (timeline.id(), timeline)).collect();
        let shortest = stages.iter().filter_map(|stage| stage.limit).chain(limit).min();
        let tick = shortest.map(|limit| (limit / 4).clamp(Duration::from_millis(1), LONGEST_TICK));
        Self { devices, awaited, stages, limit, tick, due: BTreeMap::new() }
    }

    /// Returns the time between two checks, or `None` if stalled work is allowed.
    pub(crate) fn tick(&self) -> Option<Duration> {
        self.tick
    }

    /// Returns the error for work that has been due for longer than its limit, and the label of its device. Prefers
    /// computations, because they may delay copies.
    pub(crate) fn stalled(&mut self, now: Instant) -> Option<(Error, String)> {
        self.look(now);
        let overdue = |(work, since): &&(Pending, Instant)| {
            self.limit_of(work).is_some_and(|limit| now.saturating_duration_since(*since) >= limit)
        };
        let (work, _) = self.due.values().filter(overdue).min_by_key(|(work, _)| work.copied.is_some())?;
        Some((self.stall(work, self.limit_of(work)?), self.label(work.stage)))
    }

    /// Returns whether the device at `index` has run the same work for much longer than predicted.
    pub(crate) fn hangs(&mut self, index: usize, now: Instant) -> bool {
        self.look(now);
        // The threads of other hosts come after those of devices.
        let Some(device) = self.devices.get(index) else { return false };
        let (id, times) = (device.own[0].id().device, STOP_TIMES * device.computations().max(1));
        let mut own = self.due.values().filter(|(work, _)| work.signal.timeline.device == id);
        own.any(|(work, since)| {
            let longest = self.stages[work.stage as usize].longest;
            let is_long = |longest: Duration| now - *since >= longest.saturating_mul(times).max(STOP_LIMIT);
            longest.is_some_and(is_long)
        })
    }

    /// Fails the timelines of the devices with this label, so that no device waits for their points.
    pub(crate) fn abandon(&self, label: &str) {
        let closed = ragtag_hal::Error::Closed { cause: format!("{label} has failed") };
        let stages = self.stages.iter().filter(|stage| stage.label == label);
        let devices = stages.filter_map(|stage| self.devices.get(stage.device));
        devices.flat_map(|device| &device.own).for_each(|timeline| timeline.fail(closed.clone()));
    }

    fn limit_of(&self, work: &Pending) -> Option<Duration> {
        work.copied.map_or(self.stages[work.stage as usize].limit, |_| self.limit)
    }

    /// Returns the error for work that has stalled.
    fn stall(&self, work: &Pending, limit: Duration) -> Error {
        let seconds = limit.as_millis().div_ceil(1000) as u64;
        let (stage, device) = (work.stage, self.label(work.stage));
        let what = match work.copied {
            None => return Error::StalledCompute { stage, device, seconds },
            Some(Copied::Activations(edge, route)) => {
                let [from, to] = self.ends(edge);
                return Error::Stalled { from, to, route, seconds };
            }
            Some(Copied::FromFile) => return Error::StalledRead { device, seconds },
            Some(Copied::Weights) => "streamed weights",
            Some(Copied::Logits) => "logits",
            Some(Copied::KeysAndValues) => "keys and values",
            Some(Copied::Checksum) => "checksum",
        };
        Error::StalledCopy { what: what.into(), device, seconds }
    }

    /// Finds the work that is due now.
    fn look(&mut self, now: Instant) {
        let running = |device: &WatchedDevice, queue| device.next(queue).filter(|work| self.runs(work));
        let computing: Vec<_> =
            self.devices.iter().map(|device| running(device, QueueKind::Compute)).collect();
        let idle = self.devices.iter().zip(&computing).filter(|(_, computing)| computing.is_none());
        let copies =
            idle.flat_map(|(device, _)| QUEUES.into_iter().filter_map(|queue| running(device, queue)));
        let is_delayed = |copy: &Pending| match copy.copied {
            Some(Copied::Activations(edge, route)) if route.shares_memory() => [edge, edge + 1]
                .into_iter()
                .any(|stage| computing[self.stages[stage as usize].device].is_some()),
            _ => false,
        };
        let copies: Vec<_> = copies.filter(|copy| !is_delayed(copy)).collect();
        let since = |signal: &Point| self.due.get(signal).map_or(now, |(_, since)| *since);
        let due = computing.into_iter().flatten().chain(copies);
        self.due = due.map(|work| (work.signal, (work.clone(), since(&work.signal)))).collect();
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
        // The loss of a device fails all its queues, whatever they were doing.
        let is_lost = matches!(cause, ragtag_hal::Error::Lost { .. } | ragtag_hal::Error::Closed { .. });
        let failed = QueueKind::ALL.into_iter().filter(has_failed);
        // All later submissions to a lost device fail, but none of them was lost.
        let refused = |queue| device.unaccepted(queue).filter(|_| !is_lost);
        let failed = failed.flat_map(|queue| [device.next(queue), refused(queue)]).flatten();
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
        self.stages.get(stage as usize).map_or_else(String::new, |stage| stage.label.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::Copies;
    use ragtag_transfer::Route;

    const STEP: Duration = Duration::from_secs(10);

    /// Adds work that its device has accepted.
    fn add(copies: &Copies, work: Pending) {
        let signal = work.signal;
        copies.add(work, 0);
        copies.accept(signal);
    }

    /// Creates two devices. The first sends to the second. Returns the watch, the copies of both devices, and
    /// the compute and download timelines of the first and the upload timeline of the second.
    fn watch(limit: Option<Duration>) -> (Watch, [Copies; 2], [Arc<Timeline>; 3]) {
        let own = [0, 1].map(|device| {
            QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: DeviceId(device), queue }))
        });
        let copies = [Copies::default(), Copies::default()];
        let device = |at: usize| WatchedDevice { copies: copies[at].clone(), own: own[at].clone() };
        // Stages 0, 2 and 4 are on the first device.
        let stages = (0..5).map(|stage| WatchedStage {
            device: stage % 2,
            label: ["a", "b"][stage % 2].into(),
            longest: Some(STEP / 4),
            limit: limit.map(|limit| 10 * limit),
        });
        let stages = stages.collect();
        let watch = Watch::new(vec![device(0), device(1)], own.iter().flatten().cloned(), stages, limit);
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
        add(&from, copy(one, vec![computed.id().at(1)]));
        add(&from, copy(two, vec![computed.id().at(1)]));
        add(&from, computation(computed.id().at(1), Vec::new()));
        add(&from, computation(computed.id().at(2), vec![two]));
        add(&to, copy(there, vec![one]));
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
        let (error, _) = watch.stalled(start + 2 * STEP).unwrap();
        assert_eq!(error, Error::Stalled { from, to, route: Route::HOST_STAGED, seconds: 20 });
        assert_eq!(error.to_string(), "no activations from a to b over the staged route for 20 s");
        uploaded.advance(1);
        assert_eq!(watch.stalled(start + 3 * STEP), None);
        assert_eq!(watch.tick(), Some(LONGEST_TICK));
    }

    #[test]
    fn a_device_that_computes_has_no_stalled_copies() {
        let (mut watch, [from, _], [computed, downloaded, _]) = watch(Some(STEP));
        add(&from, copy(downloaded.id().at(1), Vec::new()));
        add(&from, computation(computed.id().at(1), Vec::new()));
        // This computation waits for the copy, so it does not run.
        add(&from, computation(computed.id().at(2), vec![downloaded.id().at(1)]));
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
        add(&to, weights);
        add(&to, copy(uploaded.id().at(2), Vec::new()));
        let start = Instant::now();
        assert_eq!(watch.stalled(start), None);
        let (error, _) = watch.stalled(start + STEP).unwrap();
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
        add(&from, Pending { stage, copied, ..copy(downloaded.id().at(1), Vec::new()) });
        let cause = ragtag_hal::Error::Api { call: "copy".into(), code: 7 };
        downloaded.fail(cause.clone());
        let error = watch.failed(DeviceId(0), &cause, None).unwrap();
        let said = "keys and values of stage 1 on b: copy failed with code 7";
        assert!(error.to_string().starts_with(said), "{error}");
    }

    #[test]
    fn without_a_limit_nothing_stalls() {
        let (mut watch, [from, _], [_, downloaded, _]) = watch(None);
        add(&from, copy(downloaded.id().at(1), Vec::new()));
        let start = Instant::now();
        assert_eq!([0, 900].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        assert_eq!(watch.tick(), None);
    }

    #[test]
    fn a_failed_copy_is_named_but_no_other_work() {
        let cause = ragtag_hal::Error::Api { call: "copy".into(), code: 7 };
        let (watch, [from, _], [computed, downloaded, _]) = watch(None);
        add(&from, copy(downloaded.id().at(1), Vec::new()));
        add(&from, copy(downloaded.id().at(3), Vec::new()));
        downloaded.advance(1);
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "no queue has failed");
        computed.fail(cause.clone());
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "a computation has failed");
        downloaded.fail(cause.clone());
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "point 2 is no copy of activations");

        let (watch, [from, _], [_, downloaded, _]) = super::tests::watch(None);
        add(&from, copy(downloaded.id().at(1), Vec::new()));
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
        let cause = ragtag_hal::Error::Lost { cause: "unplugged".into() };
        let failed = |waits: &[u64], of| {
            let (watch, [on_a, _], [computed, downloaded, _]) = watch(None);
            let of_stage = |stage, work| Pending { stage, ..work };
            add(&on_a, of_stage(2, computation(computed.id().at(1), Vec::new())));
            add(&on_a, of_stage(0, computation(computed.id().at(2), Vec::new())));
            let waits = waits.iter().map(|&value| computed.id().at(value)).collect();
            let download = Pending { copied: Some(Copied::Logits), ..copy(downloaded.id().at(1), waits) };
            add(&on_a, of_stage(4, download));
            [&computed, &downloaded].iter().for_each(|timeline| timeline.fail(cause.clone()));
            match watch.failed(DeviceId(0), &cause, of) {
                Some(Error::Stage { stage, .. }) => Some(stage),
                _ => None,
            }
        };
        assert_eq!(failed(&[1], None), Some(2), "the download was waiting");
        assert_eq!([failed(&[1], Some(2)), failed(&[1], Some(0))], [Some(2), None]);
        assert_eq!(failed(&[], None), None, "stages 2 and 4 were running");
    }

    /// A submission that fails ends its queue at once. Until its actor reports it, other devices may report it.
    #[test]
    fn a_failed_submission_does_not_blame_earlier_work() {
        let (watch, [on_a, _], [computed, ..]) = watch(None);
        add(&on_a, computation(computed.id().at(1), Vec::new()));
        on_a.add(Pending { stage: 2, ..computation(computed.id().at(2), Vec::new()) }, 0);
        let cause = ragtag_hal::Error::Api { call: "launch".into(), code: 7 };
        computed.fail(cause.clone());
        assert_eq!(watch.failed(DeviceId(0), &cause, None), None, "stage 0 may not be to blame");
        let error = watch.failed(DeviceId(0), &cause, Some(2));
        assert!(matches!(error, Some(Error::Stage { stage: 2, .. })), "{error:?}");
    }

    #[test]
    fn a_computation_stalls_only_after_its_own_limit() {
        let (mut watch, [on_a, on_b], [computed, _, uploaded]) = watch(Some(STEP));
        for (value, stage) in [(1, 0), (2, 2), (3, 0)] {
            add(&on_a, Pending { stage, ..computation(computed.id().at(value), Vec::new()) });
        }
        // The copy waits for the computation that hangs.
        add(&on_b, copy(uploaded.id().at(1), vec![computed.id().at(2)]));
        let start = Instant::now();
        assert_eq!([0, 9].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        computed.advance(1);
        let start = start + 9 * STEP;
        assert_eq!([0, 9].map(|step| watch.stalled(start + step * STEP)), [None, None]);
        let (error, _) = watch.stalled(start + 10 * STEP).unwrap();
        assert_eq!(error, Error::StalledCompute { stage: 2, device: "a".into(), seconds: 100 });
    }

    #[test]
    fn a_copy_into_the_memory_of_a_device_that_computes_has_not_stalled() {
        for route in [Route::Peer, Route::HOST_STAGED] {
            let (mut watch, [from, to], _) = watch(Some(STEP));
            let of = |device, queue| TimelineId { device: DeviceId(device), queue }.at(1);
            let copied = Some(Copied::Activations(0, route));
            add(&from, Pending { copied, ..copy(of(0, QueueKind::Download), Vec::new()) });
            add(&to, Pending { stage: 1, ..computation(of(1, QueueKind::Compute), Vec::new()) });
            let start = Instant::now();
            assert_eq!(watch.stalled(start), None);
            let is_copy = matches!(watch.stalled(start + STEP), Some((Error::Stalled { .. }, _)));
            assert_eq!(is_copy, route != Route::Peer);
            if !is_copy {
                let (error, _) = watch.stalled(start + 10 * STEP).unwrap();
                assert_eq!(error, Error::StalledCompute { stage: 1, device: "b".into(), seconds: 100 });
            }
        }
    }

    #[test]
    fn a_device_hangs_if_its_work_takes_much_longer_than_predicted() {
        let (mut watch, [on_a, on_b], [computed, _, uploaded]) = watch(None);
        add(&on_a, computation(computed.id().at(1), Vec::new()));
        add(&on_a, computation(computed.id().at(2), Vec::new()));
        add(&on_b, Pending { stage: 1, ..copy(uploaded.id().at(1), vec![computed.id().at(1)]) });
        let start = Instant::now();
        let mut hang = |at| [0, 1].map(|device| watch.hangs(device, at));
        assert_eq!(hang(start), [false, false]);
        assert_eq!(hang(start + STEP / 2), [false, false], "two computations are in flight");
        assert_eq!(hang(start + STEP), [true, false], "the second device only waits");
        computed.advance(1);
        assert_eq!(hang(start + STEP), [false, false]);
        computed.advance(2);
        assert_eq!(hang(start + STEP * 3 / 2), [false, true]);
    }
}
