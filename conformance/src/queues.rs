//! Tests of queues, timelines and points.

use crate::bench::{Attempt, Bench, Context, expect_bytes, expect_equal, pattern};
use crate::report::Verdict;
use crate::suite::{Outcomes, Test};
use ragtag_hal::{Command, Device, DeviceId, Error, QueueKind, Timeline, TimelineId, Timing};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "queues/commands-in-order", run: commands_in_order, destroys: false },
    Test { name: "queues/empty-submission", run: empty_submission, destroys: false },
    Test { name: "queues/points-across-queues", run: points_across_queues, destroys: false },
    Test { name: "queues/many-in-flight", run: many_in_flight, destroys: false },
    Test { name: "queues/timings", run: timings, destroys: false },
    Test { name: "queues/foreign-point", run: foreign_point, destroys: false },
    Test { name: "queues/poison", run: poison, destroys: true },
];

/// Id of a device that does not exist. Tests advance its timelines.
const FOREIGN_DEVICE: DeviceId = DeviceId(u16::MAX);
/// Time to wait before a test checks that no progress was made. A device that ignores a wait would have made
/// progress by then.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// Checks that the commands of one submission take effect in order.
fn commands_in_order(bench: &mut Bench) -> Outcomes {
    let (a, b) = (bench.buffer(40_000)?, bench.buffer(40_000)?);
    let mut commands = Vec::new();
    for word in 0..50 {
        commands.push(Command::Fill { to: a, word });
        commands.push(Command::Copy { from: a, to: b });
        commands.push(Command::Fill { to: a, word: 1000 + word });
    }
    bench.compute(commands)?;
    expect_bytes(&bench.get(a)?, &1049u32.to_le_bytes().repeat(10_000), "the buffer that was filled last")?;
    expect_bytes(&bench.get(b)?, &49u32.to_le_bytes().repeat(10_000), "the buffer that was copied to last")?;
    Ok(Verdict::PASSED)
}

/// Checks that a submission without commands waits for its points and signals its own.
fn empty_submission(bench: &mut Bench) -> Outcomes {
    for queue in QueueKind::ALL {
        let first = bench.commands(queue, vec![], &[])?;
        let others = QueueKind::ALL.into_iter().filter(|&other| other != queue);
        let mut last = first;
        for other in others {
            last = bench.commands(other, vec![], &[first, last])?;
        }
        bench.wait(last)?;
        expect_equal(bench.timeline(queue).value() >= first.value, true, "the awaited point has passed")?;
    }
    Ok(Verdict::PASSED)
}

/// Checks uploads, copies and downloads on three queues that are ordered only by points. Repeats the sequence
/// with the same memory.
fn points_across_queues(bench: &mut Bench) -> Outcomes {
    const BYTES: usize = 100_000;
    let (a, b) = (bench.buffer(BYTES as u64)?, bench.buffer(BYTES as u64)?);
    let (up, source) = bench.region(BYTES)?;
    let (down, target) = bench.region(BYTES)?;
    for round in 0..10u64 {
        let data = pattern(BYTES, 100 + round);
        source.write(0..BYTES).context("a lease")?.copy_from_slice(&data);
        let uploaded =
            bench.commands(QueueKind::Upload, vec![Command::Upload { region: up, offset: 0, to: a }], &[])?;
        let copied =
            bench.commands(QueueKind::Compute, vec![Command::Copy { from: a, to: b }], &[uploaded])?;
        let download = Command::Download { from: b, region: down, offset: 0 };
        let downloaded = bench.commands(QueueKind::Download, vec![download], &[copied])?;
        bench.wait(downloaded)?;
        expect_bytes(&target.read(0..BYTES).context("a lease")?, &data, &format!("round {round}"))?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that many submissions can be in flight, each waiting for the previous submission on a different
/// queue.
fn many_in_flight(bench: &mut Bench) -> Outcomes {
    let buffer = bench.buffer(4096)?;
    let mut last = bench.commands(QueueKind::Compute, vec![Command::Fill { to: buffer, word: 0 }], &[])?;
    for word in 1..=200 {
        let between = bench.commands(QueueKind::Upload, vec![], &[last])?;
        last = bench.commands(QueueKind::Compute, vec![Command::Fill { to: buffer, word }], &[between])?;
    }
    bench.wait(last)?;
    expect_bytes(&bench.get(buffer)?, &200u32.to_le_bytes().repeat(1024), "after 200 fills")?;
    Ok(Verdict::PASSED)
}

/// Checks that every timing that the device reports belongs to an actual submission, and that its end is not
/// before its start. Skipped if the device reports no timings.
fn timings(bench: &mut Bench) -> Outcomes {
    let buffer = bench.buffer(4096)?;
    let mut timings: Vec<Timing> = Vec::new();
    bench.device().take_timings(&mut timings);
    timings.clear();
    let before_ns = Timing::now_ns();
    let point = bench.commands(QueueKind::Compute, vec![Command::Fill { to: buffer, word: 7 }], &[])?;
    bench.wait(point)?;
    bench.device().take_timings(&mut timings);
    let after_ns = Timing::now_ns();
    match timings.as_slice() {
        [] => Ok(Verdict::skipped("the device measures no timings")),
        [t] if t.point == point
            && before_ns <= t.start_ns
            && t.start_ns <= t.end_ns
            && t.end_ns <= after_ns =>
        {
            Ok(Verdict::PASSED)
        }
        other => Err(format!("timings of {point}, made from {before_ns} to {after_ns} ns: {other:?}")),
    }
}

/// Creates a timeline of another device and imports it into the device under test.
fn import(bench: &mut Bench, queue: QueueKind) -> Attempt<Arc<Timeline>> {
    let foreign = Timeline::new(TimelineId { device: FOREIGN_DEVICE, queue });
    bench.device().import_timeline(Arc::clone(&foreign)).context("importing a timeline")?;
    Ok(foreign)
}

/// Makes work wait for a point of another device, and checks that it does not start before another thread
/// signals the point.
fn foreign_point(bench: &mut Bench) -> Outcomes {
    let foreign = import(bench, QueueKind::Upload)?;
    let data = pattern(4096, 11);
    let buffer = bench.filled(&data)?;
    let (id, region) = bench.region(4096)?;
    for (round, queue) in QueueKind::ALL.into_iter().enumerate() {
        let value = (round as u64 + 1) * 10;
        let command = match queue {
            QueueKind::Compute => Command::Fill { to: buffer, word: 0x0101_0101 },
            QueueKind::Upload => Command::Upload { region: id, offset: 0, to: buffer },
            QueueKind::Download => Command::Download { from: buffer, region: id, offset: 0 },
        };
        let held = bench.commands(queue, vec![command], &[foreign.id().at(value)])?;
        let after = bench.commands(queue, vec![], &[held])?;
        foreign.advance(value - 1);
        thread::sleep(SETTLE_TIME);
        if bench.timeline(queue).value() >= held.value {
            return Err(format!("the {} queue did not wait for a point of another device", queue.name()));
        }
        let other = Arc::clone(&foreign);
        let advancing = thread::spawn(move || other.advance(value + 3));
        let outcome = bench.wait(after);
        advancing.join().map_err(|_| "the thread that advances panicked")?;
        outcome?;
    }
    // The region was zero. The fill ran first, then the upload overwrote it, then the download read the
    // result.
    expect_bytes(&bench.get(buffer)?, &[0; 4096], "after the waits")?;
    expect_bytes(&region.read(0..4096).context("a lease")?, &[0; 4096], "the region after the waits")?;
    Ok(Verdict::PASSED)
}

/// Checks that a failed point fails all work that waits for it, with the same cause. Also checks that the
/// failure does not affect completed work.
fn poison(bench: &mut Bench) -> Outcomes {
    let foreign = import(bench, QueueKind::Download)?;
    let buffer = bench.filled(&[5; 64])?;
    let passed = bench.commands(QueueKind::Compute, vec![], &[])?;
    bench.wait(passed)?;
    let fill = vec![Command::Fill { to: buffer, word: u32::MAX }];
    let held = bench.commands(QueueKind::Compute, fill, &[foreign.id().at(1)])?;
    let next = bench.commands(QueueKind::Compute, vec![], &[])?;
    let across = bench.commands(QueueKind::Upload, vec![], &[held])?;
    let cause = Error::Lost { cause: "a device that failed for a test".into() };
    foreign.fail(cause.clone());
    for point in [held, next, across] {
        match bench.outcome(point)? {
            Some(error) if *error.root() == cause => {}
            other => return Err(format!("{point} should have failed with {cause:?}, not {other:?}")),
        }
    }
    expect_equal(bench.outcome(passed)?, None, "what passed before")?;
    expect_bytes(&bench.get(buffer)?, &[5; 64], "work that waited for a failed point")?;
    Ok(Verdict::PASSED)
}
