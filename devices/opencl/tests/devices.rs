//! Every OpenCL device of this machine: kernels, programs, memory, leases, what a failure says.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    Backend, BufferId, Command, Device, Error, HostRegion, Limits, Module, ModuleId, ProgramId, QueueKind,
    RegionId, TextEntry, Timing, Work,
};
use ragtag_opencl::{OpenClBackend, OpenClConfig, TransferMode};
use std::sync::Arc;
use support::*;

/// Runs a test on each device.
#[track_caller]
fn each(test: impl Fn(Bench)) {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{}: {}", adapter.label(), adapter.driver);
        test(Bench::new(open(&backend, &adapter, 0, &Limits::default())));
    }
}

fn label(bench: &Bench) -> String {
    bench.device.adapter().label()
}

fn expected(word: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..WORDS as u32).map(word).collect()
}

#[test]
fn a_kernel_computes() {
    each(|mut bench| {
        bench.fill_region(|at| at ^ 0x5555);
        let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
        let (from, to) = (buffer_range(0, 0, WORDS), buffer_range(1, 0, WORDS));
        let fill = Command::Fill { to, word: 0 };
        let computed = bench.commands(QueueKind::Compute, vec![fill, scale(from, to, 3)], &[up]);
        let down = bench.commands(QueueKind::Download, vec![download(1)], &[computed]);
        bench.wait(down);
        same(&bench.region_words(), &expected(|at| 3 * (at ^ 0x5555) + 1), label(&bench));
    });
}

#[test]
fn bindings_may_start_inside_buffers() {
    each(|mut bench| {
        let alignment = bench.device.adapter().caps.binding_alignment_bytes as usize / 4;
        bench.fill_region(|at| at);
        let (from, to) = (buffer_range(0, 2 * alignment, 100), buffer_range(1, alignment, 100));
        let clear = Command::Fill { to: buffer_range(1, 0, WORDS), word: 7 };
        let computed = bench.commands(QueueKind::Compute, vec![upload(0), clear, scale(from, to, 2)], &[]);
        bench.wait(computed);
        let inside = alignment..alignment + 100;
        let wanted: Vec<_> = (0..WORDS)
            .map(|at| if inside.contains(&at) { 2 * (at + alignment) as u32 + 1 } else { 7 })
            .collect();
        same(&bench.words(1), &wanted, label(&bench));
    });
}

/// A program that uploads, computes, copies, fills and downloads, so that recorded parts and copies alternate.
fn program() -> Vec<Command> {
    let all = |buffer| buffer_range(buffer, 0, WORDS);
    vec![
        upload(0),
        scale(all(0), all(1), 5),
        scale(all(1), all(2), 7),
        Command::Copy { from: all(2), to: all(3) },
        Command::Fill { to: buffer_range(3, 0, 16), word: 42 },
        download(3),
        scale(all(3), all(0), 1),
        Command::Copy { from: buffer_range(0, 0, 8), to: buffer_range(1, 8, 8) },
    ]
}

fn programs_replay(config: &OpenClConfig) {
    let backend = OpenClBackend::new(config.clone());
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        bench.device.record(ProgramId(0), program()).unwrap();
        for round in 0..10u32 {
            bench.fill_region(|at| at.wrapping_mul(round));
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            let result = |at: u32| if at < 16 { 42 } else { 7 * (5 * at.wrapping_mul(round) + 1) + 1 };
            same(&bench.region_words(), &expected(result), format!("{} round {round}", adapter.label()));
            let copied = |at: u32| if (8..16).contains(&at) { 43 } else { 5 * at.wrapping_mul(round) + 1 };
            same(&bench.words(1), &expected(copied), format!("{} round {round}", adapter.label()));
        }
    }
}

#[test]
fn programs_replay_as_command_buffers_and_as_loops() {
    programs_replay(&config());
    programs_replay(&OpenClConfig { command_buffers: false, ..config() });
}

#[test]
fn programs_of_many_launches_run_in_order() {
    each(|mut bench| {
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        let commands = (0..200).map(|turn| scale(all(turn % 2), all((turn + 1) % 2), 3));
        bench.device.record(ProgramId(0), commands.collect()).unwrap();
        let fill = bench.commands(QueueKind::Compute, vec![Command::Fill { to: all(0), word: 5 }], &[]);
        let first = bench.program(0, &[fill]);
        bench.wait(first);
        let second = bench.program(0, &[]);
        bench.wait(second);
        let word = (0..400).fold(5u32, |word, _| word.wrapping_mul(3).wrapping_add(1));
        same(&bench.words(0), &vec![word; WORDS], label(&bench));
    });
}

#[test]
fn an_empty_grid_does_nothing() {
    each(|mut bench| {
        let Command::Dispatch(mut dispatch) = scale(buffer_range(0, 0, 64), buffer_range(1, 0, 64), 1) else {
            unreachable!()
        };
        dispatch.grid = [4, 0, 1];
        let clear = Command::Fill { to: buffer_range(1, 0, WORDS), word: 9 };
        bench.device.record(ProgramId(0), vec![Command::Dispatch(dispatch.clone())]).unwrap();
        let ran = bench.commands(QueueKind::Compute, vec![clear, Command::Dispatch(dispatch)], &[]);
        let again = bench.program(0, &[ran]);
        bench.wait(again);
        same(&bench.words(1), &vec![9; WORDS], label(&bench));
    });
}

#[test]
fn all_ways_to_transfer_give_the_same() {
    for transfer in [TransferMode::Explicit, TransferMode::SharedVirtual, TransferMode::Unified] {
        let backend = OpenClBackend::new(OpenClConfig { transfer: Some(transfer), ..config() });
        for adapter in adapters(&backend) {
            let mut bench =
                match backend.open(&[(adapter.clone(), ragtag_hal::DeviceId(0))], &Limits::default()) {
                    Ok(mut devices) => {
                        let mut device = ragtag_hal::Checked::new(devices.swap_remove(0));
                        if let Err(error) = device.create_buffer(BufferId(9), 64) {
                            test_support::skip!(
                                "shared memory of OpenCL",
                                "{}: {transfer:?}: {error}",
                                adapter.label()
                            );
                            continue;
                        }
                        Bench::new(device)
                    }
                    Err(error) => panic!("{} does not open: {error}", adapter.label()),
                };
            for round in 1..20u32 {
                bench.fill_region(|at| at * round);
                let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
                let (from, to) = (buffer_range(0, 0, WORDS), buffer_range(1, 0, WORDS));
                let computed = bench.commands(QueueKind::Compute, vec![scale(from, to, 3)], &[up]);
                bench.wait(computed);
                same(
                    &bench.words(1),
                    &expected(|at| 3 * at * round + 1),
                    format!("{} {transfer:?}", adapter.label()),
                );
            }
        }
    }
}

#[test]
fn a_build_failure_shows_the_log() {
    each(|mut bench| {
        let broken = module("__kernel void scale(__global uint *out) { out[0] = no_such_name; }".into());
        match bench.device.create_module(ModuleId(1), &broken) {
            Err(Error::Compile { log }) => assert!(log.contains("no_such_name"), "{log}"),
            other => panic!("{other:?}"),
        }
        let fine = bench.device.create_module(ModuleId(1), &module(source()));
        assert_eq!(fine, Ok(()), "the device is as good as before");
    });
}

/// Compilers that are not as safe for threads as they should be show it here.
#[test]
fn the_programs_of_a_module_are_compiled_side_by_side() {
    each(|mut bench| {
        let offsets = 10..26u32;
        let entry = |offset| TextEntry {
            text: source().replace("+ 1u", &format!("+ {offset}u")).into(),
            function: function("scale"),
        };
        let module = Module {
            name: "many programs".into(),
            entries: offsets.clone().map(|_| &SCALE).collect(),
            source: text(offsets.clone().map(entry).collect()),
        };
        bench.device.create_module(ModuleId(1), &module).unwrap();
        bench.fill_region(|at| at);
        let mut commands = vec![upload(0)];
        for at in 0..offsets.len() {
            let to = buffer_range(1, at * WORDS / offsets.len(), WORDS / offsets.len());
            let Command::Dispatch(mut launch) = scale(buffer_range(0, 0, WORDS), to, 0) else {
                unreachable!()
            };
            (launch.module, launch.entry) = (ModuleId(1), at as u32);
            commands.push(Command::Dispatch(launch));
        }
        let ran = bench.commands(QueueKind::Compute, commands, &[]);
        bench.wait(ran);
        let wanted = expected(|at| 10 + at / (WORDS / offsets.len()) as u32);
        same(&bench.words(1), &wanted, label(&bench));
    });
}

#[test]
fn functions_are_held_to_their_abi() {
    each(|mut bench| {
        let with = |source: &str, name: &str| Module {
            source: text(vec![TextEntry { text: source.into(), function: function(name) }]),
            ..module("".into())
        };
        let missing = bench.device.create_module(ModuleId(1), &with(&source(), "no_such_kernel"));
        assert!(
            matches!(&missing, Err(Error::Compile { log }) if log.contains("no_such_kernel")),
            "{missing:?}"
        );
        let short = "__kernel void scale(__global const uint *in, __global uint *out) { out[0] = in[0]; }";
        let arity = bench.device.create_module(ModuleId(1), &with(short, "scale"));
        assert!(matches!(&arity, Err(Error::Invalid { what }) if what.contains("2 parameters")), "{arity:?}");
    });
}

#[test]
fn after_running_out_of_memory_less_works() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let limit = 64 << 20;
        let limits = Limits { memory_bytes: Some(limit), ..Limits::default() };
        let mut device = open(&backend, &adapter, 0, &limits);
        device.create_buffer(BufferId(0), limit / 2).unwrap();
        match device.create_buffer(BufferId(1), limit / 2 + 1) {
            Err(Error::OutOfMemory { wanted, free }) => {
                assert_eq!((wanted, free), (limit / 2 + 1, Some(limit / 2)), "{}", adapter.label());
            }
            other => panic!("{}: {other:?}", adapter.label()),
        }
        let heap = device.memory().unwrap()[0];
        assert_eq!(heap.total_bytes, limit);
        assert!(heap.free_bytes.is_none_or(|free| free <= limit / 2), "{heap:?}");
        device.create_buffer(BufferId(1), limit / 2).unwrap();
        device.destroy_buffer(BufferId(0)).unwrap();
        device.create_buffer(BufferId(2), limit / 2).unwrap();
    }
}

#[test]
fn memory_that_a_driver_gives_and_does_not_have_is_found_out() {
    let backend = backend();
    for adapter in adapters(&backend) {
        // Where the free memory is known, the backend itself refuses.
        if adapter.memory[0].free_bytes.is_some() {
            test_support::skip!("driver that hides its free memory", "{} tells it", adapter.label());
            continue;
        }
        let mut device = open(&backend, &adapter, 0, &Limits::default());
        let block = adapter.caps.max_allocation_bytes / 2;
        let blocks = adapter.memory[0].total_bytes / block + 2;
        let refused =
            (0..blocks as u32).find_map(|id| Some((id, device.create_buffer(BufferId(id), block).err()?)));
        let Some((id, Error::OutOfMemory { wanted, .. })) = refused else { panic!("{refused:?}") };
        assert!(wanted == block && id > 0, "{id} of {blocks}");
        device.destroy_buffer(BufferId(0)).unwrap();
        let mut bench_memory = || device.create_buffer(BufferId(id), block);
        assert_eq!(bench_memory(), Ok(()), "what was given back can be had again");
        for id in 1..=id {
            device.destroy_buffer(BufferId(id)).unwrap();
        }
        let mut bench = Bench::new(device);
        let fill = Command::Fill { to: buffer_range(0, 0, WORDS), word: 3 };
        let filled = bench.commands(QueueKind::Compute, vec![fill], &[]);
        bench.wait(filled);
        same(&bench.words(0), &vec![3; WORDS], label(&bench));
    }
}

#[test]
fn what_the_host_holds_no_device_copies() {
    each(|mut bench| {
        let region = Arc::clone(&bench.region);
        let held = region.write(0..4).unwrap();
        let refused = bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        drop(held);
        // Behind other work nobody sees it when it is submitted, but before its point passes.
        let held = region.read(0..4).unwrap();
        let fills = (0..50).map(|word| Command::Fill { to: buffer_range(1, 0, WORDS), word });
        let busy = bench.commands(QueueKind::Compute, fills.collect(), &[]);
        let late = bench.try_submit(QueueKind::Download, Work::Commands(vec![download(0)]), &[busy]);
        let error = late.map_or_else(Some, |point| bench.outcome(point));
        assert!(matches!(error.as_ref().map(Error::root), Some(Error::Invalid { .. })), "{error:?}");
        drop(held);
    });
}

#[test]
fn regions_come_and_go() {
    each(|mut bench| {
        for round in 0..20u32 {
            let region = Arc::new(HostRegion::new(WORDS * 4).unwrap());
            region.write(0..WORDS * 4).unwrap().fill(round as u8);
            // Under two names at once, as two stages of one device would have it.
            for id in [1, 2] {
                bench.device.register_region(RegionId(id), Arc::clone(&region)).unwrap();
            }
            let to = buffer_range(0, 0, WORDS);
            let up = Command::Upload { region: RegionId(1 + round % 2), offset: 0, to };
            let up = bench.commands(QueueKind::Upload, vec![up], &[]);
            bench.wait(up);
            assert_eq!(region.read(0..1).unwrap()[0], round as u8, "registering changes nothing");
            for id in [1, 2] {
                bench.device.unregister_region(RegionId(id)).unwrap();
            }
            assert_eq!(Arc::strong_count(&region), 1, "nothing holds a region that was let go");
            same(&bench.words(0), &vec![u32::from_ne_bytes([round as u8; 4]); WORDS], "what was uploaded");
        }
    });
}

#[test]
fn timings_lie_in_order_between_submitting_and_hearing() {
    each(|mut bench| {
        let all = |buffer| buffer_range(buffer, 0, WORDS);
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
            assert!(order.is_sorted() && last_end_ns <= timing.start_ns, "{order:?} after {last_end_ns}");
            last_end_ns = timing.end_ns;
        }
    });
}
