//! Every Vulkan device of this machine: kernels, programs, memory, leases, what a failure says.

use crate::support::*;
use ragtag_hal::{
    Adapter, AdapterKind, BufferId, Command, Device, Error, Feature, HostRegion, Limits, Module, ModuleId,
    ProgramId, QueueKind, RegionId, TextEntry, Timing, Work,
};
use ragtag_vulkan::{MatrixUnits, VulkanBackend, VulkanConfig};
use std::sync::Arc;

/// Runs a test on each device.
#[track_caller]
fn each(test: impl Fn(Bench)) {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{}: {}", adapter.label(), adapter.driver);
        test(Bench::new(open(&backend, &adapter, 0, &Limits::default())));
        no_objections(&backend);
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

fn programs_replay(config: &VulkanConfig) {
    let backend = VulkanBackend::new(config.clone());
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
    no_objections(&backend);
}

#[test]
fn programs_replay_whatever_memory_they_use() {
    for import_regions in [true, false] {
        for direct_memory in [true, false] {
            programs_replay(&VulkanConfig { import_regions, direct_memory, ..config() });
        }
    }
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

/// Where hardware has none, or only software has, the three settings may come to the same: then nothing is shown.
#[test]
fn matrix_units_count_as_asked() {
    let with = |matrices| {
        let found = adapters(&VulkanBackend::new(VulkanConfig { matrices, ..config() }));
        let has = |a: &Adapter| (a.kind, a.caps.features.contains(&Feature::CooperativeMatrix));
        found.iter().map(has).collect::<Vec<_>>()
    };
    let [off, hardware, software] =
        [MatrixUnits::Off, MatrixUnits::Hardware, MatrixUnits::Software].map(with);
    for ((off, hardware), software) in off.into_iter().zip(hardware).zip(software) {
        assert!(!off.1, "{off:?}");
        assert_eq!(hardware.1, software.1 && software.0 != AdapterKind::Software, "{hardware:?}");
        println!("{:?}: matrices {}", software.0, software.1);
    }
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

/// A shadow's bytes reach the region and leave it in the order that points make, also between submissions of one queue.
#[test]
fn shadows_follow_their_regions() {
    let backend = VulkanBackend::new(VulkanConfig { import_regions: false, ..config() });
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        for round in 1..20u32 {
            bench.fill_region(|at| at * round);
            // Down and up again through the region, on one queue and without a point between: once in one submission, once
            // in two.
            let first =
                vec![upload(0), scale(all(0), all(1), 3), download(1), upload(2), scale(all(2), all(3), 5)];
            bench.commands(QueueKind::Compute, first, &[]);
            let second = vec![download(3), upload(0), scale(all(0), all(1), 7)];
            bench.commands(QueueKind::Compute, second, &[]);
            let third = bench.commands(QueueKind::Compute, vec![download(1)], &[]);
            bench.wait(third);
            let wanted = expected(|at| 7 * (5 * (3 * at * round + 1) + 1) + 1);
            same(&bench.region_words(), &wanted, format!("{} round {round}", adapter.label()));
        }
    }
    no_objections(&backend);
}

/// What was downloaded is in the region before it is uploaded from there, also where nobody waits for the first submission.
#[test]
fn what_comes_down_into_a_shadow_goes_up_again() {
    let backend = VulkanBackend::new(VulkanConfig { import_regions: false, ..config() });
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        for round in 1..20u32 {
            for queue in [QueueKind::Compute, QueueKind::Upload] {
                bench.fill_region(|_| 0xdead);
                let mut commands = vec![Command::Fill { to: all(0), word: round }];
                commands.extend((0..100).map(|_| scale(all(0), all(1), 1)));
                commands.push(download(1));
                let down = bench.commands(QueueKind::Compute, commands, &[]);
                let up = bench.commands(queue, vec![upload(2)], &[down]);
                bench.wait(up);
                same(&bench.words(2), &vec![round + 1; WORDS], format!("{} {queue:?}", adapter.label()));
            }
        }
    }
    no_objections(&backend);
}

/// Commands that touch each other's bytes take effect in order, others as they like.
#[test]
fn commands_that_overlap_in_part_take_effect_in_order() {
    each(|mut bench| {
        let alignment = bench.device.adapter().caps.binding_alignment_bytes as usize / 4;
        let part = |buffer, at: usize| buffer_range(buffer, at * alignment, alignment);
        for _ in 0..20 {
            let mut commands = vec![Command::Fill { to: buffer_range(0, 0, WORDS), word: 1 }];
            for at in 0..8 {
                commands.push(scale(part(0, at), part(0, at + 1), 2));
                commands.push(Command::Copy { from: part(0, at + 1), to: part(1, at) });
                commands.push(Command::Fill { to: part(0, at), word: 9 });
            }
            let ran = bench.commands(QueueKind::Compute, commands, &[]);
            bench.wait(ran);
            let words = bench.words(1);
            for at in 0..8 {
                let wanted = vec![(2 << (at + 1)) - 1; alignment];
                same(&words[at * alignment..(at + 1) * alignment], &wanted, format!("part {at}"));
            }
        }
    });
}

/// A grid with more groups than a device launches at once: along each axis the limit is 65535 at least.
#[test]
fn large_grids_are_launched_in_parts() {
    each(|mut bench| {
        let most = bench.device.adapter().caps.max_allocation_bytes.min(64 << 20);
        let words = (most / 4).min(70_000 * 64) as usize;
        for id in [10, 11] {
            bench.device.create_buffer(BufferId(id), words as u64 * 4).unwrap();
        }
        let fill = |buffer, word| Command::Fill { to: buffer_range(buffer, 0, words), word };
        let from = buffer_range(10, 0, words);
        let commands = vec![fill(10, 3), fill(11, 0), scale(from, buffer_range(11, 0, words), 5)];
        let ran = bench.commands(QueueKind::Compute, commands, &[]);
        bench.wait(ran);
        for first in [0, words / 2, words - WORDS] {
            let piece = Command::Copy { from: buffer_range(11, first, WORDS), to: buffer_range(0, 0, WORDS) };
            let copied = bench.commands(QueueKind::Compute, vec![piece], &[]);
            bench.wait(copied);
            same(&bench.words(0), &vec![16; WORDS], format!("{} from {first} on", label(&bench)));
        }
    });
}

#[test]
fn a_build_failure_shows_the_log() {
    each(|mut bench| {
        let broken = module(source().replace("result[at] =", "no_such_name[at] =").into());
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
        for (from, to) in [
            ("@binding(1)", "@binding(2)"),
            ("count: u32 }", "count: u32, more: vec4<u32> }"),
            ("64)", "32)"),
        ] {
            let other = source().replacen(from, to, 1);
            assert_ne!(*other, *source());
            let refused = bench.device.create_module(ModuleId(1), &with(&other, "scale"));
            assert!(matches!(&refused, Err(Error::Invalid { .. })), "{to}: {refused:?}");
        }
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
fn twins_stay_two() {
    let adapters = adapters(&backend());
    for (at, a) in adapters.iter().enumerate() {
        assert_eq!(a.index as usize, at);
        for b in &adapters[at + 1..] {
            println!("{} and {}: {}", a.label(), b.label(), a.identity == b.identity);
            let kinds = [a.kind, b.kind];
            assert!(kinds != [AdapterKind::Software, AdapterKind::Discrete], "graphics cards come first");
        }
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
