//! Tests of the device on top of a fake driver: order, programs, points of other devices, failures, and use
//! after free. The backends' tests and the conformance suite cover real drivers.

mod fake;

use crate::{Pins, open};
use device_bench::{SCALE, all, download, in_time, upload};
use fake::{Fake, TOTAL_BYTES};
use ragtag_hal::{
    Access, Adapter, AdapterKind, Binding, BufferId, BufferRange, Caps, Checked, Command, Device,
    DeviceFunction, DeviceId, Dispatch, EntryAbi, Error, Gemm, GemmEntry, GemmLibrary, HeapKind, HostPages,
    KernelLanguage, Limits, LinkedEntry, Memory, MemorySource, Module, ModuleId, ModuleSource,
    PhysicalIdentity, Point, ProgramId, QueueKind, RegionId, Result, SharedMemory, SharedSemaphore,
    Submission, TextEntry, Throttle, Timeline, TimelineId, Work,
};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

/// UUID of the fake device.
const UUID: [u8; 16] = [7; 16];

fn adapter() -> Adapter {
    let free = Some(TOTAL_BYTES);
    Adapter {
        backend: "fake".into(),
        index: 0,
        name: "threads".into(),
        driver: "made up".into(),
        kind: AdapterKind::Discrete,
        identity: PhysicalIdentity { pci: None, uuid: Some(UUID) },
        condition: None,
        memory: vec![Memory {
            heap: HeapKind::Device,
            total_bytes: TOTAL_BYTES,
            free_bytes: free,
            source: MemorySource::Api,
        }],
        caps: Caps {
            // The test bench of `ragtag-bench` has no kernel in this language.
            languages: [KernelLanguage::CudaC].into(),
            max_allocation_bytes: TOTAL_BYTES,
            max_binding_bytes: TOTAL_BYTES,
            binding_alignment_bytes: 16,
            max_work_group_items: 1024,
            local_memory_bytes: 48 << 10,
            gemm: Some(GemmLibrary {
                name: "made up".into(),
                version: "1".into(),
                workspace_bytes: 0,
                preferred: false,
            }),
            ..Caps::default()
        },
    }
}

/// A kernel that waits until the test releases it.
static HOLD: EntryAbi = EntryAbi { name: "hold", bindings: &[], constants: 0, extents: |_, _| {} };

const TEXT: &str = "scale 4\nhold 0";

fn module(text: &str, names: &[&str], work_group: [u32; 3]) -> Module {
    let entry = |name: &&str| TextEntry {
        text: text.into(),
        function: DeviceFunction { name: name.to_string(), work_group, dynamic_local_bytes: 0 },
    };
    let source =
        ModuleSource::Text { language: KernelLanguage::CudaC, entries: names.iter().map(entry).collect() };
    let abi = |name: &&str| if *name == "hold" { &HOLD } else { &SCALE };
    Module { name: "test".into(), entries: names.iter().map(abi).collect(), source }
}

fn scale(from: u32, to: u32, factor: u32) -> Command {
    device_bench::scale(all(from), all(to), factor)
}

fn hold() -> Command {
    let (bindings, constants) = (vec![], vec![]);
    Command::Dispatch(Dispatch { module: ModuleId(0), entry: 1, bindings, constants, grid: [1, 1, 1] })
}

fn fill(buffer: u32, word: u32) -> Command {
    Command::Fill { to: all(buffer), word }
}

/// A test bench with the fake driver. Module 0 contains `scale` and `hold`.
struct Bench {
    fake: Fake,
    bench: device_bench::Bench,
}

impl Deref for Bench {
    type Target = device_bench::Bench;

    fn deref(&self) -> &Self::Target {
        &self.bench
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.bench
    }
}

impl Bench {
    fn new() -> Self {
        Self::of(Fake::default(), &Arc::default(), 0)
    }

    fn of(fake: Fake, pins: &Arc<Pins<Fake>>, id: u16) -> Self {
        Self::throttled(fake, pins, id, Throttle::default())
    }

    fn throttled(fake: Fake, pins: &Arc<Pins<Fake>>, id: u16, throttle: Throttle) -> Self {
        let driver = Arc::new(fake.clone());
        let device = open(DeviceId(id), adapter(), driver, Arc::clone(pins), &Limits::default()).unwrap();
        let device = Checked::new(throttle.over(Box::new(device)).unwrap());
        let mut bench = device_bench::Bench::new(device);
        bench.device.create_module(ModuleId(0), &module(TEXT, &["scale", "hold"], [64, 1, 1])).unwrap();
        Self { fake, bench }
    }

    #[track_caller]
    fn compute(&mut self, commands: Vec<Command>, waits: &[Point]) -> Point {
        self.commands(QueueKind::Compute, commands, waits)
    }

    fn passed(&self, point: Point) -> bool {
        self.device.timeline(point.timeline.queue).value() >= point.value
    }

    #[track_caller]
    fn outcome(&self, point: Point) -> Option<Error> {
        self.bench.outcome(point).map(|error| error.root().clone())
    }

    /// Returns the word that fills a buffer. Panics if the words of the buffer differ.
    #[track_caller]
    fn word(&mut self, buffer: u32) -> u32 {
        let point = self.commands(QueueKind::Download, vec![download(buffer)], &[]);
        self.wait(point);
        self.region_word()
    }

    /// Returns the word that fills the region. Panics if the words of the region differ.
    #[track_caller]
    fn region_word(&self) -> u32 {
        let words = self.region_words();
        assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
        words[0]
    }

    /// Closes the device and asserts that nothing leaked.
    #[track_caller]
    fn close(self) {
        let Self { fake, bench } = self;
        let region = Arc::clone(&bench.region);
        in_time("closing", move || drop(bench));
        assert_eq!(fake.left(), (0, 0, 0, vec![]));
        assert_eq!(Arc::strong_count(&region), 1);
    }
}

fn abroad() -> Arc<Timeline> {
    Timeline::new(TimelineId { device: DeviceId(900), queue: QueueKind::Download })
}

fn lost() -> Error {
    Error::Lost { cause: "unplugged for a test".into() }
}

#[test]
fn points_order_the_work_of_streams() {
    let mut bench = Bench::new();
    for round in 1..200 {
        bench.fill_region(|_| round);
        let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
        let computed = bench.compute(vec![fill(1, 0), scale(0, 1, 3), scale(1, 2, 5)], &[up]);
        let down = bench.commands(QueueKind::Download, vec![download(2)], &[computed]);
        bench.wait(down);
        assert_eq!(bench.region_word(), 5 * (3 * round + 1) + 1);
    }
    bench.close();
}

/// Checks that, with a duty cycle of one quarter, every waiter sees the work take four times as long.
#[test]
fn a_duty_cycle_delays_all_waiters() {
    let throttle = Throttle { duty_percent: Some(25), ..Throttle::default() };
    let mut bench = Bench::throttled(Fake::default(), &Arc::default(), 0, throttle);
    let start = std::time::Instant::now();
    let first = bench.compute(vec![hold(), fill(0, 7)], &[]);
    let second = bench.compute(vec![scale(0, 1, 3)], &[]);
    let down = bench.commands(QueueKind::Download, vec![download(1)], &[second]);
    std::thread::sleep(Duration::from_millis(200));
    bench.fake.release();
    bench.wait(first);
    // The expected time is 800 ms. The kernel may have started late on a busy machine.
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
    bench.wait(down);
    assert_eq!(bench.region_word(), 3 * 7 + 1);
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    let of = |point| timings.iter().find(|timing| timing.point == point).copied();
    if let (Some(first), Some(second)) = (of(first), of(second)) {
        assert!(second.start_ns >= first.end_ns, "nothing starts during a rest: {timings:?}");
        assert!(first.end_ns - first.start_ns >= 300_000_000, "{timings:?}");
    }
    bench.close();
}

/// Checks that a device closes immediately, even during a long rest period of its duty cycle.
#[test]
fn a_resting_device_closes_at_once() {
    let throttle = Throttle { duty_percent: Some(1), ..Throttle::default() };
    let mut bench = Bench::throttled(Fake::default(), &Arc::default(), 0, throttle);
    bench.compute(vec![hold()], &[]);
    std::thread::sleep(Duration::from_secs(1));
    bench.fake.release();
    let start = std::time::Instant::now();
    bench.close();
    assert!(start.elapsed() < Duration::from_secs(60), "99 s of rest remain");
}

#[test]
fn a_submission_does_not_block_the_caller_or_other_queues() {
    let mut bench = Bench::new();
    let held = bench.compute(vec![hold(), fill(0, 7)], &[]);
    let behind = bench.commands(QueueKind::Download, vec![download(0)], &[held]);
    let beside = bench.commands(QueueKind::Upload, vec![], &[]);
    bench.wait(beside);
    assert!(!bench.passed(held) && !bench.passed(behind));
    bench.fake.release();
    bench.wait(behind);
    assert_eq!(bench.region_word(), 7);
    bench.close();
}

#[test]
fn programs_are_graphs_that_do_not_change() {
    let mut bench = Bench::new();
    bench.device.record(ProgramId(0), vec![upload(0), scale(0, 1, 3), scale(1, 2, 1), download(2)]).unwrap();
    let launches = bench.fake.calls("launch");
    for round in 1..10 {
        bench.fill_region(|_| round);
        let ran = bench.program(0, &[]);
        bench.wait(ran);
        assert_eq!(bench.region_word(), 3 * round + 2);
    }
    assert_eq!((bench.fake.calls("play"), bench.fake.calls("launch")), (9, launches));
    bench.device.destroy_program(ProgramId(0)).unwrap();
    assert_eq!(bench.fake.left().2, 0, "its graph is destroyed with it");
    bench.close();
}

#[test]
fn programs_that_cannot_be_captured_still_run() {
    for call in ["begin_capture", "launch", "end_capture"] {
        let mut bench = Bench::new();
        bench.fake.refuse(call, Error::Api { call: call.into(), code: 900 });
        bench.device.record(ProgramId(0), vec![fill(0, 4), scale(0, 1, 3), scale(1, 2, 1)]).unwrap();
        for _ in 0..3 {
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            assert_eq!(bench.word(2), 14);
        }
        assert_eq!(bench.fake.calls("play"), 0, "{call}");
        bench.close();
    }
}

#[test]
fn work_that_waits_for_another_device_is_enqueued_when_the_point_passes() {
    let mut bench = Bench::new();
    let timeline = abroad();
    bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
    let before = bench.compute(vec![fill(0, 1)], &[]);
    let held = bench.compute(vec![fill(0, 2)], &[timeline.id().at(1)]);
    let behind = bench.compute(vec![scale(0, 1, 10)], &[]);
    let across = bench.commands(QueueKind::Download, vec![download(1)], &[behind]);
    bench.wait(before);
    std::thread::sleep(Duration::from_millis(5));
    assert!(!bench.passed(held) && bench.fake.calls("fill") == 1, "nothing of it is enqueued");
    timeline.advance(1);
    bench.wait(across);
    assert_eq!(bench.region_word(), 21);
    bench.close();
}

#[test]
fn work_that_waits_for_a_failed_device_is_never_enqueued() {
    let mut bench = Bench::new();
    let timeline = abroad();
    bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
    let before = bench.compute(vec![fill(0, 1)], &[]);
    let held = bench.compute(vec![fill(0, 2)], &[timeline.id().at(1)]);
    let behind = bench.compute(vec![fill(0, 3)], &[]);
    let across = bench.commands(QueueKind::Upload, vec![upload(0)], &[behind]);
    timeline.fail(lost());
    bench.wait(before);
    for point in [held, behind, across] {
        assert_eq!(bench.outcome(point), Some(lost()), "{point}");
    }
    assert_eq!((bench.fake.calls("fill"), bench.fake.calls("upload")), (1, 0));
    assert_eq!(bench.word(0), 1, "the third queue continues");
    bench.close();
}

#[test]
fn work_waits_on_the_device_for_another_device_of_its_api() {
    let (mut first, mut second) = (Bench::new(), Bench::of(Fake::default(), &Arc::default(), 1));
    let timeline = first.device.timeline(QueueKind::Compute);
    let semaphore = second.device.create_semaphore().unwrap();
    let foreign = first.device.raise_semaphore(QueueKind::Compute, &SharedSemaphore { handle: Arc::new(()) });
    assert!(matches!(foreign, Err(Error::Unsupported { .. })), "{foreign:?}");
    first.device.raise_semaphore(QueueKind::Compute, &semaphore).unwrap();
    assert!(second.device.await_semaphore(timeline.id(), &semaphore).is_err(), "not imported yet");
    second.device.import_timeline(timeline).unwrap();
    second.device.await_semaphore(first.device.timeline(QueueKind::Compute).id(), &semaphore).unwrap();
    let held = first.compute(vec![hold()], &[]);
    let waiting = second.compute(vec![fill(0, 2)], &[held]);
    assert_eq!(second.fake.calls("fill"), 1, "enqueued before the point has passed");
    assert!(!second.passed(waiting));
    first.fake.release();
    second.wait(waiting);
    assert_eq!(second.word(0), 2);
    first.close();
    second.close();
}

#[test]
fn work_that_waits_on_the_device_fails_with_the_other_device() {
    let (mut first, mut second) = (Bench::new(), Bench::of(Fake::default(), &Arc::default(), 1));
    let timeline = first.device.timeline(QueueKind::Compute);
    let semaphore = second.device.create_semaphore().unwrap();
    first.device.raise_semaphore(QueueKind::Compute, &semaphore).unwrap();
    second.device.import_timeline(Arc::clone(&timeline)).unwrap();
    second.device.await_semaphore(timeline.id(), &semaphore).unwrap();
    let never = second.commands(QueueKind::Upload, vec![upload(0)], &[timeline.id().at(9)]);
    assert_eq!(second.fake.calls("upload"), 0, "the other driver does not have the work");
    let held = first.compute(vec![hold()], &[]);
    let waiting = second.compute(vec![fill(0, 2)], &[held]);
    let behind = second.compute(vec![fill(1, 3)], &[]);
    assert_eq!(second.fake.calls("fill"), 2);
    first.fake.lose(lost());
    for point in [never, waiting, behind] {
        assert_eq!(second.outcome(point), Some(lost()), "{point}");
    }
    second.word(0);
    assert_eq!(second.device.create_buffer(BufferId(9), 64), Ok(()), "the device survives");
    first.close();
    second.close();
}

#[test]
fn a_loss_is_reported_once_and_ends_everything() {
    let mut bench = Bench::new();
    let held = bench.compute(vec![hold()], &[]);
    let across = bench.commands(QueueKind::Download, vec![download(0)], &[held]);
    bench.fake.lose(lost());
    assert_eq!((bench.outcome(held), bench.outcome(across)), (Some(lost()), Some(lost())));
    // The device keeps reporting the first loss, whatever later calls return.
    bench.fake.lose(Error::Lost { cause: "said later".into() });
    let late = bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]);
    assert_eq!(late, Err(lost()));
    assert_eq!(bench.device.create_buffer(BufferId(9), 64), Err(lost()));
    assert_eq!(bench.device.record(ProgramId(0), vec![]), Err(lost()));
    assert_eq!(bench.device.memory().err(), Some(lost()));
    bench.close();
}

#[test]
fn a_loss_reported_by_a_call_ends_all_queues() {
    type Call = fn(&mut Bench) -> Result<()>;
    let calls: [(&str, Call); 5] = [
        ("allocate", |bench| bench.device.create_buffer(BufferId(9), 64)),
        ("load", |bench| bench.device.create_module(ModuleId(9), &module(TEXT, &["hold"], [1; 3]))),
        ("heap", |bench| bench.device.memory().map(drop)),
        ("end_capture", |bench| bench.device.record(ProgramId(0), vec![fill(0, 1), fill(1, 2)])),
        ("fill", |bench| {
            bench.try_submit(QueueKind::Compute, Work::Commands(vec![fill(0, 1)]), &[]).map(drop)
        }),
    ];
    for (name, call) in calls {
        let mut bench = Bench::new();
        bench.fake.refuse(name, lost());
        assert_eq!(call(&mut bench), Err(lost()), "{name}");
        for queue in QueueKind::ALL {
            assert_eq!(bench.device.timeline(queue).failure(), Some(lost()), "{name}, {queue:?}");
        }
        bench.close();
    }
}

#[test]
fn a_refused_submission_fails_only_its_queue() {
    let mut bench = Bench::new();
    let error = Error::Api { call: "launch".into(), code: 701 };
    bench.fake.refuse("launch", error.clone());
    let work = Work::Commands(vec![fill(0, 6), scale(0, 1, 1)]);
    assert_eq!(bench.try_submit(QueueKind::Compute, work, &[]), Err(error.clone()));
    assert_eq!(bench.device.timeline(QueueKind::Compute).failure(), Some(error));
    let up = bench.commands(QueueKind::Upload, vec![upload(2)], &[]);
    bench.wait(up);
    bench.close();
}

#[test]
fn a_refused_copy_fails_no_queue() {
    let mut bench = Bench::new();
    let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
    bench.wait(up);
    let cause = Error::Api { call: "copy".into(), code: 217 };
    let copy = || Command::Copy { from: all(0), to: all(1) };
    bench.fake.refuse("copy", cause.clone());
    let refused = bench.try_submit(QueueKind::Download, Work::Commands(vec![copy()]), &[]);
    assert_eq!(refused, Err(Error::Refused { cause: Box::new(cause.clone()) }));
    assert_eq!(bench.device.timeline(QueueKind::Download).failure(), None);
    let copied = bench.commands(QueueKind::Download, vec![copy()], &[]);
    bench.wait(copied);
    // Earlier commands of the submission may already run.
    bench.fake.refuse("copy", cause.clone());
    let work = Work::Commands(vec![copy(), fill(1, 6)]);
    let refused = bench.try_submit(QueueKind::Compute, work, &[]);
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    bench.fake.refuse("copy", cause.clone());
    let work = Work::Commands(vec![fill(1, 6), copy()]);
    assert_eq!(bench.try_submit(QueueKind::Compute, work, &[]), Err(cause.clone()));
    assert_eq!(bench.device.timeline(QueueKind::Compute).failure(), Some(cause));
    bench.close();
}

#[test]
fn a_closed_device_keeps_resources_of_running_work() {
    let mut bench = Bench::new();
    bench.device.record(ProgramId(0), vec![hold(), upload(0), scale(0, 1, 3), fill(2, 1)]).unwrap();
    bench.program(0, &[]);
    let fake = bench.fake.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fake.release();
    });
    bench.close();
    release.join().unwrap();
}

#[test]
fn allocation_errors_have_sizes() {
    let mut bench = Bench::new();
    let free = bench.device.memory().unwrap()[0].free_bytes.unwrap();
    let wanted = TOTAL_BYTES - 64;
    assert_eq!(
        bench.device.create_buffer(BufferId(9), wanted),
        Err(Error::OutOfMemory { wanted, free: Some(free) })
    );
    // The device reports enough free memory, but the memory is fragmented.
    bench.fake.refuse("allocate", Error::OutOfMemory { wanted: 0, free: None });
    let wanted = 4096;
    assert_eq!(
        bench.device.create_buffer(BufferId(9), wanted),
        Err(Error::OutOfMemory { wanted, free: None })
    );
    bench.device.create_buffer(BufferId(9), free / 2).unwrap();
    bench.device.destroy_buffer(BufferId(9)).unwrap();
    assert_eq!(bench.device.memory().unwrap()[0].free_bytes, Some(free), "cached memory counts as free");
    bench.device.create_buffer(BufferId(9), free / 4 * 3).unwrap();
    bench.close();
}

#[test]
fn a_region_is_pinned_once_for_all_devices() {
    let (fake, pins) = (Fake::default(), Arc::default());
    let (mut a, mut b) = (Bench::of(fake.clone(), &pins, 0), Bench::of(fake.clone(), &pins, 1));
    assert_eq!(fake.calls("pin"), 2);
    let region = Arc::clone(&a.region);
    for device in [&mut a.device, &mut b.device] {
        (1..3).for_each(|id| device.register_region(RegionId(id), Arc::clone(&region)).unwrap());
    }
    assert_eq!(fake.calls("pin"), 2, "it is pinned already");
    (0..3).for_each(|id| a.device.unregister_region(RegionId(id)).unwrap());
    assert_eq!(fake.calls("unpin"), 0, "another device still uses it");
    (1..3).for_each(|id| b.device.unregister_region(RegionId(id)).unwrap());
    assert_eq!(fake.calls("unpin"), 1);
    // Copies also work if the driver cannot pin.
    fake.refuse("pin", Error::Api { call: "pin".into(), code: 2 });
    a.device.register_region(RegionId(0), region).unwrap();
    assert_eq!(fake.left().1, 1);
    drop(b);
    a.close();
}

#[test]
fn pages_of_the_host_are_pinned_until_their_last_use() {
    let (fake, pins) = (Fake::default(), Arc::default());
    let (mut a, mut b) = (Bench::of(fake.clone(), &pins, 0), Bench::of(fake.clone(), &pins, 1));
    let pinned = fake.left().1;
    let pages = Arc::new(HostPages::new(device_bench::WORDS as u64 * 4).unwrap());
    let memory = SharedMemory { bytes: pages.bytes(), handle: Arc::<HostPages>::clone(&pages) };
    for bench in [&mut a, &mut b] {
        bench.device.import_buffer(BufferId(9), &memory).unwrap();
    }
    assert_eq!((fake.left().1, Arc::strong_count(&pages)), (pinned + 1, 5), "one pin, and two buffers");
    drop(memory);
    let copy = |from: u32, to: u32| Command::Copy { from: all(from), to: all(to) };
    let calls = ["upload", "download", "copy"];
    let before = calls.map(|call| fake.calls(call));
    // Copies between pages and device memory are uploads and downloads. Other commands use device addresses.
    let written = a.compute(vec![fill(0, 7), copy(0, 9), scale(9, 0, 3), copy(0, 1)], &[]);
    a.wait(written);
    let read = b.compute(vec![copy(9, 0)], &[]);
    b.wait(read);
    let after = calls.map(|call| fake.calls(call));
    assert_eq!([0, 1, 2].map(|at| after[at] - before[at]), [1; 3]);
    assert_eq!((a.word(1), b.word(0)), (22, 7));

    a.device.destroy_buffer(BufferId(9)).unwrap();
    assert_eq!(fake.left().1, pinned + 1, "another device still uses the pages");
    let held = b.compute(vec![hold(), fill(9, 5)], &[]);
    let Bench { bench: device, .. } = b;
    let closing = std::thread::spawn(move || drop(device));
    assert_eq!(fake.left().1, pinned + 1, "running work keeps the pages");
    fake.release();
    closing.join().unwrap();
    let _ = held;
    assert_eq!((fake.left().1, Arc::strong_count(&pages)), (pinned - 1, 1));
    a.close();
}

#[test]
fn memory_of_a_peer_lives_until_its_last_use() {
    let (fake, pins) = (Fake::default(), Arc::default());
    let (mut owner, mut user) = (Bench::of(fake.clone(), &pins, 0), Bench::of(fake.clone(), &pins, 1));
    let refused = owner.device.export_buffer(BufferId(0));
    assert!(
        matches!(&refused, Err(Error::Unsupported { what }) if what.contains("shared buffer")),
        "{refused:?}"
    );
    owner.device.create_shared_buffer(BufferId(9), device_bench::WORDS as u64 * 4).unwrap();
    let memory = owner.device.export_buffer(BufferId(9)).unwrap();
    let error = Error::Unsupported { what: "no peers".into() };
    fake.refuse("reach", error.clone());
    assert_eq!(user.device.import_buffer(BufferId(9), &memory), Err(error));
    user.device.import_buffer(BufferId(9), &memory).unwrap();
    drop(memory);

    let copy = |from: u32, to: u32| Command::Copy { from: all(from), to: all(to) };
    let written = user.compute(vec![fill(0, 7), copy(0, 9)], &[]);
    user.wait(written);
    assert_eq!(owner.word(9), 7);
    // The owner destroys its buffer and closes while a copy of the peer is running.
    let read = user.compute(vec![hold(), copy(9, 1)], &[]);
    owner.device.destroy_buffer(BufferId(9)).unwrap();
    let Bench { bench: device, .. } = owner;
    drop(device);
    assert_eq!(fake.calls("free_shared"), 0);
    fake.release();
    user.wait(read);
    assert_eq!(user.word(1), 7);
    user.device.destroy_buffer(BufferId(9)).unwrap();
    user.close();
    assert_eq!(fake.calls("free_shared"), 1);
}

#[test]
fn pages_that_cannot_be_pinned_are_refused() {
    let mut bench = Bench::new();
    let pages = Arc::new(HostPages::new(64).unwrap());
    let memory = SharedMemory { bytes: 64, handle: Arc::<HostPages>::clone(&pages) };
    for call in ["pin", "pinned_address"] {
        let error = Error::Api { call: call.into(), code: 2 };
        bench.fake.refuse(call, error.clone());
        assert_eq!(bench.device.import_buffer(BufferId(9), &memory), Err(error));
        assert_eq!((bench.fake.left().1, Arc::strong_count(&pages)), (1, 2));
    }
    drop(memory);
    bench.close();
}

#[test]
fn modules_are_checked_against_the_drivers_properties() {
    let mut bench = Bench::new();
    let mut create = |text: &str, names: &[&str], work_group| {
        let created = bench.device.create_module(ModuleId(1), &module(text, names, work_group));
        created.map(|()| bench.device.destroy_module(ModuleId(1)).unwrap())
    };
    let log = Error::Compile { log: "here".into() };
    assert_eq!(create("broken here", &["scale"], [64, 1, 1]), Err(log));
    assert!(matches!(create(TEXT, &["other"], [64, 1, 1]), Err(Error::Compile { .. })));
    assert!(
        matches!(create("scale 3", &["scale"], [64, 1, 1]), Err(Error::Invalid { what }) if what.contains("3 parameters"))
    );
    assert!(
        matches!(create(TEXT, &["scale"], [64, 10, 1]), Err(Error::Unsupported { what }) if what.contains("640"))
    );
    assert_eq!(create(TEXT, &["scale", "hold", "scale"], [512, 1, 1]), Ok(()));
    let mut foreign = module(TEXT, &["scale"], [64, 1, 1]);
    foreign.source = ModuleSource::Text { language: KernelLanguage::HipC, entries: vec![] };
    foreign.entries.clear();
    assert!(matches!(bench.device.create_module(ModuleId(1), &foreign), Err(Error::Unsupported { .. })));
    bench.close();
}

/// A matrix product whose depth is the first constant.
static PRODUCT: EntryAbi = EntryAbi {
    name: "product",
    bindings: &[Access::Read, Access::Read, Access::ReadWrite],
    constants: 1,
    extents: |_, extents| extents.fill(4),
};

const GEMM: GemmEntry = GemmEntry {
    bindings: [1, 0, 2],
    product: |constants| Gemm {
        rows: 5,
        columns: 3,
        depth: constants[0],
        x_pitch: 16,
        weights_pitch: 8,
        y_pitch: 4,
        accumulate: true,
    },
};

/// Returns a module whose first entry is `scale` and whose second entry is a product.
fn linked() -> Module {
    let plain = module(TEXT, &["scale"], [64, 1, 1]);
    let ModuleSource::Text { language, entries } = plain.source else { panic!("not text") };
    let text = entries.into_iter().map(LinkedEntry::Text);
    let entries = text.chain([LinkedEntry::Gemm(GEMM)]).collect();
    let source = ModuleSource::Linked { language: Some(language), entries };
    Module { name: "linked".into(), entries: vec![&SCALE, &PRODUCT], source }
}

/// Returns a dispatch of y += x · W. Buffer 0 holds W, buffer 1 holds x, and buffer 2 holds y.
fn product(depth: u32, y_bytes: u64) -> Command {
    let read = |id| Binding { range: all(id), access: Access::Read };
    let y = Binding { range: BufferRange { bytes: y_bytes, ..all(2) }, access: Access::ReadWrite };
    let (bindings, constants) = (vec![read(0), read(1), y], vec![depth]);
    Command::Dispatch(Dispatch { module: ModuleId(1), entry: 1, bindings, constants, grid: [1, 1, 1] })
}

#[test]
fn products_use_the_library_in_commands_and_programs() {
    let mut bench = Bench::new();
    assert_eq!(bench.fake.calls("ready_gemm"), 0);
    bench.device.create_module(ModuleId(1), &linked()).unwrap();
    assert_eq!(bench.fake.calls("ready_gemm"), 1);
    // The words are pairs of f16 bit patterns. The fake library reads these bits as the integers 2 and 3.
    let set = vec![fill(0, 0x0002_0002), fill(1, 0x0003_0003), fill(2, 1f32.to_bits())];
    let set = bench.compute([set, vec![product(7, 80)]].concat(), &[]);
    bench.device.record(ProgramId(0), vec![product(7, 80), product(4, 80)]).unwrap();
    let ran = bench.program(0, &[set]);
    let read = bench.commands(QueueKind::Download, vec![download(2)], &[ran]);
    bench.wait(read);
    let sums = 1.0 + 6.0 * (7.0 + 7.0 + 4.0);
    for (at, word) in bench.region_words().into_iter().enumerate() {
        assert_eq!(f32::from_bits(word), if at < 20 && at % 4 < 3 { sums } else { 1.0 }, "value {at}");
    }
    // A product may access more bytes than its ABI states. `Checked` must reject bindings that are too small,
    // and unsound products.
    for (depth, y_bytes, why) in [(7, 72, "its product 76"), (9, 80, "no library"), (0, 80, "no library")] {
        let refused =
            bench.try_submit(QueueKind::Compute, Work::Commands(vec![product(depth, y_bytes)]), &[]);
        assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains(why)), "{why}: {refused:?}");
    }
    bench.close();
}

#[test]
fn products_need_a_library_and_suitable_bindings() {
    let mut bench = Bench::new();
    bench.fake.refuse("ready_gemm", Error::Unsupported { what: "no library".into() });
    let refused = bench.device.create_module(ModuleId(1), &linked());
    assert!(matches!(refused, Err(Error::Unsupported { what }) if what == "no library"));
    let wrong = GemmEntry { bindings: [0, 2, 1], ..GEMM };
    let source = ModuleSource::Linked { language: None, entries: vec![LinkedEntry::Gemm(wrong)] };
    let module = Module { name: "wrong".into(), entries: vec![&PRODUCT], source };
    let refused = bench.device.create_module(ModuleId(1), &module);
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("product")), "{refused:?}");
    bench.close();
}

#[test]
fn timings_are_in_order() {
    let mut bench = Bench::new();
    let mut timings = Vec::new();
    for _ in 0..20 {
        let ran = bench.compute(vec![fill(0, 1), scale(0, 1, 3)], &[]);
        bench.wait(ran);
    }
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.len(), 20);
    let now_ns = ragtag_hal::Timing::now_ns();
    for timing in &timings {
        assert!(timing.start_ns <= timing.end_ns && timing.end_ns <= now_ns, "{timing:?}");
    }
    assert!(timings.is_sorted_by_key(|timing| timing.end_ns), "{timings:?}");
    bench.close();
}

#[test]
fn submissions_that_are_not_timed_need_one_event_and_report_no_times() {
    let mut bench = Bench::new();
    for (is_timed, events) in [(true, 2), (false, 1)] {
        let before = bench.fake.calls("event");
        let signal = bench.point(QueueKind::Compute);
        let work = Work::Commands(vec![fill(0, 1), scale(0, 1, 3)]);
        let submission =
            Submission { is_timed, ..Submission::timed(QueueKind::Compute, work, vec![], signal) };
        bench.device.submit(submission).unwrap();
        bench.wait(signal);
        assert_eq!(bench.fake.calls("event") - before, events);
    }
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.len(), 1, "{timings:?}");
    bench.close();
}

#[cfg(unix)]
#[test]
fn imported_memory_is_released_after_its_last_use() {
    let of = |device_uuid| {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        let (bytes, memory_type, driver_uuid) = (device_bench::WORDS as u64 * 4, 0, [1; 16]);
        let handle =
            ragtag_hal::OpaqueFd { fd, allocation_bytes: bytes, memory_type, device_uuid, driver_uuid };
        SharedMemory { bytes, handle: Arc::new(handle) }
    };
    let mut bench = Bench::new();
    let own = bench.fake.left().0;
    let refused = bench.device.import_buffer(BufferId(9), &of([8; 16])).unwrap_err();
    assert!(refused.to_string().contains("another physical device"), "{refused}");
    let refused = bench.device.import_buffer(BufferId(9), &SharedMemory { bytes: 4, handle: Arc::new(()) });
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");

    bench.device.import_buffer(BufferId(9), &of(UUID)).unwrap();
    let before = bench.commands(QueueKind::Compute, vec![fill(9, 5), hold(), fill(9, 6)], &[]);
    assert_eq!(bench.fake.left().0, own + 1);
    bench.fake.release();
    bench.wait(before);
    let copied = bench.commands(QueueKind::Upload, vec![Command::Copy { from: all(9), to: all(1) }], &[]);
    bench.wait(copied);
    assert!(bench.words(1).iter().all(|&word| word == 6));
    bench.device.destroy_buffer(BufferId(9)).unwrap();
    bench.device.trim_pool();
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while bench.fake.left().0 > own && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!((bench.fake.left().0, bench.fake.calls("free")), (own, 0), "the import frees it");
    assert_eq!(bench.fake.left().3, Vec::<String>::new());
}
