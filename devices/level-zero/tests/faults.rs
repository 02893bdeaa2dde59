//! Tests of lost devices and failed allocations. The test driver simulates these faults.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use device_bench::faults::{loses_one_of_two, runs_out_of_memory};
use ragtag_hal::{BufferId, Device, Limits};
use support::*;
use test_drivers::{LostAt, level_zero_faults};

/// Device memory left for allocations, in bytes.
const ROOM: u64 = 4 << 20;

/// Simulates the loss of each device in turn. The loss affects the whole device, so the other device is the
/// second one of the driver.
fn loses_each(subject: &Tested, at: LostAt) {
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return };
    let faults = level_zero_faults();
    loses_one_of_two(&faults, &subject.backend, [first, second], at, &["ze", "DEVICE_LOST"]);
    assert_eq!(faults.misuses(), 0);
}

#[test]
fn a_lost_submission_ends_only_its_device() {
    loses_each(&subject(), LostAt::Submit);
}

#[test]
fn a_device_lost_while_working_ends_alone() {
    loses_each(&subject(), LostAt::Wait);
}

#[test]
fn refused_memory_is_reported_with_sizes() {
    let subject = subject();
    // The driver numbers devices in its own order, and the first device is one with its own memory.
    if let Some(adapter) = subject.adapters().first() {
        runs_out_of_memory(&level_zero_faults(), &subject.backend, adapter, ROOM);
    }
}

/// Checks that work of another device which waits on the device for a lost one does not hang.
#[test]
fn a_loss_releases_devices_that_wait_for_it() {
    let subject = subject_with(&[("RAGTAG_FAKE_PEERS", "1")]);
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return };
    let faults = level_zero_faults();
    let [mut sick, mut well] = open_both(&subject.backend, [first, second]);
    sick.works();
    let timeline = sick.timeline(ragtag_hal::QueueKind::Compute);
    let semaphore = sick.device.create_semaphore().unwrap();
    well.device.import_timeline(std::sync::Arc::clone(&timeline)).unwrap();
    sick.device.raise_semaphore(ragtag_hal::QueueKind::Compute, &semaphore).unwrap();
    well.device.await_semaphore(timeline.id(), &semaphore).unwrap();
    faults.lose(faults.opened(), LostAt::Wait, 0);
    let launched = sick.commands(ragtag_hal::QueueKind::Compute, vec![scale(all(0), all(1), 3)], &[]);
    let waiting = well.try_submit(
        ragtag_hal::QueueKind::Compute,
        ragtag_hal::Work::Commands(vec![scale(all(0), all(1), 3)]),
        &[launched],
    );
    let outcome = waiting.map_or_else(Some, |point| well.outcome(point));
    assert!(outcome.is_some(), "the point of a lost device never passes");
    in_time("closing devices after a loss", move || drop((sick, well)));
    Bench::new(open(&subject.backend, second, 2, &Limits::default())).works();
}

/// Checks that buffers may exceed the limit for a single allocation if the driver has relaxed limits.
#[test]
fn large_buffers_use_relaxed_limits() {
    let subject = subject_with(&[("RAGTAG_FAKE_ALLOCATION_BYTES", "1048576")]);
    for adapter in subject.adapters() {
        assert_eq!(adapter.caps.max_allocation_bytes, adapter.memory[0].total_bytes, "{}", adapter.label());
        let mut bench = Bench::new(open(&subject.backend, &adapter, 0, &Limits::default()));
        bench.device.create_buffer(BufferId(9), 8 << 20).unwrap();
        bench.works();
    }
}
