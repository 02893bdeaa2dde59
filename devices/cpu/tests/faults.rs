//! Faults on demand, on devices that are otherwise sound: what goes wrong is what was asked for, and nothing else does.

use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::{
    Backend, BufferId, BufferRange, Checked, Command, Device, DeviceId, Error, Faults, HostRegion, Limits,
    Point, ProgramId, QueueKind, RegionId, Submission, TimelineId, Work,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const BYTES: u64 = 4096;

fn open(id: u16) -> Box<dyn Device> {
    let backend = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(0);
    backend.open(&[(adapter, DeviceId(id))], &Limits::default()).unwrap().swap_remove(0)
}

fn whole(buffer: u32) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: 0, bytes: BYTES }
}

/// A device with buffers 0 and 1, and region 0 for two of them.
struct Bench {
    device: Checked,
    id: DeviceId,
    region: Arc<HostRegion>,
    next: [u64; 3],
}

impl Bench {
    fn new(id: u16, faults: Faults) -> Self {
        let mut device = Checked::with_faults(open(id), faults).unwrap();
        let region = Arc::new(HostRegion::new(2 * BYTES as usize).unwrap());
        device.register_region(RegionId(0), Arc::clone(&region)).unwrap();
        (0..2).for_each(|buffer| device.create_buffer(BufferId(buffer), BYTES).unwrap());
        Self { device, id: DeviceId(id), region, next: [0; 3] }
    }

    fn try_submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Result<Point, Error> {
        self.next[queue.index()] += 1;
        let signal = TimelineId { device: self.id, queue }.at(self.next[queue.index()]);
        self.device.submit(Submission { queue, work, waits: waits.into(), signal })?;
        Ok(signal)
    }

    fn submit(&mut self, queue: QueueKind, command: Command, waits: &[Point]) -> Point {
        self.try_submit(queue, Work::Commands(vec![command]), waits).unwrap()
    }

    fn upload(&mut self, waits: &[Point]) -> Point {
        let command = Command::Upload { region: RegionId(0), offset: 0, to: whole(0) };
        self.submit(QueueKind::Upload, command, waits)
    }

    fn copy(&mut self, waits: &[Point]) -> Point {
        self.submit(QueueKind::Compute, Command::Copy { from: whole(0), to: whole(1) }, waits)
    }

    fn fill(&mut self, waits: &[Point]) -> Point {
        self.submit(QueueKind::Compute, Command::Fill { to: whole(1), word: 7 }, waits)
    }

    fn download(&mut self, waits: &[Point]) -> Point {
        let command = Command::Download { from: whole(1), region: RegionId(0), offset: BYTES };
        self.submit(QueueKind::Download, command, waits)
    }

    fn wait(&self, point: Point) -> Result<bool, Error> {
        self.device.timeline(point.timeline.queue).wait(point.value, Some(PATIENCE))
    }
}

#[test]
fn without_faults_there_is_nothing_between() {
    let device = open(0);
    let own = device.timeline(QueueKind::Compute);
    let checked = Checked::with_faults(device, Faults::default()).unwrap();
    assert!(Arc::ptr_eq(&own, &checked.timeline(QueueKind::Compute)));
    // Nor is there a thread where no timeline is touched.
    let device = open(0);
    let own = device.timeline(QueueKind::Compute);
    let faults = Faults { failing_allocation: Some(1), ..Faults::default() };
    let checked = Checked::with_faults(device, faults).unwrap();
    assert!(Arc::ptr_eq(&own, &checked.timeline(QueueKind::Compute)));
}

#[test]
fn faults_are_plain_data() {
    let faults = Faults { lost_at_command: Some(3), delay_us: [1, 2, 3], seed: 9, ..Faults::default() };
    let json = serde_json::to_string(&faults).unwrap();
    assert_eq!(serde_json::from_str::<Faults>(&json).unwrap(), faults);
    assert_eq!(serde_json::from_str::<Faults>("{}").unwrap(), Faults::default());
}

#[test]
fn allocations_fail_with_sizes_and_a_smaller_one_works() {
    // Two are the bench's own.
    let faults = Faults { failing_allocation: Some(3), ..Faults::default() };
    let mut b = Bench::new(0, faults);
    let refused = b.device.create_buffer(BufferId(2), 5000);
    assert_eq!(refused, Err(Error::OutOfMemory { wanted: 5000, free: Some(2500) }));
    b.device.create_buffer(BufferId(2), 2500).unwrap();

    let faults = Faults { largest_allocation_bytes: Some(10_000), ..Faults::default() };
    let mut b = Bench::new(0, faults);
    for _ in 0..2 {
        let refused = b.device.create_buffer(BufferId(2), 10_001);
        assert_eq!(refused, Err(Error::OutOfMemory { wanted: 10_001, free: Some(10_000) }));
    }
    b.device.create_buffer(BufferId(2), 10_000).unwrap();
}

#[test]
fn a_refused_submission_poisons_its_queue() {
    for delay_us in [[0; 3], [100; 3]] {
        let mut b = Bench::new(0, Faults { failing_submission: Some(2), delay_us, ..Faults::default() });
        let first = b.upload(&[]);
        assert_eq!(b.wait(first), Ok(true));
        let refused = b.try_submit(QueueKind::Compute, Work::Commands(vec![]), &[first]);
        assert!(matches!(&refused, Err(Error::Api { call, .. }) if call.contains("submit")), "{refused:?}");
        assert!(b.device.timeline(QueueKind::Compute).failure().is_some());
        let again = b.upload(&[]);
        assert_eq!(b.wait(again), Ok(true), "the other queues go on");
    }
}

#[test]
fn a_device_is_lost_at_the_command_that_was_named() {
    let mut b = Bench::new(0, Faults { lost_at_command: Some(6), ..Faults::default() });
    b.device.record(ProgramId(0), vec![Command::Fill { to: whole(1), word: 1 }; 2]).unwrap();
    let uploaded = b.upload(&[]);
    let program = || Work::Program(ProgramId(0));
    let once = b.try_submit(QueueKind::Compute, program(), &[uploaded]).unwrap();
    assert_eq!(b.wait(once), Ok(true));
    let twice = b.try_submit(QueueKind::Compute, program(), &[]).unwrap();
    assert_eq!(b.wait(twice), Ok(true), "five commands");
    let late = b.try_submit(QueueKind::Compute, program(), &[]).unwrap();
    let error = b.wait(late).unwrap_err();
    assert!(matches!(error.root(), Error::Lost { .. }), "{error}");
    for queue in QueueKind::ALL {
        let end = TimelineId { device: DeviceId(0), queue }.at(100);
        assert!(matches!(b.wait(end), Err(error) if matches!(error.root(), Error::Lost { .. })), "{queue:?}");
    }
    assert!(matches!(b.device.create_buffer(BufferId(5), 1), Err(Error::Lost { .. })));
    assert!(matches!(b.device.destroy_buffer(BufferId(0)), Err(Error::Lost { .. })));
    assert!(b.device.leaks().is_empty());
    assert!(matches!(b.try_submit(QueueKind::Upload, Work::Commands(vec![]), &[]), Err(Error::Lost { .. })));
}

#[test]
fn a_slow_queue_is_late_with_each_point_and_holds_back_what_waits() {
    const DELAY: Duration = Duration::from_millis(30);
    let mut b = Bench::new(0, Faults { delay_us: [0, 30_000, 0], ..Faults::default() });
    let begun = Instant::now();
    let filled = b.fill(&[]);
    assert_eq!(b.wait(filled), Ok(true));
    let (first, second) = (b.upload(&[]), b.upload(&[]));
    let copied = b.copy(&[second]);
    assert_eq!(b.wait(first), Ok(true));
    assert!(begun.elapsed() >= DELAY);
    assert_eq!(b.wait(copied), Ok(true));
    assert!(begun.elapsed() >= 2 * DELAY, "one after the other, and the copy after both");

    // Another device waits as long.
    let mut other = Bench::new(1, Faults::default());
    other.device.import_timeline(b.device.timeline(QueueKind::Upload)).unwrap();
    let begun = Instant::now();
    let third = b.upload(&[]);
    let waited = other.fill(&[third]);
    assert_eq!(other.wait(waited), Ok(true));
    assert!(begun.elapsed() >= DELAY);
}

/// Data stays right however the queues overtake each other, and they do.
#[test]
fn random_delays_change_the_order_and_no_data() {
    let mut overtaken = 0;
    for seed in 0..4 {
        let mut b = Bench::new(0, Faults { random_delay_us: 2000, seed, ..Faults::default() });
        let (send, heard) = channel();
        for queue in QueueKind::ALL {
            let send = send.clone();
            b.device.timeline(queue).subscribe(move |progress| {
                let _ = send.send((queue, progress.value));
            });
        }
        for round in 0..8u8 {
            b.region.write(0..BYTES as usize).unwrap().fill(round + 1);
            let (uploaded, filled) = (b.upload(&[]), b.fill(&[]));
            for point in [uploaded, filled] {
                assert_eq!(b.wait(point), Ok(true));
            }
            let copied = b.copy(&[uploaded]);
            let downloaded = b.download(&[copied]);
            assert_eq!(b.wait(downloaded), Ok(true));
            let bytes = b.region.read(BYTES as usize..2 * BYTES as usize).unwrap();
            assert!(bytes.iter().all(|&byte| byte == round + 1), "seed {seed}, round {round}");
        }
        let order: Vec<_> =
            heard.try_iter().filter(|(_, value)| *value > 0).map(|(queue, _)| queue).collect();
        // Uploads are submitted before fills; where a fill is told of first, it has overtaken.
        let rounds = order.chunks(4);
        overtaken += rounds.filter(|round| round.first() == Some(&QueueKind::Compute)).count();
    }
    assert!((2..30).contains(&overtaken), "{overtaken} of 32");
}

#[test]
fn a_device_that_is_closed_while_it_is_late_ends_at_once() {
    let mut b = Bench::new(0, Faults { delay_us: [0, 60_000_000, 0], ..Faults::default() });
    let uploaded = b.upload(&[]);
    b.copy(&[uploaded]);
    let timeline = b.device.timeline(QueueKind::Upload);
    let begun = Instant::now();
    drop(b);
    assert!(begun.elapsed() < PATIENCE);
    assert!(matches!(timeline.failure(), Some(Error::Closed { .. })));
}
