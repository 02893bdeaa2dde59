//! What becomes of a device that is lost, and of one that has no memory left. A layer between Vulkan's loader and the driver has
//! that happen on any driver; backends differ in what they call.

use crate::{Bench, WORDS, all, download, in_time, open, scale, upload};
use ragtag_hal::{
    Adapter, Backend, BufferId, Command, Device, Error, HostRegion, Limits, ProgramId, QueueKind, RegionId,
    Work,
};
use std::sync::Arc;
use test_drivers::{LostAt, VulkanFaults};

/// Submissions that go well before a device is lost.
const GOOD: u64 = 5;
/// Submissions that it is lost with.
const MORE: usize = 12;
/// The region that downloads go to meanwhile.
const OTHER: RegionId = RegionId(1);
/// A point that nobody reaches.
const NEVER: u64 = 1000;

fn launch() -> Vec<Command> {
    vec![scale(all(0), all(1), 3)]
}

/// Loses one of two devices in the middle of its work. It says so once, with these words in its cause, and goes without leaving
/// anything; the other one goes on, and so does one that is opened anew. Each submission is one call that it can be lost at.
#[track_caller]
pub fn loses_one_of_two(
    faults: &VulkanFaults,
    backend: &dyn Backend,
    adapter: &Adapter,
    at: LostAt,
    words: &[&str],
) {
    let label = adapter.label();
    let number = faults.opened();
    let [mut sick, mut well] = [0, 1].map(|id| Bench::new(open(backend, adapter, id, &Limits::default())));
    sick.works();
    well.works();
    let abroad = well.timeline(QueueKind::Compute);
    sick.device.import_timeline(Arc::clone(&abroad)).unwrap();
    let other = Arc::new(HostRegion::new(WORDS * 4).unwrap());
    sick.device.register_region(OTHER, Arc::clone(&other)).unwrap();
    let held = sick.commands(QueueKind::Download, vec![download(2)], &[abroad.id().at(NEVER)]);

    faults.lose(number, at, GOOD);
    for _ in 0..GOOD {
        assert_eq!(sick.failure(QueueKind::Compute, launch()), None, "{label}: not yet");
    }
    // One kind of work after the other, each in its queue: the host may have made its copies itself before.
    let queues = QueueKind::ALL.into_iter().cycle().take(MORE);
    let mut submit = |queue| {
        let commands = match queue {
            QueueKind::Compute => launch(),
            QueueKind::Upload => vec![upload(3)],
            QueueKind::Download => vec![Command::Download { from: all(1), region: OTHER, offset: 0 }],
        };
        sick.try_submit(queue, Work::Commands(commands), &[])
    };
    let submitted: Vec<_> = queues.map(&mut submit).collect();
    // What ended before the device was lost has gone well, and some of what did so at that moment.
    let outcome = |submitted: Result<_, _>| submitted.map_or_else(Some, |point| sick.outcome(point));
    let outcomes: Vec<_> = submitted.into_iter().filter_map(outcome).collect();
    let lost = outcomes.first().map(|error| error.root().clone());
    println!("{label}: {lost:?}");
    let Some(Error::Lost { cause }) = &lost else { panic!("{label}: {lost:?}") };
    assert!(words.iter().all(|word| cause.contains(word)), "{label}: {cause}");

    let same = |outcome: Option<Error>| {
        assert_eq!(outcome.as_ref().map(Error::root), lost.as_ref(), "{label}: it is said once");
    };
    outcomes.into_iter().map(Some).for_each(same);
    same(sick.outcome(held));
    same(sick.failure(QueueKind::Upload, vec![upload(0)]));
    same(sick.failure(QueueKind::Compute, launch()));
    same(sick.device.create_buffer(BufferId(50), 4096).err());
    same(sick.device.record(ProgramId(0), launch()).err());
    same(sick.device.register_region(RegionId(2), Arc::new(HostRegion::new(4096).unwrap())).err());
    same(sick.device.memory().err());
    let region = Arc::clone(&sick.region);
    in_time("closing a lost device", move || drop(sick));
    assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{label}: all is given back");
    assert_eq!([region, other].map(|region| Arc::strong_count(&region)), [1, 1], "{label}: regions as well");

    well.works();
    Bench::new(open(backend, adapter, 2, &Limits::default())).works();
}

/// Fails unless an error says that there is no memory for so many bytes.
#[track_caller]
pub fn no_memory<T: std::fmt::Debug>(result: Result<T, Error>, bytes: u64) {
    match result {
        Err(Error::OutOfMemory { wanted, free }) => {
            assert!(wanted == bytes && free.is_none_or(|free| free < bytes), "{wanted} of {free:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Has a driver refuse memory of which it said that there is more than `room` bytes: that is told with sizes, less can be had, and
/// what was given back can be had again.
#[track_caller]
pub fn runs_out_of_memory(faults: &VulkanFaults, backend: &dyn Backend, adapter: &Adapter, room: u64) {
    let number = faults.opened();
    let mut bench = Bench::new(open(backend, adapter, 0, &Limits::default()));
    bench.works();
    faults.limit(number, faults.held(number) + room);
    no_memory(bench.device.create_buffer(BufferId(10), 2 * room), 2 * room);
    bench.works();
    bench.device.create_buffer(BufferId(10), room / 2).unwrap();
    no_memory(bench.device.create_buffer(BufferId(11), room), room);
    // What the pool keeps of it makes room for another size.
    bench.device.destroy_buffer(BufferId(10)).unwrap();
    bench.device.create_buffer(BufferId(11), room / 4 * 3).unwrap();
    bench.works();
    drop(bench);
    assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{}", adapter.label());
}
