//! Test of a lost device.

use crate::{TIMEOUT, all, in_time};
use ragtag_hal::driver::{Driver, DriverDevice};
use ragtag_hal::{
    BufferId, Command, Device, DeviceId, Error, Point, ProgramId, QueueKind, Submission, Timeline,
    TimelineId, Work,
};
use std::sync::Arc;

/// Checks that a lost device reports its loss on every queue and in every call, and that it can be closed.
pub fn a_lost_device_reports_its_loss_and_closes<D: Driver>(
    mut device: DriverDevice<D>,
    lose: impl FnOnce(&DriverDevice<D>),
) {
    let (id, label) = (device.id(), device.adapter().label());
    let abroad = Timeline::new(TimelineId { device: DeviceId(900), queue: QueueKind::Compute });
    device.import_timeline(Arc::clone(&abroad)).unwrap();
    device.create_buffer(BufferId(0), all(0).bytes).unwrap();
    let fill = |queue: QueueKind, value: u64, waits: Vec<Point>| {
        let commands = match queue {
            QueueKind::Compute => vec![Command::Fill { to: all(0), word: 1 }],
            QueueKind::Upload | QueueKind::Download => vec![],
        };
        let signal = TimelineId { device: id, queue }.at(value);
        Submission::timed(queue, Work::Commands(commands), waits, signal)
    };
    device.submit(fill(QueueKind::Compute, 1, vec![])).unwrap();
    assert_eq!(device.timeline(QueueKind::Compute).wait(1, Some(TIMEOUT)), Ok(true), "{label}");
    for queue in QueueKind::ALL {
        device.submit(fill(queue, 2, vec![abroad.id().at(1)])).unwrap();
    }
    lose(&device);
    let failure = |queue| device.timeline(queue).wait(2, Some(TIMEOUT)).expect_err(&label).root().clone();
    let lost = failure(QueueKind::Compute);
    assert!(matches!(lost, Error::Lost { .. }), "{label}: {lost:?}");
    assert_eq!(QueueKind::ALL.map(failure), [(); 3].map(|()| lost.clone()), "{label}");
    assert_eq!(device.submit(fill(QueueKind::Upload, 3, vec![])), Err(lost.clone()));
    assert_eq!(device.create_buffer(BufferId(1), 64), Err(lost.clone()));
    assert_eq!(device.record(ProgramId(0), vec![]), Err(lost.clone()));
    in_time(&label, move || drop(device));
}

/// Records a device loss as if the driver had reported it.
pub fn unplug<D: Driver>(device: &DriverDevice<D>) {
    device.common().record(Error::Lost { cause: "unplugged for a test".into() });
}
