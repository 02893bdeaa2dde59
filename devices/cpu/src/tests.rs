//! What is particular to this backend: threads, panics, closing, the quick path for small copies. What every backend
//! owes is in the conformance suite.

use crate::{CpuBackend, CpuConfig, CpuHandicap};
use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceId, Dispatch,
    EntryAbi, Error, Feature, Features, HostCall, HostFn, HostRegion, Limits, Module, ModuleId, ModuleSource,
    Point, ProgramId, QueueKind, RegionId, Submission, Timeline, TimelineId, Work,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const DEVICE: DeviceId = DeviceId(0);
const GROUPS: u32 = 250;

/// Each group g turns word g into 3 · word g + 1.
static STEP: EntryAbi = EntryAbi {
    name: "step",
    bindings: &[Access::ReadWrite],
    constants: 0,
    extents: |_, extents| extents[0] = u64::from(GROUPS) * 4,
};

unsafe fn step(call: &HostCall<'_>, groups: Range<u32>) {
    for group in groups {
        // SAFETY: group g alone touches word g.
        let word = unsafe { call.write::<u32>(0, group as usize..group as usize + 1) };
        word[0] = word[0].wrapping_mul(3).wrapping_add(1);
    }
}

/// Group g writes word g: the sum of all words of the first binding. Wrong unless the step before is complete.
static SUM: EntryAbi = EntryAbi {
    name: "sum",
    bindings: &[Access::Read, Access::Write],
    constants: 0,
    extents: |_, extents| extents.fill(u64::from(GROUPS) * 4),
};

unsafe fn sum(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: read by every group and written by none.
    let all = unsafe { call.read::<u32>(0) };
    for group in groups {
        // SAFETY: group g alone writes word g.
        let word = unsafe { call.write::<u32>(1, group as usize..group as usize + 1) };
        word[0] = all.iter().fold(group, |sum, word| sum.wrapping_add(*word));
    }
}

/// Group `constants[0]` panics.
static BROKEN: EntryAbi = EntryAbi { name: "broken", bindings: &[], constants: 1, extents: |_, _| {} };

unsafe fn broken(call: &HostCall<'_>, groups: Range<u32>) {
    assert!(!groups.contains(&call.constants[0]), "a kernel's bug");
}

/// Takes two milliseconds at least.
static SLOW: EntryAbi = EntryAbi { name: "slow", bindings: &[], constants: 0, extents: |_, _| {} };

unsafe fn slow(_: &HostCall<'_>, _: Range<u32>) {
    thread::sleep(Duration::from_millis(2));
}

fn config(threads: u32) -> CpuConfig {
    CpuConfig { threads: Some(threads), ..CpuConfig::default() }
}

fn open(config: CpuConfig, limits: &Limits) -> Checked {
    let backend = CpuBackend::new(config);
    let adapter = backend.probe().unwrap().swap_remove(0);
    Checked::new(backend.open(&[(adapter, DEVICE)], limits).unwrap().swap_remove(0))
}

/// A device with the module above, buffers 0 and 1 of `GROUPS` words, and region 0 for one of them.
struct Bench {
    device: Checked,
    region: Arc<HostRegion>,
    next: [u64; 3],
}

impl Bench {
    fn new(threads: u32) -> Self {
        Self::with(config(threads))
    }

    fn with(config: CpuConfig) -> Self {
        let mut device = open(config, &Limits::default());
        let module = Module {
            name: "test".into(),
            entries: vec![&STEP, &SUM, &BROKEN, &SLOW],
            source: ModuleSource::Host(vec![step as HostFn, sum, broken, slow]),
        };
        device.create_module(ModuleId(0), &module).unwrap();
        let region = Arc::new(HostRegion::new(GROUPS as usize * 4).unwrap());
        device.register_region(RegionId(0), Arc::clone(&region)).unwrap();
        for id in 0..2 {
            device.create_buffer(BufferId(id), u64::from(GROUPS) * 4).unwrap();
        }
        Bench { device, region, next: [0; 3] }
    }

    fn submit(&mut self, queue: QueueKind, work: Work, waits: Vec<Point>) -> Point {
        self.next[queue.index()] += 1;
        let signal = TimelineId { device: DEVICE, queue }.at(self.next[queue.index()]);
        self.device.submit(Submission { queue, work, waits, signal }).unwrap();
        signal
    }

    fn compute(&mut self, commands: Vec<Command>) -> Point {
        self.submit(QueueKind::Compute, Work::Commands(commands), vec![])
    }

    fn wait(&self, point: Point) -> Result<bool, Error> {
        self.device.timeline(point.timeline.queue).wait(point.value, Some(PATIENCE))
    }

    fn words(&mut self, buffer: u32) -> Vec<u32> {
        let point =
            self.compute(vec![Command::Download { from: whole(buffer), region: RegionId(0), offset: 0 }]);
        assert_eq!(self.wait(point), Ok(true));
        let bytes = self.region.read(0..self.region.bytes()).unwrap();
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

fn whole(buffer: u32) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: 0, bytes: u64::from(GROUPS) * 4 }
}

fn fill(word: u32) -> Command {
    Command::Fill { to: whole(0), word }
}

fn launch(entry: u32, bindings: Vec<Binding>, constants: Vec<u32>, grid: [u32; 3]) -> Command {
    Command::Dispatch(Dispatch { module: ModuleId(0), entry, bindings, constants, grid })
}

fn step_all() -> Command {
    launch(0, vec![Binding { range: whole(0), access: Access::ReadWrite }], vec![], [10, 5, 5])
}

fn sum_all() -> Command {
    let bindings = vec![
        Binding { range: whole(0), access: Access::Read },
        Binding { range: whole(1), access: Access::Write },
    ];
    launch(1, bindings, vec![], [GROUPS, 1, 1])
}

fn break_at(group: u32) -> Command {
    launch(2, vec![], vec![group], [GROUPS, 1, 1])
}

#[test]
fn every_group_runs_once_and_steps_in_order_on_any_number_of_threads() {
    let steps = 20;
    let word = (0..steps).fold(7u32, |word, _| word.wrapping_mul(3).wrapping_add(1));
    for threads in [1, 2, 5] {
        let mut bench = Bench::new(threads);
        let mut commands = vec![fill(7)];
        commands.extend((0..steps).flat_map(|_| [step_all(), sum_all()]));
        bench.device.record(ProgramId(0), commands).unwrap();
        for _ in 0..10 {
            let point = bench.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]);
            assert_eq!(bench.wait(point), Ok(true));
        }
        assert_eq!(bench.words(0), vec![word; GROUPS as usize], "{threads} threads");
        let sums: Vec<u32> = (0..GROUPS).map(|group| group.wrapping_add(word.wrapping_mul(GROUPS))).collect();
        assert_eq!(bench.words(1), sums, "{threads} threads");
    }
}

#[test]
fn an_empty_grid_does_nothing() {
    let mut bench = Bench::new(2);
    let nothing = launch(
        0,
        vec![Binding { range: whole(0), access: Access::ReadWrite }],
        vec![],
        [0, u32::MAX, u32::MAX],
    );
    let point = bench.compute(vec![fill(5), nothing]);
    assert_eq!(bench.wait(point), Ok(true));
    assert_eq!(bench.words(0)[0], 5);
}

#[test]
fn a_kernel_that_panics_fails_its_timeline_and_nothing_else() {
    for threads in [1, 3] {
        for group in [0, GROUPS / 2, GROUPS - 1] {
            let mut bench = Bench::new(threads);
            let good = bench.compute(vec![fill(1)]);
            let bad = bench.compute(vec![step_all(), break_at(group), step_all()]);
            let after = bench.compute(vec![fill(2)]);
            assert_eq!(bench.wait(good), Ok(true));
            for point in [bad, after] {
                let error = bench.wait(point).unwrap_err();
                let Error::Api { call, .. } = error.root() else { panic!("{error}") };
                assert!(call.contains("broken") && call.contains("a kernel's bug"), "{call}");
            }
            let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(1) };
            let point = bench.submit(QueueKind::Upload, Work::Commands(vec![upload.clone()]), vec![]);
            assert_eq!(bench.wait(point), Ok(true), "other queues go on");
            let poisoned = bench.submit(QueueKind::Upload, Work::Commands(vec![upload]), vec![bad]);
            assert!(matches!(bench.wait(poisoned), Err(error) if matches!(error.root(), Error::Api { .. })));
        }
    }
}

#[test]
fn small_copies_are_done_when_submit_returns() {
    let mut bench = Bench::new(1);
    let upload = || Work::Commands(vec![Command::Upload { region: RegionId(0), offset: 0, to: whole(0) }]);
    let abroad = Timeline::new(TimelineId { device: DeviceId(5), queue: QueueKind::Compute });
    bench.device.import_timeline(Arc::clone(&abroad)).unwrap();
    bench.region.write(0..4).unwrap().copy_from_slice(&9u32.to_le_bytes());
    let point = bench.submit(QueueKind::Upload, upload(), vec![]);
    assert_eq!(bench.device.timeline(QueueKind::Upload).value(), point.value);
    // One that has to wait goes to the thread, and so do those after it.
    let held = bench.submit(QueueKind::Upload, upload(), vec![abroad.id().at(1)]);
    let next = bench.submit(QueueKind::Upload, upload(), vec![]);
    assert_eq!(bench.device.timeline(QueueKind::Upload).value(), point.value);
    abroad.advance(1);
    assert_eq!((bench.wait(held), bench.wait(next)), (Ok(true), Ok(true)));
    assert_eq!(bench.words(0)[0], 9);
}

#[test]
fn a_region_in_use_fails_the_copy() {
    let mut bench = Bench::new(1);
    let region = Arc::clone(&bench.region);
    let lease = region.write(8..12).unwrap();
    let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(0) };
    let signal = TimelineId { device: DEVICE, queue: QueueKind::Upload }.at(1);
    let work = Work::Commands(vec![upload]);
    let refused = bench.device.submit(Submission { queue: QueueKind::Upload, work, waits: vec![], signal });
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert!(matches!(bench.wait(signal), Err(error) if matches!(error.root(), Error::Invalid { .. })));
    drop(lease);
}

#[test]
fn closing_does_not_wait_for_other_devices() {
    let mut bench = Bench::new(2);
    let abroad = Timeline::new(TimelineId { device: DeviceId(5), queue: QueueKind::Compute });
    bench.device.import_timeline(Arc::clone(&abroad)).unwrap();
    let passed = bench.compute(vec![fill(1)]);
    assert_eq!(bench.wait(passed), Ok(true));
    let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(1) };
    let stuck = bench.submit(QueueKind::Upload, Work::Commands(vec![upload]), vec![abroad.id().at(1)]);
    bench.submit(QueueKind::Compute, Work::Commands(vec![fill(2)]), vec![stuck]);
    let (compute, uploads) =
        (bench.device.timeline(QueueKind::Compute), bench.device.timeline(QueueKind::Upload));
    let (done, closed) = channel();
    thread::spawn(move || {
        drop(bench);
        done.send(()).unwrap();
    });
    closed.recv_timeout(PATIENCE).expect("closing hangs");
    assert!(matches!(uploads.failure(), Some(Error::Lost { .. })));
    assert_eq!(compute.value(), passed.value, "what has passed stays passed");
    assert!(matches!(compute.failure().as_ref().map(Error::root), Some(Error::Lost { .. })));
}

#[test]
fn closing_lets_the_queues_finish() {
    let mut bench = Bench::new(2);
    let mut last = bench.compute(vec![fill(1)]);
    for _ in 0..50 {
        last = bench.compute(vec![step_all(), sum_all()]);
    }
    let timeline = bench.device.timeline(QueueKind::Compute);
    drop(bench);
    assert_eq!((timeline.value(), timeline.failure()), (last.value, None));
}

#[test]
fn limits_bound_the_buffers_and_what_is_freed_can_be_had_again() {
    let mib = 1 << 20;
    let mut device = open(config(1), &Limits { memory_bytes: Some(8 * mib), ..Limits::default() });
    device.create_buffer(BufferId(0), 6 * mib).unwrap();
    let refused = device.create_buffer(BufferId(1), 3 * mib);
    assert_eq!(refused, Err(Error::OutOfMemory { wanted: 3 * mib, free: Some(2 * mib) }));
    assert_eq!(device.memory().unwrap()[0].free_bytes, Some(2 * mib));
    device.create_buffer(BufferId(1), 2 * mib).unwrap();
    device.destroy_buffer(BufferId(0)).unwrap();
    device.create_buffer(BufferId(0), 6 * mib).unwrap();
    let stats = device.pool_stats();
    assert_eq!((stats.hits, stats.misses, stats.in_use_bytes, stats.peak_bytes), (1, 2, 8 * mib, 8 * mib));
    device.destroy_buffer(BufferId(0)).unwrap();
    // What lies cached makes room.
    device.create_buffer(BufferId(0), 5 * mib).unwrap();
    assert_eq!((device.pool_stats().cached_bytes, device.pool_stats().trimmed), (0, 1));
    let all = open(config(1), &Limits::default()).create_buffer(BufferId(0), 1 << 50);
    assert!(matches!(all, Err(Error::OutOfMemory { wanted, free: Some(_) }) if wanted == 1 << 50));
}

#[test]
fn cores_and_memory_are_divided_among_the_devices() {
    let cores = thread::available_parallelism().unwrap().get() as u32;
    let probe = |config: CpuConfig| CpuBackend::new(config).probe();
    let units = |adapters: Vec<Adapter>| adapters.iter().map(|a| a.caps.parallel_units).collect::<Vec<_>>();
    assert_eq!(units(probe(CpuConfig::default()).unwrap()), [cores]);
    let three = units(probe(CpuConfig { devices: 3, ..CpuConfig::default() }).unwrap());
    assert_eq!(three.iter().sum::<u32>(), cores.max(3));
    assert!(three.iter().max().unwrap() - three.iter().min().unwrap() <= 1);
    let given = CpuConfig { devices: 2, threads: Some(3), ..CpuConfig::default() };
    let adapters = probe(given).unwrap();
    assert_eq!(adapters.iter().map(Adapter::label).collect::<Vec<_>>(), ["cpu:0", "cpu:1"]);
    let share = adapters[0].memory[0].total_bytes + adapters[1].memory[0].total_bytes;
    assert!(share <= probe(CpuConfig::default()).unwrap()[0].memory[0].total_bytes);
    assert!(!adapters[0].name.is_empty());
    assert_eq!(units(adapters), [3, 3]);
    assert!(
        probe(CpuConfig { devices: 0, ..CpuConfig::default() }).unwrap_err().cause.contains("no CPU devices")
    );
}

#[test]
fn handicaps_are_told_and_slow_one_device_alone() {
    let handicap = CpuHandicap { threads: Some(1), duty_percent: Some(25) };
    let config = CpuConfig { threads: Some(2), devices: 2, ..CpuConfig::default() };
    let slowed = CpuConfig { handicaps: [(0, handicap)].into(), ..config };
    let adapters = CpuBackend::new(slowed.clone()).probe().unwrap();
    let told: Vec<_> =
        adapters.iter().map(|a| (a.caps.parallel_units, a.driver.contains("duty 25 %"))).collect();
    assert_eq!(told, [(1, true), (2, false)]);

    let mut bench = Bench::with(slowed);
    for _ in 0..4 {
        let point = bench.compute(vec![launch(3, vec![], vec![], [1, 1, 1])]);
        assert_eq!(bench.wait(point), Ok(true));
    }
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    let busy_ns: u64 = timings.iter().map(|timing| timing.end_ns - timing.start_ns).sum();
    assert_eq!(timings.len(), 4);
    assert!(busy_ns >= 4 * 4 * 2_000_000, "four times 2 ms of work at a quarter: {busy_ns} ns");
}

#[test]
fn features_can_be_restricted_and_never_invented() {
    let of = |features| {
        let config = CpuConfig { features, ..CpuConfig::default() };
        CpuBackend::new(config).probe().unwrap().swap_remove(0)
    };
    let portable = of(Some(Features::new()));
    assert!(
        portable.caps.features.is_empty() && portable.driver.ends_with("portable"),
        "{}",
        portable.driver
    );
    let every = Features::from([Feature::Avx2, Feature::Avx512Vnni, Feature::NeonDot]);
    assert_eq!(of(Some(every)).caps.features, of(None).caps.features);
    let avx2 = of(Some(Features::from([Feature::Avx2])));
    assert!(avx2.caps.features.iter().all(|&feature| feature == Feature::Avx2));
}

#[test]
fn an_adapter_that_is_not_there_cannot_be_opened() {
    let backend = CpuBackend::new(CpuConfig { devices: 2, ..CpuConfig::default() });
    let second = backend.probe().unwrap().swap_remove(1);
    let opened = CpuBackend::new(CpuConfig::default()).open(&[(second, DEVICE)], &Limits::default());
    assert!(matches!(opened, Err(Error::Invalid { what }) if what.contains("cpu:1")));
}

#[test]
fn timings_come_once_and_in_order() {
    let mut bench = Bench::new(1);
    let before = Instant::now();
    let points = [bench.compute(vec![fill(1)]), bench.compute(vec![step_all()])];
    assert_eq!(bench.wait(points[1]), Ok(true));
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.iter().map(|timing| timing.point).collect::<Vec<_>>(), points);
    assert!(timings.iter().all(|timing| timing.start_ns <= timing.end_ns));
    assert!(timings[0].end_ns <= timings[1].start_ns);
    assert!(u128::from(timings[1].end_ns - timings[0].start_ns) <= before.elapsed().as_nanos());
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.len(), 2, "taken once");
}
