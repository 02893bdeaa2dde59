//! Tests of this backend's own behaviour: threads, panics, closing, and the fast path for small copies. The
//! conformance suite contains the tests that every backend must pass.

use crate::{CpuBackend, CpuConfig};
use device_bench::{Bench, buffer_range, in_time};
use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceId, Dispatch,
    EntryAbi, Error, Feature, Features, HostCall, HostFn, Limits, Module, ModuleId, ModuleSource, Point,
    ProgramId, QueueKind, RegionId, SharedMemory, Timeline, TimelineId, Work,
};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

const DEVICE: DeviceId = DeviceId(0);
const GROUPS: u32 = 250;

/// A kernel in which group g replaces word g with 3 · word g + 1.
static STEP: EntryAbi = EntryAbi {
    name: "step",
    bindings: &[Access::ReadWrite],
    constants: 0,
    extents: |_, extents| extents[0] = u64::from(GROUPS) * 4,
};

unsafe fn step(call: &HostCall<'_>, groups: Range<u32>) {
    for group in groups {
        // SAFETY: only group g accesses word g.
        let word = unsafe { call.write::<u32>(0, group as usize..group as usize + 1) };
        word[0] = word[0].wrapping_mul(3).wrapping_add(1);
    }
}

/// A kernel that sums all words of the first binding. Group g adds g and stores the result in word g of the
/// second binding. The result is wrong if the previous step is incomplete.
static SUM: EntryAbi = EntryAbi {
    name: "sum",
    bindings: &[Access::Read, Access::Write],
    constants: 0,
    extents: |_, extents| extents.fill(u64::from(GROUPS) * 4),
};

unsafe fn sum(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: every group reads the binding, and no group writes it.
    let all = unsafe { call.read::<u32>(0) };
    for group in groups {
        // SAFETY: only group g writes word g.
        let word = unsafe { call.write::<u32>(1, group as usize..group as usize + 1) };
        word[0] = all.iter().fold(group, |sum, word| sum.wrapping_add(*word));
    }
}

/// A kernel that panics in the group with index `constants[0]`.
static BROKEN: EntryAbi = EntryAbi { name: "broken", bindings: &[], constants: 1, extents: |_, _| {} };

unsafe fn broken(call: &HostCall<'_>, groups: Range<u32>) {
    assert!(!groups.contains(&call.constants[0]), "a kernel's bug");
}

fn config(threads: u32) -> CpuConfig {
    CpuConfig { threads: Some(threads), ..CpuConfig::default() }
}

fn open(config: CpuConfig, limits: &Limits) -> Checked {
    let backend = CpuBackend::new(config);
    let adapter = backend.probe().unwrap().swap_remove(0);
    Checked::new(backend.open(&[(adapter, DEVICE)], limits).unwrap().swap_remove(0))
}

/// Returns a bench whose module 1 contains the kernels above.
fn bench(threads: u32) -> Bench {
    let mut bench = Bench::new(open(config(threads), &Limits::default()));
    let module = Module {
        name: "test".into(),
        entries: vec![&STEP, &SUM, &BROKEN],
        source: ModuleSource::Host(vec![step as HostFn, sum, broken]),
    };
    bench.device.create_module(ModuleId(1), &module).unwrap();
    bench
}

fn words(bench: &mut Bench, buffer: u32) -> Vec<u32> {
    bench.words(buffer)[..GROUPS as usize].to_vec()
}

fn compute(bench: &mut Bench, commands: Vec<Command>) -> Point {
    bench.commands(QueueKind::Compute, commands, &[])
}

fn whole(buffer: u32) -> BufferRange {
    buffer_range(buffer, 0, GROUPS as usize)
}

fn fill(word: u32) -> Command {
    Command::Fill { to: whole(0), word }
}

fn launch(entry: u32, bindings: Vec<Binding>, constants: Vec<u32>, grid: [u32; 3]) -> Command {
    Command::Dispatch(Dispatch { module: ModuleId(1), entry, bindings, constants, grid })
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
        let mut bench = bench(threads);
        let mut commands = vec![fill(7)];
        commands.extend((0..steps).flat_map(|_| [step_all(), sum_all()]));
        bench.device.record(ProgramId(0), commands).unwrap();
        for _ in 0..10 {
            let point = bench.submit(QueueKind::Compute, Work::Program(ProgramId(0)), &[]);
            bench.wait(point);
        }
        assert_eq!(words(&mut bench, 0), vec![word; GROUPS as usize], "{threads} threads");
        let sums: Vec<u32> = (0..GROUPS).map(|group| group.wrapping_add(word.wrapping_mul(GROUPS))).collect();
        assert_eq!(words(&mut bench, 1), sums, "{threads} threads");
    }
}

#[test]
fn an_empty_grid_does_nothing() {
    let mut bench = bench(2);
    let nothing = launch(
        0,
        vec![Binding { range: whole(0), access: Access::ReadWrite }],
        vec![],
        [0, u32::MAX, u32::MAX],
    );
    let point = compute(&mut bench, vec![fill(5), nothing]);
    bench.wait(point);
    assert_eq!(words(&mut bench, 0)[0], 5);
}

#[test]
fn a_panicking_kernel_fails_only_its_timeline() {
    for threads in [1, 3] {
        for group in [0, GROUPS / 2, GROUPS - 1] {
            let mut bench = bench(threads);
            let good = compute(&mut bench, vec![fill(1)]);
            let bad = compute(&mut bench, vec![step_all(), break_at(group), step_all()]);
            let after = compute(&mut bench, vec![fill(2)]);
            bench.wait(good);
            for point in [bad, after] {
                let error = bench.outcome(point).unwrap();
                let Error::Api { call, .. } = error.root() else { panic!("{error}") };
                assert!(call.contains("broken") && call.contains("a kernel's bug"), "{call}");
            }
            let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(1) };
            let point = bench.submit(QueueKind::Upload, Work::Commands(vec![upload.clone()]), &[]);
            bench.wait(point);
            let poisoned = bench.submit(QueueKind::Upload, Work::Commands(vec![upload]), &[bad]);
            assert!(matches!(bench.outcome(poisoned).unwrap().root(), Error::Api { .. }));
        }
    }
}

#[test]
fn small_copies_are_done_when_submit_returns() {
    let mut bench = bench(1);
    let upload = || Work::Commands(vec![Command::Upload { region: RegionId(0), offset: 0, to: whole(0) }]);
    let abroad = Timeline::new(TimelineId { device: DeviceId(5), queue: QueueKind::Compute });
    bench.device.import_timeline(Arc::clone(&abroad)).unwrap();
    bench.region.write(0..4).unwrap().copy_from_slice(&9u32.to_le_bytes());
    let point = bench.submit(QueueKind::Upload, upload(), &[]);
    assert_eq!(bench.device.timeline(QueueKind::Upload).value(), point.value);
    // The queue's thread runs a copy that must wait, and all copies that follow it.
    let held = bench.submit(QueueKind::Upload, upload(), &[abroad.id().at(1)]);
    let next = bench.submit(QueueKind::Upload, upload(), &[]);
    assert_eq!(bench.device.timeline(QueueKind::Upload).value(), point.value);
    abroad.advance(1);
    bench.wait(held);
    bench.wait(next);
    assert_eq!(words(&mut bench, 0)[0], 9);
}

#[test]
fn an_upload_may_end_after_the_used_words() {
    let mut bench = bench(1);
    let upload = Command::UploadUsed { region: RegionId(0), offset: 0, to: whole(0), used: 1 };
    let fill = Command::Fill { to: whole(0), word: 9 };
    bench.device.record(ProgramId(0), vec![fill, upload]).unwrap();
    for used in [2, 3, 0] {
        // The words of the buffer came to the region, too.
        bench.region.write(0..whole(0).bytes as usize).unwrap().fill(0);
        bench.region.write(4..8).unwrap().copy_from_slice(&u32::to_ne_bytes(used));
        let ran = bench.submit(QueueKind::Compute, Work::Program(ProgramId(0)), &[]);
        bench.wait(ran);
        let words = words(&mut bench, 0);
        assert_eq!(words.iter().filter(|word| **word != 9).count(), used.max(1) as usize);
    }
}

#[test]
fn two_devices_see_the_memory_that_one_of_them_exports() {
    let (mut owner, mut user) = (bench(1), bench(1));
    let shared = owner.device.export_buffer(BufferId(0)).unwrap();
    user.device.import_buffer(BufferId(9), &shared).unwrap();
    let filled = compute(&mut user, vec![Command::Fill { to: buffer_range(9, 0, GROUPS as usize), word: 7 }]);
    user.wait(filled);
    assert_eq!(words(&mut owner, 0), vec![7; GROUPS as usize]);
    // The memory lives until both devices have released it.
    drop((owner, shared));
    let copied =
        compute(&mut user, vec![Command::Copy { from: buffer_range(9, 0, 4), to: buffer_range(0, 0, 4) }]);
    user.wait(copied);
    assert_eq!(words(&mut user, 0)[..4], [7; 4]);
    let in_use_bytes = user.device.pool_stats().in_use_bytes;
    user.device.destroy_buffer(BufferId(9)).unwrap();
    assert_eq!(user.device.pool_stats().in_use_bytes, in_use_bytes, "the pool does not own it");
    let foreign = SharedMemory { bytes: 4, handle: Arc::new(()) };
    let refused = user.device.import_buffer(BufferId(9), &foreign);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

#[test]
fn a_region_in_use_fails_the_copy() {
    let mut bench = bench(1);
    let region = Arc::clone(&bench.region);
    let lease = region.write(8..12).unwrap();
    let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(0) };
    let refused = bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload]), &[]);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let signal = bench.timeline(QueueKind::Upload).id().at(1);
    assert!(matches!(bench.outcome(signal).unwrap().root(), Error::Invalid { .. }));
    drop(lease);
}

#[test]
fn closing_does_not_wait_for_other_devices() {
    let mut bench = bench(2);
    let abroad = Timeline::new(TimelineId { device: DeviceId(5), queue: QueueKind::Compute });
    bench.device.import_timeline(Arc::clone(&abroad)).unwrap();
    let passed = compute(&mut bench, vec![fill(1)]);
    bench.wait(passed);
    let upload = Command::Upload { region: RegionId(0), offset: 0, to: whole(1) };
    let stuck = bench.submit(QueueKind::Upload, Work::Commands(vec![upload]), &[abroad.id().at(1)]);
    bench.submit(QueueKind::Compute, Work::Commands(vec![fill(2)]), &[stuck]);
    let (compute, uploads) =
        (bench.device.timeline(QueueKind::Compute), bench.device.timeline(QueueKind::Upload));
    in_time("closing", move || drop(bench));
    assert!(matches!(uploads.failure(), Some(Error::Lost { .. })));
    assert_eq!(compute.value(), passed.value, "what has passed stays passed");
    assert!(matches!(compute.failure().as_ref().map(Error::root), Some(Error::Lost { .. })));
}

#[test]
fn closing_lets_the_queues_finish() {
    let mut bench = bench(2);
    let mut last = compute(&mut bench, vec![fill(1)]);
    for _ in 0..50 {
        last = compute(&mut bench, vec![step_all(), sum_all()]);
    }
    let timeline = bench.device.timeline(QueueKind::Compute);
    drop(bench);
    assert_eq!((timeline.value(), timeline.failure()), (last.value, None));
}

#[test]
fn limits_bound_the_buffers_and_freed_memory_can_be_reused() {
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
    // The pool must free cached memory to make room for this buffer.
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
    let one = CpuConfig { devices: 2, threads: Some(3), threads_of: [(0, 1)].into(), ..CpuConfig::default() };
    assert_eq!(units(probe(one).unwrap()), [1, 3]);
    assert!(
        probe(CpuConfig { devices: 0, ..CpuConfig::default() }).unwrap_err().cause.contains("no CPU devices")
    );
}

#[test]
fn features_can_be_restricted_but_not_added() {
    let of = |features| {
        let config = CpuConfig { features, ..CpuConfig::default() };
        CpuBackend::new(config).probe().unwrap().swap_remove(0)
    };
    let portable = of(Some(Features::new()));
    assert!(
        portable.caps.features.is_empty() && portable.driver.name.ends_with("portable"),
        "{}",
        portable.driver
    );
    let every = Features::from([Feature::Avx2, Feature::Avx512Vnni, Feature::NeonDot]);
    assert_eq!(of(Some(every)).caps.features, of(None).caps.features);
    let avx2 = of(Some(Features::from([Feature::Avx2])));
    assert!(avx2.caps.features.iter().all(|&feature| feature == Feature::Avx2));
}

#[test]
fn a_missing_adapter_cannot_be_opened() {
    let backend = CpuBackend::new(CpuConfig { devices: 2, ..CpuConfig::default() });
    let second = backend.probe().unwrap().swap_remove(1);
    let opened = CpuBackend::new(CpuConfig::default()).open(&[(second, DEVICE)], &Limits::default());
    assert!(matches!(opened, Err(Error::Invalid { what }) if what.contains("cpu:1")));
}

#[test]
fn timings_are_reported_once_and_in_order() {
    let mut bench = bench(1);
    let before = Instant::now();
    let points = [compute(&mut bench, vec![fill(1)]), compute(&mut bench, vec![step_all()])];
    bench.wait(points[1]);
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.iter().map(|timing| timing.point).collect::<Vec<_>>(), points);
    assert!(timings.iter().all(|timing| timing.start_ns <= timing.end_ns));
    assert!(timings[0].end_ns <= timings[1].start_ns);
    assert!(u128::from(timings[1].end_ns - timings[0].start_ns) <= before.elapsed().as_nanos());
    bench.device.take_timings(&mut timings);
    assert_eq!(timings.len(), 2, "taken once");
}
