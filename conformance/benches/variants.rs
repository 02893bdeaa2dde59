//! Compares the speed of the variants of a kernel on one device: products of f16 rows, or attention of a
//! prompt.
//!
//! Usage: `cargo bench -p ragtag-conformance --bench variants -- vulkan:0 matmul/F16/f16 2048,14336,4096` or
//! `… -- vulkan:0 attention/F16 2048,32,8,128`. The second argument is a name, or part of a name, as the
//! conformance suite prints it, for example `matmul/F16/f16/wgsl-matrices`. The third argument is the shape.
//! For a product, it lists the rows, the weight rows and the columns. For attention, it lists the rows, the
//! heads, the KV heads and the head dimension.
#![allow(clippy::print_stdout)] // The bench prints a report.

use ragtag_conformance::timing::{Launch, Timer, numbers};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{DeviceId, Limits};
use ragtag_kernels::attention::NO_WINDOW;
use ragtag_kernels::{Activations, Kernel, Variant, variants};

/// Number of launches per sample. `SAMPLES` is the number of samples.
const LAUNCHES: usize = 10;
const SAMPLES: usize = 7;

/// Constants, parameter block and number of arithmetic operations for one shape.
type Task = (Vec<u32>, Vec<u32>, f64);

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    // Without arguments, as when all benches run, there is no device to compare.
    let [label, pattern, shape] = arguments.as_slice() else {
        println!("usage: DEVICE KERNEL SHAPE, for example vulkan:0 matmul/F16/f16 2048,14336,4096");
        return Ok(());
    };
    let shape: Result<Vec<u32>, _> = shape.split(',').map(str::parse).collect();
    let shape = shape.map_err(|error| format!("the shape: {error}"))?;
    let backends = Backends::new(&Config::default());
    let adapter = backends.probe().adapter(label).cloned().ok_or(format!("no device {label}"))?;
    let name = |variant: &Variant| format!("{}/{}", variant.kernel, variant.name);
    let wanted = |variant: &&Variant| name(variant).contains(pattern) && variant.runs_on(&adapter.caps);
    for variant in variants().iter().filter(wanted) {
        let Some((constants, params, operations)) = task(variant.kernel, &shape) else {
            println!("{}: the shape does not fit this kernel", name(variant));
            continue;
        };
        let mut bytes = vec![0; variant.abi.bindings.len()];
        (variant.abi.extents)(&constants, &mut bytes);
        let mut bindings: Vec<Vec<u8>> = bytes.iter().map(|&bytes| numbers(bytes as usize)).collect();
        let words: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let used = words.len().min(bindings[0].len());
        bindings[0][..used].copy_from_slice(&words[..used]);
        let bindings: Vec<&[u8]> = bindings.iter().map(Vec::as_slice).collect();
        let launch =
            Launch { constants: &constants, bindings: &bindings, launches: LAUNCHES, samples: SAMPLES };
        let opened = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default());
        let device = opened.map_err(|error| error.to_string())?.swap_remove(0);
        let mut samples = Timer::new(device).time(variant, &launch)?;
        samples.sort_unstable();
        let (median, best) = (samples[SAMPLES / 2].as_secs_f64(), samples[0].as_secs_f64());
        let [per_s, best_per_s] = [median, best].map(|seconds| operations / seconds / 1e12);
        println!("{}: {:.1} µs, {per_s:.2} TFLOP/s, at best {best_per_s:.2}", name(variant), median * 1e6);
    }
    Ok(())
}

fn task(kernel: Kernel, shape: &[u32]) -> Option<Task> {
    match (kernel, shape) {
        (Kernel::MatMul(_, Activations::F16), &[rows, n, k]) => {
            // Word 0 of the parameters is the number of rows in use, which is all rows.
            let operations = 2.0 * f64::from(rows) * f64::from(n) * f64::from(k);
            Some((vec![rows, 0, n, k, 0, n], vec![rows], operations))
        }
        (Kernel::Attention(_), &[rows, heads, kv_heads, head_dim]) => {
            let blocks = rows.div_ceil(16);
            let scale = 1.0 / (head_dim as f32).sqrt();
            let mut constants = vec![rows, 1, blocks, 1, heads, kv_heads, head_dim, blocks];
            constants.extend([scale.to_bits(), heads * head_dim, NO_WINDOW, 0]);
            // The parameters consist of the header, the tokens, the positions, the sequences, the logit rows,
            // the starts of the tables, and the table.
            let zeros = || std::iter::repeat_n(0, rows as usize);
            let lists = zeros().chain(0..rows).chain(zeros()).chain([0]).chain(zeros()).chain(0..blocks);
            let params = [rows, 1, 0, 0].into_iter().chain(lists).collect();
            let seen = f64::from(rows) * f64::from(rows + 1) / 2.0;
            Some((constants, params, 4.0 * f64::from(heads) * f64::from(head_dim) * seen))
        }
        _ => None,
    }
}
