//! KV append: keys and values of new tokens into the cache.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | k: f32 `[rows, kv heads · head dimension]` |
//! | 2 | v: f32 `[rows, kv heads · head dimension]` |
//! | 3 | key cache, read and written |
//! | 4 | value cache, read and written |
//!
//! Constants: rows, sequences, table blocks, logit rows, kv heads, head dimension, cache blocks.
//!
//! Row i, at position p of sequence s, goes to slot p mod 16 of block `tables[s][p / 16]`. Rows whose sequence, position
//! or block does not exist are left out. One group a kv head, so that groups write apart whatever the tables say.
//!
//! # The cache
//!
//! Blocks of [`BLOCK_TOKENS`] positions, f32 or f16, keys and values in buffers of their own:
//!
//! - keys `[cache blocks][kv heads][head dimension][16 positions]`: scores of 16 positions are 16 lanes;
//! - values `[cache blocks][kv heads][16 positions][head dimension]`: a weighted sum is lanes of the head.

use crate::abi::{params, product, words};
use crate::cases::{Build, Case, Content, Params, Random};
use crate::kernel::{Kernel, KvType};
use crate::params::{BLOCK_TOKENS, ParamsShape};
use ragtag_hal::{Access, EntryAbi};

const BINDINGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite];

/// The binary interface with an f32 cache.
pub static ABI_F32: EntryAbi = EntryAbi {
    name: "kv_append_f32",
    bindings: BINDINGS,
    constants: 7,
    extents: |constants, out| extents(KvType::F32, constants, out),
};

/// The binary interface with an f16 cache.
pub static ABI_F16: EntryAbi = EntryAbi {
    name: "kv_append_f16",
    bindings: BINDINGS,
    constants: 7,
    extents: |constants, out| extents(KvType::F16, constants, out),
};

fn extents(kv_type: KvType, constants: &[u32], out: &mut [u64]) {
    let [rows, sequences, table_blocks, logit_rows, kv_heads, head_dim, cache_blocks] = *constants else {
        return;
    };
    let new = words(&[rows, kv_heads, head_dim]);
    let cache = cache_bytes(kv_type, cache_blocks, kv_heads, head_dim);
    out.copy_from_slice(&[params(rows, sequences, table_blocks, logit_rows), new, new, cache, cache]);
}

/// Bytes of a key cache, or of a value cache.
pub fn cache_bytes(kv_type: KvType, cache_blocks: u32, kv_heads: u32, head_dim: u32) -> u64 {
    product(&[cache_blocks, kv_heads, head_dim]).saturating_mul(BLOCK_TOKENS as u64 * kv_type.bytes())
}

/// One group a kv head.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[4], 1, 1] }
}

pub(crate) fn cases(kv_type: KvType, seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    for (capacity, starts, kv_heads, head_dim) in [
        (1, vec![(0_u32, 1_u32)], 1, 64),
        (17, vec![(5, 3), (31, 1), (14, 9)], 2, 40),
        (33, vec![(0, 33)], 3, 128),
    ] {
        out.push(case(&mut random, kv_type, capacity, &starts, (kv_heads, head_dim), false));
        out.push(case(&mut random, kv_type, capacity, &starts, (kv_heads, head_dim), true));
    }
    out
}

/// Each of `starts` is a sequence's first position and number of rows. With `lies`, the first row names a sequence that
/// does not exist, the last a position beyond its table, and one table a block beyond the cache.
fn case(
    random: &mut Random,
    kv_type: KvType,
    capacity: usize,
    starts: &[(u32, u32)],
    (kv_heads, head_dim): (usize, usize),
    lies: bool,
) -> Case {
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
    if lies {
        let last = params.positions.len() - 1;
        params.positions[last] = 64;
        params.row_sequences[0] = shape.sequences;
        params.tables[0][0] = cache_blocks as u32;
    }
    let width = kv_heads * head_dim;
    let (k, v) = (random.floats(capacity * width, 2.0), random.floats(capacity * width, 2.0));
    let values = cache_blocks * width * BLOCK_TOKENS;
    let (mut keys, mut cached) = (vec![None; values], vec![None; values]);
    for (row, (position, sequence)) in params.positions.iter().zip(&params.row_sequences).enumerate() {
        let table = params.tables.get(*sequence as usize);
        let block = table.and_then(|t| t.get(*position as usize / BLOCK_TOKENS)).map(|b| *b as usize);
        let Some(block) = block.filter(|b| *b < cache_blocks) else { continue };
        let slot = *position as usize % BLOCK_TOKENS;
        for i in 0..width {
            let (head, dim) = (i / head_dim, i % head_dim);
            let base = (block * kv_heads + head) * head_dim * BLOCK_TOKENS;
            keys[base + dim * BLOCK_TOKENS + slot] = Some(f64::from(k[row * width + i]));
            cached[base + slot * head_dim + dim] = Some(f64::from(v[row * width + i]));
        }
    }
    let content = |values| match kv_type {
        KvType::F32 => Content::F32(values),
        KvType::F16 => Content::F16(values),
    };
    let label = format!("{starts:?} in {capacity} rows, {kv_heads} heads of {head_dim}, lies {lies}");
    let constants = [capacity, starts.len() + 1, table_blocks, 3, kv_heads, head_dim, cache_blocks];
    let bytes = values * kv_type.bytes() as usize;
    let build =
        Build::new(Kernel::KvAppend(kv_type), label, &constants).words(&params.words()).floats(&k).floats(&v);
    build.poison(bytes).poison(bytes).expect(3, content(keys)).expect(4, content(cached)).done()
}
