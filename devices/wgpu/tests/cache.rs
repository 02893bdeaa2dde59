//! Compiled programs are kept in this process and, where the driver gives them away, on disk.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{Device, DeviceId, Limits, Module, ModuleId, ModuleSource};
use ragtag_wgpu::{CacheCounters, WgpuBackend, WgpuConfig};
use std::fs;
use std::path::Path;
use support::*;

fn backend_with(folder: &Path) -> WgpuBackend {
    WgpuBackend::new(WgpuConfig { cache_folder: Some(folder.into()) })
}

/// A module of three entries in two programs.
fn two_programs() -> Module {
    let other = source().replace("+ 1u", "+ 2u").into();
    let (first, second) = (module(source()), module(other));
    let [first, second] = [first, second].map(|module| match module.source {
        ModuleSource::Text { entries, .. } => entries,
        _ => unreachable!("modules of tests are texts"),
    });
    let entries = [first.clone(), second, first].concat();
    Module { name: "two programs".into(), entries: vec![&SCALE; 3], source: text(entries) }
}

fn counters(compiled: u64, loaded: u64, reused: u64) -> CacheCounters {
    CacheCounters { compiled, loaded, reused }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).map(|files| files.map(|file| file.unwrap().path()).collect()).unwrap_or_default()
}

#[test]
fn what_was_compiled_once_is_not_compiled_again() {
    for adapter in adapters(&backend()) {
        let folder = tempfile::tempdir().unwrap();
        let first = backend_with(folder.path());
        let mut device = open(&first, &adapter, 0, &Limits::default());
        device.create_module(ModuleId(1), &two_programs()).unwrap();
        assert_eq!(first.counters(), counters(2, 0, 1), "{}: equal texts are one program", adapter.label());
        device.create_module(ModuleId(2), &two_programs()).unwrap();
        assert_eq!(first.counters(), counters(2, 0, 4), "{}", adapter.label());
        drop(device);
        let gives = !files(folder.path()).is_empty();
        let mut device = open(&first, &adapter, 0, &Limits::default());
        device.create_module(ModuleId(1), &two_programs()).unwrap();
        let again = if gives { counters(2, 0, 7) } else { counters(4, 0, 5) };
        assert_eq!(first.counters(), again, "{}: a device opened anew", adapter.label());
        drop(device);

        // A later process has a backend of its own.
        let second = backend_with(folder.path());
        let mut bench = Bench::new(open(&second, &adapter, 0, &Limits::default()));
        bench.device.create_module(ModuleId(1), &two_programs()).unwrap();
        if gives {
            assert_eq!(second.counters(), counters(0, 2, 2), "{}", adapter.label());
        } else {
            test_support::skip!("pipeline cache", "{} ({}) has none", adapter.label(), adapter.driver);
            assert_eq!(second.counters(), counters(2, 0, 2), "{}", adapter.label());
        }
        bench.works();
    }
}

#[test]
fn damaged_and_foreign_files_are_replaced() {
    for adapter in adapters(&backend()) {
        let folder = tempfile::tempdir().unwrap();
        drop(Bench::new(open(&backend_with(folder.path()), &adapter, 0, &Limits::default())));
        let files = files(folder.path());
        let [file] = &files[..] else {
            test_support::skip!("pipeline cache", "{} ({}) has none", adapter.label(), adapter.driver);
            assert!(files.is_empty(), "one program is {files:?}");
            continue;
        };
        let whole = fs::read(file).unwrap();
        // A file that is whole, but is not what the driver once gave: what an update of the driver may leave behind.
        let foreign = b"not a program of any driver".to_vec();
        let foreign = [blake3::hash(&foreign).as_bytes().to_vec(), foreign].concat();
        for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), foreign] {
            fs::write(file, damaged).unwrap();
            for wanted in [counters(1, 0, 0), counters(0, 1, 0)] {
                let backend = backend_with(folder.path());
                let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
                assert_eq!(backend.counters(), wanted, "{}", adapter.label());
                bench.works();
            }
        }
    }
}

#[test]
fn twins_are_two_devices() {
    let backend = backend();
    let adapters = adapters(&backend);
    let pair = adapters.iter().enumerate().find_map(|(at, a)| {
        let twin = adapters[at + 1..].iter().find(|b| (&b.name, &b.driver) == (&a.name, &a.driver))?;
        Some((a.clone(), twin.clone()))
    });
    let Some((a, b)) = pair else { return test_support::skip!("two devices of one driver", "wgpu") };
    let wanted = [(a, DeviceId(0)), (b, DeviceId(1))];
    let devices = ragtag_hal::Backend::open(&backend, &wanted, &Limits::default()).unwrap();
    let mut benches: Vec<Bench> =
        devices.into_iter().map(|device| Bench::new(ragtag_hal::Checked::new(device))).collect();
    let (taken, own) = (counters(1, 0, 1), counters(2, 0, 0));
    let now = backend.counters();
    assert!(
        now == taken || now == own,
        "the second takes what the driver gives away of the first's: {now:?}"
    );
    benches.iter_mut().for_each(Bench::works);
}
