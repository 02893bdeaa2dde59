//! The backend on a stand-in for AMD's driver that executes on OpenCL devices: what the probe says, kernels, programs, the
//! compiler's process and the cache.

#![allow(clippy::print_stdout)] // a skip is visible

use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceFunction,
    DeviceId, Dispatch, EntryAbi, Error, Feature, HostRegion, KernelLanguage, Limits, Module, ModuleId,
    ModuleSource, Point, ProgramId, QueueKind, RegionId, Submission, TextEntry, Unavailable, Work,
};
use ragtag_hip::{HipBackend, HipConfig, compile_child};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use test_drivers::with_hip_on_opencl;

/// How long any one point may take.
const PATIENCE: Duration = Duration::from_secs(60);
const WORDS: usize = 4096;
/// Work items in a group of the kernel.
const GROUP: u32 = 64;
/// Set in the process that compiles.
const COMPILE: &str = "RAGTAG_TEST_COMPILE";

/// The body of the compiler's process, if this process was started for that.
#[test]
fn compiler() {
    if std::env::var_os(COMPILE).is_some() {
        compile_child().unwrap();
    }
}

/// A backend that compiles in a process of its own: this binary, told what to do.
fn backend(folder: Option<&Path>) -> HipBackend {
    let own = std::env::current_exe().unwrap().into_os_string();
    let told = ["env".into(), OsString::from(format!("{COMPILE}=1")), own];
    let compiler = told.into_iter().chain(["--exact", "compiler", "--nocapture"].map(OsString::from));
    HipBackend::new(HipConfig { cache_folder: folder.map(Path::to_path_buf), compiler: compiler.collect() })
}

/// The adapters of the stand-in; none, with a line that says so, where OpenCL has no device for it.
fn adapters(backend: &HipBackend) -> Vec<Adapter> {
    match backend.probe() {
        Ok(adapters) => adapters,
        Err(unavailable) => {
            assert!(std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_none(), "{unavailable}");
            println!("skipped: HIP on OpenCL: {unavailable}");
            Vec::new()
        }
    }
}

/// Word g of the second binding becomes factor · word g of the first, plus one.
static SCALE: EntryAbi = EntryAbi {
    name: "scale",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| extents.fill(u64::from(constants[1]) * 4),
};

/// A kernel of the C family behind HIP's prelude.
const TEXT: &str = "
typedef unsigned int uint;
#define KERNEL(items) extern \"C\" __global__ void __launch_bounds__(items)
#define GLOBAL
#define ITEM threadIdx.x
#define GROUP(dimension) blockIdx.x
// == end of the prelude ==
KERNEL(64) scale(const GLOBAL uint *in, GLOBAL uint *out, uint factor, uint count) {
    uint at = GROUP(0) * 64u + ITEM;
    if (at < count) out[at] = factor * in[at] + 1u;
}
";

fn module(text: &str) -> Module {
    let function = DeviceFunction { name: "scale".into(), work_group: [GROUP, 1, 1], dynamic_local_bytes: 0 };
    let entries = vec![TextEntry { text: text.into(), function }];
    let source = ModuleSource::Text { language: KernelLanguage::HipC, entries };
    Module { name: "test".into(), entries: vec![&SCALE], source }
}

fn words(buffer: u32) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: 0, bytes: WORDS as u64 * 4 }
}

fn scale(from: u32, to: u32, factor: u32) -> Command {
    let bind = |buffer, access| Binding { range: words(buffer), access };
    Command::Dispatch(Dispatch {
        module: ModuleId(0),
        entry: 0,
        bindings: vec![bind(from, Access::Read), bind(to, Access::Write)],
        constants: vec![factor, WORDS as u32],
        grid: [(WORDS as u32).div_ceil(GROUP), 1, 1],
    })
}

/// A device with the module, four buffers and a region for one of them.
struct Bench {
    device: Checked,
    region: Arc<HostRegion>,
    next: u64,
}

impl Bench {
    fn open(backend: &HipBackend, adapter: &Adapter) -> Result<Self, Error> {
        let mut opened = backend.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
        let mut device = Checked::new(opened.swap_remove(0));
        device.create_module(ModuleId(0), &module(TEXT))?;
        let region = Arc::new(HostRegion::new(WORDS * 4)?);
        device.register_region(RegionId(0), Arc::clone(&region))?;
        (0..4).try_for_each(|id| device.create_buffer(BufferId(id), WORDS as u64 * 4))?;
        Ok(Self { device, region, next: 0 })
    }

    /// Submits to the compute queue and waits.
    fn run(&mut self, work: Work) {
        self.next += 1;
        let timeline = self.device.timeline(QueueKind::Compute);
        let signal: Point = timeline.id().at(self.next);
        let submission = Submission { queue: QueueKind::Compute, work, waits: Vec::new(), signal };
        self.device.submit(submission).unwrap();
        assert_eq!(timeline.wait(signal.value, Some(PATIENCE)), Ok(true));
    }

    fn set(&self, word: impl Fn(u32) -> u32) {
        let mut region = self.region.write(0..WORDS * 4).unwrap();
        (0..).zip(region.as_chunks_mut::<4>().0).for_each(|(at, bytes)| *bytes = word(at).to_ne_bytes());
    }

    #[track_caller]
    fn expect(&self, word: impl Fn(u32) -> u32) {
        let region = self.region.read(0..WORDS * 4).unwrap();
        for (at, bytes) in (0..).zip(region.as_chunks::<4>().0) {
            assert_eq!(u32::from_ne_bytes(*bytes), word(at), "word {at}");
        }
    }
}

fn upload(buffer: u32) -> Command {
    Command::Upload { region: RegionId(0), offset: 0, to: words(buffer) }
}

fn download(buffer: u32) -> Command {
    Command::Download { from: words(buffer), region: RegionId(0), offset: 0 }
}

#[test]
fn adapters_say_what_the_driver_says() {
    with_hip_on_opencl("adapters_say_what_the_driver_says", &[("RAGTAG_FAKE_ARCH", "gfx90a:xnack-")], || {
        for adapter in adapters(&backend(None)) {
            assert!(adapter.driver.starts_with("HIP 6.0.0, gfx90a"), "{}", adapter.driver);
            assert_eq!(adapter.caps.languages, [KernelLanguage::HipC].into());
            assert!(adapter.caps.features.contains(&Feature::Mfma));
            assert!(adapter.caps.local_memory_bytes > 0 && adapter.memory[0].total_bytes > 0);
        }
    });
}

#[test]
fn hidden_devices_are_not_there_and_the_reason_is_shown() {
    let test = "hidden_devices_are_not_there_and_the_reason_is_shown";
    with_hip_on_opencl(test, &[("HIP_VISIBLE_DEVICES", "-1")], || {
        let Unavailable { tried, cause } = backend(None).probe().unwrap_err();
        assert!(cause.contains("no AMD device") && cause.contains("HIP_VISIBLE_DEVICES=-1"), "{cause}");
        assert_eq!(tried, ["libamdhip64.so.7"]);
    });
}

#[test]
fn old_architectures_are_named() {
    with_hip_on_opencl("old_architectures_are_named", &[("RAGTAG_FAKE_ARCH", "gfx803")], || {
        let said = backend(None).probe().unwrap_err().cause;
        if said.contains("no AMD device") {
            return println!("skipped: OpenCL has no device: {said}");
        }
        assert!(said.contains("gfx803 is older than gfx900"), "{said}");
    });
}

#[test]
fn kernels_compute_and_programs_replay() {
    with_hip_on_opencl("kernels_compute_and_programs_replay", &[], || {
        let backend = backend(None);
        for adapter in adapters(&backend) {
            let mut bench = Bench::open(&backend, &adapter).unwrap();
            bench.set(|at| at ^ 0x5555);
            bench.run(Work::Commands(vec![upload(0), scale(0, 1, 3), download(1)]));
            bench.expect(|at| 3 * (at ^ 0x5555) + 1);
            let fill = Command::Fill { to: BufferRange { bytes: 64, ..words(3) }, word: 42 };
            let copy = Command::Copy { from: words(2), to: words(3) };
            let program = vec![upload(0), scale(0, 1, 5), scale(1, 2, 7), copy, fill, download(3)];
            bench.device.record(ProgramId(0), program).unwrap();
            for round in 0..5u32 {
                bench.set(|at| at.wrapping_mul(round));
                bench.run(Work::Program(ProgramId(0)));
                bench.expect(|at| if at < 16 { 42 } else { 7 * (5 * at.wrapping_mul(round) + 1) + 1 });
            }
        }
    });
}

#[test]
fn what_was_compiled_once_needs_no_compiler() {
    with_hip_on_opencl("what_was_compiled_once_needs_no_compiler", &[], || {
        let folder = tempfile::tempdir().unwrap();
        let first = backend(Some(folder.path()));
        let Some(adapter) = adapters(&first).into_iter().next() else { return };
        drop(Bench::open(&first, &adapter).unwrap());
        let config = HipConfig {
            cache_folder: Some(folder.path().to_path_buf()),
            compiler: vec!["ragtag-has-no-such-compiler".into()],
        };
        let second = HipBackend::new(config.clone());
        let mut bench = Bench::open(&second, &adapter).unwrap();
        let other = TEXT.replace("+ 1u", "+ 2u");
        let refused = bench.device.create_module(ModuleId(1), &module(&other));
        assert!(matches!(refused, Err(Error::Compile { log }) if log.contains("no-such-compiler")));
        // What does not load is compiled anew.
        for file in std::fs::read_dir(folder.path()).unwrap() {
            std::fs::write(file.unwrap().path(), "damaged").unwrap();
        }
        assert!(matches!(Bench::open(&HipBackend::new(config), &adapter), Err(Error::Compile { .. })));
        assert!(Bench::open(&first, &adapter).is_ok());
    });
}

#[test]
fn mistakes_in_a_text_are_told() {
    with_hip_on_opencl("mistakes_in_a_text_are_told", &[], || {
        let backend = backend(None);
        let Some(adapter) = adapters(&backend).into_iter().next() else { return };
        let mut bench = Bench::open(&backend, &adapter).unwrap();
        let create =
            |bench: &mut Bench, text: &str| match bench.device.create_module(ModuleId(1), &module(text)) {
                Err(Error::Compile { log }) => log,
                other => panic!("{other:?}"),
            };
        let log = create(&mut bench, &TEXT.replace("factor * in", "no_such_name * in"));
        assert!(log.contains("no_such_name"), "{log}");
        let log = create(&mut bench, &TEXT.replace("scale(", "another("));
        assert!(log.contains("function scale"), "{log}");
    });
}

#[test]
fn a_compiler_that_ends_its_process_is_an_error_with_the_signal() {
    let test = "a_compiler_that_ends_its_process_is_an_error_with_the_signal";
    with_hip_on_opencl(test, &[("RAGTAG_FAKE_ABORT", "1")], || {
        let backend = backend(None);
        let Some(adapter) = adapters(&backend).into_iter().next() else { return };
        match Bench::open(&backend, &adapter).map(drop) {
            Err(Error::Compile { log }) => assert!(log.contains("SIGABRT"), "{log}"),
            other => panic!("{other:?}"),
        }
    });
}
