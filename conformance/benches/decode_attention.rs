//! Times attention of decode rows, each of a sequence of its own, on one device. For each shape, it prints the
//! time of the kernel for prompts, and of split attention (both launches) for several numbers of splits.
//!
//! Usage: `cargo bench -p ragtag-conformance --bench decode_attention -- cuda:0 [f16|q8_0|…] [VARIANT]`.
//! `VARIANT` is the name of a variant of split attention, for example `cuda-few`. Without it, the bench uses the
//! variant that programs use. Times are medians in microseconds. Rates are in GB/s of keys and values.
#![allow(clippy::print_stdout)] // The bench prints a report.

use ragtag_conformance::timing::{Launch, Timer, numbers};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Caps, DeviceId, Limits};
use ragtag_kernels::attention::NO_WINDOW;
use ragtag_kernels::{Activations, Kernel, KvType, Variant, select, variants};

const HEADS: u32 = 32;
const HEAD_DIM: u32 = 128;
const KV_HEADS: [u32; 2] = [8, 32];
const ROWS: [u32; 5] = [8, 32, 64, 128, 256];
const CONTEXTS: [u32; 4] = [64, 1024, 2048, 16384];
const SPLITS: [u32; 5] = [1, 2, 4, 8, 16];

/// Maximum size of the keys, in bytes. Sequences share blocks beyond this size, which exceeds the caches of GPUs.
const MAX_KEY_BYTES: u64 = 256 << 20;

/// Number of launches per sample. `SAMPLES` is the number of samples.
const LAUNCHES: usize = 10;
const SAMPLES: usize = 5;

/// Decode rows of sequences of equal length.
struct Shape {
    rows: u32,
    kv_heads: u32,
    context: u32,
}

impl Shape {
    /// Returns the constants of attention, with as many cache blocks as [`MAX_KEY_BYTES`] allows, and the sizes of
    /// the bindings in bytes.
    fn constants(&self, attention: &Variant) -> (Vec<u32>, Vec<u64>) {
        let blocks = self.context.div_ceil(16);
        let scale = (1.0 / (HEAD_DIM as f32).sqrt()).to_bits();
        let with = |cache_blocks| {
            let mut constants = vec![self.rows, self.rows, blocks, self.rows, HEADS, self.kv_heads];
            constants.extend([HEAD_DIM, cache_blocks, scale, HEADS * HEAD_DIM, NO_WINDOW, 0]);
            let mut bytes = vec![0; attention.abi.bindings.len()];
            (attention.abi.extents)(&constants, &mut bytes);
            (constants, bytes)
        };
        let most = MAX_KEY_BYTES / with(1).1[2];
        with((self.rows * blocks).min(most as u32))
    }

    /// Returns the parameter block: header, tokens, positions, sequences, logit rows, starts of the tables, and
    /// tables. The blocks of a sequence are scattered over the cache.
    fn params(&self, cache_blocks: u32) -> Vec<u8> {
        let (rows, blocks) = (self.rows, self.context.div_ceil(16));
        let zeros = std::iter::repeat_n(0, rows as usize);
        let lists = zeros.clone().chain(zeros.map(|_| self.context - 1)).chain(0..rows).chain(0..rows);
        let starts = (0..rows).map(|row| row * blocks);
        let tables = (0..rows * blocks).map(|at| (u64::from(at) * 7919 % u64::from(cache_blocks)) as u32);
        let words: Vec<u32> =
            [rows, rows, 0, 0].into_iter().chain(lists).chain(starts).chain(tables).collect();
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }
}

/// Returns the median time of one launch in microseconds.
fn median_us(
    timer: &mut Timer,
    variant: &Variant,
    constants: &[u32],
    bindings: &[&[u8]],
) -> Result<f64, String> {
    let launch = Launch { constants, bindings, launches: LAUNCHES, samples: SAMPLES };
    let mut samples = timer.time(variant, &launch)?;
    samples.sort_unstable();
    Ok(samples[SAMPLES / 2].as_secs_f64() * 1e6)
}

/// Returns the variant of split attention with this name, or the one that programs use.
fn split_variant(kv_type: KvType, name: Option<&String>, caps: &Caps) -> Option<&'static Variant> {
    let kernel = Kernel::AttentionPartial(kv_type);
    match name {
        None => select(kernel, caps, ROWS[4]),
        Some(name) => variants().iter().find(|v| v.kernel == kernel && v.name == name && v.runs_on(caps)),
    }
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    // Without arguments, as when all benches run, there is no device to time.
    let Some(label) = arguments.first() else {
        println!("usage: DEVICE [KV TYPE] [VARIANT], for example cuda:0 f16");
        return Ok(());
    };
    let kv_type = arguments.get(1).map_or("f16", |name| name);
    let is_asked = |kv: &KvType| kv.to_string().eq_ignore_ascii_case(kv_type);
    let kv_type = KvType::ALL.into_iter().find(is_asked).ok_or(format!("no KV type {kv_type}"))?;
    let backends = Backends::new(&Config::default());
    let adapter = backends.probe().adapter(label).cloned().ok_or(format!("no device {label}"))?;
    let opened = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default());
    let device = opened.map_err(|error| error.to_string())?.swap_remove(0);
    let (mut timer, caps) = (Timer::new(device), &adapter.caps);
    let of = |kernel, rows| select(kernel, caps, rows).ok_or(format!("{label} does not compute {kernel}"));
    let split = split_variant(kv_type, arguments.get(2), caps).ok_or("no such variant")?;
    println!(
        "{} of {HEADS} heads of {HEAD_DIM}, split by {}",
        of(Kernel::Attention(kv_type), 64)?.name,
        split.name
    );
    println!("kv heads  rows  context     prompt  {:>10?} splits   GB/s", SPLITS);
    for (kv_heads, rows, context) in shapes() {
        let shape = Shape { rows, kv_heads, context };
        let (prompt, merge) =
            (of(Kernel::Attention(kv_type), rows)?, of(Kernel::AttentionMerge(Activations::F32), rows)?);
        let (constants, bytes) = shape.constants(prompt);
        let params = shape.params(constants[7]);
        let longest = HEADS * rows * SPLITS[4] * (HEAD_DIM + 2) * 4;
        let data = numbers(bytes[1..].iter().copied().max().unwrap_or(0).max(longest.into()) as usize);
        let own = |at: usize| &data[..bytes[at] as usize];
        let partials = |splits: u32| &data[..(HEADS * rows * splits * (HEAD_DIM + 2) * 4) as usize];
        let mut bindings = [&params[..], own(1), own(2), own(3), own(4)];
        let mut line = format!("{kv_heads:8} {rows:5} {context:8}");
        line += &format!(" {:10.1} ", median_us(&mut timer, prompt, &constants, &bindings)?);
        let mut best = f64::INFINITY;
        for splits in SPLITS {
            bindings[4] = partials(splits);
            let first = median_us(&mut timer, split, &[&constants[..], &[splits, 0]].concat(), &bindings)?;
            let inputs = [&params[..16], partials(splits), own(4)];
            let second = median_us(&mut timer, merge, &[rows, 0, HEADS, HEAD_DIM, splits], &inputs)?;
            line += &format!(" {:10.1}", first + second);
            best = best.min(first + second);
        }
        let read = f64::from(rows * kv_heads) * f64::from(context) * 2.0 * 1e-3;
        let rate = read * (bytes[2] as f64 / f64::from(constants[7] * kv_heads * 16)) / best;
        println!("{line} {rate:8.0}");
    }
    Ok(())
}

/// Returns the numbers of KV heads and rows and the contexts to time.
fn shapes() -> impl Iterator<Item = (u32, u32, u32)> {
    let rows = KV_HEADS.into_iter().flat_map(|kv_heads| ROWS.map(|rows| (kv_heads, rows)));
    rows.flat_map(|(kv_heads, rows)| CONTEXTS.map(|context| (kv_heads, rows, context)))
}
