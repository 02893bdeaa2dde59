//! Tests of the backend with a stand-in for AMD's driver, which runs kernels on OpenCL devices. The tests
//! cover the probe, kernels, programs, the compiler process and the cache.

#![allow(clippy::print_stdout)] // a skip is visible

use device_bench::{Bench, all, download, expected, open_both, same, scale, shares, upload};
use ragtag_hal::{
    Adapter, Backend, BufferId, BufferRange, Checked, Command, Device, DeviceId, DmaBuf, Error, Feature,
    KernelLanguage, Limits, MemoryHandle, ModuleId, ProgramId, QueueKind, SharedMemory, Unavailable,
};
use ragtag_hip::{HipBackend, HipConfig, compile_child};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;
use test_drivers::with_hip_on_opencl;

/// Environment variable that marks this process as the compiler process.
const COMPILE: &str = "RAGTAG_TEST_COMPILE";

/// Acts as the compiler process if `RAGTAG_TEST_COMPILE` is set.
#[test]
fn compiler() {
    if std::env::var_os(COMPILE).is_some() {
        compile_child().unwrap();
    }
}

/// Returns a backend that compiles in a child process. The child runs this test binary with [`COMPILE`] set.
fn backend_in(folder: Option<&Path>) -> HipBackend {
    let own = std::env::current_exe().unwrap().into_os_string();
    let command = ["env".into(), OsString::from(format!("{COMPILE}=1")), own];
    let compiler = command.into_iter().chain(["--exact", "compiler", "--nocapture"].map(OsString::from));
    HipBackend::new(HipConfig { cache_folder: folder.map(Path::to_path_buf), compiler: compiler.collect() })
}

fn backend() -> HipBackend {
    backend_in(None)
}

/// Returns the expected number of adapters. The stand-in has one device if the machine has a suitable OpenCL
/// device.
fn wanted() -> usize {
    usize::from(std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_some())
}

device_bench::tested!(HipBackend, HipC, "HIP", "OpenCL driver", wanted(), |_: &HipBackend| ());

fn open(backend: &HipBackend, adapter: &Adapter) -> Result<Bench, Error> {
    let mut opened = backend.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
    Bench::try_new(Checked::new(opened.swap_remove(0)))
}

#[test]
fn adapters_report_the_drivers_properties() {
    with_hip_on_opencl(
        "adapters_report_the_drivers_properties",
        &[("RAGTAG_FAKE_ARCH", "gfx90a:xnack-")],
        || {
            for adapter in adapters(&backend()) {
                assert!(adapter.driver.name.starts_with("HIP 6.0.0, gfx90a"), "{}", adapter.driver);
                assert_eq!(adapter.caps.languages, [KernelLanguage::HipC].into());
                assert!(adapter.caps.features.contains(&Feature::Mfma));
                assert!(adapter.caps.local_memory_bytes > 0 && adapter.memory[0].total_bytes > 0);
            }
        },
    );
}

#[test]
fn hidden_devices_are_missing_and_the_reason_is_reported() {
    let test = "hidden_devices_are_missing_and_the_reason_is_reported";
    with_hip_on_opencl(test, &[("HIP_VISIBLE_DEVICES", "-1")], || {
        let Unavailable { tried, cause } = backend().probe().unwrap_err();
        assert!(cause.contains("no AMD device") && cause.contains("HIP_VISIBLE_DEVICES=-1"), "{cause}");
        assert_eq!(tried, ["libamdhip64.so.7"]);
    });
}

#[test]
fn old_architectures_are_named() {
    with_hip_on_opencl("old_architectures_are_named", &[("RAGTAG_FAKE_ARCH", "gfx803")], || {
        let said = backend().probe().unwrap_err().cause;
        if said.contains("no AMD device") {
            return test_support::skip!("OpenCL driver", "{said}");
        }
        assert!(said.contains("gfx803 is older than gfx900"), "{said}");
    });
}

#[test]
fn kernels_compute_and_programs_replay() {
    with_hip_on_opencl("kernels_compute_and_programs_replay", &[], || {
        let backend = backend();
        for adapter in adapters(&backend) {
            let mut bench = open(&backend, &adapter).unwrap();
            bench.fill_region(|at| at ^ 0x5555);
            let commands = vec![upload(0), scale(all(0), all(1), 3), download(1)];
            let ran = bench.commands(QueueKind::Compute, commands, &[]);
            bench.wait(ran);
            same(&bench.region_words(), &expected(|at| 3 * (at ^ 0x5555) + 1), adapter.label());
            let fill = Command::Fill { to: BufferRange { bytes: 64, ..all(3) }, word: 42 };
            let copy = Command::Copy { from: all(2), to: all(3) };
            let scales = [scale(all(0), all(1), 5), scale(all(1), all(2), 7)];
            let program = [&[upload(0)], &scales[..], &[copy, fill, download(3)]].concat();
            bench.device.record(ProgramId(0), program).unwrap();
            for round in 0..5u32 {
                bench.fill_region(|at| at.wrapping_mul(round));
                let ran = bench.program(0, &[]);
                bench.wait(ran);
                let word = |at: u32| if at < 16 { 42 } else { 7 * (5 * at.wrapping_mul(round) + 1) + 1 };
                same(&bench.region_words(), &expected(word), adapter.label());
            }
        }
    });
}

/// Checks the import of a dma-buf. A file stands for it.
#[test]
#[cfg(unix)]
fn dma_bufs_are_imported() {
    with_hip_on_opencl("dma_bufs_are_imported", &[], || {
        let backend = backend();
        for adapter in adapters(&backend) {
            assert!(adapter.caps.sharing.imports.contains(&MemoryHandle::DmaBuf));
            let mut bench = open(&backend, &adapter).unwrap();
            let file = tempfile::tempfile().unwrap();
            file.set_len(all(0).bytes).unwrap();
            let memory = |bytes: u64| {
                let dma_buf = DmaBuf::new(file.try_clone().unwrap().into(), Arc::new(())).unwrap();
                SharedMemory { bytes, handle: Arc::new(dma_buf) }
            };
            bench.device.import_buffer(BufferId(9), &memory(all(0).bytes)).unwrap();
            bench.fill_region(|at| at ^ 9);
            let ran = bench.commands(QueueKind::Compute, vec![upload(0), scale(all(0), all(9), 3)], &[]);
            bench.wait(ran);
            let wanted = expected(|at| 3 * (at ^ 9) + 1);
            same(&bench.words(9), &wanted, adapter.label());
            let (mut bytes, mut reader) = (Vec::new(), &file);
            reader.rewind().unwrap();
            reader.read_to_end(&mut bytes).unwrap();
            let words: Vec<u32> =
                bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            same(&words, &wanted, adapter.label());

            let refused = bench.device.import_buffer(BufferId(10), &memory(2 * all(0).bytes)).unwrap_err();
            assert!(refused.to_string().contains("bytes of a dma-buf of"), "{refused}");
            let fd = File::open("/dev/null").unwrap().into();
            let dma_buf = DmaBuf { fd, allocation_bytes: 4096, own: Arc::new(()) };
            let broken = SharedMemory { bytes: 4096, handle: Arc::new(dma_buf) };
            let refused = bench.device.import_buffer(BufferId(10), &broken).unwrap_err();
            assert!(refused.to_string().contains("hipImportExternalMemory"), "{refused}");
            bench.works();
        }
    });
}

/// Opens each pair of devices and calls `test` with their adapters and both devices. Records a skip if there
/// is no pair.
fn each_pair(test: impl Fn([&Adapter; 2], [Bench; 2])) {
    let backend = backend();
    let all = adapters(&backend);
    let pairs = all.iter().flat_map(|owner| all.iter().map(move |user| [owner, user]));
    let pairs: Vec<_> = pairs.filter(|[owner, user]| owner.index != user.index).collect();
    if pairs.is_empty() {
        return test_support::skip!("two OpenCL devices", "HIP has {} devices", all.len());
    }
    for pair in pairs {
        test(pair, open_both(&backend, pair));
    }
}

#[test]
fn peers_share_buffers() {
    with_hip_on_opencl("peers_share_buffers", &[("RAGTAG_FAKE_PEERS", "1")], || {
        each_pair(|[from, to], [mut owner, mut user]| {
            assert!(to.imports_from(from) && to.caps.sharing.peers.contains(&from.index));
            shares(&mut owner, &mut user);
        });
        // Two devices that were opened from one adapter need no peer access.
        let backend = backend();
        if let Some(adapter) = adapters(&backend).first() {
            let [mut owner, mut user] = [0, 1].map(|id| {
                let mut opened =
                    backend.open(&[(adapter.clone(), DeviceId(id))], &Limits::default()).unwrap();
                Bench::new(Checked::new(opened.swap_remove(0)))
            });
            shares(&mut owner, &mut user);
        }
    });
}

#[test]
fn devices_without_peer_access_do_not_share_buffers() {
    with_hip_on_opencl("devices_without_peer_access_do_not_share_buffers", &[], || {
        each_pair(|[from, to], [mut owner, mut user]| {
            assert!(!to.imports_from(from));
            owner.device.create_shared_buffer(BufferId(9), 64).unwrap();
            let memory = owner.device.export_buffer(BufferId(9)).unwrap();
            let refused = user.device.import_buffer(BufferId(9), &memory);
            assert!(
                matches!(&refused, Err(Error::Unsupported { what }) if what.contains("HIP")),
                "{refused:?}"
            );
        });
    });
}

#[test]
fn refused_peer_access_is_an_error_of_the_import() {
    let test = "refused_peer_access_is_an_error_of_the_import";
    with_hip_on_opencl(test, &[("RAGTAG_FAKE_PEERS", "refused")], || {
        each_pair(|[from, to], [mut owner, mut user]| {
            assert!(to.imports_from(from));
            owner.device.create_shared_buffer(BufferId(9), 64).unwrap();
            let memory = owner.device.export_buffer(BufferId(9)).unwrap();
            let refused = user.device.import_buffer(BufferId(9), &memory);
            assert!(matches!(&refused, Err(Error::Api { code: 217, .. })), "{refused:?}");
            user.works();
        });
    });
}

#[test]
fn cached_programs_need_no_compiler() {
    with_hip_on_opencl("cached_programs_need_no_compiler", &[], || {
        let folder = tempfile::tempdir().unwrap();
        let first = backend_in(Some(folder.path()));
        let Some(adapter) = adapters(&first).into_iter().next() else { return };
        drop(open(&first, &adapter).unwrap());
        let config = HipConfig {
            cache_folder: Some(folder.path().to_path_buf()),
            compiler: vec!["ragtag-has-no-such-compiler".into()],
        };
        let second = HipBackend::new(config.clone());
        let mut bench = open(&second, &adapter).unwrap();
        let other = source().replace("+ 1u", "+ 2u");
        let refused = bench.device.create_module(ModuleId(1), &module(other.into()));
        assert!(matches!(refused, Err(Error::Compile { log }) if log.contains("no-such-compiler")));
        // The backend must recompile a cached program that cannot be loaded.
        for file in std::fs::read_dir(folder.path()).unwrap() {
            std::fs::write(file.unwrap().path(), "damaged").unwrap();
        }
        assert!(matches!(open(&HipBackend::new(config), &adapter), Err(Error::Compile { .. })));
        assert!(open(&first, &adapter).is_ok());
    });
}

#[test]
fn errors_in_a_source_are_reported() {
    with_hip_on_opencl("errors_in_a_source_are_reported", &[], || {
        let backend = backend();
        let Some(adapter) = adapters(&backend).into_iter().next() else { return };
        let mut bench = open(&backend, &adapter).unwrap();
        let create = |bench: &mut Bench, text: &str| match bench
            .device
            .create_module(ModuleId(1), &module(text.into()))
        {
            Err(Error::Compile { log }) => log,
            other => panic!("{other:?}"),
        };
        let log = create(&mut bench, &source().replace("factor * in", "no_such_name * in"));
        assert!(log.contains("no_such_name"), "{log}");
        let log = create(&mut bench, &source().replace("scale(", "another("));
        assert!(log.contains("function scale"), "{log}");
    });
}

#[test]
fn an_aborting_compiler_is_reported_with_its_signal() {
    let test = "an_aborting_compiler_is_reported_with_its_signal";
    with_hip_on_opencl(test, &[("RAGTAG_FAKE_ABORT", "1")], || {
        let backend = backend();
        let Some(adapter) = adapters(&backend).into_iter().next() else { return };
        match open(&backend, &adapter).map(drop) {
            Err(Error::Compile { log }) => assert!(log.contains("SIGABRT"), "{log}"),
            other => panic!("{other:?}"),
        }
    });
}
