//! Tests of submissions that wait for devices of other APIs or drivers, or for points that never pass.

use super::Subject;
use crate::*;
use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::TimelineId;
use std::thread;

/// Returns a timeline of a device that does not exist. The test itself advances the timeline.
fn abroad() -> Arc<Timeline> {
    Timeline::new(TimelineId { device: DeviceId(900), queue: QueueKind::Download })
}

fn cpu(id: u16) -> Bench {
    let backend = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(0);
    let mut devices = backend.open(&[(adapter, DeviceId(id))], &Limits::default()).unwrap();
    Bench::new(Checked::new(devices.swap_remove(0)))
}

/// Sends words from one device to the other and back through a shared region. Only points order the copies.
fn ping_pong(mut a: Bench, mut b: Bench, rounds: u32) {
    b.device.unregister_region(RegionId(0)).unwrap();
    b.device.register_region(RegionId(0), Arc::clone(&a.region)).unwrap();
    b.region = Arc::clone(&a.region);
    a.device.import_timeline(b.timeline(QueueKind::Download)).unwrap();
    b.device.import_timeline(a.timeline(QueueKind::Download)).unwrap();
    a.fill_region(|at| at);
    let mut ready = Vec::new();
    for round in 0..rounds {
        // Submit all rounds without waiting for results.
        for (at, bench) in [&mut a, &mut b].into_iter().enumerate() {
            let up = bench.commands(QueueKind::Upload, vec![upload(0)], &ready);
            let word = 2 * round + at as u32;
            let fill = Command::Fill { to: buffer_range(0, word as usize, 1), word: 7000 + word };
            let computed = bench.commands(QueueKind::Compute, vec![fill], &[up]);
            ready = vec![bench.commands(QueueKind::Download, vec![download(0)], &[computed])];
        }
    }
    b.wait(ready[0]);
    let wanted: Vec<u32> = (0..WORDS as u32).map(|at| if at < 2 * rounds { 7000 + at } else { at }).collect();
    same(&a.region_words(), &wanted, "the region");
}

/// Checks that submissions do not block. The submitting thread itself advances the awaited timeline, so it
/// would hang if a submission blocked.
pub fn submitting_does_not_wait_for_a_pending_point(on: &dyn Subject) {
    for adapter in on.adapters() {
        let mut bench = Bench::new(open(on.backend(), &adapter, 0, &Limits::default()));
        in_time(&adapter.label(), move || {
            let timeline = abroad();
            bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
            bench.device.record(ProgramId(0), vec![upload(0), scale(all(0), all(1), 3)]).unwrap();
            bench.fill_region(|at| at);
            for value in 1..=20 {
                let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[timeline.id().at(value)]);
                let ran = bench.program(0, &[up, timeline.id().at(value)]);
                let copies = vec![Command::Copy { from: all(1), to: all(2) }];
                let copied = bench.commands(QueueKind::Compute, copies, &[]);
                // Buffers can be created while submitted work waits.
                bench.device.create_buffer(BufferId(100 + value as u32), 4096).unwrap();
                let down = bench.commands(QueueKind::Download, vec![download(2)], &[copied]);
                thread::sleep(Duration::from_millis(2));
                assert!(bench.timeline(QueueKind::Upload).value() < up.value, "it did not wait");
                assert!(bench.timeline(QueueKind::Compute).value() < ran.value, "it did not wait");
                timeline.advance(value);
                bench.wait(down);
                assert_eq!(bench.region_words()[..3], [1, 4, 7]);
                bench.fill_region(|at| at);
            }
        });
    }
    on.check();
}

/// Checks that a submission does not miss a point that passes at the same time.
pub fn points_that_pass_during_submission_are_not_missed(on: &dyn Subject) {
    for adapter in on.adapters() {
        let mut bench = Bench::new(open(on.backend(), &adapter, 0, &Limits::default()));
        let timeline = abroad();
        bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
        let moving = Arc::clone(&timeline);
        let mover = thread::spawn(move || (1..=2000).for_each(|value| moving.advance(value)));
        let mut last = None;
        for value in 1..=500 {
            let commands = vec![Command::Fill { to: buffer_range(0, 0, 16), word: value as u32 }];
            last = Some(bench.commands(QueueKind::Compute, commands, &[timeline.id().at(4 * value)]));
        }
        mover.join().unwrap();
        bench.wait(last.unwrap());
        assert_eq!(bench.words(0)[0], 500);
    }
    on.check();
}

/// Checks that, on any queue, work that waits for a failed point fails with the cause of that failure.
/// Earlier work must be unaffected.
pub fn a_failure_of_another_device_reaches_all_waiting_work(on: &dyn Subject) {
    for adapter in on.adapters() {
        let mut bench = Bench::new(open(on.backend(), &adapter, 0, &Limits::default()));
        let timeline = abroad();
        bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
        let fill = |word| vec![Command::Fill { to: buffer_range(0, 0, WORDS), word }];
        let before = bench.commands(QueueKind::Compute, fill(1), &[]);
        let held = bench.commands(QueueKind::Compute, fill(2), &[timeline.id().at(1)]);
        let behind = bench.commands(QueueKind::Compute, fill(3), &[]);
        let across = bench.commands(QueueKind::Upload, vec![upload(0)], &[behind]);
        let cause = Error::Lost { cause: "a device that failed for a test".into() };
        timeline.fail(cause.clone());
        bench.wait(before);
        for point in [held, behind, across] {
            let error = bench.outcome(point);
            assert_eq!(error.as_ref().map(Error::root), Some(&cause), "{}: {point}", adapter.label());
        }
        let late = bench.try_submit(QueueKind::Compute, Work::Commands(fill(4)), &[]);
        assert!(late.is_ok_and(|point| bench.outcome(point).is_some()), "the timeline has ended");
        same(&bench.words(0), &vec![1; WORDS], format!("{}: work behind the failure ran", adapter.label()));
    }
    on.check();
}

/// Checks that a device can be closed while its work is waiting for points that never pass.
pub fn closing_with_waits_that_never_end_does_not_hang(on: &dyn Subject) {
    for adapter in on.adapters() {
        let mut bench = Bench::new(open(on.backend(), &adapter, 0, &Limits::default()));
        let timeline = abroad();
        bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
        let mut points = Vec::new();
        for queue in QueueKind::ALL {
            let command = match queue {
                QueueKind::Compute => scale(buffer_range(0, 0, 64), buffer_range(1, 0, 64), 1),
                QueueKind::Upload => upload(0),
                QueueKind::Download => download(1),
            };
            points.push(bench.commands(queue, vec![command.clone()], &[timeline.id().at(1)]));
            points.push(bench.commands(queue, vec![command], &points.clone()));
        }
        let timelines = QueueKind::ALL.map(|queue| bench.timeline(queue));
        in_time(&adapter.label(), move || drop(bench));
        for timeline in timelines {
            assert!(timeline.failure().is_some(), "{} waits for ever", timeline.id());
        }
        timeline.advance(1);
        // The driver still works.
        let mut bench = Bench::new(open(on.backend(), &adapter, 0, &Limits::default()));
        let fill = Command::Fill { to: buffer_range(0, 0, WORDS), word: 8 };
        let filled = bench.commands(QueueKind::Compute, vec![fill], &[]);
        bench.wait(filled);
        same(&bench.words(0), &vec![8; WORDS], adapter.label());
    }
    on.check();
}

/// Checks that each device and the CPU exchange data in both directions and wait for each other's points.
pub fn points_cross_to_the_cpu_and_back(on: &dyn Subject) {
    for adapter in on.adapters() {
        let opened = || Bench::new(open(on.backend(), &adapter, 1, &Limits::default()));
        ping_pong(cpu(0), opened(), 50);
        ping_pong(opened(), cpu(0), 50);
    }
    on.check();
}

/// Checks that all pairs of devices, with the same driver or different drivers, exchange data and wait for
/// each other's points.
pub fn points_cross_between_devices(on: &dyn Subject) {
    let adapters = on.adapters();
    let rest = |at: usize| adapters[at + 1..].iter();
    let pairs: Vec<(&Adapter, &Adapter)> =
        adapters.iter().enumerate().flat_map(|(at, a)| rest(at).map(move |b| (a, b))).collect();
    if !pairs.iter().any(|(a, b)| a.driver != b.driver) {
        on.skip(&format!("two {} drivers", on.api()), "one at most");
    }
    if !pairs.iter().any(|(a, b)| a.driver == b.driver) {
        on.skip("two devices of one driver", on.api());
    }
    for (a, b) in pairs {
        let [first, second] = open_both(on.backend(), [a, b]);
        ping_pong(first, second, 50);
    }
    on.check();
}
