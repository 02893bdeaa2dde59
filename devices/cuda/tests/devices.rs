//! Every CUDA device of this machine: kernels in both languages, launches that overlap, programs, what a failure says.
//! What every device owes is in the conformance suite.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_cuda::{CudaBackend, CudaConfig};
use ragtag_hal::{
    Command, Device, Error, Feature, HostRegion, KernelLanguage, Limits, ModuleId, ProgramId, QueueKind,
    RegionId, Timing, Work,
};
use std::sync::Arc;
use support::*;

/// Runs a test on each device.
#[track_caller]
fn each(test: impl Fn(Bench)) {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{}: {} ({})", adapter.label(), adapter.name, adapter.driver);
        test(Bench::new(open(&backend, &adapter, 0, &Limits::default())));
    }
}

fn expected(word: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..WORDS as u32).map(word).collect()
}

#[test]
fn an_adapter_says_what_it_is() {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{adapter:#?}");
        assert!(adapter.identity.uuid.is_some() && adapter.identity.pci.is_some());
        let memory = adapter.memory[0];
        assert!(memory.free_bytes.is_some_and(|free| 0 < free && free <= memory.total_bytes), "{memory:?}");
        assert!(adapter.caps.local_memory_bytes >= 48 << 10 && adapter.caps.parallel_units > 0);
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
fn ptx_computes() {
    each(|mut bench| computes(&mut bench, 0));
}

#[test]
fn cuda_c_computes_where_its_compiler_is_found_and_is_kept() {
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

/// A chain of launches, each of which reads what the one before it wrote: as a graph, and one by one.
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
fn launches_run_in_order_whether_they_overlap_or_not() {
    each(|mut bench| {
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
fn programs_replay_on_what_their_region_holds_then() {
    each(|mut bench| {
        let program = vec![
            upload(0),
            scale(all(0), all(1), 5),
            scale(all(1), all(2), 7),
            Command::Copy { from: all(2), to: all(3) },
            Command::Fill { to: buffer_range(3, 0, 16), word: 42 },
            download(3),
            scale(all(3), all(0), 1),
        ];
        bench.device.record(ProgramId(0), program).unwrap();
        for round in 0..10u32 {
            bench.fill_region(|at| at.wrapping_mul(round));
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            let result = |at: u32| if at < 16 { 42 } else { 7 * (5 * at.wrapping_mul(round) + 1) + 1 };
            assert_eq!(bench.region_words(), expected(result), "round {round}");
        }
    });
}

#[test]
fn a_refused_text_shows_the_log_and_functions_are_held_to_their_abi() {
    each(|mut bench| {
        let broken = module(plain().replace("mul.wide.u32", "no.such.instruction").into());
        let error = bench.device.create_module(ModuleId(1), &broken).unwrap_err();
        println!("{error}");
        assert!(matches!(&error, Error::Compile { log } if log.contains("line")), "{error}");
        let missing = module_of(KernelLanguage::Ptx, plain(), function("no_such_kernel"));
        let error = bench.device.create_module(ModuleId(1), &missing).unwrap_err();
        assert!(matches!(&error, Error::Compile { log } if log.contains("no_such_kernel")), "{error}");
        let short = module(plain().replace(".param .u64 from, ", "").replace("[from]", "[to]").into());
        let error = bench.device.create_module(ModuleId(1), &short).unwrap_err();
        assert!(matches!(&error, Error::Invalid { what } if what.contains("3 parameters")), "{error}");
        let mut greedy = function("scale");
        greedy.dynamic_local_bytes = 64 << 20;
        let error = bench.device.create_module(ModuleId(1), &module_of(KernelLanguage::Ptx, plain(), greedy));
        assert!(matches!(&error, Err(Error::Unsupported { .. })), "{error:?}");
        let mut local = function("scale");
        local.dynamic_local_bytes = u32::try_from(bench.device.adapter().caps.local_memory_bytes).unwrap();
        bench.device.create_module(ModuleId(1), &module_of(KernelLanguage::Ptx, plain(), local)).unwrap();
        computes(&mut bench, 1);
    });
}

#[test]
fn what_the_host_holds_no_device_copies() {
    each(|mut bench| {
        let region = Arc::clone(&bench.region);
        let _held = region.write(0..4).unwrap();
        let refused = bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
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
            assert_eq!(Arc::strong_count(&region), 1, "nothing holds a region that was let go");
        }
    }
}

#[test]
fn timings_lie_in_order_between_submitting_and_hearing() {
    each(|mut bench| {
        let mut timings: Vec<Timing> = Vec::new();
        let mut last_end_ns = 0;
        for _ in 0..10 {
            let before_ns = Timing::now_ns();
            let commands = vec![upload(0), scale(all(0), all(1), 3), download(1)];
            let ran = bench.commands(QueueKind::Compute, commands, &[]);
            bench.wait(ran);
            timings.clear();
            bench.device.take_timings(&mut timings);
            let after_ns = Timing::now_ns();
            let [timing] = timings[..] else { panic!("{timings:?}") };
            assert_eq!(timing.point, ran);
            let order = [before_ns, timing.start_ns, timing.end_ns, after_ns];
            println!("{order:?}");
            assert!(order.is_sorted() && last_end_ns <= timing.start_ns, "{order:?} after {last_end_ns}");
            last_end_ns = timing.end_ns;
        }
    });
}
