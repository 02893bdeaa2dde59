//! Benchmark of submissions and dispatches on the CPU device, with a kernel that does nothing.
//!
//! `cargo bench -p ragtag-cpu --bench dispatch`
#![allow(clippy::print_stdout)] // the benchmark prints its results

use ragtag_cpu::{CpuBackend, CpuConfig};
use ragtag_hal::{
    Backend, Checked, Command, Device, DeviceId, Dispatch, EntryAbi, HostCall, Limits, Module, ModuleId,
    ModuleSource, ProgramId, QueueKind, Result, Submission, TimelineId, Work,
};
use std::ops::Range;
use std::time::Instant;

static NOTHING: EntryAbi = EntryAbi { name: "nothing", bindings: &[], constants: 0, extents: |_, _| {} };

/// A kernel that does not access memory, so that any call is sound.
unsafe fn nothing(_: &HostCall<'_>, _: Range<u32>) {}

fn main() -> Result<()> {
    for threads in [1, 2] {
        let mut bench = Bench::new(threads)?;
        let (one, many) = (bench.median_us(1)?, bench.median_us(1001)?);
        println!("{threads} threads: submission {one:.1} µs, dispatch {:.3} µs", (many - one) / 1000.0);
    }
    Ok(())
}

struct Bench {
    device: Checked,
    next: u64,
}

impl Bench {
    fn new(threads: u32) -> Result<Self> {
        let backend = CpuBackend::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
        let adapters: Vec<_> = backend.probe()?.into_iter().map(|adapter| (adapter, DeviceId(0))).collect();
        let device = backend.open(&adapters[..1], &Limits::default())?.swap_remove(0);
        let mut device = Checked::new(device);
        let module = Module {
            name: "bench".into(),
            entries: vec![&NOTHING],
            source: ModuleSource::Host(vec![nothing]),
        };
        device.create_module(ModuleId(0), &module)?;
        Ok(Self { device, next: 0 })
    }

    /// Returns the median time from submission to completion of a program with `dispatches` dispatches, in
    /// µs.
    fn median_us(&mut self, dispatches: usize) -> Result<f64> {
        let dispatch =
            Dispatch { module: ModuleId(0), entry: 0, bindings: vec![], constants: vec![], grid: [8, 1, 1] };
        self.device.record(ProgramId(0), vec![Command::Dispatch(dispatch); dispatches])?;
        let timeline = self.device.timeline(QueueKind::Compute);
        let mut samples = Vec::new();
        for _ in 0..500 {
            self.next += 1;
            let signal = TimelineId { device: DeviceId(0), queue: QueueKind::Compute }.at(self.next);
            let start = Instant::now();
            let work = Work::Program(ProgramId(0));
            self.device.submit(Submission::timed(QueueKind::Compute, work, vec![], signal))?;
            timeline.wait(self.next, None)?;
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        samples.sort_unstable_by(f64::total_cmp);
        Ok(samples[samples.len() / 2])
    }
}
