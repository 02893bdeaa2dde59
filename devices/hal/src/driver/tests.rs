//! Tests of [`DriverDevice`] with a driver that uses host memory. The tests of `ragtag-stream` cover
//! concurrent queues.

use super::*;
use crate::backend::{
    Adapter, AdapterKind, Device, HeapKind, Limits, MemorySource, PhysicalIdentity, Timing,
};
use crate::caps::Caps;
use crate::command::{BufferRange, Command, Submission, Work};
use crate::error::Error;
use crate::ids::{BufferId, DeviceId, Point, ProgramId, QueueKind, RegionId, TimelineId};
use crate::pool::class_bytes;
use crate::queues::{Common, Ends, Fences};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const TOTAL_BYTES: u64 = 1 << 20;

/// Simulated memory. On drop, it returns its bytes to the driver's counter.
struct Block {
    bytes: u64,
    free_bytes: Arc<AtomicU64>,
}

impl Allocation for Block {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.free_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

struct Fake {
    free_bytes: Arc<AtomicU64>,
    trusts: bool,
}

impl Driver for Fake {
    type Buffer = Block;
    type Region = ();
    type Entry = ();
    type Launch = ();
    type Recording = ();
    type Semaphore = Infallible;
    type Queue = FakeQueue;

    fn heap(&self) -> Result<Memory> {
        Ok(Memory {
            heap: HeapKind::Device,
            total_bytes: TOTAL_BYTES,
            free_bytes: Some(self.free_bytes.load(Ordering::Relaxed)),
            source: MemorySource::Api,
        })
    }

    fn trusts_free_bytes(&self) -> bool {
        self.trusts
    }

    fn allocate(&self, bytes: u64) -> Result<Block> {
        let taken = |free: u64| free.checked_sub(bytes);
        let taken = self.free_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        taken.map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })?;
        Ok(Block { bytes, free_bytes: Arc::clone(&self.free_bytes) })
    }

    /// Takes new memory for each import, so that tests can count imports.
    fn import(&self, memory: &SharedMemory) -> Result<Block> {
        self.allocate(memory.bytes)
    }

    fn entries(&self, _: &Module) -> Result<Vec<()>> {
        Ok(Vec::new())
    }

    fn launch(&self, (): &(), _: &[Span<Block>], _: Vec<u32>, _: [u32; 3]) -> Result<()> {
        Ok(())
    }

    fn register(&self, _: &Arc<HostRegion>) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _: &[Step<Self>], _: bool) -> Result<()> {
        Ok(())
    }
}

/// A queue that a test controls through a channel. Each message ends one submission. Dropping the sender ends
/// all submissions.
struct FakeQueue {
    held: Option<Receiver<()>>,
    pending: AtomicU64,
}

impl DriverQueue for FakeQueue {
    type Driver = Fake;
    type Event = ();

    const USES_AFTER_END: bool = true;

    fn enqueue(&self, _: &Arc<Script<Fake>>, _: &Fences<'_, Self>) -> Result<Ends<()>> {
        self.pending.fetch_add(1, Ordering::Relaxed);
        Ok(Ends { first: None, last: Arc::new(()) })
    }

    fn passed(&self, (): &()) -> Option<bool> {
        None
    }

    fn wait(&self, (): &()) -> Result<()> {
        if let Some(held) = &self.held {
            let _ = held.recv();
        }
        self.pending.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn times_ns(&self, _: &Ends<()>) -> Option<(u64, u64)> {
        Some((Timing::now_ns(), Timing::now_ns()))
    }

    fn finish(&self) -> Result<()> {
        while self.pending.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn adapter() -> Adapter {
    Adapter {
        backend: "fake".into(),
        index: 0,
        name: "fake".into(),
        driver: "fake".into(),
        kind: AdapterKind::Discrete,
        identity: PhysicalIdentity::default(),
        condition: None,
        memory: Vec::new(),
        caps: Caps {
            max_allocation_bytes: TOTAL_BYTES,
            max_binding_bytes: TOTAL_BYTES,
            binding_alignment_bytes: 16,
            ..Caps::default()
        },
    }
}

struct Bench {
    device: DriverDevice<Fake>,
    free_bytes: Arc<AtomicU64>,
    /// Ends a submission on the compute queue.
    release: Sender<()>,
}

impl Bench {
    fn new(trusts: bool) -> Self {
        let free_bytes = Arc::new(AtomicU64::new(TOTAL_BYTES));
        let (release, held) = bounded(64);
        let fake = Fake { free_bytes: Arc::clone(&free_bytes), trusts };
        let queues = [Some(held), None, None].map(|held| FakeQueue { held, pending: AtomicU64::new(0) });
        let common = Common::new(DeviceId(0));
        let device = DriverDevice::open(common, adapter(), fake, queues, &Limits::default()).unwrap();
        Self { device, free_bytes, release }
    }

    fn free(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    fn fill(&mut self, buffer: u32, value: u64) -> Point {
        let signal = TimelineId { device: DeviceId(0), queue: QueueKind::Compute }.at(value);
        let work = Work::Commands(vec![fill(buffer)]);
        self.device.submit(Submission::timed(QueueKind::Compute, work, vec![], signal)).unwrap();
        signal
    }
}

fn range(buffer: u32) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: 0, bytes: 64 }
}

fn fill(buffer: u32) -> Command {
    Command::Fill { to: range(buffer), word: 1 }
}

#[test]
fn closing_waits_for_work_and_frees_everything() {
    let mut bench = Bench::new(true);
    bench.device.create_buffer(BufferId(0), 4096).unwrap();
    bench.device.record(ProgramId(0), vec![fill(0)]).unwrap();
    let point = bench.fill(0, 1);
    let (timeline, free) = (bench.device.timeline(QueueKind::Compute), Arc::clone(&bench.free_bytes));
    bench.release.send(()).unwrap();
    drop(bench);
    assert_eq!(timeline.wait(point.value, None), Ok(true));
    assert_eq!(free.load(Ordering::Relaxed), TOTAL_BYTES);
}

/// Checks that closing a device gives up on a driver that hangs, and leaks only that driver's memory and
/// threads.
#[test]
fn a_driver_that_never_finishes_is_left_behind() {
    let mut bench = Bench::new(true);
    bench.device.create_buffer(BufferId(0), 4096).unwrap();
    bench.device.create_buffer(BufferId(1), 256).unwrap();
    bench.device.destroy_buffer(BufferId(1)).unwrap();
    bench.device.record(ProgramId(0), vec![fill(0)]).unwrap();
    let point = bench.fill(0, 1);
    let timeline = bench.device.timeline(QueueKind::Compute);
    let (driver, buffer) =
        (Arc::clone(bench.device.driver()), Arc::clone(&bench.device.buffers[&BufferId(0)]));
    bench.device.close(Instant::now());
    let Bench { device, free_bytes, release } = bench;
    drop(device);
    let failure = timeline.wait(point.value, Some(LIMIT)).unwrap_err();
    assert!(matches!(failure.root(), Error::Closed { .. }), "{failure:?}");
    let taken = 4096 + class_bytes(256);
    assert_eq!(free_bytes.load(Ordering::Relaxed), TOTAL_BYTES - taken, "the driver may still use it");
    // If the driver finishes later, the completion thread drops only the script.
    let scripts = Arc::strong_count(&buffer);
    release.send(()).unwrap();
    let end = Instant::now() + LIMIT;
    while Arc::strong_count(&buffer) == scripts && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&buffer), scripts - 1);
    assert_eq!(free_bytes.load(Ordering::Relaxed), TOTAL_BYTES - taken);
    assert!(Arc::strong_count(&driver) > 1, "the driver stays");
}

/// Checks that releasing programs does not wait for a busy queue. The programs' memory is freed when the
/// queue finishes.
#[test]
fn a_hanging_queue_does_not_block_a_release() {
    let mut bench = Bench::new(true);
    let region = Arc::new(HostRegion::new(64).unwrap());
    bench.device.register_region(RegionId(0), region).unwrap();
    for id in 0..3 {
        bench.device.create_buffer(BufferId(id), 4096).unwrap();
    }
    let upload = Command::Upload { region: RegionId(0), offset: 0, to: range(2) };
    for (id, command) in [(0, fill(1)), (1, upload), (2, fill(2)), (3, fill(2))] {
        bench.device.record(ProgramId(id), vec![command]).unwrap();
    }
    bench.fill(0, 1);
    let (returned, calls) = bounded(1);
    let thread = std::thread::spawn(move || {
        bench.device.destroy_buffer(BufferId(1)).unwrap();
        bench.device.unregister_region(RegionId(0)).unwrap();
        bench.device.record(ProgramId(2), vec![fill(2)]).unwrap();
        bench.device.destroy_program(ProgramId(3)).unwrap();
        returned.send(()).unwrap();
        bench
    });
    calls.recv_timeout(LIMIT).expect("a release waits for the queue");
    let bench = thread.join().unwrap();
    assert_eq!(bench.free(), TOTAL_BYTES - 3 * 4096, "the queue may still use it");
    bench.release.send(()).unwrap();
    let end = Instant::now() + LIMIT;
    while bench.free() < TOTAL_BYTES - 2 * 4096 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(bench.free(), TOTAL_BYTES - 2 * 4096);
}

#[test]
fn a_buffer_in_use_is_not_reused() {
    let mut bench = Bench::new(true);
    for id in [0, 1] {
        bench.device.create_buffer(BufferId(id), 5000).unwrap();
    }
    bench.fill(1, 1);
    for id in [0, 1] {
        bench.device.destroy_buffer(BufferId(id)).unwrap();
    }
    let stats = bench.device.pool_stats();
    assert_eq!((stats.in_use_buffers, stats.cached_buffers), (0, 1));
    bench.device.create_buffer(BufferId(0), 4700).unwrap();
    bench.device.create_buffer(BufferId(1), 5000).unwrap();
    assert_eq!(bench.device.pool_stats().hits, 1);
    assert_eq!(bench.free(), TOTAL_BYTES - 3 * 5120, "the one in use, and two more");
    bench.release.send(()).unwrap();
}

#[test]
fn the_memory_of_shared_buffers_is_never_reused() {
    let mut bench = Bench::new(true);
    bench.device.create_buffer(BufferId(0), 5000).unwrap();
    bench.device.destroy_buffer(BufferId(0)).unwrap();
    bench.device.create_shared_buffer(BufferId(0), 5000).unwrap();
    let stats = bench.device.pool_stats();
    assert_eq!((stats.hits, stats.in_use_bytes, stats.cached_buffers), (0, 5120, 1));
    bench.device.destroy_buffer(BufferId(0)).unwrap();
    let stats = bench.device.pool_stats();
    assert_eq!((stats.in_use_buffers, stats.in_use_bytes, stats.cached_buffers), (0, 0, 1));
    assert_eq!(bench.free(), TOTAL_BYTES - 5120);
}

/// Checks that a second import of the same memory does not reach the driver, and that the import ends with
/// its last buffer.
#[test]
fn memory_is_imported_once() {
    let mut bench = Bench::new(true);
    let memory = || SharedMemory { bytes: 4096, handle: Arc::new(7) };
    let (twice, once) = (memory(), memory());
    for (id, memory) in [(0, &twice), (1, &twice.clone()), (2, &once)] {
        bench.device.import_buffer(BufferId(id), memory).unwrap();
    }
    assert_eq!(bench.free(), TOTAL_BYTES - 2 * 4096);
    bench.device.record(ProgramId(0), vec![fill(0)]).unwrap();
    bench.device.destroy_buffer(BufferId(1)).unwrap();
    let (queue, work) = (QueueKind::Compute, Work::Program(ProgramId(0)));
    let signal = TimelineId { device: DeviceId(0), queue }.at(1);
    bench.release.send(()).unwrap();
    bench.device.submit(Submission::timed(queue, work, vec![], signal)).unwrap();
    assert_eq!(bench.device.timeline(queue).wait(1, Some(LIMIT)), Ok(true));
    [0, 2].into_iter().for_each(|id| bench.device.destroy_buffer(BufferId(id)).unwrap());
    let end = Instant::now() + LIMIT;
    while bench.free() < TOTAL_BYTES && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(bench.free(), TOTAL_BYTES);
    bench.device.import_buffer(BufferId(0), &twice).unwrap();
    assert_eq!(bench.free(), TOTAL_BYTES - 4096, "an import after the end of the first");
}

#[test]
fn a_shortage_reports_sizes() {
    for trusts in [true, false] {
        let mut bench = Bench::new(trusts);
        bench.free_bytes.store(10_000, Ordering::Relaxed);
        let refused = bench.device.create_buffer(BufferId(0), 20_000);
        assert_eq!(refused, Err(Error::OutOfMemory { wanted: 20_000, free: Some(10_000) }), "{trusts}");
        assert_eq!(bench.device.create_buffer(BufferId(0), 5000), Ok(()));
    }
}

#[test]
fn parts_cover_a_grid_once() {
    let all: Vec<_> = grid_parts([5, 1, 3], [2, 9, 2]).collect();
    let wanted = [
        ([0, 0, 0], [2, 1, 2]),
        ([2, 0, 0], [2, 1, 2]),
        ([4, 0, 0], [1, 1, 2]),
        ([0, 0, 2], [2, 1, 1]),
        ([2, 0, 2], [2, 1, 1]),
        ([4, 0, 2], [1, 1, 1]),
    ];
    assert_eq!(all, wanted);
    assert_eq!(grid_parts([7, 8, 9], [u32::MAX; 3]).collect::<Vec<_>>(), [([0; 3], [7, 8, 9])]);
    assert_eq!(grid_parts([u32::MAX, 1, 1], [65535; 3]).count(), 65537);
    assert_eq!(grid_parts([3, 0, 1], [2; 3]).count(), 0);
}
