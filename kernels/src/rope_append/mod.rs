//! RoPE and KV append: rotates the queries of new tokens in place, and appends the rotated keys and the
//! values to the KV cache.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | qkv: f32 `[rows, (heads + 2 · kv heads) · head dimension]`, read and written: queries, keys and values of each row |
//! | 2 | inverse frequencies: f32 `[tables, rope dimensions / 2]` |
//! | 3 | key cache, read and written |
//! | 4 | value cache, read and written |
//!
//! The constants are four capacities (rows, sequences, table blocks, logit rows), heads, kv heads, head
//! dimension, cache blocks, rope dimensions, pairing, magnitude (the bits of an f32), and tables. The number of
//! heads is a multiple of the number of kv heads.
//!
//! Each query head and key head is rotated pair by pair, and multiplied by the magnitude. The angle of
//! pair i is position · frequency i. A row of sequence s takes its frequencies from table s, or from the last
//! table if there are fewer: with one table, all sequences share it. With [`INTERLEAVED`], pair i consists of values 2i and 2i + 1. With
//! [`HALVES`], it consists of values i and i + rope dimensions / 2. The number of rope dimensions is even
//! and at most the head dimension. The other dimensions are neither rotated nor multiplied. The kernel
//! leaves the keys and values in `qkv` unchanged.
//!
//! For a row at position p of sequence s, the key and value go to slot p mod 16 of block `tables[s][p / 16]`.
//! If the sequence, position or block of a row is invalid, the kernel rotates its queries but appends
//! nothing. No two rows share a slot.
//!
//! # KV cache
//!
//! The cache consists of blocks of [`BLOCK_TOKENS`] positions. Keys and values are in separate buffers:
//!
//! - keys are `[cache blocks][kv heads][head dimension][16 positions]`, so that each of 16 lanes computes the
//!   score of one position;
//! - values are `[cache blocks][kv heads][16 positions][head dimension]`, so that each lane of a weighted sum
//!   computes one dimension of the head.
//!
//! [`kv`](crate::kv) defines the storage types and the layout of quantized blocks. In a cache that is not
//! f32, values beyond the range of f16 saturate, and NaN is preserved. If one of the 32 values that share a
//! scale is NaN, all of them become NaN.

use crate::abi::{IMPOSSIBLE, abi_for, array, params, words};
use crate::cases::{Build, Case, Content, Params, Random};
use crate::kernel::{Accuracy, CacheType, Kernel, KvType, Spec};
use crate::kv::CacheLayout;
use crate::layout::Layout;
use crate::params::{BLOCK_TOKENS, ParamsShape};
use ragtag_hal::{Access, EntryAbi};

/// Pairing in which each pair consists of two adjacent values.
pub const INTERLEAVED: u32 = 0;
/// Pairing in which each pair consists of a value in the first half and the corresponding value in the second
/// half.
pub const HALVES: u32 = 1;

const BINDINGS: &[Access] =
    &[Access::Read, Access::ReadWrite, Access::Read, Access::ReadWrite, Access::ReadWrite];

pub(crate) fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let [
        rows,
        sequences,
        table_blocks,
        logit_rows,
        heads,
        kv_heads,
        head_dim,
        cache_blocks,
        rope_dims,
        _,
        _,
        tables,
    ] = array(constants);
    let divides = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let turns = rope_dims <= head_dim && rope_dims.is_multiple_of(2) && tables > 0;
    let joint = kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(heads)).filter(|_| divides && turns);
    let qkv = joint.map_or(IMPOSSIBLE, |joint| words(&[rows, joint, head_dim]));
    let [keys, values] = cache_bytes(kv_type, cache_blocks, kv_heads, head_dim);
    let params = params(rows, sequences, table_blocks, logit_rows);
    out.copy_from_slice(&[params, qkv, words(&[tables, rope_dims / 2]), keys, values]);
}

/// Returns the number of bytes in a key cache and in a value cache.
pub(crate) fn cache_bytes(kv_type: KvType, cache_blocks: u32, kv_heads: u32, head_dim: u32) -> [u64; 2] {
    [kv_type.keys(), kv_type.values()].map(|of| of.buffer_bytes(cache_blocks, kv_heads, head_dim))
}

/// Returns a grid with one work group per kv head. Each head has its own part of the cache, so work groups
/// write disjoint memory even if the block tables are invalid.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[5], 1, 1] }
}

/// Returns the inverse frequencies of test cases, with a RoPE base of 10,000.
pub(crate) fn frequencies(rope_dims: usize) -> Vec<f32> {
    (0..rope_dims / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / rope_dims as f32)).collect()
}

/// Rotates one head in f64, and multiplies the rotated dimensions by `magnitude`.
pub(crate) fn reference(head: &mut [f64], frequencies: &[f32], position: u32, pairing: u32, magnitude: f32) {
    let half = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = if pairing == INTERLEAVED { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (sin, cos) = (f64::from(position) * f64::from(*frequency)).sin_cos();
        let (sin, cos) = (sin * f64::from(magnitude), cos * f64::from(magnitude));
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}

/// Head counts and dimensions of a case.
#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rope_dims: usize,
    pairing: u32,
    magnitude: f32,
}

pub(crate) struct RopeAppend(pub KvType);

impl Spec for RopeAppend {
    fn accuracy(&self) -> Accuracy {
        Accuracy::of_cache(self.0, 1e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(KvType, self.0, "rope_append", BINDINGS, 12, extents)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (capacity, starts, [heads, kv_heads, head_dim, rope_dims], pairing) in [
            (1, vec![(0_u32, 1_u32)], [1, 1, 64, 64], INTERLEAVED),
            (17, vec![(5, 3), (31, 1), (14, 9)], [6, 2, 40, 40], HALVES),
            (33, vec![(0, 33)], [3, 3, 128, 128], HALVES),
            (4, vec![(60, 4)], [4, 1, 80, 32], HALVES),
            (3, vec![(7, 1), (63, 1)], [5, 5, 34, 34], INTERLEAVED),
            (2, vec![(9, 2)], [24, 2, 128, 6], INTERLEAVED),
            (5, vec![(30, 5)], [4, 2, 96, 64], HALVES),
            (3, vec![(15, 2)], [2, 1, 320, 320], INTERLEAVED),
            (3, vec![(40, 3)], [16, 1, 576, 64], INTERLEAVED),
        ] {
            if !self.0.takes(head_dim as u32) {
                continue;
            }
            let magnitude = if rope_dims < head_dim { 1.25 } else { 1.0 };
            let heads = Heads { heads, kv_heads, head_dim, rope_dims, pairing, magnitude };
            for content in [Qkv::Plain, Qkv::Lies] {
                out.push(case(random, self.0, capacity, &starts, heads, content));
            }
        }
        if self.0 != KvType::F32 {
            let (head_dim, rope_dims, pairing) = (if self.0.is_quantised() { 96 } else { 40 }, 12, HALVES);
            let heads = Heads { heads: 4, kv_heads: 2, head_dim, rope_dims, pairing, magnitude: 1.0 };
            out.push(case(random, self.0, 19, &[(3, 18)], heads, Qkv::BeyondF16));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (mut starts, mut used) = (Vec::new(), 0);
        for _ in 0..1 + random.below(3) {
            let (first, count) = (random.below(50), 1 + random.below(14));
            starts.push((first as u32, count as u32));
            used += count;
        }
        let kv_heads = 1 + random.below(4);
        let head_dim =
            if self.0.is_quantised() { 32 * (1 + random.below(8)) } else { 2 * (1 + random.below(64)) };
        let (heads, rope_dims) = (kv_heads * (1 + random.below(4)), 2 * (1 + random.below(head_dim / 2)));
        let (pairing, magnitude) = (random.below(2) as u32, [1.0, 0.9][random.below(2)]);
        let heads = Heads { heads, kv_heads, head_dim, rope_dims, pairing, magnitude };
        let capacity = used + random.below(4);
        let content = if random.below(2) == 0 { Qkv::Lies } else { Qkv::Plain };
        case(random, self.0, capacity, &starts, heads, content)
    }
}

/// Contents of `qkv` in a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Qkv {
    Plain,
    /// Some rows are invalid. The sequence of the first row does not exist, and the position of the last row
    /// is far beyond its table. One table contains the index of a block beyond the cache.
    Lies,
    /// Keys and values exceed the range of f16.
    BeyondF16,
}

/// Sets keys and values of a row to values that exceed the range of f16. Rotated dimensions of keys stay
/// finite.
fn exceed_f16(row: &mut [f32], heads: &Heads) {
    const VALUES: [f32; 7] = [1e6, -7e4, f32::INFINITY, 65_519.0, f32::NEG_INFINITY, f32::NAN, 65_520.0];
    for (i, value) in row[heads.heads * heads.head_dim..].iter_mut().enumerate() {
        let turns = i < heads.kv_heads * heads.head_dim && i % heads.head_dim < heads.rope_dims;
        // The last block of 32 values of each head contains no NaN.
        let is_number = i % heads.head_dim >= 64;
        let other = VALUES[i % (VALUES.len() - 2 * usize::from(is_number))];
        *value = if turns { 1e9 * *value } else { other };
    }
}

/// Builds a case. `starts` lists the first position and the number of rows of each sequence.
fn case(
    random: &mut Random,
    kv_type: KvType,
    capacity: usize,
    starts: &[(u32, u32)],
    heads: Heads,
    content: Qkv,
) -> Case {
    let Heads { heads: q_heads, kv_heads, head_dim, rope_dims, pairing, magnitude } = heads;
    let (table_blocks, cache_blocks) = (4, 4 * starts.len() + 2);
    let shape = ParamsShape {
        rows: capacity as u32,
        logit_rows: 3,
        sequences: starts.len() as u32 + 1,
        table_blocks: table_blocks as u32,
    };
    let mut params = Params::new(shape);
    let blocks = random.shuffled(cache_blocks);
    for (s, (start, count)) in starts.iter().enumerate() {
        params.tables.push(blocks[s * table_blocks..(s + 1) * table_blocks].to_vec());
        params.positions.extend(*start..start + count);
        params.row_sequences.extend((0..*count).map(|_| s as u32));
    }
    if content == Qkv::Lies {
        let last = params.positions.len() - 1;
        params.positions[last] = 131_071;
        params.row_sequences[0] = shape.sequences;
        params.tables[0][0] = cache_blocks as u32;
    }
    // One table per sequence, one table, or a last table that several sequences share.
    let tables = match content {
        Qkv::Plain => starts.len() + 1,
        Qkv::Lies => starts.len(),
        Qkv::BeyondF16 => 1,
    };
    let divided = |table: usize| move |frequency: f32| frequency / (1 + table) as f32;
    let tables: Vec<Vec<f32>> =
        (0..tables).map(|t| frequencies(rope_dims).into_iter().map(divided(t)).collect()).collect();
    let width = (q_heads + 2 * kv_heads) * head_dim;
    let mut qkv = random.floats(capacity * width, 2.0);
    if content == Qkv::BeyondF16 {
        qkv.chunks_exact_mut(width).for_each(|row| exceed_f16(row, &heads));
    }
    let layouts = layouts(kv_type, head_dim);
    let values = cache_blocks * kv_heads * head_dim * BLOCK_TOKENS;
    let (mut keys, mut cached) = (vec![None; values], vec![None; values]);
    let mut queries = vec![None; qkv.len()];
    for (row, (position, sequence)) in params.positions.iter().zip(&params.row_sequences).enumerate() {
        let mut turned: Vec<f64> = qkv[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
        let (turning, v) = turned.split_at_mut((q_heads + kv_heads) * head_dim);
        let frequencies = &tables[(*sequence as usize).min(tables.len() - 1)];
        for head in turning.chunks_exact_mut(head_dim) {
            reference(head, frequencies, *position, pairing, magnitude);
        }
        let (q, k) = turning.split_at(q_heads * head_dim);
        for (i, value) in q.iter().enumerate().filter(|(i, _)| i % head_dim < rope_dims) {
            queries[row * width + i] = Some(*value); // All other bits must stay unchanged.
        }
        let table = params.tables.get(*sequence as usize);
        let block = table.and_then(|t| t.get(*position as usize / BLOCK_TOKENS)).map(|b| *b as usize);
        let Some(block) = block.filter(|b| *b < cache_blocks) else { continue };
        let slot = *position as usize % BLOCK_TOKENS;
        for (layout, row, out) in [(layouts[0], k, &mut keys), (layouts[1], &*v, &mut cached)] {
            for (head, row) in row.chunks_exact(head_dim).enumerate() {
                for (dim, value) in layout.cache_type.stored(row).into_iter().enumerate() {
                    out[layout.index(block * kv_heads + head, slot, dim)] = Some(value);
                }
            }
        }
    }
    let label = format!(
        "{starts:?} in {capacity} rows, {q_heads} heads on {kv_heads} of {head_dim}, {rope_dims} turned, \
         pairing {pairing}, {} tables, {content:?}",
        tables.len()
    );
    let sequences = starts.len() + 1;
    let mut constants = vec![capacity, sequences, table_blocks, 3, q_heads, kv_heads, head_dim, cache_blocks];
    constants.extend([rope_dims, pairing as usize, magnitude.to_bits() as usize, tables.len()]);
    let build = Build::new(Kernel::RopeAppend(kv_type), label, &constants).words(&params.words());
    let build = build.floats(&qkv).floats(&tables.concat());
    let [before_keys, before_values] = [(layouts[0], &keys), (layouts[1], &cached)].map(before);
    let build = build.bytes(before_keys).bytes(before_values);
    let build = build.expect(1, Content::F32(queries)).expect(3, expected(layouts[0], keys));
    build.expect(4, expected(layouts[1], cached)).done()
}

/// Returns the layouts of a key cache and of a value cache.
pub(crate) fn layouts(kv_type: KvType, head_dim: usize) -> [CacheLayout; 2] {
    [(kv_type.keys(), true), (kv_type.values(), false)].map(|(cache_type, is_keys)| CacheLayout {
        cache_type,
        is_keys,
        head_dim,
    })
}

/// Returns the contents of a cache before a launch. The initial values are NaN, so that missing writes are
/// detected. Values that the launch must set to NaN are zero instead.
fn before((layout, expected): (CacheLayout, &Vec<Option<f64>>)) -> Vec<u8> {
    let value = |value: &Option<f64>| if value.is_some_and(f64::is_nan) { 0.0 } else { f32::NAN };
    layout.encode(&expected.iter().map(value).collect::<Vec<_>>())
}

/// Returns the expected contents of a cache after a launch.
pub(crate) fn expected(layout: CacheLayout, values: Vec<Option<f64>>) -> Content {
    match layout.cache_type {
        CacheType::F32 => Content::F32(values),
        CacheType::F16 => Content::F16(values),
        CacheType::Q8_0 | CacheType::Q4_0 => Content::Cache { layout, values },
    }
}
