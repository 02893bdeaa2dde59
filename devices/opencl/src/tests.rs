//! What only this crate can see: which devices share a context, and what becomes of a device that is lost. What the
//! backend owes to its users is in its folder of tests and in the conformance suite.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::{OpenClBackend, OpenClConfig};
use ragtag_hal::{
    Adapter, Backend, BufferId, BufferRange, Command, Device, DeviceId, Error, Limits, QueueKind, Submission,
    Timeline, TimelineId, Work,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn backend() -> OpenClBackend {
    OpenClBackend::new(OpenClConfig { cache_folder: None, ..OpenClConfig::default() })
}

fn adapters(backend: &OpenClBackend) -> Vec<Adapter> {
    backend.probe().unwrap_or_else(|unavailable| {
        test_support::skip!("OpenCL driver", "{unavailable}");
        Vec::new()
    })
}

#[test]
fn devices_of_one_platform_share_a_context() {
    let backend = backend();
    let found = backend.found().unwrap_or_default();
    let pair = found
        .iter()
        .enumerate()
        .find_map(|(at, a)| Some((a, found[at + 1..].iter().find(|b| b.platform == a.platform)?)));
    let Some((a, b)) = pair else {
        test_support::skip!("two devices of one driver", "OpenCL");
        return;
    };
    let open = |wanted: &[(&Adapter, u16)]| {
        let wanted: Vec<_> = wanted.iter().map(|(one, id)| ((*one).clone(), DeviceId(*id))).collect();
        backend.open(&wanted, &Limits::default()).unwrap()
    };
    let (a, b) = (&a.adapter, &b.adapter);
    let both = open(&[(a, 0), (b, 1)]);
    assert_eq!(backend.contexts_in_use(), 1, "two devices that are opened together");
    let again = open(&[(b, 2)]);
    assert_eq!(backend.contexts_in_use(), 1, "one that is opened later");
    drop(both);
    assert_eq!(backend.contexts_in_use(), 1, "one is left");
    drop(again);
    assert_eq!(backend.contexts_in_use(), 0, "none is left");
    let one = open(&[(a, 3)]);
    let other = open(&[(b, 4)]);
    assert_eq!(backend.contexts_in_use(), 2, "a context that is in use gets no more devices");
    drop((one, other));
}

#[test]
fn a_lost_device_says_so_and_closes() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let found =
            backend.found().unwrap().into_iter().find(|found| found.adapter.label() == adapter.label());
        let mut device = backend.open_one(DeviceId(0), found.unwrap(), &Limits::default()).unwrap();
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
        assert_eq!(device.record(ragtag_hal::ProgramId(0), vec![]), Err(lost.clone()));
        let (done, closed) = channel();
        std::thread::spawn(move || {
            drop(device);
            let _ = done.send(());
        });
        assert!(closed.recv_timeout(PATIENCE).is_ok(), "{}: closing a lost device hangs", adapter.label());
    }
}
