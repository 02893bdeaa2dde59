//! Benchmark of transfers and programs on each OpenCL device, with every method that the backend supports.
//! The methods alternate, so that noise affects all of them equally.
//!
//! Usage: `cargo bench -p ragtag-opencl --bench submit`
#![allow(clippy::print_stdout)] // a report is what it is for

#[path = "../tests/support/mod.rs"]
mod support;

use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, HostRegion, Limits, ProgramId, QueueKind, RegionId,
};
use ragtag_opencl::{OpenClBackend, OpenClConfig, TransferMode};
use std::sync::Arc;
use std::time::Instant;
use support::*;

const ROUNDS: usize = 200;
const LAUNCHES: usize = 200;

fn main() {
    for adapter in adapters(&backend()) {
        println!("{} {}, {}", adapter.label(), adapter.name, adapter.driver);
        transfers(&adapter);
        programs(&adapter);
    }
}

fn bench(config: OpenClConfig, adapter: &Adapter) -> Option<Bench> {
    let backend = OpenClBackend::new(config);
    let mut device = open(&backend, adapter, 0, &Limits::default());
    // Skip a device that does not support this transfer mode.
    device.create_buffer(BufferId(9), 64).ok()?;
    Some(Bench::new(device))
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Runs several benchmarks alternately. Returns the median time of each benchmark in microseconds.
fn in_turns(benches: &mut [Bench], mut run: impl FnMut(&mut Bench)) -> Vec<f64> {
    let mut samples = vec![Vec::with_capacity(ROUNDS); benches.len()];
    for round in 0..2 * ROUNDS {
        // The first half of the rounds lets the clock rates settle.
        let counts = round >= ROUNDS;
        for (bench, samples) in benches.iter_mut().zip(&mut samples) {
            let start = Instant::now();
            run(bench);
            if counts {
                samples.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    samples.into_iter().map(median).collect()
}

/// Measures uploads and downloads, from submission to completion.
fn transfers(adapter: &Adapter) {
    let modes = [TransferMode::Explicit, TransferMode::SharedVirtual, TransferMode::Unified];
    let opened = modes.map(|mode| (mode, bench(OpenClConfig { transfer: Some(mode), ..config() }, adapter)));
    let (modes, mut benches): (Vec<_>, Vec<_>) =
        opened.into_iter().filter_map(|(mode, bench)| Some((mode, bench?))).unzip();
    for kib in [4u64, 32, 64, 1024, 16 << 10] {
        let bytes = kib << 10;
        let whole = BufferRange { buffer: BufferId(10), offset: 0, bytes };
        for bench in &mut benches {
            let region = Arc::new(HostRegion::new(bytes as usize).unwrap());
            bench.device.create_buffer(BufferId(10), bytes).unwrap();
            bench.device.register_region(RegionId(10), region).unwrap();
        }
        let up = in_turns(&mut benches, |bench| {
            let command = Command::Upload { region: RegionId(10), offset: 0, to: whole };
            let point = bench.commands(QueueKind::Upload, vec![command], &[]);
            bench.wait(point);
        });
        let down = in_turns(&mut benches, |bench| {
            let command = Command::Download { from: whole, region: RegionId(10), offset: 0 };
            let point = bench.commands(QueueKind::Download, vec![command], &[]);
            bench.wait(point);
        });
        for (at, mode) in modes.iter().enumerate() {
            let (up_ratio, down_ratio) = (up[at] / up[0], down[at] / down[0]);
            println!(
                "  {kib:>6} KiB {mode:?}: up {:.1} µs ({up_ratio:.2} of explicit), down {:.1} µs ({down_ratio:.2})",
                up[at], down[at]
            );
        }
        for bench in &mut benches {
            bench.device.destroy_buffer(BufferId(10)).unwrap();
            bench.device.unregister_region(RegionId(10)).unwrap();
        }
    }
}

/// Measures a program of many small launches, from submission to completion.
fn programs(adapter: &Adapter) {
    let configs = [true, false].map(|command_buffers| OpenClConfig { command_buffers, ..config() });
    let mut benches: Vec<_> = configs.into_iter().filter_map(|config| bench(config, adapter)).collect();
    let range = |buffer| buffer_range(buffer, 0, 64);
    for bench in &mut benches {
        let launches = (0..LAUNCHES as u32).map(|at| scale(range(at % 2), range((at + 1) % 2), 3));
        bench.device.record(ProgramId(0), launches.collect()).unwrap();
    }
    let mut submitting = Vec::new();
    let all = in_turns(&mut benches, |bench| {
        let start = Instant::now();
        let point = bench.program(0, &[]);
        submitting.push(start.elapsed().as_secs_f64() * 1e6);
        bench.wait(point);
    });
    for (at, name) in ["as a command buffer, where there is one", "as a loop"].iter().enumerate() {
        let submit = median(submitting.iter().skip(at).step_by(2).copied().collect());
        println!("  {LAUNCHES} launches {name}: submit {submit:.0} µs, all {:.0} µs", all[at]);
    }
}
