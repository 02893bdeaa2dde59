//! Compiled programs are kept in this process and on disk, and a kept one that is damaged or refused is compiled again.

use crate::support::*;
use ragtag_hal::{Backend, Device, DeviceId, Limits, Module, ModuleId, ModuleSource};
use ragtag_vulkan::{CacheCounters, VulkanBackend, VulkanConfig};
use std::fs;
use std::path::Path;

fn backend_with(folder: &Path) -> VulkanBackend {
    VulkanBackend::new(VulkanConfig { cache_folder: Some(folder.into()), ..config() })
}

/// A module of three entries in two programs.
fn two_programs() -> Module {
    let other = source().replace("+ 1u", "+ 2u").into();
    let (first, second) = (module(source()), module(other));
    let [first, second] = [first, second].map(|module| match module.source {
        ModuleSource::Text { entries, .. } => entries,
        _ => unreachable!("modules of tests are WGSL"),
    });
    let entries = [first.clone(), second, first].concat();
    Module { name: "two programs".into(), entries: vec![&SCALE; 3], source: text(entries) }
}

fn counters(compiled: u64, loaded: u64, reused: u64) -> CacheCounters {
    CacheCounters { compiled, loaded, reused }
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
        let mut device = open(&first, &adapter, 0, &Limits::default());
        device.create_module(ModuleId(1), &two_programs()).unwrap();
        assert_eq!(first.counters(), counters(2, 0, 7), "{}: a device opened anew", adapter.label());
        drop(device);

        // A later process has a backend of its own.
        let second = backend_with(folder.path());
        let mut bench = Bench::new(open(&second, &adapter, 0, &Limits::default()));
        bench.device.create_module(ModuleId(1), &two_programs()).unwrap();
        assert_eq!(second.counters(), counters(0, 2, 2), "{}", adapter.label());
        bench.works();
        drop(bench);
        no_objections(&first);
        no_objections(&second);
    }
}

#[test]
fn damaged_and_foreign_files_are_replaced() {
    for adapter in adapters(&backend()) {
        let folder = tempfile::tempdir().unwrap();
        drop(Bench::new(open(&backend_with(folder.path()), &adapter, 0, &Limits::default())));
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("one program is {files:?}") };
        let whole = fs::read(file).unwrap();
        // A file that is whole, but is not what the driver once gave: what an update of the driver may leave behind.
        let foreign = b"not a program of any driver".to_vec();
        let foreign = [blake3::hash(&foreign).as_bytes().to_vec(), foreign].concat();
        for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), foreign] {
            fs::write(file, damaged).unwrap();
            let backend = backend_with(folder.path());
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            assert_eq!(backend.counters(), counters(1, 0, 0), "{}", adapter.label());
            bench.works();
            let backend = backend_with(folder.path());
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            assert_eq!(backend.counters(), counters(0, 1, 0), "{}: it was replaced", adapter.label());
            bench.works();
        }
    }
}

#[test]
fn twins_take_programs_from_each_other() {
    let backend = backend();
    let adapters = adapters(&backend);
    let twins = adapters.iter().enumerate().find_map(|(at, a)| {
        Some((
            a.clone(),
            adapters[at + 1..].iter().find(|b| (&b.name, &b.driver) == (&a.name, &a.driver))?.clone(),
        ))
    });
    let Some((a, b)) = twins else {
        test_support::skip!("two devices of one driver", "Vulkan");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let backend = backend_with(folder.path());
    let devices = backend.open(&[(a, DeviceId(0)), (b, DeviceId(1))], &Limits::default()).unwrap();
    let mut benches: Vec<_> =
        devices.into_iter().map(|one| Bench::new(ragtag_hal::Checked::new(one))).collect();
    assert_eq!(backend.counters(), counters(1, 0, 1), "what the first compiled the second takes");
    benches.iter_mut().for_each(Bench::works);
}

#[test]
fn without_a_folder_everything_works() {
    for adapter in adapters(&backend()) {
        for _ in 0..2 {
            let backend = backend();
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            assert_eq!(backend.counters(), counters(1, 0, 0), "{}", adapter.label());
            bench.works();
        }
    }
}
