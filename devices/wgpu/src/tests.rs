//! Tests of lost devices. They use internals of the crate. The folder `tests` and the conformance suite test
//! the public interface.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::backend::open_one;
use crate::gpu::Failure;
use crate::probe::{instance, probe};
use ragtag_hal::{DeviceId, Limits};

const ID: DeviceId = DeviceId(0);

#[test]
fn a_lost_device_reports_its_loss_and_closes() {
    let found = probe("wgpu", &instance()).unwrap_or_else(|unavailable| {
        test_support::skip!("Vulkan driver", "wgpu: {unavailable}");
        Vec::new()
    });
    for found in found {
        let device = open_one(ID, found, &Limits::default()).unwrap();
        device_bench::suite::a_lost_device_reports_its_loss_and_closes(device, |device| {
            let gpu = &device.driver().gpu;
            gpu.device.destroy();
            // wgpu reports the loss at the next poll.
            assert_eq!(gpu.guarded(|| ()), Ok(()));
            let polled = gpu.device.poll(wgpu::PollType::Poll);
            assert!(polled.is_ok(), "{polled:?}");
        });
    }
}

/// Checks that rejected calls return errors and that a panic counts as a device loss.
#[test]
fn a_refused_call_is_an_error() {
    let Some(found) = probe("wgpu", &instance()).ok().and_then(|found| found.into_iter().next()) else {
        return test_support::skip!("Vulkan driver", "wgpu shows no device");
    };
    let device = open_one(ID, found, &Limits::default()).unwrap();
    let gpu = &device.driver().gpu;
    let size = gpu.device.limits().max_buffer_size + 4;
    let usage = wgpu::BufferUsages::STORAGE;
    let too_large = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let refused = gpu.guarded(|| gpu.device.create_buffer(&too_large));
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    let panicked = gpu.guarded(|| {
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor { size: 16, ..too_large });
        buffer.slice(0..17).size()
    });
    assert!(matches!(&panicked, Err(Failure::Lost(why)) if why.contains("17")), "{panicked:?}");
    assert_eq!(gpu.check(), panicked.map(drop), "the device stays lost");
}
