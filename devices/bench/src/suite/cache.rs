//! Tests of the program cache in memory and on disk. The cache must recompile a program whose file is damaged
//! or that the driver rejects.

use super::Subject;
use crate::*;
use ragtag_hal::cache::CacheCounters;
use ragtag_hal::{KernelLanguage, Module};
use std::fs;
use std::path::{Path, PathBuf};

/// A backend with a program cache.
pub trait Cached: Subject {
    /// Returns the counters of the backend's cache.
    fn counters(&self) -> CacheCounters;

    /// Returns a new backend with the cache folder `folder`. It simulates the backend of a later process.
    fn anew(&self, folder: Option<&Path>) -> Box<dyn Cached>;
}

/// Returns the number of compiled programs and the number of programs loaded from disk.
fn made(on: &dyn Cached) -> (u64, u64) {
    let CacheCounters { compiled, loaded, .. } = on.counters();
    (compiled, loaded)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|files| files.map(|file| file.unwrap().path()).collect()).unwrap_or_default()
}

/// Returns a module with three entries. The first and the third entry share a program.
fn two_programs(adapter: &Adapter) -> Module {
    let language = |language: &&KernelLanguage| scale_code(**language).is_some();
    let language = *adapter.caps.languages.iter().find(language).unwrap();
    let entry = |addend| (scale_code_adding(language, addend).unwrap(), function("scale"));
    module_of_codes(language, vec![entry(1), entry(2), entry(1)])
}

/// Checks that a program is compiled once for all devices of a backend. If the driver provides binaries,
/// later processes must not compile the program again.
pub fn programs_are_compiled_once(on: &dyn Cached) {
    for adapter in on.adapters() {
        let (folder, label) = (tempfile::tempdir().unwrap(), adapter.label());
        let first = on.anew(Some(folder.path()));
        let mut device = open(first.backend(), &adapter, 0, &Limits::default());
        for id in [1, 2] {
            device.create_module(ModuleId(id), &two_programs(&adapter)).unwrap();
            assert_eq!(made(&*first), (2, 0), "{label}: equal sources are one program");
        }
        drop(device);
        let gives = !files(folder.path()).is_empty();
        if !gives {
            on.skip("pipeline cache", &format!("{label} ({}) has none", adapter.driver));
        }
        let mut device = open(first.backend(), &adapter, 0, &Limits::default());
        device.create_module(ModuleId(1), &two_programs(&adapter)).unwrap();
        assert_eq!(made(&*first), if gives { (2, 0) } else { (4, 0) }, "{label}: a device opened again");

        let second = on.anew(Some(folder.path()));
        let mut bench = Bench::new(open(second.backend(), &adapter, 0, &Limits::default()));
        bench.device.create_module(ModuleId(1), &two_programs(&adapter)).unwrap();
        assert_eq!(made(&*second), if gives { (0, 2) } else { (2, 0) }, "{label}: a later process");
        bench.works();
        first.check();
        second.check();
    }
}

/// Checks that a program is compiled again if its file is truncated or the driver rejects it, and that the
/// file is replaced.
pub fn damaged_and_foreign_files_are_replaced(on: &dyn Cached) {
    for adapter in on.adapters() {
        let folder = tempfile::tempdir().unwrap();
        let anew = || on.anew(Some(folder.path()));
        drop(Bench::new(open(anew().backend(), &adapter, 0, &Limits::default())));
        let files = files(folder.path());
        let [file] = &files[..] else {
            assert!(files.is_empty(), "one program is {files:?}");
            on.skip("pipeline cache", &format!("{} ({}) has none", adapter.label(), adapter.driver));
            continue;
        };
        let whole = fs::read(file).unwrap();
        // A driver update may leave such a file behind.
        let foreign = b"not a program of any driver".to_vec();
        let foreign = [blake3::hash(&foreign).as_bytes().to_vec(), foreign].concat();
        for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), foreign] {
            fs::write(file, damaged).unwrap();
            for wanted in [(1, 0), (0, 1)] {
                let later = anew();
                let mut bench = Bench::new(open(later.backend(), &adapter, 0, &Limits::default()));
                assert_eq!(made(&*later), wanted, "{}", adapter.label());
                bench.works();
                later.check();
            }
        }
    }
}

/// Checks that two identical devices share binaries, but that each device has its own loaded program.
pub fn identical_devices_have_their_own_programs(on: &dyn Cached) {
    let adapters = on.adapters();
    let pair = adapters.iter().enumerate().find_map(|(at, a)| {
        let twin = adapters[at + 1..].iter().find(|b| (&b.name, &b.driver) == (&a.name, &a.driver))?;
        Some([a.clone(), twin.clone()])
    });
    let Some(pair) = pair else { return on.skip("two devices of one driver", on.api()) };
    let folder = tempfile::tempdir().unwrap();
    let both = on.anew(Some(folder.path()));
    let wanted: Vec<_> = (0..).map(DeviceId).zip(pair).map(|(id, adapter)| (adapter, id)).collect();
    let devices = both.backend().open(&wanted, &Limits::default()).unwrap();
    let mut benches: Vec<_> = devices.into_iter().map(|device| Bench::new(Checked::new(device))).collect();
    let gives = !files(folder.path()).is_empty();
    assert_eq!(made(&*both), (if gives { 1 } else { 2 }, 0), "the second device reuses the binary");
    benches.iter_mut().for_each(Bench::works);
    both.check();
}

/// Checks that a backend without a cache folder compiles a program, even if an earlier backend has already
/// compiled it.
pub fn everything_works_without_a_folder(on: &dyn Cached) {
    for adapter in on.adapters() {
        for _ in 0..2 {
            let alone = on.anew(None);
            let mut bench = Bench::new(open(alone.backend(), &adapter, 0, &Limits::default()));
            assert_eq!(made(&*alone), (1, 0), "{}", adapter.label());
            bench.works();
            alone.check();
        }
    }
}
