//! Tests of lost devices and failed allocations. A layer between the loader and each driver simulates these
//! faults.

use crate::support::*;
use device_bench::faults::{loses_one_of_two, no_memory, runs_out_of_memory};
use ragtag_hal::{Device, Error, HostRegion, Limits, ModuleId, ProgramId, RegionId};
use ragtag_vulkan::{VulkanBackend, VulkanConfig};
use std::sync::Arc;
use test_drivers::{Faults, LostAt, with_vulkan_faults};

/// Device memory left for allocations, in bytes.
const ROOM: u64 = 4 << 20;

/// Simulates the loss of each device in turn, with imported regions and with staging buffers. The error may
/// name any Vulkan call, because the thread that first uses the lost device reports it.
fn loses_each(faults: &Faults, at: LostAt) {
    for import_regions in [true, false] {
        let backend = VulkanBackend::new(VulkanConfig { import_regions, ..config() });
        for adapter in adapters(&backend) {
            loses_one_of_two(faults, &backend, [&adapter; 2], at, &["vk", "code -4"]);
        }
        no_objections(&backend);
    }
}

#[test]
fn a_lost_submission_ends_only_its_device() {
    with_vulkan_faults("faults::a_lost_submission_ends_only_its_device", &[], |faults| {
        loses_each(faults, LostAt::Submit);
    });
}

#[test]
fn a_device_lost_while_working_ends_alone() {
    with_vulkan_faults("faults::a_device_lost_while_working_ends_alone", &[], |faults| {
        loses_each(faults, LostAt::Wait);
    });
}

#[test]
fn refused_memory_is_reported_with_sizes() {
    with_vulkan_faults("faults::refused_memory_is_reported_with_sizes", &[], |faults| {
        let backend = backend();
        for adapter in adapters(&backend) {
            runs_out_of_memory(faults, &backend, &adapter, ROOM);
        }
        no_objections(&backend);
    });
}

/// Checks that, if the driver is out of memory, the error for registering a region contains the requested
/// size. Depending on the device, the region is imported or gets a staging buffer.
#[test]
fn a_shortage_for_regions_is_reported_with_sizes() {
    with_vulkan_faults("faults::a_shortage_for_regions_is_reported_with_sizes", &[], |faults| {
        let backend = backend();
        for adapter in adapters(&backend) {
            let number = faults.opened();
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            faults.limit(number, faults.held(number) + ROOM);
            let region = |bytes: u64| Arc::new(HostRegion::new(bytes as usize).unwrap());
            no_memory(bench.device.register_region(RegionId(1), region(2 * ROOM)), 2 * ROOM);
            bench.device.register_region(RegionId(1), region(ROOM / 2)).unwrap();
            bench.works();
        }
        no_objections(&backend);
    });
}

/// Checks that recording a program or creating a module reports a failed allocation. Drivers allocate memory
/// not only for buffers, but also for these objects.
#[test]
fn a_shortage_for_programs_is_reported_with_sizes() {
    with_vulkan_faults("faults::a_shortage_for_programs_is_reported_with_sizes", &[], |faults| {
        let backend = backend();
        for adapter in adapters(&backend) {
            let number = faults.opened();
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            let launch = || vec![scale(all(0), all(1), 3)];
            let another = module(source().replace("+ 1u", "+ 9u").into());
            let short = |result: Result<(), Error>| match result {
                Err(Error::OutOfMemory { wanted, free: None }) => assert!(wanted > 0),
                other => panic!("{}: {other:?}", adapter.label()),
            };
            faults.limit(number, 0);
            short(bench.device.record(ProgramId(0), launch()));
            short(bench.device.create_module(ModuleId(1), &another));
            faults.limit(number, u64::MAX);
            bench.device.record(ProgramId(0), launch()).unwrap();
            bench.device.create_module(ModuleId(1), &another).unwrap();
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            bench.works();
        }
        no_objections(&backend);
    });
}
