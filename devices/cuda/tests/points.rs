//! Points between devices: of two APIs, and of devices that never come to them.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::{
    Backend, Command, Device, DeviceId, Error, Limits, QueueKind, RegionId, Timeline, TimelineId, Work,
};
use std::sync::Arc;
use support::*;

fn cpu(id: u16) -> Bench {
    let backend = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let adapter = backend.probe().unwrap().swap_remove(0);
    Bench::new(open(&backend, &adapter, id, &Limits::default()))
}

/// Words go from one device to the other and back through a region that both know, in an order that only points make.
fn ping_pong(mut a: Bench, mut b: Bench, rounds: u32) {
    b.device.unregister_region(RegionId(0)).unwrap();
    b.device.register_region(RegionId(0), Arc::clone(&a.region)).unwrap();
    b.region = Arc::clone(&a.region);
    a.device.import_timeline(b.timeline(QueueKind::Download)).unwrap();
    b.device.import_timeline(a.timeline(QueueKind::Download)).unwrap();
    a.fill_region(|at| at);
    let start = std::time::Instant::now();
    let mut ready = Vec::new();
    for round in 0..rounds {
        // Everything is submitted before the first of it can have ended.
        for (at, bench) in [&mut a, &mut b].into_iter().enumerate() {
            let up = bench.commands(QueueKind::Upload, vec![upload(0)], &ready);
            let word = 2 * round + at as u32;
            let fill = Command::Fill { to: buffer_range(0, word as usize, 1), word: 7000 + word };
            let computed = bench.commands(QueueKind::Compute, vec![fill], &[up]);
            ready = vec![bench.commands(QueueKind::Download, vec![download(0)], &[computed])];
        }
    }
    b.wait(ready[0]);
    println!("{rounds} rounds in {:?}", start.elapsed());
    let wanted: Vec<u32> = (0..WORDS as u32).map(|at| if at < 2 * rounds { 7000 + at } else { at }).collect();
    assert_eq!(a.region_words(), wanted);
}

#[test]
fn points_cross_between_devices() {
    let backend = backend();
    for adapter in adapters(&backend) {
        println!("{}: {}", adapter.label(), adapter.name);
        let opened = |id| Bench::new(open(&backend, &adapter, id, &Limits::default()));
        ping_pong(cpu(0), opened(1), 50);
        ping_pong(opened(1), cpu(0), 50);
        ping_pong(opened(0), opened(1), 50);
    }
}

/// Everything behind a point that fails fails, on all queues, with the cause; what went before stays.
#[test]
fn a_failure_abroad_reaches_all_that_waits_for_it() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let timeline = Timeline::new(TimelineId { device: DeviceId(900), queue: QueueKind::Download });
        bench.device.import_timeline(Arc::clone(&timeline)).unwrap();
        let fill = |word| vec![Command::Fill { to: all(0), word }];
        let before = bench.commands(QueueKind::Compute, fill(1), &[]);
        let held = bench.commands(QueueKind::Compute, fill(2), &[timeline.id().at(1)]);
        let behind = bench.commands(QueueKind::Compute, fill(3), &[]);
        let across = bench.commands(QueueKind::Upload, vec![upload(0)], &[behind]);
        let cause = Error::Lost { cause: "a device that failed for a test".into() };
        timeline.fail(cause.clone());
        bench.wait(before);
        for point in [held, behind, across] {
            let error = bench.outcome(point);
            assert_eq!(error.as_ref().map(Error::root), Some(&cause), "{point}");
        }
        let late = bench.try_submit(QueueKind::Compute, Work::Commands(fill(4)), &[]);
        assert!(late.is_ok_and(|point| bench.outcome(point).is_some()), "the timeline has ended");
        assert_eq!(bench.words(0), vec![1; WORDS], "nothing behind it ran");
    }
}
