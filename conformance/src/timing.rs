//! How long a variant takes for given inputs, to compare variants of a kernel on one device. What it computes is not looked at.

use crate::bench::{Attempt, Bench};
use ragtag_hal::{Binding, Checked, Command, Dispatch, Module, QueueKind, Work};
use ragtag_kernels::{Variant, module_source};
use std::time::{Duration, Instant};

/// What a variant is launched with.
pub struct Launch<'a> {
    /// As its ABI has them.
    pub constants: &'a [u32],
    /// The bytes of each binding, as long as the ABI says.
    pub bindings: &'a [Vec<u8>],
    /// Launches of one sample, one after the other.
    pub launches: usize,
    /// Samples, after one that does not count.
    pub samples: usize,
}

/// The time of one launch, in each sample.
///
/// # Errors
/// In words, if the device does not take the variant or a call fails.
pub fn time(device: Checked, variant: &Variant, launch: &Launch<'_>) -> Result<Vec<Duration>, String> {
    let mut bench = Bench::new(device);
    let samples = samples(&mut bench, variant, launch);
    bench.clear()?;
    samples
}

fn samples(bench: &mut Bench, variant: &Variant, launch: &Launch<'_>) -> Attempt<Vec<Duration>> {
    let source = module_source([variant], bench.caps()).ok_or("a variant in several languages")?;
    let module = Module { name: variant.name.into(), entries: vec![variant.abi], source };
    let module = bench.module(&module)?;
    let mut bindings = Vec::new();
    for (bytes, &access) in launch.bindings.iter().zip(variant.abi.bindings) {
        let range = bench.buffer(bytes.len() as u64)?;
        bench.put(range, bytes)?;
        bindings.push(Binding { range, access });
    }
    let (constants, grid) = (launch.constants.to_vec(), variant.grid(launch.constants, bench.caps()));
    let dispatch = Dispatch { module, entry: 0, bindings, constants, grid };
    let program = bench.record(vec![Command::Dispatch(dispatch); launch.launches])?;
    let mut out = Vec::new();
    for _ in 0..=launch.samples {
        let start = Instant::now();
        let point = bench.submit(QueueKind::Compute, Work::Program(program), &[])?;
        bench.wait(point)?;
        out.push(start.elapsed() / launch.launches as u32);
    }
    out.remove(0);
    Ok(out)
}
