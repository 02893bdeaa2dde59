//! Kernels that read no matrix weights: the row kernels, attention, and KV append.

use super::{Function, HALF_ROWS, Items, matrix_units, names, program};
use crate::kernel::{Activations, Kernel, KvType};
use crate::table::Variant;
use crate::{
    add, arg_max, attention, gather, head_norm, quantize, rms_norm, rope_append, silu_mul, softmax, top_k,
};
use ragtag_hal::{EntryAbi, KernelLanguage};
use std::sync::Arc;

const ITEMS: Items = Items(256);

/// Work items of a group that normalises one head.
const HEAD_ITEMS: Items = Items(128);

/// Upper bound on the local memory of row kernels, in bytes per group.
const ROW_BYTES: u64 = 4 << 10;

/// Number of columns per group of the second launch of split attention: `4 * QUADS` in the source.
const MERGE_COLUMNS: u32 = 256;

/// Maximum number of queries that a group of tiled attention processes at once: `QUERIES` in the source.
const TILE_QUERIES: u32 = 16;

pub(super) fn variants() -> Vec<Variant> {
    let row = |kernel, abi, name| function(kernel, abi, add::grid, name);
    let part = |kernel, abi, name| function(kernel, abi, part_grid, name);
    let merge =
        |kernel, abi, name| Function { local_bytes: 8 << 10, ..function(kernel, abi, merge_grid, name) };
    let mut out = vec![
        function(Kernel::Gather, &gather::ABI, gather::grid, "gather"),
        part(Kernel::Add, &add::ABI, "add"),
        part(Kernel::Quantize(Activations::Int8), &quantize::ABI_INT8, "quantize"),
        part(Kernel::Quantize(Activations::F16), &quantize::ABI_F16, "quantize_f16"),
        row(Kernel::RmsNorm(Activations::F32), &rms_norm::ABI_F32, "rms_norm_f32"),
        row(Kernel::RmsNorm(Activations::Int8), &rms_norm::ABI_INT8, "rms_norm_int8"),
        row(Kernel::RmsNorm(Activations::F16), &rms_norm::ABI_F16, "rms_norm_f16"),
        part(Kernel::SiluMul(Activations::F32), &silu_mul::ABI_F32, "silu_mul_f32"),
        part(Kernel::SiluMul(Activations::Int8), &silu_mul::ABI_INT8, "silu_mul_int8"),
        part(Kernel::SiluMul(Activations::F16), &silu_mul::ABI_F16, "silu_mul_f16"),
        merge(Kernel::AttentionMerge(Activations::F32), &attention::merge::ABI_F32, "attention_merge_f32"),
        merge(Kernel::AttentionMerge(Activations::Int8), &attention::merge::ABI_INT8, "attention_merge_int8"),
        merge(Kernel::AttentionMerge(Activations::F16), &attention::merge::ABI_F16, "attention_merge_f16"),
        Function {
            source: head_source,
            items: HEAD_ITEMS,
            ..function(Kernel::HeadNorm, &head_norm::ABI, head_norm::grid, "head_norm")
        },
        row(Kernel::Softmax, &softmax::ABI, "softmax"),
        row(Kernel::ArgMax, &arg_max::ABI, "arg_max"),
        row(Kernel::TopK, &top_k::ABI, "top_k"),
    ];
    let [[append, partial, tiled], [append_f16, partial_f16, tiled_f16]] =
        [KvType::F32, KvType::F16].map(cache_functions);
    out.extend([append, append_f16, partial, partial_f16]);
    let mut out: Vec<Variant> = out.into_iter().flat_map(Function::variants).collect();
    out.extend(matrix_units::attention());
    out.extend([tiled, tiled_f16].into_iter().flat_map(Function::variants));
    out
}

fn function(
    kernel: Kernel,
    abi: &'static EntryAbi,
    grid: fn(&[u32]) -> [u32; 3],
    function: &'static str,
) -> Function {
    Function {
        kernel,
        names: names!(""),
        abi,
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source: row_source,
        function,
        items: ITEMS,
        local_bytes: ROW_BYTES,
    }
}

/// Composes one program that contains all row kernels. The kernels are short, and a model needs most of them.
fn row_source(language: KernelLanguage) -> Arc<str> {
    let parts = [
        HALF_ROWS,
        include_str!("../gather/gather.cl"),
        include_str!("../add/add.cl"),
        include_str!("../quantize/quantize.cl"),
        include_str!("../rms_norm/rms_norm.cl"),
        include_str!("../silu_mul/silu_mul.cl"),
        include_str!("../attention/merge.cl"),
        include_str!("../softmax/softmax.cl"),
        include_str!("order.cl"),
        include_str!("../arg_max/arg_max.cl"),
        include_str!("../top_k/top_k.cl"),
    ];
    program(language, ITEMS, &parts)
}

fn head_source(language: KernelLanguage) -> Arc<str> {
    program(language, HEAD_ITEMS, &[include_str!("../head_norm/head_norm.cl")])
}

fn cache_functions(kv_type: KvType) -> [Function; 3] {
    let (source, [append, partial_abi, abi]): (fn(KernelLanguage) -> Arc<str>, _) = match kv_type {
        KvType::F32 => (
            |l| cache_source(l, "0"),
            [&rope_append::ABI_F32, &attention::partial::ABI_F32, &attention::ABI_F32],
        ),
        KvType::F16 => (
            |l| cache_source(l, "1"),
            [&rope_append::ABI_F16, &attention::partial::ABI_F16, &attention::ABI_F16],
        ),
    };
    let append = Function {
        kernel: Kernel::RopeAppend(kv_type),
        names: names!(""),
        abi: append,
        grid: append_grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source,
        function: "rope_append",
        items: ITEMS,
        local_bytes: 0,
    };
    let partial = Function {
        kernel: Kernel::AttentionPartial(kv_type),
        abi: partial_abi,
        grid: attention::partial::grid,
        max_rows: attention::partial::MAX_ROWS,
        function: "attention_partial",
        local_bytes: 20 << 10,
        ..append
    };
    let tiled = Function {
        kernel: Kernel::Attention(kv_type),
        names: names!("-tiled"),
        abi,
        grid: tiled_grid,
        max_rows: u32::MAX,
        function: "attention_tiled",
        local_bytes: 24 << 10,
        ..append
    };
    [append, partial, tiled]
}

fn cache_source(language: KernelLanguage, is_f16: &str) -> Arc<str> {
    let parts = [
        &format!("#define KV_F16 {is_f16}\n"),
        HALF_ROWS,
        include_str!("kv.cl"),
        include_str!("../rope_append/rope_append.cl"),
        include_str!("../attention/attention.cl"),
        include_str!("../attention/partial.cl"),
        include_str!("../attention/tiled.cl"),
    ];
    program(language, ITEMS, &parts)
}

/// Returns a grid with one group per row and per block of `4 · ITEMS` columns.
fn part_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(4 * ITEMS.0), 1]
}

/// Returns a grid of rows × kv heads.
fn append_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[5], 1]
}

/// Returns a grid with one group per row and per block of `MERGE_COLUMNS` columns.
fn merge_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].saturating_mul(constants[3]).div_ceil(MERGE_COLUMNS), 1]
}

/// Returns a grid of row tiles × kv heads. The more heads share a kv head, the fewer rows a tile has.
fn tiled_grid(constants: &[u32]) -> [u32; 3] {
    let (rows, heads, kv_heads) = (constants[0], constants[4], constants[5]);
    let sharing = heads.checked_div(kv_heads).unwrap_or(0).max(1);
    [rows.div_ceil((TILE_QUERIES / sharing).max(1)), kv_heads, 1]
}
