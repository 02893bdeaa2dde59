//! Devices to test on, and what tests need around them: ids and points allotted in turn, a limit on waiting.
//!
//! Nothing here knows which devices a machine has; tests say which they lack.

#![allow(dead_code)] // each test binary uses its part

use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceFunction,
    DeviceId, Dispatch, EntryAbi, Error, HostRegion, KernelLanguage, Limits, Module, ModuleId, ModuleSource,
    Point, ProgramId, QueueKind, RegionId, Submission, TextEntry, Timeline, Work,
};
use ragtag_wgpu::{WgpuBackend, WgpuConfig};
use std::sync::Arc;
use std::time::Duration;

/// How long any one point may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Words of the buffers that `Bench` has.
pub const WORDS: usize = 4096;
/// Work items in a group of the tests' kernels.
const GROUP: u32 = 64;

/// A backend that keeps no programs on disk.
pub fn config() -> WgpuConfig {
    WgpuConfig { cache_folder: None }
}

pub fn backend() -> WgpuBackend {
    WgpuBackend::new(config())
}

/// All adapters, or none with a line that says why a test has nothing to do.
pub fn adapters(backend: &WgpuBackend) -> Vec<Adapter> {
    backend.probe().unwrap_or_else(|unavailable| {
        println!("skipped: wgpu: {unavailable}");
        Vec::new()
    })
}

pub fn open(backend: &WgpuBackend, adapter: &Adapter, id: u16, limits: &Limits) -> Checked {
    let mut devices = backend.open(&[(adapter.clone(), DeviceId(id))], limits).unwrap();
    Checked::new(devices.swap_remove(0))
}

/// Word g of the second binding becomes factor · word g of the first, plus one.
pub static SCALE: EntryAbi = EntryAbi {
    name: "scale",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| extents.fill(u64::from(constants[1]) * 4),
};

pub fn source() -> Arc<str> {
    "struct Constants { first_group: vec3<u32>, factor: u32, count: u32 }
    var<immediate> constants: Constants;
    @group(0) @binding(0) var<storage, read> source: array<u32>;
    @group(0) @binding(1) var<storage, read_write> out: array<u32>;

    @compute @workgroup_size(64)
    fn scale(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) item: u32) {
        let at = (group.x + constants.first_group.x) * 64u + item;
        if at < constants.count { out[at] = constants.factor * source[at] + 1u; }
    }"
    .into()
}

pub fn function(name: &str) -> DeviceFunction {
    DeviceFunction { name: name.into(), work_group: [GROUP, 1, 1], dynamic_local_bytes: 0 }
}

pub fn module(source: Arc<str>) -> Module {
    Module {
        name: "test".into(),
        entries: vec![&SCALE],
        source: text(vec![TextEntry { text: source, function: function("scale") }]),
    }
}

/// WGSL.
pub fn text(entries: Vec<TextEntry>) -> ModuleSource {
    ModuleSource::Text { language: KernelLanguage::Wgsl, entries }
}

pub fn buffer_range(buffer: u32, first: usize, words: usize) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: first as u64 * 4, bytes: words as u64 * 4 }
}

/// A launch of `SCALE` of module 0.
pub fn scale(from: BufferRange, to: BufferRange, factor: u32) -> Command {
    let words = (to.bytes / 4) as u32;
    let bindings =
        vec![Binding { range: from, access: Access::Read }, Binding { range: to, access: Access::Write }];
    let grid = [words.div_ceil(GROUP), 1, 1];
    Command::Dispatch(Dispatch {
        module: ModuleId(0),
        entry: 0,
        bindings,
        constants: vec![factor, words],
        grid,
    })
}

pub fn upload(buffer: u32) -> Command {
    Command::Upload { region: RegionId(0), offset: 0, to: buffer_range(buffer, 0, WORDS) }
}

pub fn download(buffer: u32) -> Command {
    Command::Download { from: buffer_range(buffer, 0, WORDS), region: RegionId(0), offset: 0 }
}

/// A device with module 0 of `source()`, buffers 0 to 3 of `WORDS` words, and region 0 for one of them.
pub struct Bench {
    pub device: Checked,
    pub region: Arc<HostRegion>,
    next: [u64; 3],
}

impl Bench {
    pub fn new(mut device: Checked) -> Self {
        device.create_module(ModuleId(0), &module(source())).unwrap();
        let region = Arc::new(HostRegion::new(WORDS * 4).unwrap());
        device.register_region(RegionId(0), Arc::clone(&region)).unwrap();
        for id in 0..4 {
            device.create_buffer(BufferId(id), WORDS as u64 * 4).unwrap();
        }
        Bench { device, region, next: [0; 3] }
    }

    pub fn point(&mut self, queue: QueueKind) -> Point {
        self.next[queue.index()] += 1;
        self.device.timeline(queue).id().at(self.next[queue.index()])
    }

    pub fn try_submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Result<Point, Error> {
        let signal = self.point(queue);
        self.device.submit(Submission { queue, work, waits: waits.to_vec(), signal }).map(|()| signal)
    }

    #[track_caller]
    pub fn submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Point {
        self.try_submit(queue, work, waits).unwrap()
    }

    #[track_caller]
    pub fn commands(&mut self, queue: QueueKind, commands: Vec<Command>, waits: &[Point]) -> Point {
        self.submit(queue, Work::Commands(commands), waits)
    }

    #[track_caller]
    pub fn program(&mut self, id: u32, waits: &[Point]) -> Point {
        self.submit(QueueKind::Compute, Work::Program(ProgramId(id)), waits)
    }

    pub fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        self.device.timeline(queue)
    }

    #[track_caller]
    pub fn wait(&self, point: Point) {
        assert_eq!(self.outcome(point), None, "{point}");
    }

    /// What a point failed with.
    #[track_caller]
    pub fn outcome(&self, point: Point) -> Option<Error> {
        match self.timeline(point.timeline.queue).wait(point.value, Some(PATIENCE)) {
            Ok(true) => None,
            Ok(false) => panic!("{point} takes too long"),
            Err(error) => Some(error),
        }
    }

    pub fn fill_region(&self, word: impl Fn(u32) -> u32) {
        let mut region = self.region.write(0..WORDS * 4).unwrap();
        for (at, bytes) in (0..).zip(region.as_chunks_mut::<4>().0) {
            *bytes = word(at).to_ne_bytes();
        }
    }

    pub fn region_words(&self) -> Vec<u32> {
        let region = self.region.read(0..WORDS * 4).unwrap();
        region.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }

    /// The words of a buffer, by way of the region.
    #[track_caller]
    pub fn words(&mut self, buffer: u32) -> Vec<u32> {
        self.fill_region(|_| 0xe7e7_e7e7);
        let point = self.commands(QueueKind::Download, vec![download(buffer)], &[]);
        self.wait(point);
        self.region_words()
    }
}

/// Fails unless words are as wanted, and says where they first differ.
#[track_caller]
pub fn same(words: &[u32], wanted: &[u32], what: impl std::fmt::Display) {
    assert_eq!(words.len(), wanted.len(), "{what}");
    if let Some(at) = words.iter().zip(wanted).position(|(word, wanted)| word != wanted) {
        panic!("{what}: word {at} is {:#x} instead of {:#x}", words[at], wanted[at]);
    }
}

/// Runs something that may hang, and fails instead.
#[track_caller]
pub fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = run();
        // The receiver is gone only if time ran out.
        let _ = done.send(());
        result
    });
    assert!(finished.recv_timeout(PATIENCE).is_ok(), "{what} hangs");
    thread.join().unwrap()
}
