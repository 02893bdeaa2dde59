//! Tests on every CUDA device of the machine: kernels in both languages, overlapping launches, programs and
//! errors. The conformance suite contains the tests that are common to all devices.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_cuda::{CudaBackend, CudaConfig};
use ragtag_hal::{
    Command, Device, Error, Feature, HostRegion, KernelLanguage, Limits, ModuleId, ProgramId, QueueKind,
    RegionId,
};
use std::sync::Arc;
use support::*;

device_bench::device_tests!(subject());

#[test]
fn an_adapter_describes_its_device() {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{adapter:#?}");
        assert!(adapter.identity.uuid.is_some() && adapter.identity.pci.is_some());
        let memory = adapter.memory[0];
        assert!(memory.free_bytes.is_some_and(|free| 0 < free && free <= memory.total_bytes), "{memory:?}");
        assert!(adapter.caps.local_memory_bytes >= 48 << 10 && adapter.caps.parallel_units > 0);
    }
}

/// Checks two devices that were opened from one adapter, and each pair of peers.
#[test]
fn devices_share_buffers() {
    let backend = backend();
    let all = adapters(&backend);
    let pairs = all.iter().flat_map(|owner| all.iter().map(move |user| (owner, user)));
    for (owner, user) in pairs.filter(|(owner, user)| user.imports_from(owner)) {
        println!("{} to {}", owner.label(), user.label());
        let mut owner = Bench::new(open(&backend, owner, 0, &Limits::default()));
        let mut user = Bench::new(open(&backend, user, 1, &Limits::default()));
        shares(&mut owner, &mut user);
    }
    if all.len() < 2 {
        test_support::skip!("two CUDA devices", "the driver has {}", all.len());
    }
}

fn computes(bench: &mut Bench, module: u32) {
    bench.fill_region(|at| at ^ 0x5555);
    let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
    let commands = vec![Command::Fill { to: all(1), word: 0 }, scale_of(module, all(0), all(1), 3)];
    let computed = bench.commands(QueueKind::Compute, commands, &[up]);
    let down = bench.commands(QueueKind::Download, vec![download(1)], &[computed]);
    bench.wait(down);
    assert_eq!(bench.region_words(), expected(|at| 3 * (at ^ 0x5555) + 1));
}

#[test]
fn cuda_c_runs_if_its_compiler_is_installed_and_is_cached() {
    let folder = tempfile::tempdir().unwrap();
    let backend =
        || CudaBackend::new(CudaConfig { cache_folder: Some(folder.path().into()), ..CudaConfig::default() });
    for adapter in adapters(&backend()) {
        if !adapter.caps.languages.contains(&KernelLanguage::CudaC) {
            test_support::skip!("NVRTC", "{} has none", adapter.label());
            continue;
        }
        for _ in 0..2 {
            let mut bench = Bench::new(open(&backend(), &adapter, 0, &Limits::default()));
            let module = module_of(KernelLanguage::CudaC, cuda_source(), function("scale"));
            bench.device.create_module(ModuleId(1), &module).unwrap();
            computes(&mut bench, 1);
            assert!(std::fs::read_dir(folder.path()).unwrap().count() > 0);
            let broken =
                module_of(KernelLanguage::CudaC, "void scale() { no_such_name; }".into(), function("scale"));
            let error = bench.device.create_module(ModuleId(2), &broken).unwrap_err();
            assert!(matches!(&error, Error::Compile { log } if log.contains("no_such_name")), "{error}");
        }
    }
}

/// Checks the result of a chain of dependent launches, first as a graph and then as single commands.
fn chain(bench: &mut Bench, module: u32, launches: u32) {
    let commands = |turns: std::ops::Range<u32>| -> Vec<Command> {
        turns.map(|turn| scale_of(module, all(turn % 2), all((turn + 1) % 2), 3)).collect()
    };
    bench.device.record(ProgramId(0), commands(0..launches)).unwrap();
    let mut last = bench.commands(QueueKind::Compute, vec![Command::Fill { to: all(0), word: 5 }], &[]);
    for _ in 0..5 {
        last = bench.program(0, &[last]);
        bench.wait(last);
    }
    let ran = bench.commands(QueueKind::Compute, commands(0..launches), &[last]);
    bench.wait(ran);
    let word = (0..6 * launches).fold(5u32, |word, _| word.wrapping_mul(3).wrapping_add(1));
    assert_eq!(bench.words(0), vec![word; WORDS]);
    let mut timings = Vec::new();
    bench.device.take_timings(&mut timings);
    let lasted_us = |at: usize| (timings[at].end_ns - timings[at].start_ns) as f64 / 1e3;
    println!(
        "{launches} launches of module {module}: {:.1} µs as a graph, {:.1} µs one by one",
        lasted_us(5),
        lasted_us(6)
    );
}

#[test]
fn launches_run_in_order_with_and_without_overlap() {
    each(&subject(), |mut bench| {
        chain(&mut bench, 0, 400);
        if !bench.device.adapter().caps.features.contains(&Feature::Sm90) {
            test_support::skip!("compute capability 9.0", "for overlapping launches");
            return;
        }
        bench.device.create_module(ModuleId(1), &module(overlapping())).unwrap();
        chain(&mut bench, 1, 400);
    });
}

#[test]
fn functions_are_checked_against_their_abi() {
    each(&subject(), |mut bench| {
        let short = module(source().replace(".param .u64 from, ", "").replace("[from]", "[to]").into());
        let error = bench.device.create_module(ModuleId(1), &short).unwrap_err();
        assert!(matches!(&error, Error::Invalid { what } if what.contains("3 parameters")), "{error}");
        let mut greedy = function("scale");
        greedy.dynamic_local_bytes = 64 << 20;
        let error =
            bench.device.create_module(ModuleId(1), &module_of(KernelLanguage::Ptx, source(), greedy));
        assert!(matches!(&error, Err(Error::Unsupported { .. })), "{error:?}");
        let mut local = function("scale");
        local.dynamic_local_bytes = u32::try_from(bench.device.adapter().caps.local_memory_bytes).unwrap();
        bench.device.create_module(ModuleId(1), &module_of(KernelLanguage::Ptx, source(), local)).unwrap();
        computes(&mut bench, 1);
    });
}

#[test]
fn regions_are_pinned_once_for_all_devices() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let mut benches = [0, 1].map(|id| Bench::new(open(&backend, &adapter, id, &Limits::default())));
        for round in 0..5u8 {
            let region = Arc::new(HostRegion::new(WORDS * 4).unwrap());
            region.write(0..WORDS * 4).unwrap().fill(round);
            for bench in &mut benches {
                for id in [1, 2] {
                    bench.device.register_region(RegionId(id), Arc::clone(&region)).unwrap();
                }
                let up = Command::Upload { region: RegionId(2), offset: 0, to: all(0) };
                let up = bench.commands(QueueKind::Upload, vec![up], &[]);
                bench.wait(up);
                assert_eq!(bench.words(0), vec![u32::from_ne_bytes([round; 4]); WORDS]);
            }
            for bench in &mut benches {
                for id in [1, 2] {
                    bench.device.unregister_region(RegionId(id)).unwrap();
                }
            }
            assert_eq!(Arc::strong_count(&region), 1, "nothing holds an unregistered region");
        }
    }
}
