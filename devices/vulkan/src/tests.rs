//! What only this crate can see: what becomes of a device that is lost. What the backend owes to its users is in its folder of
//! tests and in the conformance suite.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::{VulkanBackend, VulkanConfig};
use ragtag_hal::{
    Backend, BufferId, BufferRange, Command, Device, DeviceId, Error, Limits, ProgramId, QueueKind,
    Submission, Timeline, TimelineId, Work,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_lost_device_says_so_and_closes() {
    let backend = VulkanBackend::new(VulkanConfig { cache_folder: None, ..VulkanConfig::default() });
    let adapters = backend.probe().unwrap_or_else(|unavailable| {
        test_support::skip!("Vulkan driver", "{unavailable}");
        Vec::new()
    });
    for adapter in adapters {
        let mut device = backend.open_one(DeviceId(0), &adapter, &Limits::default()).unwrap();
        let abroad = Timeline::new(TimelineId { device: DeviceId(9), queue: QueueKind::Compute });
        device.import_timeline(Arc::clone(&abroad)).unwrap();
        device.create_buffer(BufferId(0), 4096).unwrap();
        let to = BufferRange { buffer: BufferId(0), offset: 0, bytes: 4096 };
        let fill = |queue: QueueKind, value: u64, waits| Submission {
            queue,
            work: Work::Commands(if queue == QueueKind::Compute {
                vec![Command::Fill { to, word: 1 }]
            } else {
                vec![]
            }),
            waits,
            signal: TimelineId { device: DeviceId(0), queue }.at(value),
        };
        device.submit(fill(QueueKind::Compute, 1, vec![])).unwrap();
        for queue in QueueKind::ALL {
            device.submit(fill(queue, 2, vec![abroad.id().at(1)])).unwrap();
        }
        let lost = Error::Lost { cause: "unplugged for a test".into() };
        device.common().told(lost.clone());
        for queue in QueueKind::ALL {
            let waited = device.timeline(queue).wait(2, Some(PATIENCE));
            assert_eq!(
                waited.map_err(|error| error.root().clone()),
                Err(lost.clone()),
                "{}",
                adapter.label()
            );
        }
        assert_eq!(device.submit(fill(QueueKind::Upload, 3, vec![])), Err(lost.clone()));
        assert_eq!(device.create_buffer(BufferId(1), 64), Err(lost.clone()));
        assert_eq!(device.record(ProgramId(0), vec![]), Err(lost.clone()));
        let (done, closed) = channel();
        std::thread::spawn(move || {
            drop(device);
            let _ = done.send(());
        });
        assert!(closed.recv_timeout(PATIENCE).is_ok(), "{}: closing a lost device hangs", adapter.label());
    }
    assert_eq!(backend.validation_messages(), Vec::<String>::new());
}
