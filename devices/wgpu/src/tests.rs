//! What only this crate can see: what becomes of a device that is lost. What the backend owes to its users is in its folder
//! of tests and in the conformance suite.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::backend::open_one;
use crate::gpu::Failure;
use crate::probe::{instance, probe};
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, DeviceId, Error, Limits, ProgramId, QueueKind, Submission,
    Timeline, TimelineId, Work,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ID: DeviceId = DeviceId(0);

fn fill(queue: QueueKind, value: u64, waits: Vec<ragtag_hal::Point>) -> Submission {
    let to = BufferRange { buffer: BufferId(0), offset: 0, bytes: 4096 };
    let commands = match queue {
        QueueKind::Compute => vec![Command::Fill { to, word: value as u32 }],
        QueueKind::Upload | QueueKind::Download => vec![],
    };
    let signal = TimelineId { device: ID, queue }.at(value);
    Submission { queue, work: Work::Commands(commands), waits, signal }
}

#[test]
fn a_lost_device_says_so_and_closes() {
    let found = probe("wgpu", &instance()).unwrap_or_else(|unavailable| {
        test_support::skip!("Vulkan driver", "wgpu: {unavailable}");
        Vec::new()
    });
    for found in found {
        let label = found.adapter.label();
        let mut device = open_one(ID, found, &Limits::default()).unwrap();
        let abroad = Timeline::new(TimelineId { device: DeviceId(9), queue: QueueKind::Compute });
        device.import_timeline(Arc::clone(&abroad)).unwrap();
        device.create_buffer(BufferId(0), 4096).unwrap();
        device.submit(fill(QueueKind::Compute, 1, vec![])).unwrap();
        assert_eq!(device.timeline(QueueKind::Compute).wait(1, Some(PATIENCE)), Ok(true), "{label}");
        for queue in QueueKind::ALL {
            device.submit(fill(queue, 2, vec![abroad.id().at(1)])).unwrap();
        }
        device.driver().gpu.device.destroy();
        // wgpu tells when it is asked next.
        assert_eq!(device.driver().gpu.guarded(|| ()), Ok(()));
        let polled = device.driver().gpu.device.poll(wgpu::PollType::Poll);
        assert!(polled.is_ok(), "{label}: {polled:?}");
        for queue in QueueKind::ALL {
            let waited = device.timeline(queue).wait(2, Some(PATIENCE));
            let error = waited.expect_err("a point of a lost device");
            assert!(matches!(error.root(), Error::Lost { .. }), "{label}: {error:?}");
        }
        let is_lost = |result: Result<(), Error>| matches!(result, Err(Error::Lost { .. }));
        assert!(is_lost(device.submit(fill(QueueKind::Upload, 3, vec![]))), "{label}");
        assert!(is_lost(device.create_buffer(BufferId(1), 64)), "{label}");
        assert!(is_lost(device.record(ProgramId(0), vec![])), "{label}");
        let (done, closed) = channel();
        std::thread::spawn(move || {
            drop(device);
            let _ = done.send(());
        });
        assert!(closed.recv_timeout(PATIENCE).is_ok(), "{label}: closing a lost device hangs");
    }
}

/// A device that wgpu does not know to be lost yet: what is submitted is refused, and nothing panics.
#[test]
fn what_wgpu_refuses_is_an_error() {
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
    assert_eq!(gpu.check(), panicked.map(drop), "and stays so");
}
