//! Tests of lost devices and failed allocations. A layer between the Vulkan loader and each driver simulates
//! these faults. wgpu handles such faults in the same way for Metal and Direct3D 12.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use device_bench::faults::{loses_one_of_two, no_memory, runs_out_of_memory};
use ragtag_hal::{BufferId, BufferRange, Command, Device, HostRegion, Limits, QueueKind, RegionId};
use std::sync::Arc;
use support::*;
use test_drivers::{Faults, LostAt, with_vulkan_faults};

/// Restricts wgpu to Vulkan devices.
const VULKAN: &[(&str, &str)] = &[("WGPU_BACKEND", "vulkan")];

/// Simulates the loss of each device in turn. Any wgpu call may detect the loss, because several threads use
/// the device.
fn loses_each(faults: &Faults, at: LostAt) {
    let backend = backend();
    for adapter in adapters(&backend) {
        loses_one_of_two(faults, &backend, [&adapter; 2], at, &["lost"]);
    }
}

#[test]
fn a_lost_submission_ends_only_its_device() {
    with_vulkan_faults("a_lost_submission_ends_only_its_device", VULKAN, |faults| {
        loses_each(faults, LostAt::Submit);
    });
}

#[test]
fn a_device_lost_while_working_ends_alone() {
    with_vulkan_faults("a_device_lost_while_working_ends_alone", VULKAN, |faults| {
        loses_each(faults, LostAt::Wait);
    });
}

#[test]
fn refused_memory_is_reported_with_sizes() {
    with_vulkan_faults("refused_memory_is_reported_with_sizes", VULKAN, |faults| {
        let backend = backend();
        for adapter in adapters(&backend) {
            // wgpu allocates memory in blocks of up to 64 MiB.
            runs_out_of_memory(faults, &backend, &adapter, 128 << 20);
        }
    });
}

/// Checks large transfers with little free memory, and then with none. With little memory, transfers wait for
/// each other. With none, the error contains the size of the failed allocation, and other queues continue.
#[test]
fn transfers_work_with_the_available_memory() {
    const BYTES: usize = 40 << 20;
    const CHUNK: u64 = 4 << 20;
    with_vulkan_faults("transfers_work_with_the_available_memory", VULKAN, |faults| {
        let backend = backend();
        for adapter in adapters(&backend) {
            let number = faults.opened();
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            let region = Arc::new(HostRegion::new(BYTES).unwrap());
            bench.device.register_region(RegionId(1), Arc::clone(&region)).unwrap();
            bench.device.create_buffer(BufferId(10), BYTES as u64).unwrap();
            let there = BufferRange { buffer: BufferId(10), offset: 0, bytes: BYTES as u64 };
            let up = vec![Command::Upload { region: RegionId(1), offset: 0, to: there }];
            let down = vec![Command::Download { from: there, region: RegionId(1), offset: 0 }];
            let held = faults.held(number);
            faults.limit(number, held + 3 * CHUNK);
            let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9).to_le_bytes()[at % 4];
            region.write(0..BYTES).unwrap().iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
            assert_eq!(bench.failure(QueueKind::Upload, up), None, "{}", adapter.label());
            region.write(0..BYTES).unwrap().fill(0xe7);

            faults.limit(number, held);
            let failed = bench.failure(QueueKind::Download, down.clone());
            println!("{}: {} bytes before, {} now: {failed:?}", adapter.label(), held, faults.held(number));
            no_memory(failed.map_or(Ok(()), |error| Err(error.root().clone())), CHUNK);
            let ran = bench.commands(QueueKind::Compute, vec![Command::Fill { to: all(0), word: 0 }], &[]);
            bench.wait(ran);
        }
    });
}
