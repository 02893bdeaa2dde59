//! Devices to test on, and what tests need around them: ids and points allotted in turn, a limit on waiting, kernels.

#![allow(dead_code)] // each test binary uses its part

use ragtag_cuda::{CudaBackend, CudaConfig};
use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceFunction,
    DeviceId, Dispatch, EntryAbi, Error, HostRegion, KernelLanguage, Limits, Module, ModuleId, ModuleSource,
    Point, ProgramId, QueueKind, RegionId, Submission, TextEntry, Timeline, Work,
};
use std::sync::Arc;
use std::time::Duration;

/// How long any one point may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Words of the buffers that `Bench` has.
pub const WORDS: usize = 4096;
/// Work items in a group of the tests' kernels.
const GROUP: u32 = 64;

/// A backend that keeps no programs on disk.
pub fn backend() -> CudaBackend {
    CudaBackend::new(CudaConfig { cache_folder: None, ..CudaConfig::default() })
}

/// All adapters, or none with a line that says why a test has nothing to do.
pub fn adapters(backend: &CudaBackend) -> Vec<Adapter> {
    let probed = backend.probe().unwrap_or_else(|unavailable| {
        println!("skipped: CUDA: {unavailable}");
        Vec::new()
    });
    if probed.is_empty() {
        println!("skipped: no CUDA device");
    }
    probed
}

pub fn open(backend: &CudaBackend, adapter: &Adapter, id: u16, limits: &Limits) -> Checked {
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

/// `SCALE` in PTX for any device. `wait` stands at its beginning.
fn ptx(target: &str, wait: &str) -> Arc<str> {
    format!(
        "
.version 8.0
.target {target}
.address_size 64

.visible .entry scale(.param .u64 from, .param .u64 to, .param .u32 factor, .param .u32 count)
{{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %a<4>;
	{wait}
	ld.param.u32 %r1, [factor];
	ld.param.u32 %r2, [count];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.u32 %r3, %r3, %r4, %r5;
	setp.ge.u32 %p, %r3, %r2;
	@%p bra done;
	ld.param.u64 %a1, [from];
	ld.param.u64 %a2, [to];
	cvta.to.global.u64 %a1, %a1;
	cvta.to.global.u64 %a2, %a2;
	mul.wide.u32 %a3, %r3, 4;
	add.u64 %a1, %a1, %a3;
	add.u64 %a2, %a2, %a3;
	ld.global.u32 %r4, [%a1];
	mad.lo.u32 %r4, %r4, %r1, 1;
	st.global.u32 [%a2], %r4;
done:
	ret;
}}
"
    )
    .into()
}

/// For any device: launches wait for each other.
pub fn plain() -> Arc<str> {
    ptx("sm_61", "")
}

/// For compute capability 9.0 and newer: lets the next launch begin, and then waits for the last one.
pub fn overlapping() -> Arc<str> {
    ptx("sm_90", "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;")
}

/// `SCALE` in CUDA C++.
pub fn cuda_source() -> Arc<str> {
    "extern \"C\" __global__ void scale(const unsigned *in, unsigned *out, unsigned factor, unsigned count) {
        unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
        if (at < count) out[at] = factor * in[at] + 1u;
    }"
    .into()
}

pub fn function(name: &str) -> DeviceFunction {
    DeviceFunction { name: name.into(), work_group: [GROUP, 1, 1], dynamic_local_bytes: 0 }
}

/// A module of one function.
pub fn module_of(language: KernelLanguage, text: Arc<str>, function: DeviceFunction) -> Module {
    let source = ModuleSource::Text { language, entries: vec![TextEntry { text, function }] };
    Module { name: "test".into(), entries: vec![&SCALE], source }
}

pub fn module(text: Arc<str>) -> Module {
    module_of(KernelLanguage::Ptx, text, function("scale"))
}

pub fn buffer_range(buffer: u32, first: usize, words: usize) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: first as u64 * 4, bytes: words as u64 * 4 }
}

/// All words of a buffer.
pub fn all(buffer: u32) -> BufferRange {
    buffer_range(buffer, 0, WORDS)
}

/// A launch of `SCALE` of a module.
pub fn scale_of(module: u32, from: BufferRange, to: BufferRange, factor: u32) -> Command {
    let words = (to.bytes / 4) as u32;
    let bindings =
        vec![Binding { range: from, access: Access::Read }, Binding { range: to, access: Access::Write }];
    let grid = [words.div_ceil(GROUP), 1, 1];
    let constants = vec![factor, words];
    Command::Dispatch(Dispatch { module: ModuleId(module), entry: 0, bindings, constants, grid })
}

/// A launch of `SCALE` of module 0.
pub fn scale(from: BufferRange, to: BufferRange, factor: u32) -> Command {
    scale_of(0, from, to, factor)
}

pub fn upload(buffer: u32) -> Command {
    Command::Upload { region: RegionId(0), offset: 0, to: all(buffer) }
}

pub fn download(buffer: u32) -> Command {
    Command::Download { from: all(buffer), region: RegionId(0), offset: 0 }
}

/// A device with module 0 of `plain()`, buffers 0 to 3 of `WORDS` words, and region 0 for one of them.
pub struct Bench {
    pub device: Checked,
    pub region: Arc<HostRegion>,
    next: [u64; 3],
}

impl Bench {
    pub fn new(mut device: Checked) -> Self {
        if device.adapter().caps.languages.contains(&KernelLanguage::Ptx) {
            device.create_module(ModuleId(0), &module(plain())).unwrap();
        }
        let region = Arc::new(HostRegion::new(WORDS * 4).unwrap());
        device.register_region(RegionId(0), Arc::clone(&region)).unwrap();
        for id in 0..4 {
            device.create_buffer(BufferId(id), WORDS as u64 * 4).unwrap();
        }
        Bench { device, region, next: [0; 3] }
    }

    pub fn try_submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Result<Point, Error> {
        self.next[queue.index()] += 1;
        let signal = self.device.timeline(queue).id().at(self.next[queue.index()]);
        self.device.submit(Submission { queue, work, waits: waits.to_vec(), signal }).map(|()| signal)
    }

    #[track_caller]
    pub fn commands(&mut self, queue: QueueKind, commands: Vec<Command>, waits: &[Point]) -> Point {
        self.try_submit(queue, Work::Commands(commands), waits).unwrap()
    }

    #[track_caller]
    pub fn program(&mut self, id: u32, waits: &[Point]) -> Point {
        self.try_submit(QueueKind::Compute, Work::Program(ProgramId(id)), waits).unwrap()
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
