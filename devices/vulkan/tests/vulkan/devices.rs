//! Every Vulkan device of this machine: kernels, programs, memory, leases, what a failure says.

use crate::support::*;
use ragtag_hal::{
    Adapter, AdapterKind, BufferId, Command, Device, Error, Feature, Limits, Module, ModuleId, QueueKind,
    TextEntry,
};
use ragtag_vulkan::{MatrixUnits, VulkanBackend, VulkanConfig};

device_bench::device_tests!(subject());

fn label(bench: &Bench) -> String {
    bench.device.adapter().label()
}

fn expected(word: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..WORDS as u32).map(word).collect()
}

#[test]
fn programs_replay_whatever_memory_they_use() {
    for import_regions in [true, false] {
        for direct_memory in [true, false] {
            let config = VulkanConfig { import_regions, direct_memory, ..config() };
            suite::devices::programs_replay(&Tested(VulkanBackend::new(config)));
        }
    }
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
    each(&subject(), |mut bench| {
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
    each(&subject(), |mut bench| {
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
    each(&subject(), |mut bench| {
        let broken = module(source().replace("result[at] =", "no_such_name[at] =").into());
        match bench.device.create_module(ModuleId(1), &broken) {
            Err(Error::Compile { log }) => assert!(log.contains("no_such_name"), "{log}"),
            other => panic!("{other:?}"),
        }
        let fine = bench.device.create_module(ModuleId(1), &module(source()));
        assert_eq!(fine, Ok(()), "the device is as good as before");
    });
}

#[test]
fn functions_are_held_to_their_abi() {
    each(&subject(), |mut bench| {
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
