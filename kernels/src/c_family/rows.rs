//! Kernels that read no matrix weights: the row kernels, attention, and KV append.

use super::elementwise::functions;
use super::{Function, HALF_ROWS, Items, matrix_units, names, program};
use crate::experts::gate;
use crate::kernel::{Kernel, KvType};
use crate::recurrent::{conv, gated_heads, gated_norm, scan};
use crate::rows::{self, RowKernel, row_kernels};
use crate::variant::Variant;
use crate::{add, attention, checksum, head_norm, latent};
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

const ITEMS: Items = Items(rows::ITEMS);

/// Work items of a group that normalises one head.
const HEAD_ITEMS: Items = Items(128);

/// Maximum number of rows of a scan that takes one row at a time.
const FEW_SCANNED_ROWS: u32 = 256;

/// Maximum number of queries that a group of tiled attention processes at once: `QUERIES` in the source.
const TILE_QUERIES: u32 = 16;

pub(super) fn variants() -> Vec<Variant> {
    let row = |(kernel, row): (Kernel, RowKernel)| Function {
        local_bytes: row.local_bytes,
        ..function(kernel, row.grid, row.function.unwrap_or(kernel.abi(None).name))
    };
    let mut out: Vec<Function> = row_kernels().map(row).collect();
    out.push(Function {
        source: head_source,
        items: HEAD_ITEMS,
        ..function(Kernel::HeadNorm, head_norm::grid, "head_norm")
    });
    out.push(Function { source: checksum_source, ..function(Kernel::Checksum, checksum::grid, "checksum") });
    let experts = |kernel, grid, name| Function { source: experts_source, ..function(kernel, grid, name) };
    out.push(experts(Kernel::ExpertRoute, add::grid, "expert_route"));
    out.push(experts(Kernel::ExpertGate, gate::grid, "expert_gate"));
    out.push(experts(Kernel::ExpertCombine, rows::part_grid, "expert_combine"));
    out.push(Function {
        source: latent_source,
        items: HEAD_ITEMS,
        ..function(Kernel::LatentRows, latent::grid, "latent_rows")
    });
    out.push(Function {
        source: sinks_source,
        ..function(Kernel::AttentionMergeSinks, attention::merge_sinks::grid, "attention_merge_sinks")
    });
    let recurrent = |kernel, grid, name| Function { source: conv_source, ..function(kernel, grid, name) };
    out.push(recurrent(Kernel::CausalConv, conv::grid, "causal_conv"));
    let gated = |kernel, grid, name| Function {
        source: gated_source,
        items: HEAD_ITEMS,
        ..function(kernel, grid, name)
    };
    out.push(gated(Kernel::GatedNorm, gated_norm::grid, "gated_norm"));
    out.push(gated(Kernel::GatedHeads, gated_heads::grid, "gated_heads"));
    // One row at a time takes the least memory, so that the groups of many sequences fit a multiprocessor at once.
    out.push(Function {
        names: names!("-few"),
        source: scan_source::<1>,
        items: Items(scan::ITEMS),
        max_rows: FEW_SCANNED_ROWS,
        local_bytes: 4 << 10,
        ..function(Kernel::StateScan, scan::grid, "state_scan")
    });
    out.push(Function {
        source: scan_source::<8>,
        items: Items(scan::ITEMS),
        local_bytes: 24 << 10,
        ..function(Kernel::StateScan, scan::grid, "state_scan")
    });
    let cached = KvType::ALL.map(cache_functions);
    out.extend(cached.map(|[append, ..]| append));
    out.extend(cached.map(|[_, partial, _]| partial));
    let mut out: Vec<Variant> = out.into_iter().flat_map(Function::variants).collect();
    out.extend(matrix_units::attention());
    out.extend(cached.into_iter().flat_map(|[.., tiled]| tiled.variants()));
    out
}

fn function(kernel: Kernel, grid: fn(&[u32]) -> [u32; 3], function: &'static str) -> Function {
    Function {
        kernel,
        names: names!(""),
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source: row_source,
        function,
        items: ITEMS,
        local_bytes: 4 << 10,
    }
}

/// Composes one program that contains all row kernels. The kernels are short, and a model needs most of them.
fn row_source(language: KernelLanguage) -> Arc<str> {
    let mut parts: Vec<&str> = row_kernels().map(|(_, row)| row.c).collect();
    // Kernels with the same source are adjacent.
    parts.dedup();
    program(language, ITEMS, &[&[HALF_ROWS], &parts[..]].concat())
}

fn head_source(language: KernelLanguage) -> Arc<str> {
    program(language, HEAD_ITEMS, &[functions(language), include_str!("../head_norm/head_norm.cl")])
}

/// Composes a program of its own, because only runs that verify their transfers need the kernel.
fn checksum_source(language: KernelLanguage) -> Arc<str> {
    program(language, ITEMS, &[include_str!("../checksum/checksum.cl")])
}

/// Composes a program of its own, because only models with latent attention need the kernel.
fn latent_source(language: KernelLanguage) -> Arc<str> {
    program(language, HEAD_ITEMS, &[functions(language), include_str!("../latent/latent.cl")])
}

/// Composes a program of its own, because only mixtures of experts need the kernels.
fn experts_source(language: KernelLanguage) -> Arc<str> {
    let (route, gate) = (include_str!("../experts/route.cl"), include_str!("../experts/gate.cl"));
    program(language, ITEMS, &[include_str!("order.cl"), route, gate, include_str!("../experts/combine.cl")])
}

/// Composes a program of its own, because few models have sinks.
fn sinks_source(language: KernelLanguage) -> Arc<str> {
    program(language, ITEMS, &[include_str!("../attention/merge_sinks.cl")])
}

/// Code of kernels that find the states of sequences.
const STATES: [&str; 2] = [include_str!("lists.cl"), include_str!("../recurrent/state.cl")];

/// Composes a program of its own, because only recurrent layers need the kernel.
fn conv_source(language: KernelLanguage) -> Arc<str> {
    program(language, ITEMS, &[&STATES[..], &[include_str!("../recurrent/conv.cl")]].concat())
}

/// Composes a scan of tiles of `TILE` rows.
fn scan_source<const TILE: u32>(language: KernelLanguage) -> Arc<str> {
    let tile = format!("#define TILE {TILE}\n");
    let parts = [&STATES[..], &[functions(language), &tile, include_str!("../recurrent/scan.cl")]];
    program(language, Items(scan::ITEMS), &parts.concat())
}

fn gated_source(language: KernelLanguage) -> Arc<str> {
    program(language, HEAD_ITEMS, &[include_str!("../recurrent/gated.cl")])
}

fn cache_functions(kv_type: KvType) -> [Function; 3] {
    let source: fn(KernelLanguage) -> Arc<str> = match kv_type {
        KvType::F32 => |l| cache_source(l, "0"),
        KvType::F16 => |l| cache_source(l, "1"),
        KvType::Q8_0 => |l| quantised_source(l, ["0", "0"]),
        KvType::Q8_0Q4_0 => |l| quantised_source(l, ["0", "1"]),
        KvType::Q4_0 => |l| quantised_source(l, ["1", "1"]),
    };
    let append = Function {
        kernel: Kernel::RopeAppend(kv_type),
        names: names!(""),
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
        grid: attention::partial::grid,
        function: "attention_partial",
        local_bytes: 20 << 10,
        ..append
    };
    let tiled = Function {
        kernel: Kernel::Attention(kv_type),
        names: names!("-tiled"),
        grid: tiled_grid,
        function: "attention_tiled",
        local_bytes: 24 << 10,
        ..append
    };
    [append, partial, tiled]
}

const TURN: &str = include_str!("../rope_append/turn.cl");

const ATTENTION: [&str; 3] = [
    include_str!("../attention/attention.cl"),
    include_str!("../attention/partial.cl"),
    include_str!("../attention/tiled.cl"),
];

fn cache_source(language: KernelLanguage, is_f16: &str) -> Arc<str> {
    let kv_type = &format!("#define KV_F16 {is_f16}\n");
    let cache =
        [kv_type, HALF_ROWS, include_str!("kv.cl"), include_str!("lists.cl"), include_str!("kv_plain.cl")];
    let append = [TURN, include_str!("../rope_append/rope_append.cl")];
    program(language, ITEMS, &[&cache[..], &append, &ATTENTION].concat())
}

/// Composes the program for a quantized cache. `is_q4` tells whether keys and values have 4-bit quants.
fn quantised_source(language: KernelLanguage, is_q4: [&str; 2]) -> Arc<str> {
    let [keys, values] = is_q4;
    let kv_types = &format!("#define KEYS_Q4 {keys}\n#define VALUES_Q4 {values}\n");
    let cache = [kv_types, HALF_ROWS, include_str!("kv_blocks.cl"), include_str!("lists.cl")];
    let append = [TURN, include_str!("../rope_append/rope_append_blocks.cl")];
    program(language, ITEMS, &[&cache[..], &append, &ATTENTION].concat())
}

/// Returns a grid of rows × kv heads.
fn append_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[5], 1]
}

/// Returns a grid of row tiles × kv heads. The more heads share a kv head, the fewer rows a tile has.
fn tiled_grid(constants: &[u32]) -> [u32; 3] {
    let (rows, heads, kv_heads) = (constants[0], constants[4], constants[5]);
    let sharing = heads.checked_div(kv_heads).unwrap_or(0).max(1);
    [rows.div_ceil((TILE_QUERIES / sharing).max(1)), kv_heads, 1]
}
