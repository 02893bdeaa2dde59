//! Tests of device loss and out-of-memory errors. A layer between Vulkan's loader and the driver injects the
//! faults, so the tests work with any driver. For Level Zero, a driver for tests injects them. Each backend's
//! tests choose the call that fails.

use crate::{Bench, WORDS, all, download, in_time, open, scale, upload};
use ragtag_hal::{
    Adapter, Backend, BufferId, Command, Device, Error, HostRegion, Limits, ProgramId, QueueKind, RegionId,
    Work,
};
use std::sync::Arc;
use test_drivers::{Faults, LostAt};

/// Number of successful submissions before the loss.
const GOOD: u64 = 5;
/// Number of submissions that the test makes after the successful ones.
const MORE: usize = 12;
/// Region for downloads that may fail.
const OTHER: RegionId = RegionId(1);
/// Value that the timeline of the other device never reaches.
const NEVER: u64 = 1000;

fn launch() -> Vec<Command> {
    vec![scale(all(0), all(1), 3)]
}

/// Opens a device of each adapter and causes the loss of the first one. Asserts that the error contains `words`, that every call to
/// the lost device returns the same error, and that nothing leaks. Also asserts that the other device still
/// works, and that a device can be opened afterwards. Each submission makes one driver call at which the
/// device can be lost.
#[track_caller]
pub fn loses_one_of_two(
    faults: &Faults,
    backend: &dyn Backend,
    adapters: [&Adapter; 2],
    at: LostAt,
    words: &[&str],
) {
    let label = adapters[0].label();
    let number = faults.opened();
    let [mut sick, mut well] =
        [0, 1].map(|id| Bench::new(open(backend, adapters[id as usize], id, &Limits::default())));
    sick.works();
    well.works();
    let abroad = well.timeline(QueueKind::Compute);
    sick.device.import_timeline(Arc::clone(&abroad)).unwrap();
    let other = Arc::new(HostRegion::new(WORDS * 4).unwrap());
    sick.device.register_region(OTHER, Arc::clone(&other)).unwrap();
    let held = sick.commands(QueueKind::Download, vec![download(2)], &[abroad.id().at(NEVER)]);

    faults.lose(number, at, GOOD);
    for _ in 0..GOOD {
        assert_eq!(sick.failure(QueueKind::Compute, launch()), None, "{label}: lost too early");
    }
    // Submit work to the three queues in turn. Copies that precede the loss may run on the host.
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
    // Work that ended before the loss must have succeeded. Work that ended during the loss may have
    // succeeded.
    let outcome = |submitted: Result<_, _>| submitted.map_or_else(Some, |point| sick.outcome(point));
    let outcomes: Vec<_> = submitted.into_iter().filter_map(outcome).collect();
    let lost = outcomes.first().map(|error| error.root().clone());
    println!("{label}: {lost:?}");
    let Some(Error::Lost { cause }) = &lost else { panic!("{label}: {lost:?}") };
    assert!(words.iter().all(|word| cause.contains(word)), "{label}: {cause}");

    let same = |outcome: Option<Error>| {
        assert_eq!(
            outcome.as_ref().map(Error::root),
            lost.as_ref(),
            "{label}: every call returns the first cause"
        );
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
    assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{label}: memory leaked");
    assert_eq!([region, other].map(|region| Arc::strong_count(&region)), [1, 1], "{label}: regions leaked");

    well.works();
    Bench::new(open(backend, adapters[0], 2, &Limits::default())).works();
}

/// Asserts that a request for `bytes` bytes failed with an out-of-memory error.
#[track_caller]
pub fn no_memory<T: std::fmt::Debug>(result: Result<T, Error>, bytes: u64) {
    match result {
        Err(Error::OutOfMemory { wanted, free }) => {
            assert!(wanted == bytes && free.is_none_or(|free| free < bytes), "{wanted} of {free:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Limits the driver to `room` more bytes, although it reports that more are free. Asserts that the
/// out-of-memory error contains the requested bytes, that a smaller allocation works, and that freed memory
/// can be reused.
#[track_caller]
pub fn runs_out_of_memory(faults: &Faults, backend: &dyn Backend, adapter: &Adapter, room: u64) {
    let number = faults.opened();
    let mut bench = Bench::new(open(backend, adapter, 0, &Limits::default()));
    bench.works();
    faults.limit(number, faults.held(number) + room);
    no_memory(bench.device.create_buffer(BufferId(10), 2 * room), 2 * room);
    bench.works();
    bench.device.create_buffer(BufferId(10), room / 2).unwrap();
    no_memory(bench.device.create_buffer(BufferId(11), room), room);
    // The pool frees cached memory to make room for another size class.
    bench.device.destroy_buffer(BufferId(10)).unwrap();
    bench.device.create_buffer(BufferId(11), room / 4 * 3).unwrap();
    bench.works();
    drop(bench);
    assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{}", adapter.label());
}
