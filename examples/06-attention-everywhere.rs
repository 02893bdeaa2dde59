//! Computes the same attention on every device of the machine.
//!
//! Demonstrates how to run a single operator without a model. Shows that the results agree on all devices and
//! through all of their APIs. The program prints one line per device and API. The line shows the relative
//! error against float64, which is at most 1e-4. It also shows the operator's run time with inputs that are
//! already in device memory. If a device cannot be opened, its line shows the reason.
//!
//! ```sh
//! cargo run --release --example 06-attention-everywhere
//! cargo run --release --example 06-attention-everywhere -- 8 1024 64
//! ```
//!
//! The arguments are the number of heads, the number of positions, and the dimension of a head.

#![allow(clippy::print_stdout)] // examples print

use ragtag::compute::{Attention, Compute, Error};
use ragtag::{DeviceOptions, Devices, Isolation};
use std::time::Instant;

/// Returns `count` pseudo-random values: scaled fractional parts of multiples of the golden ratio, centered
/// at zero.
fn values(count: usize, seed: usize) -> Vec<f32> {
    let fraction = |i: usize| (i as f64 * 0.618_033_988_749_895).fract() as f32 - 0.5;
    (0..count).map(|i| 4.0 * fraction(i * i % 10_007 + seed)).collect()
}

/// Computes causal attention in float64, as the reference.
fn reference(q: &[f32], k: &[f32], v: &[f32], positions: usize, dims: usize) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for (i, (out, q)) in out.chunks_mut(dims).zip(q.chunks(dims)).enumerate() {
        let (first, seen) = (i / positions * positions, i % positions + 1);
        let row = |of: &[f32], j: usize| of[(first + j) * dims..][..dims].to_vec();
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let weights: Vec<f64> =
            (0..seen).map(|j| (dot(q, &row(k, j)) / (dims as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (j, weight) in weights.iter().enumerate() {
            out.iter_mut().zip(row(v, j)).for_each(|(out, v)| *out += weight / sum * f64::from(v));
        }
    }
    out
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A driver that crashes while it lists its devices does not end this program.
    let isolation = Isolation::start();
    let mut sizes = std::env::args().skip(1).map(|argument| argument.parse());
    let mut size = |default: usize| sizes.next().unwrap_or(Ok(default));
    let (heads, positions, dims) = (size(4)?, size(256)?, size(64)?);
    let shape = [1, heads, positions, dims];
    let [q, k, v] = [1, 2, 3].map(|seed| values(heads * positions * dims, seed));
    let wanted = reference(&q, &k, &v, positions, dims);
    let norm: f64 = wanted.iter().map(|w| w * w).sum();

    println!("{:<14} {:<40} {:>15} {:>10}", "device", "name", "relative error", "time");
    let devices = Devices::probe(&DeviceOptions::default().isolated(&isolation))?;
    for adapter in devices.report().adapters() {
        let (label, name) = (adapter.label(), &adapter.name);
        let device = match devices.open_adapter(adapter).map_err(Error::from).and_then(Compute::on) {
            Ok(device) => device,
            Err(error) => {
                println!("{label:<14} {name:<40.40} does not open: {error}");
                continue;
            }
        };
        let [q, k, v] = [&q, &k, &v].map(|values| device.upload(shape, values));
        let (q, k, v) = (q?, k?, v?);
        let attention = Attention { causal: true, ..Attention::default() };
        // The first call also compiles the kernel.
        let out = device.attention(&attention, &q, &k, &v)?.wait()?;
        let start = Instant::now();
        device.attention(&attention, &q, &k, &v)?.wait()?;
        let duration = start.elapsed();
        let values = device.read(&out)?.wait()?;
        let difference: f64 = values.iter().zip(&wanted).map(|(v, w)| (f64::from(*v) - w).powi(2)).sum();
        let error = (difference / norm).sqrt();
        let time = format!("{:.2} ms", duration.as_secs_f64() * 1e3);
        println!("{label:<14} {name:<40.40} {error:>15.1e} {time:>10}");
    }
    Ok(())
}
