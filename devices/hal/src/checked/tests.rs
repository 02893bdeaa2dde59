//! Tests that [`Checked`] enforces every rule and accepts valid use. The device that it wraps only records
//! calls.

use super::*;
use crate::backend::{AdapterKind, HeapKind, MemorySource, PhysicalIdentity};
use crate::caps::{Caps, KernelLanguage};
use crate::command::{Access, Binding, BufferRange, Dispatch, EntryAbi, LinkedEntry, ModuleSource};
use crate::gemm::{Gemm, GemmEntry, GemmLibrary};
use crate::host::{HostCall, HostFn};
use std::ops::Range;
use std::sync::Mutex;

const BUFFER_BYTES: u64 = 1024;
const REGION_BYTES: usize = 512;
const DEVICE: DeviceId = DeviceId(7);
const ABROAD: TimelineId = TimelineId { device: DeviceId(9), queue: QueueKind::Download };

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A device that only records the calls that reach it. Tests advance its timelines.
struct Fake {
    adapter: Adapter,
    timelines: [Arc<Timeline>; 3],
    log: Log,
}

impl Fake {
    fn note(&self, call: &'static str) -> Result<()> {
        self.log.lock().unwrap().push(call);
        Ok(())
    }
}

impl Device for Fake {
    fn id(&self) -> DeviceId {
        DEVICE
    }
    fn adapter(&self) -> &Adapter {
        &self.adapter
    }
    fn memory(&self) -> Result<Vec<Memory>> {
        Ok(self.adapter.memory.clone())
    }
    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.timelines[queue.index()])
    }
    fn import_timeline(&mut self, _: Arc<Timeline>) -> Result<()> {
        self.note("import_timeline")
    }
    fn pool_stats(&self) -> PoolStats {
        PoolStats { hits: 7, ..PoolStats::default() }
    }
    fn trim_pool(&mut self) -> u64 {
        let _ = self.note("trim_pool");
        4096
    }
    fn create_buffer(&mut self, _: BufferId, _: u64) -> Result<()> {
        self.note("create_buffer")
    }
    fn destroy_buffer(&mut self, _: BufferId) -> Result<()> {
        self.note("destroy_buffer")
    }
    fn create_shared_buffer(&mut self, _: BufferId, _: u64) -> Result<()> {
        self.note("create_shared_buffer")
    }
    fn import_buffer(&mut self, _: BufferId, _: &SharedMemory) -> Result<()> {
        self.note("import_buffer")
    }
    fn create_module(&mut self, _: ModuleId, _: &Module) -> Result<()> {
        self.note("create_module")
    }
    fn destroy_module(&mut self, _: ModuleId) -> Result<()> {
        self.note("destroy_module")
    }
    fn register_region(&mut self, _: RegionId, _: Arc<HostRegion>) -> Result<()> {
        self.note("register_region")
    }
    fn unregister_region(&mut self, _: RegionId) -> Result<()> {
        self.note("unregister_region")
    }
    fn record(&mut self, _: ProgramId, _: Vec<Command>) -> Result<()> {
        self.note("record")
    }
    fn destroy_program(&mut self, _: ProgramId) -> Result<()> {
        self.note("destroy_program")
    }
    fn submit(&mut self, _: Submission) -> Result<()> {
        self.note("submit")
    }
    fn take_timings(&mut self, _: &mut Vec<Timing>) {
        let _ = self.note("take_timings");
    }
}

/// A kernel that reads `constants[0]` words of the first binding, writes the same number of words to the
/// second, and may access four bytes of the third.
static SUM: EntryAbi = EntryAbi {
    name: "sum",
    bindings: &[Access::Read, Access::Write, Access::ReadWrite],
    constants: 1,
    extents: |constants, extents| {
        extents[0] = u64::from(constants[0]).saturating_mul(4);
        extents[1] = extents[0];
        extents[2] = 4;
    },
};

unsafe fn sum(_: &HostCall<'_>, _: Range<u32>) {}

fn module(functions: usize) -> Module {
    Module {
        name: "sums".into(),
        entries: vec![&SUM],
        source: ModuleSource::Host(vec![sum as HostFn; functions]),
    }
}

fn adapter(languages: impl IntoIterator<Item = KernelLanguage>) -> Adapter {
    Adapter {
        backend: "fake".into(),
        index: 0,
        name: "fake".into(),
        driver: "none".into(),
        kind: AdapterKind::Software,
        identity: PhysicalIdentity::default(),
        condition: None,
        memory: vec![Memory {
            heap: HeapKind::Device,
            total_bytes: 1 << 20,
            free_bytes: None,
            source: MemorySource::Api,
        }],
        caps: Caps {
            languages: languages.into_iter().collect(),
            max_allocation_bytes: 4096,
            max_binding_bytes: 256,
            ..Caps::default()
        },
    }
}

fn fake(languages: impl IntoIterator<Item = KernelLanguage>) -> (Checked, Log) {
    fake_with(adapter(languages))
}

fn fake_with(adapter: Adapter) -> (Checked, Log) {
    let log = Log::default();
    let timelines = QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: DEVICE, queue }));
    (Checked::new(Box::new(Fake { adapter, timelines, log: Arc::clone(&log) })), log)
}

/// A device with buffers 0, 1 and 2, module 0 and region 0.
struct Bench {
    device: Checked,
    log: Log,
}

impl Bench {
    fn new() -> Self {
        let (device, log) = fake([KernelLanguage::Host]);
        Self::over(device, log)
    }

    fn over(mut device: Checked, log: Log) -> Self {
        for id in 0..3 {
            device.create_buffer(BufferId(id), BUFFER_BYTES).unwrap();
        }
        device.create_module(ModuleId(0), &module(1)).unwrap();
        device.register_region(RegionId(0), Arc::new(HostRegion::new(REGION_BYTES).unwrap())).unwrap();
        log.lock().unwrap().clear();
        Bench { device, log }
    }

    /// Submits work that signals the next value of the queue.
    fn submit(&mut self, queue: QueueKind, work: Work, waits: Vec<Point>) -> Result<()> {
        let own = &self.device.own[queue.index()];
        let signal = own.timeline.id().at(own.signalled + 1);
        self.device.submit(Submission::timed(queue, work, waits, signal))
    }

    fn run(&mut self, queue: QueueKind, command: Command) -> Result<()> {
        self.submit(queue, Work::Commands(vec![command]), vec![])
    }

    fn pass(&self, queue: QueueKind) {
        let own = &self.device.own[queue.index()];
        own.timeline.advance(own.signalled);
    }

    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Asserts that `result` is an error that contains all of `words`, and that the call did not reach the
    /// backend.
    #[track_caller]
    fn refused(&self, result: Result<()>, words: &[&str]) {
        match result {
            Err(Error::Invalid { what }) => {
                for word in words {
                    assert!(what.contains(word), "{what:?} does not say {word:?}");
                }
            }
            other => panic!("not refused: {other:?}"),
        }
        assert_eq!(self.calls(), Vec::<&str>::new(), "a refused call reached the backend");
    }

    #[track_caller]
    fn passes(&self, result: Result<()>, call: &'static str) {
        result.unwrap();
        assert_eq!(self.calls(), [call]);
    }
}

fn range(buffer: u32, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset, bytes }
}

/// Returns a valid launch of `SUM` over 16 words.
fn dispatch() -> Dispatch {
    let bind = |buffer, access| Binding { range: range(buffer, 64, 64), access };
    Dispatch {
        module: ModuleId(0),
        entry: 0,
        bindings: vec![bind(0, Access::Read), bind(1, Access::Write), bind(2, Access::ReadWrite)],
        constants: vec![16],
        grid: [4, 1, 1],
    }
}

fn changed(change: impl FnOnce(&mut Dispatch)) -> Command {
    let mut dispatch = dispatch();
    change(&mut dispatch);
    Command::Dispatch(dispatch)
}

fn copy(from: BufferRange, to: BufferRange) -> Command {
    Command::Copy { from, to }
}

fn fill(to: BufferRange) -> Command {
    Command::Fill { to, word: 0 }
}

fn upload(offset: u64, to: BufferRange) -> Command {
    Command::Upload { region: RegionId(0), offset, to }
}

fn upload_used(offset: u64, to: BufferRange, used: u32) -> Command {
    Command::UploadUsed { region: RegionId(0), offset, to, used }
}

fn download(from: BufferRange, offset: u64) -> Command {
    Command::Download { from, region: RegionId(0), offset }
}

#[test]
fn buffers_have_new_ids_and_a_size_within_the_limit() {
    let mut b = Bench::new();
    let result = b.device.create_buffer(BufferId(9), 4096);
    b.passes(result, "create_buffer");
    let result = b.device.create_buffer(BufferId(10), 4097);
    let error = result.unwrap_err();
    assert_eq!(error, Error::AllocationTooLarge { wanted: 4097, largest: 4096 });
    assert!(error.is_out_of_memory() && error.to_string().contains("the largest single allocation is 4096"));
    assert_eq!(b.calls(), Vec::<&str>::new());
    let result = b.device.create_buffer(BufferId(10), 0);
    b.refused(result, &["zero bytes"]);
    let result = b.device.create_buffer(BufferId(9), 16);
    b.refused(result, &["buffer 9 exists already"]);
    let result = b.device.destroy_buffer(BufferId(9));
    b.passes(result, "destroy_buffer");
    let result = b.device.destroy_buffer(BufferId(9));
    b.refused(result, &["buffer 9 does not exist"]);
    let result = b.device.create_buffer(BufferId(9), 16);
    b.passes(result, "create_buffer");
}

#[test]
fn modules_have_new_ids_and_code_for_each_entry() {
    let mut b = Bench::new();
    let result = b.device.create_module(ModuleId(0), &module(1));
    b.refused(result, &["module 0 exists already"]);
    let result = b.device.create_module(ModuleId(1), &module(2));
    b.refused(result, &["1 entries and 2 functions"]);
    let result = b.device.create_module(ModuleId(1), &module(1));
    b.passes(result, "create_module");
    // The adapter has no product library.
    let product = |_: &[u32]| panic!("a refused entry's product was computed");
    let linked = LinkedEntry::Gemm(GemmEntry { bindings: [0, 0, 2], product });
    let source = ModuleSource::Linked { language: None, entries: vec![linked] };
    let result = b.device.create_module(ModuleId(2), &Module { source, ..module(1) });
    assert!(matches!(result, Err(Error::Unsupported { what }) if what.contains("a library")));
    assert!(b.calls().is_empty());
    let (mut other, log) = fake([]);
    assert!(matches!(other.create_module(ModuleId(0), &module(1)), Err(Error::Unsupported { .. })));
    assert!(log.lock().unwrap().is_empty());
}

#[test]
fn destroying_a_module_invalidates_its_programs() {
    let mut b = Bench::new();
    b.device.record(ProgramId(0), vec![Command::Dispatch(dispatch())]).unwrap();
    b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]).unwrap();
    b.calls();
    let result = b.device.destroy_module(ModuleId(0));
    b.refused(result, &["module 0 is destroyed before"]);
    b.pass(QueueKind::Compute);
    b.run(QueueKind::Compute, Command::Dispatch(dispatch())).unwrap();
    b.calls();
    let result = b.device.destroy_module(ModuleId(0));
    b.refused(result, &["module 0 is destroyed before"]);
    b.pass(QueueKind::Compute);
    let result = b.device.destroy_module(ModuleId(0));
    b.passes(result, "destroy_module");
    let result = b.device.destroy_module(ModuleId(0));
    b.refused(result, &["module 0 does not exist"]);
    let result = b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]);
    b.refused(result, &["program 0 names module 0"]);
    let result = b.run(QueueKind::Compute, Command::Dispatch(dispatch()));
    b.refused(result, &["module 0 does not exist"]);
}

#[test]
fn shared_buffers_are_checked_like_others() {
    let mut b = Bench::new();
    let memory = SharedMemory { bytes: 8, handle: Arc::new(()) };
    let result = b.device.export_buffer(BufferId(77)).map(drop);
    b.refused(result, &["buffer 77 does not exist"]);
    let result = b.device.create_shared_buffer(BufferId(0), 8);
    b.refused(result, &["buffer 0 exists already"]);
    let result = b.device.create_shared_buffer(BufferId(8), 8);
    b.passes(result, "create_shared_buffer");
    let result = b.device.import_buffer(BufferId(0), &memory);
    b.refused(result, &["buffer 0 exists already"]);
    let result = b.device.import_buffer(BufferId(9), &memory);
    b.passes(result, "import_buffer");
    let range = |buffer, bytes| BufferRange { buffer: BufferId(buffer), offset: 0, bytes };
    let result = b.run(QueueKind::Upload, Command::Copy { from: range(0, 12), to: range(9, 12) });
    b.refused(result, &["12 bytes", "has 8"]);
    assert!([8, 9].iter().all(|&id| b.device.leaks().buffers.contains(&BufferId(id))));
}

#[test]
fn a_device_reports_its_leaks() {
    let mut b = Bench::new();
    b.device.record(ProgramId(3), vec![]).unwrap();
    let all = Leaks {
        buffers: vec![BufferId(0), BufferId(1), BufferId(2)],
        regions: vec![RegionId(0)],
        programs: vec![ProgramId(3)],
        modules: vec![ModuleId(0)],
    };
    assert_eq!(b.device.leaks(), all);
    assert_eq!(all.to_string(), "3 buffers, 1 regions, 1 programs, 1 modules");
    b.device.destroy_buffer(BufferId(1)).unwrap();
    b.device.destroy_program(ProgramId(3)).unwrap();
    let watch = b.device.leak_watch();
    assert_eq!(watch.leaks(), None);
    drop(b);
    let some = Leaks { buffers: vec![BufferId(0), BufferId(2)], programs: vec![], ..all };
    assert_eq!(watch.leaks(), Some(some));

    let mut b = Bench::new();
    let watch = b.device.leak_watch();
    (0..3).for_each(|id| b.device.destroy_buffer(BufferId(id)).unwrap());
    b.device.destroy_module(ModuleId(0)).unwrap();
    b.device.unregister_region(RegionId(0)).unwrap();
    assert!(b.device.leaks().is_empty());
    drop(b);
    assert_eq!(watch.leaks(), Some(Leaks::default()));
}

/// Checks that only a lost device reports no leaks. A device that was closed, or that waited for a lost
/// device, still reports leaks.
#[test]
fn a_lost_device_has_no_leaks() {
    let lost = Error::Lost { cause: "unplugged".into() };
    let poisoned = Error::Poisoned { point: ABROAD.at(1), cause: Box::new(lost.clone()) };
    let closed = Error::Closed { cause: "its stage has ended".into() };
    for (failure, lets_go) in [(lost, true), (poisoned, false), (closed, false)] {
        let b = Bench::new();
        b.device.timeline(QueueKind::Upload).fail(failure.clone());
        assert_eq!(b.device.leaks().is_empty(), lets_go, "{failure}");
    }
}

#[test]
fn regions_have_new_ids() {
    let mut b = Bench::new();
    let region = Arc::new(HostRegion::new(64).unwrap());
    let result = b.device.register_region(RegionId(0), Arc::clone(&region));
    b.refused(result, &["region 0 is registered already"]);
    let result = b.device.unregister_region(RegionId(1));
    b.refused(result, &["region 1 is not registered"]);
    let result = b.device.unregister_region(RegionId(0));
    b.passes(result, "unregister_region");
    let result = b.device.register_region(RegionId(0), region);
    b.passes(result, "register_region");
}

#[test]
fn ranges_lie_inside_what_they_name() {
    let mut b = Bench::new();
    let compute = QueueKind::Compute;
    let whole = range(0, 0, BUFFER_BYTES);
    let result = b.run(compute, copy(whole, range(1, 0, BUFFER_BYTES)));
    b.passes(result, "submit");
    let result = b.run(compute, upload(0, range(0, BUFFER_BYTES - 512, 512)));
    b.passes(result, "submit");
    for (command, words) in [
        (copy(range(0, 1, BUFFER_BYTES), range(1, 0, BUFFER_BYTES)), ["buffer 0", "1024"]),
        (copy(range(0, 0, 8), range(1, BUFFER_BYTES, 8)), ["buffer 1", "1024"]),
        (copy(range(0, u64::MAX, 8), range(1, 0, 8)), ["buffer 0", "18446744073709551615"]),
        (copy(range(0, 8, u64::MAX), range(1, 0, u64::MAX)), ["buffer 0", "18446744073709551615"]),
        (copy(range(0, 0, 0), range(1, 0, 0)), ["empty", "buffer 0"]),
        (copy(range(5, 0, 8), range(1, 0, 8)), ["buffer 5", "exist"]),
        (fill(range(6, 0, 8)), ["buffer 6", "exist"]),
        (fill(range(0, 1020, 8)), ["buffer 0", "1020"]),
        (upload(0, range(0, 1020, 8)), ["buffer 0", "1020"]),
        (upload(505, range(0, 0, 8)), ["region 0", "512"]),
        (upload(u64::MAX, range(0, 0, 8)), ["region 0", "512"]),
        (download(range(0, 0, 8), 505), ["region 0", "512"]),
        (download(range(0, 1020, 8), 0), ["buffer 0", "1020"]),
        (Command::Upload { region: RegionId(3), offset: 0, to: range(0, 0, 8) }, ["region 3", "registered"]),
        (upload_used(505, range(0, 0, 8), 1), ["region 0", "512"]),
        (upload_used(0, range(0, 0, 8), 2), ["word 2", "8 bytes"]),
    ] {
        let result = b.run(compute, command);
        b.refused(result, &words);
    }
}

#[test]
fn copies_match_in_length_and_do_not_overlap() {
    let mut b = Bench::new();
    let result = b.run(QueueKind::Compute, copy(range(0, 0, 8), range(1, 0, 12)));
    b.refused(result, &["8 bytes into 12"]);
    let result = b.run(QueueKind::Compute, copy(range(0, 0, 8), range(0, 7, 8)));
    b.refused(result, &["overlap"]);
    let result = b.run(QueueKind::Compute, copy(range(0, 7, 8), range(0, 0, 8)));
    b.refused(result, &["overlap"]);
    for (from, to) in [(0, 8), (8, 0)] {
        let result = b.run(QueueKind::Compute, copy(range(0, from, 8), range(0, to, 8)));
        b.passes(result, "submit");
    }
}

#[test]
fn copies_keep_to_the_alignment_of_the_device() {
    let mut adapter = adapter([KernelLanguage::Host]);
    adapter.caps.copy_alignment_bytes = 4;
    let (mut device, _) = fake_with(adapter);
    device.create_buffer(BufferId(0), 30).unwrap();
    device.create_buffer(BufferId(1), 64).unwrap();
    device.register_region(RegionId(0), Arc::new(HostRegion::new(REGION_BYTES).unwrap())).unwrap();
    let mut run = |at, command| {
        let signal = device.timeline(QueueKind::Compute).id().at(at);
        let work = Work::Commands(vec![command]);
        device.submit(Submission::timed(QueueKind::Compute, work, vec![], signal))
    };
    run(1, upload(3, range(0, 4, 8))).unwrap();
    run(2, upload(3, range(0, 4, 26))).expect("to the end of the buffer");
    run(3, copy(range(0, 28, 2), range(1, 62, 2))).expect_err("from 62 on");
    for refused in [
        upload(0, range(0, 2, 4)),
        upload(0, range(0, 4, 6)),
        download(range(1, 1, 4), 0),
        copy(range(0, 0, 4), range(1, 6, 4)),
        copy(range(0, 6, 4), range(1, 0, 4)),
    ] {
        assert!(matches!(run(3, refused.clone()), Err(Error::Invalid { .. })), "{refused:?}");
    }
}

#[test]
fn fills_are_whole_words() {
    let mut b = Bench::new();
    for to in [range(0, 2, 8), range(0, 4, 6)] {
        let result = b.run(QueueKind::Compute, fill(to));
        b.refused(result, &["multiples of four"]);
    }
    let result = b.run(QueueKind::Compute, fill(range(0, 4, 8)));
    b.passes(result, "submit");
}

#[test]
fn dispatches_keep_to_their_abi() {
    let mut b = Bench::new();
    let result = b.run(QueueKind::Compute, changed(|_| ()));
    b.passes(result, "submit");
    let result = b.run(QueueKind::Compute, changed(|d| d.grid = [0, u32::MAX, u32::MAX]));
    b.passes(result, "submit");
    type Change = fn(&mut Dispatch);
    let cases: [(Change, &[&str]); 15] = [
        (|d| d.module = ModuleId(4), &["module 4 does not exist"]),
        (|d| d.entry = 1, &["no entry 1 in module 0, which has 1"]),
        (|d| d.bindings.truncate(2), &["sum takes 3 bindings, not 2"]),
        (|d| d.constants.push(0), &["sum takes 1 constants, not 2"]),
        (|d| d.grid = [1 << 16, 1 << 16, 1], &["sum", "2^32"]),
        (|d| d.bindings[0].access = Access::ReadWrite, &["sum, binding 0", "ReadWrite", "Read"]),
        (|d| d.bindings[1].range.offset = 32, &["sum, binding 1", "multiple of 64"]),
        (|d| d.bindings[1].range.bytes = 320, &["sum, binding 1", "at most 256"]),
        (|d| d.bindings[2].range.offset = 1024, &["sum, binding 2", "buffer 2"]),
        (|d| d.bindings[2].range.bytes = u64::MAX, &["sum, binding 2", "buffer 2"]),
        (|d| d.bindings[2].range.buffer = BufferId(8), &["sum, binding 2", "buffer 8 does not exist"]),
        (|d| d.constants = vec![17], &["sum, binding 0", "64 bytes", "68"]),
        (|d| d.bindings[2].range.bytes = 2, &["sum, binding 2", "2 bytes", "4"]),
        (|d| d.bindings[1].range = d.bindings[0].range, &["sum", "bindings 0 and 1 overlap"]),
        (|d| d.bindings[2].range = range(1, 64, 4), &["sum", "bindings 1 and 2 overlap"]),
    ];
    for (change, words) in cases {
        let result = b.run(QueueKind::Compute, changed(change));
        b.refused(result, words);
    }
}

#[test]
fn bindings_hold_at_least_their_extent_and_at_most_the_limit() {
    let mut b = Bench::new();
    for (bytes, refusal) in [
        (63, Some(["sum, binding 0: 63 bytes", "require 64"])),
        (64, None),
        (256, None),
        (257, Some(["sum, binding 0: 257 bytes", "at most 256"])),
    ] {
        let result = b.run(QueueKind::Compute, changed(|d| d.bindings[0].range.bytes = bytes));
        match refusal {
            Some(words) => b.refused(result, &words),
            None => b.passes(result, "submit"),
        }
    }
}

/// A kernel that reads both of its bindings.
static READS: EntryAbi =
    EntryAbi { name: "reads", bindings: &[Access::Read, Access::Read], constants: 0, extents: |_, _| {} };

#[test]
fn bindings_that_are_only_read_may_overlap() {
    let mut b = Bench::new();
    let module = Module {
        name: "reads".into(),
        entries: vec![&READS],
        source: ModuleSource::Host(vec![sum as HostFn]),
    };
    b.device.create_module(ModuleId(1), &module).unwrap();
    b.calls();
    let binding = Binding { range: range(0, 0, 64), access: Access::Read };
    let result = b.run(
        QueueKind::Compute,
        changed(|d| {
            *d = Dispatch {
                module: ModuleId(1),
                entry: 0,
                bindings: vec![binding; 2],
                constants: vec![],
                grid: [1; 3],
            };
        }),
    );
    b.passes(result, "submit");
}

/// A matrix product of `constants[0]` rows. The extents in its ABI are zero.
static PRODUCT: EntryAbi = EntryAbi {
    name: "product",
    bindings: &[Access::Read, Access::Read, Access::ReadWrite],
    constants: 1,
    extents: |_, _| {},
};

fn product(bindings: [usize; 3]) -> Module {
    let product = |constants: &[u32]| {
        let (columns, depth) = (4, 8);
        let (x_pitch, weights_pitch, y_pitch) = (depth, depth, columns);
        Gemm { rows: constants[0], columns, depth, x_pitch, weights_pitch, y_pitch, accumulate: false }
    };
    let entries = vec![LinkedEntry::Gemm(GemmEntry { bindings, product })];
    let source = ModuleSource::Linked { language: None, entries };
    Module { name: "products".into(), entries: vec![&PRODUCT], source }
}

#[test]
fn products_touch_nothing_beyond_their_bindings() {
    let mut adapter = adapter([KernelLanguage::Host]);
    adapter.caps.gemm =
        Some(GemmLibrary { name: "fake".into(), version: "1".into(), workspace_bytes: 0, preferred: false });
    let (device, log) = fake_with(adapter);
    let mut b = Bench::over(device, log);
    let result = b.device.create_module(ModuleId(1), &product([2, 1, 0]));
    b.refused(result, &["product: a product whose bindings are"]);
    let result = b.device.create_module(ModuleId(1), &product([0, 1, 2]));
    b.passes(result, "create_module");
    // Two rows need 32 bytes of x, 64 bytes of W and 32 bytes of y.
    let launch = |rows, groups, bytes: [u64; 3]| {
        changed(|d| {
            (d.module, d.constants, d.grid) = (ModuleId(1), vec![rows], [groups, 1, 1]);
            d.bindings[1].access = Access::Read;
            d.bindings.iter_mut().zip(bytes).for_each(|(binding, bytes)| binding.range.bytes = bytes);
        })
    };
    for (rows, groups, bytes, refusal) in [
        (2, 1, [32, 64, 32], None),
        (2, 1, [31, 64, 32], Some("product, binding 0")),
        (2, 1, [32, 63, 32], Some("product, binding 1")),
        (2, 1, [32, 64, 31], Some("product, binding 2")),
        (0, 1, [32, 64, 32], Some("product: no library computes")),
        // A dispatch with an empty grid accesses no bytes.
        (0, 0, [32, 64, 32], None),
    ] {
        let result = b.run(QueueKind::Compute, launch(rows, groups, bytes));
        match refusal {
            Some(words) => b.refused(result, &[words]),
            None => b.passes(result, "submit"),
        }
    }
}

#[test]
fn queues_take_their_own_commands() {
    let mut b = Bench::new();
    use QueueKind::{Compute, Download, Upload};
    let (word, other) = (range(0, 0, 4), range(1, 0, 4));
    let rows: [(Command, &[QueueKind]); 5] = [
        (changed(|_| ()), &[Compute]),
        (copy(word, other), &QueueKind::ALL),
        (fill(word), &[Compute]),
        (upload(0, word), &[Compute, Upload]),
        (download(word, 0), &[Compute, Download]),
    ];
    for (command, allowed) in rows {
        for queue in QueueKind::ALL {
            let result = b.run(queue, command.clone());
            if allowed.contains(&queue) {
                b.passes(result, "submit");
            } else {
                b.refused(result, &["command 0", queue.name()]);
            }
        }
    }
}

#[test]
fn signals_increase_on_the_timeline_of_their_queue() {
    let mut b = Bench::new();
    let signal = |device, queue, value| Submission {
        queue: QueueKind::Compute,
        work: Work::Commands(vec![]),
        waits: vec![],
        signal: TimelineId { device, queue }.at(value),
        is_timed: true,
    };
    let result = b.device.submit(signal(DEVICE, QueueKind::Upload, 1));
    b.refused(result, &["not its timeline"]);
    let result = b.device.submit(signal(DeviceId(8), QueueKind::Compute, 1));
    b.refused(result, &["not its timeline"]);
    let result = b.device.submit(signal(DEVICE, QueueKind::Compute, 0));
    b.refused(result, &["@0 after"]);
    let result = b.device.submit(signal(DEVICE, QueueKind::Compute, 5));
    b.passes(result, "submit");
    let result = b.device.submit(signal(DEVICE, QueueKind::Compute, 5));
    b.refused(result, &["@5 after", "@5 was signalled"]);
    let result = b.device.submit(signal(DEVICE, QueueKind::Compute, 7));
    b.passes(result, "submit");
}

#[test]
fn waits_name_imported_points_or_already_submitted_points_of_the_device() {
    let mut b = Bench::new();
    let nothing = || Work::Commands(vec![]);
    let own = |queue: QueueKind, value| TimelineId { device: DEVICE, queue }.at(value);
    let result = b.submit(QueueKind::Compute, nothing(), vec![own(QueueKind::Upload, 1)]);
    b.refused(result, &["device 7/upload@1", "no earlier submission"]);
    let result = b.submit(QueueKind::Upload, nothing(), vec![own(QueueKind::Upload, 1)]);
    b.refused(result, &["no earlier submission"]);
    let result = b.submit(QueueKind::Upload, nothing(), vec![]);
    b.passes(result, "submit");
    let result = b.submit(QueueKind::Compute, nothing(), vec![own(QueueKind::Upload, 1)]);
    b.passes(result, "submit");
    let result = b.submit(QueueKind::Compute, nothing(), vec![ABROAD.at(3)]);
    b.refused(result, &["device 9/download@3", "not imported"]);
    let abroad = Timeline::new(ABROAD);
    let result = b.device.import_timeline(Arc::clone(&abroad));
    b.passes(result, "import_timeline");
    let result = b.submit(QueueKind::Compute, nothing(), vec![ABROAD.at(3)]);
    b.passes(result, "submit");
    b.device.import_timeline(abroad).unwrap();
    assert!(b.calls().is_empty(), "imported twice");
    let result = b.device.import_timeline(Timeline::new(ABROAD));
    b.refused(result, &["another timeline"]);
    let result = b.device.import_timeline(b.device.timeline(QueueKind::Upload));
    b.refused(result, &["its own device"]);
}

#[test]
fn programs_are_recorded_then_submitted_to_the_compute_queue_one_at_a_time() {
    let mut b = Bench::new();
    let program = || Work::Program(ProgramId(0));
    let result = b.submit(QueueKind::Compute, program(), vec![]);
    b.refused(result, &["program 0 is not recorded"]);
    let result = b.device.destroy_program(ProgramId(0));
    b.refused(result, &["program 0 is not recorded"]);
    let result = b.device.record(ProgramId(0), vec![fill(range(0, 0, 4)), fill(range(0, 1, 4))]);
    b.refused(result, &["command 1", "multiples of four"]);
    let result = b.device.record(ProgramId(0), vec![changed(|_| ()), upload(0, range(0, 0, 4))]);
    b.passes(result, "record");
    let result = b.submit(QueueKind::Upload, program(), vec![]);
    b.refused(result, &["upload queue"]);
    let result = b.submit(QueueKind::Compute, program(), vec![]);
    b.passes(result, "submit");
    let result = b.submit(QueueKind::Compute, program(), vec![]);
    b.refused(result, &["program 0 is submitted again", "compute@1"]);
    let result = b.device.record(ProgramId(0), vec![]);
    b.refused(result, &["program 0 is recorded anew", "compute@1"]);
    let result = b.device.destroy_program(ProgramId(0));
    b.refused(result, &["program 0 is destroyed", "compute@1"]);
    b.pass(QueueKind::Compute);
    let result = b.submit(QueueKind::Compute, program(), vec![]);
    b.passes(result, "submit");
    b.pass(QueueKind::Compute);
    let result = b.device.record(ProgramId(0), vec![]);
    b.passes(result, "record");
    let result = b.device.destroy_program(ProgramId(0));
    b.passes(result, "destroy_program");
}

#[test]
fn a_thing_in_use_cannot_be_destroyed() {
    let mut b = Bench::new();
    let result = b.run(QueueKind::Upload, upload(0, range(0, 0, 4)));
    b.passes(result, "submit");
    let result = b.device.destroy_buffer(BufferId(0));
    b.refused(result, &["buffer 0 is destroyed before device 7/upload@1"]);
    let result = b.device.unregister_region(RegionId(0));
    b.refused(result, &["region 0 is unregistered before device 7/upload@1"]);
    let result = b.device.destroy_buffer(BufferId(1));
    b.passes(result, "destroy_buffer");
    b.pass(QueueKind::Upload);
    let result = b.device.unregister_region(RegionId(0));
    b.passes(result, "unregister_region");
    let result = b.device.destroy_buffer(BufferId(0));
    b.passes(result, "destroy_buffer");
}

#[test]
fn outstanding_programs_protect_what_they_name() {
    let mut b = Bench::new();
    b.device.record(ProgramId(0), vec![changed(|_| ()), download(range(0, 0, 4), 0)]).unwrap();
    b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]).unwrap();
    b.calls();
    let result = b.device.destroy_buffer(BufferId(2));
    b.refused(result, &["buffer 2 is destroyed before device 7/compute@1"]);
    let result = b.device.unregister_region(RegionId(0));
    b.refused(result, &["region 0 is unregistered before device 7/compute@1"]);
    b.pass(QueueKind::Compute);
    let result = b.device.destroy_buffer(BufferId(2));
    b.passes(result, "destroy_buffer");
    let result = b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]);
    b.refused(result, &["program 0 names buffer 2, which was destroyed"]);
    b.device.create_buffer(BufferId(2), BUFFER_BYTES).unwrap();
    b.calls();
    let result = b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]);
    b.refused(result, &["program 0 names buffer 2"]);
    let result = b.device.record(ProgramId(0), vec![changed(|_| ())]);
    b.passes(result, "record");
    let result = b.submit(QueueKind::Compute, Work::Program(ProgramId(0)), vec![]);
    b.passes(result, "submit");
}

#[test]
fn a_failed_timeline_has_nothing_outstanding() {
    let mut b = Bench::new();
    b.run(QueueKind::Compute, fill(range(0, 0, 4))).unwrap();
    b.device.timeline(QueueKind::Compute).fail(Error::Lost { cause: "gone".into() });
    b.calls();
    let result = b.device.destroy_buffer(BufferId(0));
    b.passes(result, "destroy_buffer");
}

#[test]
fn a_refused_submission_changes_nothing() {
    let mut b = Bench::new();
    let result = b.run(QueueKind::Compute, fill(range(0, 1, 4)));
    b.refused(result, &["multiples of four"]);
    let result = b.device.destroy_buffer(BufferId(0));
    b.passes(result, "destroy_buffer");
    assert_eq!(b.device.own[QueueKind::Compute.index()].signalled, 0);
}

#[test]
fn pool_calls_reach_the_device() {
    let mut b = Bench::new();
    assert_eq!((b.device.pool_stats().hits, b.device.trim_pool()), (7, 4096));
    assert_eq!(b.calls(), ["trim_pool"]);
}

#[test]
fn devices_have_the_requested_faults() {
    let second_buffer = |faults: Faults| {
        let (inner, _) = fake([KernelLanguage::Host]);
        let mut device = Checked::with_faults(Box::new(inner), faults).unwrap();
        device.create_buffer(BufferId(0), 16).unwrap();
        device.create_buffer(BufferId(1), 16)
    };
    assert_eq!(second_buffer(Faults::default()), Ok(()));
    let failing = Faults { failing_allocation: Some(2), ..Faults::default() };
    assert!(second_buffer(failing).unwrap_err().is_out_of_memory());
}
