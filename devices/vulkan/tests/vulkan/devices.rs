//! Tests on every Vulkan device of the machine: kernels, programs, memory, leases and errors.

use crate::support::*;
use ragtag_hal::{Adapter, AdapterKind, Command, Device, Error, Feature, Limits, ModuleId, QueueKind};
use ragtag_vulkan::{MatrixUnits, VulkanBackend, VulkanConfig};

device_bench::device_tests!(subject());

#[test]
fn programs_replay_in_every_memory_mode() {
    for import_regions in [true, false] {
        for direct_memory in [true, false] {
            let config = VulkanConfig { import_regions, direct_memory, ..config() };
            suite::devices::programs_replay(&Tested(VulkanBackend::new(config)));
        }
    }
}

/// Checks which devices report cooperative matrices under each setting of `MatrixUnits`. A device that does
/// not support them must never report them.
#[test]
fn matrix_units_follow_the_setting() {
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

/// Checks that copies through staging buffers respect points and the order of submissions in a queue.
#[test]
fn staging_buffers_follow_their_regions() {
    let backend = VulkanBackend::new(VulkanConfig { import_regions: false, ..config() });
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        for round in 1..20u32 {
            bench.fill_region(|at| at * round);
            // The test downloads to a region and then uploads from it, on one queue and without a point in
            // between: once within a single submission, and once in two submissions.
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

/// Checks that an upload waits until an earlier download has written the region, even if the host does not
/// wait in between.
#[test]
fn a_download_through_staging_can_be_uploaded_again() {
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

#[test]
fn functions_are_checked_against_their_abi() {
    each(&subject(), |mut bench| {
        for (from, to) in [
            ("@binding(1)", "@binding(2)"),
            ("count: u32 }", "count: u32, more: vec4<u32> }"),
            ("64)", "32)"),
        ] {
            let other = source().replacen(from, to, 1);
            assert_ne!(*other, *source());
            let refused = bench.device.create_module(ModuleId(1), &module(other.into()));
            assert!(matches!(&refused, Err(Error::Invalid { .. })), "{to}: {refused:?}");
        }
    });
}

#[test]
fn identical_devices_stay_separate() {
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
