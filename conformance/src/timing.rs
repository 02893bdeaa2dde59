//! Times a variant on given inputs, in order to compare the variants of a kernel on one device. The results
//! of the kernel are not checked.

use crate::bench::{Attempt, Bench};
use ragtag_hal::{Binding, Checked, Command, Dispatch, Module, QueueKind, Work};
use ragtag_kernels::{Variant, module_source};
use std::time::{Duration, Instant};

/// Inputs of a variant's launches.
pub struct Launch<'a> {
    /// Constants, in the order that the kernel's ABI defines.
    pub constants: &'a [u32],
    /// Content of each binding. Its length must be the size that the kernel's ABI computes.
    pub bindings: &'a [&'a [u8]],
    /// Number of launches per sample. The launches run one after another.
    pub launches: usize,
    /// Number of samples. One warm-up sample precedes them.
    pub samples: usize,
}

/// Timer of launches on one device.
pub struct Timer(Bench);

impl Timer {
    /// Creates a timer for `device`.
    pub fn new(device: Checked) -> Self {
        Self(Bench::new(device))
    }

    /// Measures the duration of one launch of `variant`. Returns one duration per sample.
    ///
    /// # Errors
    /// Returns an error if the device does not support the variant, or if a call fails.
    pub fn time(&mut self, variant: &Variant, launch: &Launch<'_>) -> Result<Vec<Duration>, String> {
        let samples = samples(&mut self.0, variant, launch);
        self.0.clear()?;
        samples
    }
}

/// Returns bytes that are f16 numbers of either sign, with magnitudes between 2^-4 and 2^-3. Read as bf16 or
/// f32, the bytes are also small numbers. There are no zeros, because a matrix unit could process them faster.
pub fn numbers(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((state >> 32) as u32 & 0x83ff_83ff) | 0x2c00_2c00
    });
    let mut out = vec![0; bytes];
    for chunk in out.chunks_mut(4) {
        let word = words.next().unwrap_or_default().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    out
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
