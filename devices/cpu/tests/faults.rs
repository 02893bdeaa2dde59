//! Tests of fault injection on working devices: it must cause exactly the requested faults.

use device_bench::{Bench, TIMEOUT, all, buffer_range};
use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::{
    Backend, BufferId, BufferRange, Checked, Command, CopyFault, CopyFaultKind, Device, DeviceId, Error,
    Faults, FaultyCopies, Limits, Point, ProgramId, QueueKind, RegionId, ShortCopies, Submission, Throttle,
    TimelineId, Timing, Work,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const BYTES: u64 = 4096;

fn open(id: u16) -> Box<dyn Device> {
    let backend = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(0);
    backend.open(&[(adapter, DeviceId(id))], &Limits::default()).unwrap().swap_remove(0)
}

fn faulty(id: u16, faults: Faults) -> Bench {
    Bench::new(Checked::with_faults(open(id), faults).unwrap())
}

fn throttled(throttle: Throttle) -> Bench {
    Bench::new(Checked::new(throttle.over(open(0)).unwrap()))
}

fn whole(buffer: u32) -> BufferRange {
    buffer_range(buffer, 0, BYTES as usize / 4)
}

fn upload(b: &mut Bench, waits: &[Point]) -> Point {
    let command = Command::Upload { region: RegionId(0), offset: 0, to: whole(0) };
    b.commands(QueueKind::Upload, vec![command], waits)
}

fn copy(b: &mut Bench, waits: &[Point]) -> Point {
    b.commands(QueueKind::Compute, vec![Command::Copy { from: whole(0), to: whole(1) }], waits)
}

fn fill(b: &mut Bench, waits: &[Point]) -> Point {
    b.commands(QueueKind::Compute, vec![Command::Fill { to: whole(1), word: 7 }], waits)
}

fn download(b: &mut Bench, waits: &[Point]) -> Point {
    let command = Command::Download { from: whole(1), region: RegionId(0), offset: BYTES };
    b.commands(QueueKind::Download, vec![command], waits)
}

#[test]
fn without_faults_no_layer_is_added() {
    let device = open(0);
    let own = device.timeline(QueueKind::Compute);
    let checked = Checked::with_faults(device, Faults::default()).unwrap();
    assert!(Arc::ptr_eq(&own, &checked.timeline(QueueKind::Compute)));
    // Fault injection starts a thread only for faults that affect timelines.
    let device = open(0);
    let own = device.timeline(QueueKind::Compute);
    let faults = Faults { failing_allocation: Some(1), ..Faults::default() };
    let checked = Checked::with_faults(device, faults).unwrap();
    assert!(Arc::ptr_eq(&own, &checked.timeline(QueueKind::Compute)));
}

#[test]
fn faults_round_trip_through_json() {
    let faults = Faults { lost_at_command: Some(3), delay_us: [1, 2, 3], seed: 9, ..Faults::default() };
    let json = serde_json::to_string(&faults).unwrap();
    assert_eq!(serde_json::from_str::<Faults>(&json).unwrap(), faults);
    assert_eq!(serde_json::from_str::<Faults>("{}").unwrap(), Faults::default());
}

#[test]
fn allocations_fail_with_sizes_and_a_smaller_one_works() {
    // The bench itself makes four allocations of 16 KiB each.
    let faults = Faults { failing_allocation: Some(5), ..Faults::default() };
    let mut b = faulty(0, faults);
    let refused = b.device.create_buffer(BufferId(9), 50_000);
    assert_eq!(refused, Err(Error::OutOfMemory { wanted: 50_000, free: Some(25_000) }));
    b.device.create_buffer(BufferId(9), 25_000).unwrap();

    let faults = Faults { largest_allocation_bytes: Some(20_000), ..Faults::default() };
    let mut b = faulty(0, faults);
    for _ in 0..2 {
        let refused = b.device.create_buffer(BufferId(9), 20_001);
        assert_eq!(refused, Err(Error::OutOfMemory { wanted: 20_001, free: Some(20_000) }));
    }
    b.device.create_buffer(BufferId(9), 20_000).unwrap();
}

#[test]
fn short_copies_leave_out_the_last_byte() {
    let word = 0x0102_0304;
    // The bench clears its region with 0xe7 before it downloads a buffer.
    for (short, last) in [(ShortCopies::Shared, 0x0002_0304), (ShortCopies::All, 0xe702_0304)] {
        let mut b = faulty(0, Faults { short_copies: Some(short), ..Faults::default() });
        let fills = [(0, word), (1, 0)].map(|(buffer, word)| Command::Fill { to: all(buffer), word });
        let filled = b.commands(QueueKind::Compute, fills.into(), &[]);
        let copy = Command::Copy { from: all(0), to: all(1) };
        let copied = b.commands(QueueKind::Compute, vec![copy], &[filled]);
        b.wait(copied);
        let words = b.words(1);
        assert_eq!(words[words.len() - 2..], [word, last], "{short:?}");
    }
}

/// Returns a device whose second copy of at least 8 bytes has a fault.
fn second_copy(copies: FaultyCopies, kind: CopyFaultKind) -> Bench {
    let fault = CopyFault { kind, copies, least_bytes: 8, after: 1, most: Some(1) };
    faulty(0, Faults { copy_fault: Some(fault), ..Faults::default() })
}

/// Copies buffer 0 to buffer 1, with `copies`. Returns the first and the last word of buffer 1, which were
/// 7 before, unless they come from the region. The words of buffer 0 are their indices plus `from`.
fn copied_words(b: &mut Bench, copies: FaultyCopies, from: u32) -> [u32; 2] {
    b.fill_region(|at| at + from);
    let uploaded = b.commands(QueueKind::Compute, vec![Command::Fill { to: all(1), word: 7 }], &[]);
    let command = match copies {
        FaultyCopies::Uploads => Command::Upload { region: RegionId(0), offset: 0, to: all(1) },
        FaultyCopies::Shared => {
            let bytes = Command::Upload { region: RegionId(0), offset: 0, to: all(0) };
            let point = b.commands(QueueKind::Upload, vec![bytes], &[]);
            b.wait(point);
            Command::Copy { from: all(0), to: all(1) }
        }
        FaultyCopies::Downloads => unreachable!("tested through the region"),
    };
    let point = b.commands(QueueKind::Upload, vec![command], &[uploaded]);
    b.wait(point);
    let words = b.words(1);
    [words[0], words[words.len() - 1]]
}

#[test]
fn the_requested_copies_write_wrong_bytes_or_none() {
    let last = (device_bench::WORDS - 1) as u32;
    for copies in [FaultyCopies::Shared, FaultyCopies::Uploads] {
        for (kind, second) in [(CopyFaultKind::Flipped, [20, 20]), (CopyFaultKind::Stale, [7, 7])] {
            let mut b = second_copy(copies, kind);
            // A short copy does not count.
            let word = Command::Copy { from: buffer_range(0, 0, 1), to: buffer_range(2, 0, 1) };
            let point = b.commands(QueueKind::Compute, vec![word], &[]);
            b.wait(point);
            let words = [10, 20, 30].map(|from| copied_words(&mut b, copies, from));
            assert_eq!(words, [[10, 10 + last], second, [30, 30 + last]], "{kind:?} {copies:?}");
        }
    }
    for (kind, second) in [(CopyFaultKind::Flipped, 5), (CopyFaultKind::Stale, 0xe7e7_e7e7)] {
        let mut b = second_copy(FaultyCopies::Downloads, kind);
        b.fill_region(|at| at + 5);
        let uploaded = b.commands(QueueKind::Upload, vec![device_bench::upload(3)], &[]);
        b.wait(uploaded);
        let lasts = [0, 1, 2].map(|_| *b.words(3).last().unwrap());
        assert_eq!(lasts, [last + 5, second, last + 5], "{kind:?}");
    }
}

#[test]
fn a_late_copy_ends_and_an_endless_one_does_not() {
    const LATE: Duration = Duration::from_millis(40);
    let us = LATE.as_micros() as u64;
    let mut b = second_copy(FaultyCopies::Downloads, CopyFaultKind::Late { us });
    for is_late in [false, true, false] {
        let begun = Instant::now();
        let downloaded = download(&mut b, &[]);
        b.wait(downloaded);
        assert!(!is_late || begun.elapsed() >= LATE);
    }
    let mut b = second_copy(FaultyCopies::Downloads, CopyFaultKind::Endless);
    let first = download(&mut b, &[]);
    b.wait(first);
    let second = download(&mut b, &[]);
    assert_eq!(b.timeline(QueueKind::Download).wait(second.value, Some(LATE)), Ok(false));
    // Other queues go on.
    let filled = fill(&mut b, &[]);
    b.wait(filled);
    drop(b);
}

#[test]
fn a_failing_copy_fails_its_queue_after_earlier_work() {
    let mut b = second_copy(FaultyCopies::Downloads, CopyFaultKind::Failing);
    let [first, second] = [0, 1].map(|_| download(&mut b, &[]));
    b.wait(first);
    let error = b.outcome(second).unwrap();
    assert!(matches!(error.root(), Error::Api { call, .. } if call.contains("copy")), "{error}");
    let filled = fill(&mut b, &[]);
    b.wait(filled);
}

#[test]
fn a_refused_copy_poisons_no_queue() {
    let mut b = second_copy(FaultyCopies::Downloads, CopyFaultKind::Refused);
    let first = download(&mut b, &[]);
    let command = Command::Download { from: whole(1), region: RegionId(0), offset: BYTES };
    let submission = |commands| Submission {
        queue: QueueKind::Download,
        work: Work::Commands(commands),
        waits: vec![first],
        signal: first.timeline.at(first.value + 1),
        is_timed: true,
    };
    let refused = b.device.submit(submission(vec![command]));
    assert!(matches!(&refused, Err(Error::Refused { .. })), "{refused:?}");
    // Other work may signal the same point.
    b.device.submit(submission(Vec::new())).unwrap();
    b.wait(first.timeline.at(first.value + 1));
}

#[test]
fn a_refused_submission_poisons_its_queue() {
    for delay_us in [[0; 3], [100; 3]] {
        let mut b = faulty(0, Faults { failing_submission: Some(2), delay_us, ..Faults::default() });
        let first = upload(&mut b, &[]);
        b.wait(first);
        let refused = b.try_submit(QueueKind::Compute, Work::Commands(vec![]), &[first]);
        assert!(matches!(&refused, Err(Error::Api { call, .. }) if call.contains("submit")), "{refused:?}");
        assert!(b.device.timeline(QueueKind::Compute).failure().is_some());
        let again = upload(&mut b, &[]);
        b.wait(again);
    }
}

#[test]
fn a_device_is_lost_at_the_requested_command() {
    let mut b = faulty(0, Faults { lost_at_command: Some(6), ..Faults::default() });
    b.device.record(ProgramId(0), vec![Command::Fill { to: whole(1), word: 1 }; 2]).unwrap();
    let uploaded = upload(&mut b, &[]);
    let program = || Work::Program(ProgramId(0));
    let once = b.try_submit(QueueKind::Compute, program(), &[uploaded]).unwrap();
    b.wait(once);
    let twice = b.try_submit(QueueKind::Compute, program(), &[]).unwrap();
    b.wait(twice);
    let late = b.try_submit(QueueKind::Compute, program(), &[]).unwrap();
    let error = b.outcome(late).unwrap();
    assert!(matches!(error.root(), Error::Lost { .. }), "{error}");
    for queue in QueueKind::ALL {
        let end = TimelineId { device: DeviceId(0), queue }.at(100);
        assert!(matches!(b.outcome(end).unwrap().root(), Error::Lost { .. }), "{queue:?}");
    }
    assert!(matches!(b.device.create_buffer(BufferId(5), 1), Err(Error::Lost { .. })));
    assert!(matches!(b.device.destroy_buffer(BufferId(0)), Err(Error::Lost { .. })));
    assert!(b.device.leaks().is_empty());
    assert!(matches!(b.try_submit(QueueKind::Upload, Work::Commands(vec![]), &[]), Err(Error::Lost { .. })));
}

#[test]
fn a_slow_queue_delays_each_point_and_its_waiters() {
    const DELAY: Duration = Duration::from_millis(30);
    let mut b = faulty(0, Faults { delay_us: [0, 30_000, 0], ..Faults::default() });
    let begun = Instant::now();
    let filled = fill(&mut b, &[]);
    b.wait(filled);
    let (first, second) = (upload(&mut b, &[]), upload(&mut b, &[]));
    let copied = copy(&mut b, &[second]);
    b.wait(first);
    assert!(begun.elapsed() >= DELAY);
    b.wait(copied);
    assert!(begun.elapsed() >= 2 * DELAY, "the delays add up, and the copy waits for both");

    // Another device that waits for the point is delayed by the same time.
    let mut other = faulty(1, Faults::default());
    other.device.import_timeline(b.device.timeline(QueueKind::Upload)).unwrap();
    let begun = Instant::now();
    let third = upload(&mut b, &[]);
    let waited = fill(&mut other, &[third]);
    other.wait(waited);
    assert!(begun.elapsed() >= DELAY);
}

/// Checks that random delays let queues overtake each other, and that the data stays correct.
#[test]
fn random_delays_change_the_order_but_not_the_data() {
    let mut overtaken = 0;
    for seed in 0..4 {
        let mut b = faulty(0, Faults { random_delay_us: 2000, seed, ..Faults::default() });
        let (send, heard) = channel();
        for queue in QueueKind::ALL {
            let send = send.clone();
            b.device.timeline(queue).subscribe(move |progress| {
                let _ = send.send((queue, progress.value));
            });
        }
        for round in 0..8u8 {
            b.region.write(0..BYTES as usize).unwrap().fill(round + 1);
            let (uploaded, filled) = (upload(&mut b, &[]), fill(&mut b, &[]));
            for point in [uploaded, filled] {
                b.wait(point);
            }
            let copied = copy(&mut b, &[uploaded]);
            let downloaded = download(&mut b, &[copied]);
            b.wait(downloaded);
            let bytes = b.region.read(BYTES as usize..2 * BYTES as usize).unwrap();
            assert!(bytes.iter().all(|&byte| byte == round + 1), "seed {seed}, round {round}");
        }
        let order: Vec<_> =
            heard.try_iter().filter(|(_, value)| *value > 0).map(|(queue, _)| queue).collect();
        // Uploads are submitted before fills. If a fill is reported first, it has overtaken an upload.
        let rounds = order.chunks(4);
        overtaken += rounds.filter(|round| round.first() == Some(&QueueKind::Compute)).count();
    }
    assert!((2..30).contains(&overtaken), "{overtaken} of 32");
}

#[test]
fn closing_a_delayed_device_ends_it_at_once() {
    let mut b = faulty(0, Faults { delay_us: [0, 60_000_000, 0], ..Faults::default() });
    let uploaded = upload(&mut b, &[]);
    copy(&mut b, &[uploaded]);
    let timeline = b.device.timeline(QueueKind::Upload);
    let begun = Instant::now();
    drop(b);
    assert!(begun.elapsed() < TIMEOUT);
    assert!(matches!(timeline.failure(), Some(Error::Closed { .. })));
}

#[test]
fn an_empty_throttle_leaves_the_device_unchanged() {
    let device = open(0);
    let own = device.timeline(QueueKind::Compute);
    let device = Throttle::default().over(device).unwrap();
    assert!(Arc::ptr_eq(&own, &device.timeline(QueueKind::Compute)));
}

#[test]
fn a_device_with_faults_keeps_its_slow_link() {
    let throttle = Throttle { link_bytes_per_s: Some(1), ..Throttle::default() };
    let faults = Faults { failing_allocation: Some(9), ..Faults::default() };
    let device = Checked::with_faults(throttle.over(open(0)).unwrap(), faults).unwrap();
    let [own, link] =
        [Device::timeline, Device::timeline_for_others].map(|of| of(&device, QueueKind::Download));
    assert!(!Arc::ptr_eq(&own, &link));
}

#[test]
fn a_duty_cycle_counts_rest_as_work_and_delays_waiters() {
    let mut b = throttled(Throttle { duty_percent: Some(25), ..Throttle::default() });
    b.region.write(0..BYTES as usize).unwrap().fill(7);
    let uploaded = upload(&mut b, &[]);
    let copied = copy(&mut b, &[uploaded]);
    let downloaded = download(&mut b, &[copied]);
    b.wait(downloaded);
    assert!(b.region.read(BYTES as usize..2 * BYTES as usize).unwrap().iter().all(|&byte| byte == 7));
    let mut timings = Vec::new();
    b.device.take_timings(&mut timings);
    let lasted_ns = |timing: &Timing| timing.end_ns - timing.start_ns;
    let copy = timings.iter().find(|timing| timing.point == copied).unwrap();
    assert_eq!(lasted_ns(copy) % 4, 0, "four times the work: {timings:?}");
    assert!(lasted_ns(copy) > 0);
}

#[test]
fn a_slow_link_delays_only_other_devices() {
    const TRANSFER: Duration = Duration::from_millis(40);
    let link_bytes_per_s = Some(BYTES * 1000 / TRANSFER.as_millis() as u64);
    let mut b = throttled(Throttle { link_bytes_per_s, ..Throttle::default() });
    let link = b.device.timeline_for_others(QueueKind::Download);
    assert_eq!(link.id(), b.device.timeline(QueueKind::Download).id());
    let mut other = faulty(1, Faults::default());
    other.device.import_timeline(Arc::clone(&link)).unwrap();
    let begun = Instant::now();
    let (first, second) = (download(&mut b, &[]), download(&mut b, &[]));
    let waited = fill(&mut other, &[second]);
    b.wait(second);
    let after = copy(&mut b, &[second]);
    b.wait(after);
    assert_eq!(link.wait(first.value, Some(TIMEOUT)), Ok(true));
    assert!(begun.elapsed() >= TRANSFER);
    other.wait(waited);
    assert!(begun.elapsed() >= 2 * TRANSFER, "one transfer after the other");
}

#[test]
fn failures_pass_a_slow_link_and_closing_ends_a_long_transfer() {
    let mut b = throttled(Throttle { link_bytes_per_s: Some(1), ..Throttle::default() });
    let downloaded = download(&mut b, &[]);
    b.wait(downloaded);
    let link = b.device.timeline_for_others(QueueKind::Download);
    assert_eq!(link.value(), 0, "4096 s remain");
    let begun = Instant::now();
    drop(b);
    assert!(begun.elapsed() < TIMEOUT);
    assert!(matches!(link.failure(), Some(Error::Closed { .. })));

    let faults = Faults { failing_submission: Some(1), ..Faults::default() };
    let faulty = Checked::with_faults(open(0), faults).unwrap();
    let throttle = Throttle { link_bytes_per_s: Some(1), ..Throttle::default() };
    let mut b = Bench::new(Checked::new(throttle.over(Box::new(faulty)).unwrap()));
    let command = Command::Download { from: whole(1), region: RegionId(0), offset: BYTES };
    let refused = b.try_submit(QueueKind::Download, Work::Commands(vec![command]), &[]);
    assert!(refused.is_err());
    let link = b.device.timeline_for_others(QueueKind::Download);
    assert!(link.wait(1, Some(TIMEOUT)).is_err());
}
