//! Kernels that write and read the KV cache.

use super::{Function, HALF_RANGE, function, program, program_with, repeat};
use crate::attention::partial;
use crate::kernel::{Kernel, KvType};
use crate::variant::Variant;
use ragtag_hal::Feature;
use std::sync::Arc;

const ITEMS: u32 = 256;

/// Maximum number of queries that an attention group processes at once: `GROUP_QUERIES` in the source.
const TILE_QUERIES: u32 = 16;

/// Maximum number of queries per attention group on matrix units. These groups have fewer work items but
/// larger tiles.
const MATRICES_QUERIES: u32 = 64;
const MATRICES_ITEMS: u32 = 128;
/// Number of positions per step of attention on matrix units: `STEP` in the source.
const MATRICES_POSITIONS: u32 = 32;

const TABLES: &str = include_str!("tables.wgsl");
const TURN: &str = include_str!("turn.wgsl");
const APPEND_CONSTANTS: &str = include_str!("../rope_append/constants.wgsl");
const APPEND: &str = include_str!("../rope_append/rope_append.wgsl");
const APPEND_F32: &str = include_str!("../rope_append/append_f32.wgsl");
const APPEND_F16: &str = include_str!("../rope_append/append_f16.wgsl");
const APPEND_WORDS: &str = include_str!("../rope_append/append_words.wgsl");
const KV_F32: &str = include_str!("kv_f32.wgsl");
const KV_F16: &str = include_str!("kv_f16.wgsl");
const KV_BLOCKS: &str = include_str!("kv_blocks.wgsl");
const APPEND_BLOCKS: &str = include_str!("../rope_append/rope_append_blocks.wgsl");
const ATTENTION: &str = include_str!("../attention/attention.wgsl");
const PARTIAL: &str = include_str!("../attention/partial.wgsl");
const AS_THEY_STAND: &str = include_str!("../attention/as_they_stand.wgsl");
const RUNS: &str = include_str!("../attention/runs.wgsl");
const TILED: &str = include_str!("../attention/tiled.wgsl");
const PLAIN: &str = include_str!("../attention/plain.wgsl");

pub(super) fn variants() -> Vec<Variant> {
    let mut out = append_functions();
    out.extend(partial_functions());
    out.extend(append_attention_functions());
    out.push(matrices_function::<128>("wgsl-matrices"));
    out.extend(tiled_functions());
    // This variant is never selected. It is a shorter copy of the kernel above, for tests with compilers that
    // take minutes for the long source.
    out.push(matrices_function::<32>("wgsl-matrices-short"));
    out.into_iter().map(Function::variant).collect()
}

fn append_functions() -> Vec<Function> {
    let append = |kv_type| function(Kernel::RopeAppend(kv_type), append_grid, "rope_append", ITEMS);
    vec![
        Function {
            compose: |_| program(ITEMS, &[TABLES, TURN, APPEND_F32, APPEND_CONSTANTS, APPEND]),
            ..append(KvType::F32)
        },
        Function {
            name: "wgsl-f16",
            requires: &[Feature::Fp16],
            compose: |_| {
                program_with(
                    "enable f16;\n",
                    ITEMS,
                    &[TABLES, TURN, HALF_RANGE, APPEND_F16, APPEND_CONSTANTS, APPEND],
                )
            },
            ..append(KvType::F16)
        },
        Function {
            compose: |_| program(ITEMS, &[TABLES, TURN, HALF_RANGE, APPEND_WORDS, APPEND_CONSTANTS, APPEND]),
            ..append(KvType::F16)
        },
        Function { compose: |_| append_blocks(Q8_0), ..append(KvType::Q8_0) },
        Function { compose: |_| append_blocks(Q8_0_Q4_0), ..append(KvType::Q8_0Q4_0) },
        Function { compose: |_| append_blocks(Q4_0), ..append(KvType::Q4_0) },
    ]
}

/// Bytes of 32 quants of keys and of values.
const Q8_0: [u32; 2] = [32, 32];
const Q8_0_Q4_0: [u32; 2] = [32, 16];
const Q4_0: [u32; 2] = [16, 16];

/// Defines the constants that sources for quantized caches read.
fn quants([keys, values]: [u32; 2]) -> String {
    format!("const KEY_BYTES = {keys}u;\nconst VALUE_BYTES = {values}u;\n")
}

fn append_blocks(bytes: [u32; 2]) -> Arc<str> {
    program(ITEMS, &[TABLES, TURN, HALF_RANGE, &quants(bytes), APPEND_CONSTANTS, APPEND_BLOCKS])
}

fn partial_blocks(bytes: [u32; 2]) -> Arc<str> {
    program(ITEMS, &[TABLES, &quants(bytes), KV_BLOCKS, ATTENTION, AS_THEY_STAND, PARTIAL])
}

fn tiled_blocks(bytes: [u32; 2]) -> Arc<str> {
    program(ITEMS, &[TABLES, &quants(bytes), KV_BLOCKS, ATTENTION, RUNS, TILED, PLAIN])
}

fn partial_functions() -> [Function; 5] {
    let partial = |kv_type| Function {
        local_bytes: 12 << 10,
        ..function(Kernel::AttentionPartial(kv_type), partial::grid, "attention_partial", ITEMS)
    };
    [
        Function {
            compose: |_| program(ITEMS, &[TABLES, KV_F32, ATTENTION, AS_THEY_STAND, PARTIAL]),
            ..partial(KvType::F32)
        },
        Function {
            compose: |_| program(ITEMS, &[TABLES, KV_F16, ATTENTION, AS_THEY_STAND, PARTIAL]),
            ..partial(KvType::F16)
        },
        Function { compose: |_| partial_blocks(Q8_0), ..partial(KvType::Q8_0) },
        Function { compose: |_| partial_blocks(Q8_0_Q4_0), ..partial(KvType::Q8_0Q4_0) },
        Function { compose: |_| partial_blocks(Q4_0), ..partial(KvType::Q4_0) },
    ]
}

/// Returns the kernels for single-row attention, fused with RoPE and KV append.
fn append_attention_functions() -> [Function; 2] {
    let append = |kv_type| Function {
        max_rows: 1,
        local_bytes: 16 << 10,
        ..function(Kernel::AppendAttention(kv_type), partial::grid, "attention_partial", ITEMS)
    };
    [
        Function {
            compose: |_| append_attention(KV_F32, &[include_str!("store_f32.wgsl")]),
            ..append(KvType::F32)
        },
        Function {
            compose: |_| append_attention(KV_F16, &[HALF_RANGE, include_str!("store_f16.wgsl")]),
            ..append(KvType::F16)
        },
    ]
}

/// Composes the source of single-row attention that is fused with RoPE and KV append. Declares the cache as
/// writable, and adds the constants of RoPE to those of split attention.
fn append_attention(cache: &str, store: &[&str]) -> Arc<str> {
    let cache = cache.replace("var<storage, read>", "var<storage, read_write>");
    let more = "    word: u32,\n    rope_dims: u32,\n    pairing: u32,\n    magnitude: f32,\n";
    let partial = PARTIAL.replace("    word: u32,\n", more);
    let append = include_str!("../attention/append.wgsl");
    let parts = [&[TABLES, TURN, &cache], store, &[ATTENTION, append, &partial]];
    program(ITEMS, &parts.concat())
}

fn tiled_functions() -> [Function; 5] {
    let tiled = |kv_type| Function {
        name: "wgsl-tiled",
        local_bytes: 16 << 10,
        ..function(Kernel::Attention(kv_type), tiled_grid::<TILE_QUERIES>, "attention_tiled", ITEMS)
    };
    [
        Function {
            compose: |_| program(ITEMS, &[TABLES, KV_F32, ATTENTION, RUNS, TILED, PLAIN]),
            ..tiled(KvType::F32)
        },
        Function {
            compose: |_| program(ITEMS, &[TABLES, KV_F16, ATTENTION, RUNS, TILED, PLAIN]),
            ..tiled(KvType::F16)
        },
        Function { compose: |_| tiled_blocks(Q8_0), ..tiled(KvType::Q8_0) },
        Function { compose: |_| tiled_blocks(Q8_0_Q4_0), ..tiled(KvType::Q8_0Q4_0) },
        Function { compose: |_| tiled_blocks(Q4_0), ..tiled(KvType::Q4_0) },
    ]
}

/// Returns exact attention over an f16 cache on matrix units, for heads of up to `DIMS` dimensions. For heads
/// with more dimensions, the kernel does not use matrix units.
fn matrices_function<const DIMS: u32>(name: &'static str) -> Function {
    Function {
        name,
        requires: &[Feature::CooperativeMatrix, Feature::Fp16, Feature::SubGroups],
        compose: |_| {
            let copies = MATRICES_POSITIONS * DIMS / 8 / MATRICES_ITEMS;
            let matrices =
                repeat(include_str!("../attention/matrices.wgsl"), &[("$d", DIMS / 16), ("$v", copies)]);
            let figures = format!("const MAX_DIMS = {DIMS}u;\n");
            program_with(
                "enable f16;\nenable wgpu_cooperative_matrix;\n",
                MATRICES_ITEMS,
                &[TABLES, include_str!("kv_halves.wgsl"), ATTENTION, RUNS, TILED, &figures, &matrices],
            )
        },
        local_bytes: if DIMS > 32 { 42 << 10 } else { 30 << 10 },
        ..function(
            Kernel::Attention(KvType::F16),
            tiled_grid::<MATRICES_QUERIES>,
            "attention_tiled",
            MATRICES_ITEMS,
        )
    }
}

/// Returns a grid of rows × kv heads.
fn append_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[5], 1]
}

/// Returns a grid of row tiles × kv heads. The more heads share a kv head, the fewer rows a tile has.
fn tiled_grid<const QUERIES: u32>(constants: &[u32]) -> [u32; 3] {
    let (rows, heads, kv_heads) = (constants[0], constants[4], constants[5]);
    let sharing = heads.checked_div(kv_heads).unwrap_or(0).max(1);
    [rows.div_ceil((QUERIES / sharing).max(1)), kv_heads, 1]
}
