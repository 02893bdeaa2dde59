//! Attention: causal, over the block tables of a paged cache.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | q: f32, the first heads · head dimension values of rows that lie `stride` values apart |
//! | 2 | key cache, as [`rope_append`](crate::rope_append) writes it |
//! | 3 | value cache |
//! | 4 | out: f32 `[rows, heads · head dimension]`, written |
//!
//! Constants: rows, sequences, table blocks, logit rows, heads, kv heads, head dimension, cache blocks, scale (the bits
//! of an f32), stride (at least heads · head dimension). Heads are a multiple of kv heads: heads `h · heads / kv heads …` share kv head h.
//!
//! A row at position p sees positions 0 … p of its sequence: out = Σ softmax(scale · q·k) v. Softmax streams over steps
//! of [`STEP_TOKENS`] positions, so that no row of scores is ever whole, and a row's result does not depend on the other
//! rows. A row whose sequence, position or blocks do not exist becomes zero. Slots beyond p are never part of a result,
//! whatever they hold.
//!
//! Groups: [`TILE_ROWS`] rows × one kv head; neighbouring rows of one sequence read keys and values once.

use crate::abi::{IMPOSSIBLE, params, strided, words};
use crate::cases::{Build, Case, Params, Random};
use crate::kernel::{Kernel, KvType};
use crate::params::{BLOCK_TOKENS, ParamsShape};
use crate::rope_append::cache_bytes;
use half::f16;
use ragtag_hal::{Access, EntryAbi};

/// Rows that one group computes.
pub const TILE_ROWS: u32 = 8;

/// Positions between two corrections of the softmax.
pub const STEP_TOKENS: usize = 4 * BLOCK_TOKENS;

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];

/// The binary interface with an f32 cache.
pub static ABI_F32: EntryAbi = EntryAbi {
    name: "attention_f32",
    bindings: BINDINGS,
    constants: 10,
    extents: |constants, out| extents(KvType::F32, constants, out),
};

/// The binary interface with an f16 cache.
pub static ABI_F16: EntryAbi = EntryAbi {
    name: "attention_f16",
    bindings: BINDINGS,
    constants: 10,
    extents: |constants, out| extents(KvType::F16, constants, out),
};

fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let [rows, sequences, table_blocks, logit_rows, heads, kv_heads, head_dim, cache_blocks, _, stride] =
        *constants
    else {
        return;
    };
    let width = heads.checked_mul(head_dim).filter(|_| kv_heads > 0 && heads.is_multiple_of(kv_heads));
    let q = width.map_or(IMPOSSIBLE, |width| strided(rows, stride, width));
    let out_bytes = words(&[rows, heads, head_dim]);
    let cache = cache_bytes(kv_type, cache_blocks, kv_heads, head_dim);
    out.copy_from_slice(&[params(rows, sequences, table_blocks, logit_rows), q, cache, cache, out_bytes]);
}

/// Tiles of rows × kv heads.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].div_ceil(TILE_ROWS), constants[5], 1]
}

/// Softmax of all scores at once; `k` and `v` are `[positions][head dimension]`.
fn reference(q: &[f32], k: &[Vec<f64>], v: &[Vec<f64>], scale: f32) -> Vec<f64> {
    let score =
        |k: &Vec<f64>| q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(scale);
    let scores: Vec<f64> = k.iter().map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..q.len()).map(|i| weights.iter().zip(v).map(|(w, v)| w * v[i]).sum::<f64>() / total).collect()
}

/// A cache under construction: values that are stored as the cache stores them, NaN where nothing is.
struct Cache {
    kv_type: KvType,
    values: Vec<f32>,
}

impl Cache {
    fn new(kv_type: KvType, values: usize) -> Self {
        Self { kv_type, values: vec![f32::NAN; values] }
    }

    fn put(&mut self, at: usize, value: f32) -> f64 {
        self.values[at] = if self.kv_type == KvType::F16 { f16::from_f32(value).to_f32() } else { value };
        f64::from(self.values[at])
    }

    fn bytes(&self) -> Vec<u8> {
        match self.kv_type {
            KvType::F32 => self.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            KvType::F16 => self.values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        }
    }
}

pub(crate) fn cases(kv_type: KvType, seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    // Capacity, (first position, rows) of each sequence, heads, kv heads, head dimension.
    for (capacity, starts, heads, kv_heads, head_dim) in [
        (1, vec![(0, 1)], 1, 1, 64),
        (1, vec![(200, 1)], 8, 1, 64),
        (17, vec![(0, 7), (37, 1), (60, 8)], 4, 2, 64),
        (33, vec![(0, 33)], 3, 3, 32),
        (4, vec![(15, 1), (16, 1), (63, 1), (64, 1)], 12, 1, 48),
        (19, vec![(120, 19)], 6, 2, 128),
        (2, vec![(70, 2)], 2, 1, 20),
    ] {
        let shape = (capacity, heads, kv_heads, head_dim);
        out.push(case(&mut random, kv_type, shape, &starts));
    }
    out
}

fn case(
    random: &mut Random,
    kv_type: KvType,
    (capacity, heads, kv_heads, head_dim): (usize, usize, usize, usize),
    starts: &[(u32, u32)],
) -> Case {
    let (table_blocks, cache_blocks) = (13, 13 * starts.len() + 3);
    let lying = starts.len() as u32; // a sequence whose table names a block that does not exist
    let shape = ParamsShape {
        rows: capacity as u32,
        logit_rows: 1,
        sequences: lying + 1,
        table_blocks: table_blocks as u32,
    };
    let scale = 1.0 / (head_dim as f32).sqrt();
    // Between the queries of two rows there is what is not theirs.
    let (width, stride) = (heads * head_dim, heads * head_dim + capacity % 3 * kv_heads * head_dim);
    let mut q = vec![f32::NAN; (capacity - 1) * stride + width];
    q.chunks_mut(stride).for_each(|row| row[..width].copy_from_slice(&random.floats(width, 2.0)));
    let values = cache_blocks * kv_heads * head_dim * BLOCK_TOKENS;
    let (mut keys, mut cached) = (Cache::new(kv_type, values), Cache::new(kv_type, values));
    let mut params = Params::new(shape);
    let mut expected = Vec::new();
    let blocks = random.shuffled(cache_blocks);
    for (s, (start, count)) in starts.iter().enumerate() {
        let table = &blocks[s * table_blocks..(s + 1) * table_blocks];
        let mut kv = vec![(Vec::new(), Vec::new()); kv_heads];
        for (head, (k, v)) in kv.iter_mut().enumerate() {
            for position in 0..(start + count) as usize {
                let block = table[position / BLOCK_TOKENS] as usize;
                let (base, slot) =
                    ((block * kv_heads + head) * head_dim * BLOCK_TOKENS, position % BLOCK_TOKENS);
                let mut put = |cache: &mut Cache, at: &dyn Fn(usize) -> usize| -> Vec<f64> {
                    (0..head_dim).map(|dim| cache.put(base + at(dim), random.float(1.0))).collect()
                };
                k.push(put(&mut keys, &|dim| dim * BLOCK_TOKENS + slot));
                v.push(put(&mut cached, &|dim| slot * head_dim + dim));
            }
        }
        for position in *start..start + count {
            let row = params.positions.len();
            let seen = ..position as usize + 1;
            for (head, q) in q[row * stride..][..width].chunks_exact(head_dim).enumerate() {
                let (k, v) = &kv[head * kv_heads / heads];
                expected.extend(reference(q, &k[seen], &v[seen], scale).into_iter().map(Some));
            }
            params.positions.push(position);
            params.row_sequences.push(s as u32);
        }
        params.tables.push(table.to_vec());
    }
    params.tables.push(vec![cache_blocks as u32; table_blocks]);
    for (sequence, position) in [(lying, 3), (lying + 1, 0), (0, 16 * table_blocks as u32)] {
        if params.positions.len() < capacity {
            params.positions.push(position);
            params.row_sequences.push(sequence);
            expected.extend(vec![Some(0.0); width]);
        }
    }
    expected.resize(capacity * width, None);
    let label =
        format!("{starts:?} in {capacity} rows, {heads} heads on {kv_heads} of {head_dim}, stride {stride}");
    let sequences = starts.len() + 1;
    let scale = scale.to_bits() as usize;
    let mut constants = vec![capacity, sequences, table_blocks, 1, heads, kv_heads, head_dim, cache_blocks];
    constants.extend([scale, stride]);
    let build = Build::new(Kernel::Attention(kv_type), label, &constants).words(&params.words()).floats(&q);
    let build = build.bytes(keys.bytes()).bytes(cached.bytes()).poison(capacity * width * 4);
    build.expect_f32(4, expected)
}
