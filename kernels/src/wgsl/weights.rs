//! The kernels that read weights: the embedding, the products and the widening, each once for every tensor type.
//!
//! A tensor type is a file in `weights/` with a few functions. Types without blocks lie row by row, the others in groups of 16
//! rows. What a product for few rows of x does with its columns is one file, how its items bring their sums together another.

use super::{Function, bare_program, program, repeat};
use crate::blocks::TensorType;
use crate::composer::{Compose, composer};
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, Layout, layout_in};
use crate::table::{NEVER, Variant};
use crate::{add, embed, matmul, widen};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Rows of x, and rows of weights, that a group of the tiled product computes.
const TILE: u32 = 64;

const EMBED_ITEMS: u32 = 256;
const TILED_ITEMS: u32 = 128;
/// [`widen::GROUP_COLUMNS`] over the 16 blocks that a group takes at once.
const WIDEN_ITEMS: u32 = 256;
/// Items of the products for few rows of x whose weights lie row by row. There are many groups: each has little to do.
const ROWS_ITEMS: u32 = 128;
/// Rows of weights of such a group: `LINES` in its text.
const ROWS_LINES: u32 = 8;

/// Rows of x from which on f16 weights, written once and read by matrix units, are less work than unpacking in the product.
const WIDEN_ROWS: u32 = 32;

pub(super) fn variants() -> Vec<Variant> {
    let quantised = |t: &TensorType| t.block_values() > 1;
    let mut out: Vec<Function> = TensorType::ALL.into_iter().map(embed_function).collect();
    for activations in [Activations::F32, Activations::Int8] {
        let takes = |t: &TensorType| matmul::takes(*t, activations);
        out.extend(TensorType::ALL.into_iter().filter(takes).flat_map(|t| products(t, activations)));
    }
    out.extend([TensorType::F16, TensorType::BF16].map(half_product));
    out.extend(TensorType::ALL.into_iter().filter(quantised).map(widen_function));
    out.into_iter().map(Function::variant).collect()
}

fn layout(tensor_type: TensorType) -> Layout {
    layout_in(tensor_type, KernelLanguage::Wgsl)
}

fn embed_function(tensor_type: TensorType) -> Function {
    let layout = layout(tensor_type);
    Function {
        kernel: Kernel::Embed(tensor_type),
        name: "wgsl",
        requires: &[],
        abi: embed::abi(tensor_type, layout),
        grid: add::grid,
        layout: Some(layout),
        min_rows: 0,
        max_rows: u32::MAX,
        compose: composer!(tensor_type, embed_source),
        function: "embed",
        items: EMBED_ITEMS,
        local_bytes: 0,
    }
}

/// The products with f32 or int8 activations: for one row of x, for a few, and for many.
fn products(tensor_type: TensorType, activations: Activations) -> Vec<Function> {
    let tiled = match activations {
        Activations::Int8 => composer!(tensor_type, fast_tiled),
        Activations::F32 | Activations::F16 => composer!(tensor_type, exact_tiled),
    };
    let mut out = Vec::new();
    out.extend(few_rows::<true>(tensor_type, activations, tiled));
    out.extend(few_rows::<false>(tensor_type, activations, tiled));
    out.push(tiled_product(tensor_type, activations, tiled));
    out
}

/// The product for many rows of x.
fn tiled_product(tensor_type: TensorType, activations: Activations, compose: Compose) -> Function {
    let layout = layout(tensor_type);
    Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        name: "wgsl-tiled",
        requires: &[],
        abi: matmul::abi(tensor_type, layout, activations),
        grid: |constants| [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1],
        layout: Some(layout),
        min_rows: 0,
        max_rows: u32::MAX,
        compose,
        function: "matmul_tiled",
        items: TILED_ITEMS,
        local_bytes: 16 << 10,
    }
}

/// The products for up to 1, 4 and 8 rows of x, with sub-groups or without.
fn few_rows<const SUB_GROUPS: bool>(
    tensor_type: TensorType,
    activations: Activations,
    tiled: Compose,
) -> [Function; 3] {
    let is_quantised = tensor_type.block_values() > 1;
    let gemv = |name: [&'static str; 2], max_rows, compose| {
        let items = if is_quantised { block_items(max_rows) } else { ROWS_ITEMS };
        Function {
            name: name[usize::from(SUB_GROUPS)],
            requires: if SUB_GROUPS { &[Feature::SubGroups] } else { &[] },
            grid: if is_quantised { blocks_grid } else { rows_grid },
            max_rows,
            compose,
            function: "matmul_gemv",
            items,
            local_bytes: u64::from(items * max_rows * 16),
            ..tiled_product(tensor_type, activations, tiled)
        }
    };
    let composers = match activations {
        _ if !is_quantised => [
            composer!(tensor_type, row_gemv::<SUB_GROUPS, 1>),
            composer!(tensor_type, row_gemv::<SUB_GROUPS, 4>),
            composer!(tensor_type, row_gemv::<SUB_GROUPS, 8>),
        ],
        Activations::Int8 => [
            composer!(tensor_type, fast_gemv::<SUB_GROUPS, 1>),
            composer!(tensor_type, fast_gemv::<SUB_GROUPS, 4>),
            composer!(tensor_type, fast_gemv::<SUB_GROUPS, 8>),
        ],
        Activations::F32 | Activations::F16 => [
            composer!(tensor_type, exact_gemv::<SUB_GROUPS, 1>),
            composer!(tensor_type, exact_gemv::<SUB_GROUPS, 4>),
            composer!(tensor_type, exact_gemv::<SUB_GROUPS, 8>),
        ],
    };
    [
        gemv(["wgsl-gemv-1", "wgsl-sub-groups-gemv-1"], 1, composers[0]),
        gemv(["wgsl-gemv-4", "wgsl-sub-groups-gemv-4"], 4, composers[1]),
        gemv(["wgsl-gemv-8", "wgsl-sub-groups-gemv-8"], 8, composers[2]),
    ]
}

/// The product with f16 activations for devices without matrix units: no faster than that with f32.
fn half_product(tensor_type: TensorType) -> Function {
    let function = tiled_product(tensor_type, Activations::F16, composer!(tensor_type, half_tiled));
    Function { min_rows: NEVER, ..function }
}

/// Worth its while where there are matrix units, which is for the product to say, and enough rows.
fn widen_function(tensor_type: TensorType) -> Function {
    Function {
        kernel: Kernel::Widen(tensor_type),
        name: "wgsl",
        requires: &[],
        abi: widen::abi(tensor_type),
        grid: widen::grid,
        layout: Some(Layout::Rows16),
        min_rows: WIDEN_ROWS,
        max_rows: u32::MAX,
        compose: composer!(tensor_type, widen_source),
        function: "widen",
        items: WIDEN_ITEMS,
        local_bytes: 0,
    }
}

/// A group of 16 rows of weights for each work group.
fn blocks_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(GROUP_ROWS as u32), 1, 1] }
}

/// [`ROWS_LINES`] rows of weights for each work group.
fn rows_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(ROWS_LINES), 1, 1] }
}

/// Items of a product of quantised weights for `m` rows of x: their sums, of 16 bytes for each row, are 16 KiB at most.
const fn block_items(m: u32) -> u32 {
    if m > 4 { 128 } else { 256 }
}

const QUANTISED: &str = include_str!("weights/quantised.wgsl");
const ROW_MAJOR: &str = include_str!("weights/row_major.wgsl");
const VALUES: &str = include_str!("weights/values.wgsl");

/// How weights of this type are read: what the types of a layout share, and the type's own.
fn reader(tensor_type: TensorType) -> [&'static str; 2] {
    match tensor_type {
        TensorType::F32 => [ROW_MAJOR, include_str!("weights/f32.wgsl")],
        TensorType::F16 => [ROW_MAJOR, include_str!("weights/f16.wgsl")],
        TensorType::BF16 => [ROW_MAJOR, include_str!("weights/bf16.wgsl")],
        TensorType::Q8_0 => [QUANTISED, include_str!("weights/q8_0.wgsl")],
        TensorType::Q4_0 => [QUANTISED, include_str!("weights/q4_0.wgsl")],
        TensorType::Q4_1 => [QUANTISED, include_str!("weights/q4_1.wgsl")],
        TensorType::Q5_0 => [QUANTISED, include_str!("weights/q5_0.wgsl")],
        TensorType::Q5_1 => [QUANTISED, include_str!("weights/q5_1.wgsl")],
        TensorType::Q4_K => [QUANTISED, include_str!("weights/q4_k.wgsl")],
        TensorType::Q5_K => [QUANTISED, include_str!("weights/q5_k.wgsl")],
        TensorType::Q6_K => [QUANTISED, include_str!("weights/q6_k.wgsl")],
        TensorType::TQ1_0 | TensorType::TQ2_0 => [QUANTISED, include_str!("weights/ternary.wgsl")],
    }
}

/// How the values of quads are read.
fn values(tensor_type: TensorType) -> [&'static str; 3] {
    let [shared, own] = reader(tensor_type);
    [shared, own, if tensor_type.block_values() > 1 { VALUES } else { "" }]
}

const CONSTANTS: &str = include_str!("../matmul/constants.wgsl");
const BLOCKS: &str = include_str!("../matmul/blocks.wgsl");
const F32_ROWS: &str = include_str!("../matmul/f32_rows.wgsl");

/// A product of up to `M` rows of x: what reads weights, then `parts`, which have `batch` loads under way together.
fn gemv<const SUB_GROUPS: bool, const M: u32>(
    tensor_type: TensorType,
    items: u32,
    batch: u32,
    parts: &[&str],
) -> Arc<str> {
    let figures = format!("const M: u32 = {M}u;\nconst BATCH: u32 = {batch}u;\n");
    let sums = if SUB_GROUPS { include_str!("sub_group_sums.wgsl") } else { include_str!("sums.wgsl") };
    let unrolled = [parts, &[include_str!("../matmul/gemv.wgsl")]].concat().join("\n");
    let unrolled = repeat(&unrolled, &[("$b", batch), ("$m", M), ("$p", 4)]);
    program(items, &[&[CONSTANTS, &figures, sums], &reader(tensor_type)[..], &[&unrolled]].concat())
}

/// `M` rows of f32, and weights that lie row by row.
fn row_gemv<const SUB_GROUPS: bool, const M: u32>(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let batch = if M == 1 { 4 } else { 2 };
    gemv::<SUB_GROUPS, M>(tensor_type, ROWS_ITEMS, batch, &[include_str!("../matmul/rows.wgsl")])
}

/// `M` rows of f32, and quantised weights.
fn exact_gemv<const SUB_GROUPS: bool, const M: u32>(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let parts = [include_str!("../matmul/block.wgsl"), include_str!("../matmul/exact.wgsl")];
    gemv::<SUB_GROUPS, M>(tensor_type, block_items(M), 1, &parts)
}

/// `M` rows of int8 activations.
fn fast_gemv<const SUB_GROUPS: bool, const M: u32>(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let batch = if M == 1 { 2 } else { 1 };
    let parts = [BLOCKS, include_str!("../matmul/block.wgsl"), include_str!("../matmul/fast.wgsl")];
    gemv::<SUB_GROUPS, M>(tensor_type, block_items(M), batch, &parts)
}

/// A tiled product, over `parts`.
fn tiled(tensor_type: TensorType, parts: &[&str]) -> Arc<str> {
    let unrolled = repeat(&parts.join("\n"), &[("$i", 4), ("$j", 4)]);
    program(TILED_ITEMS, &[&[CONSTANTS], &values(tensor_type)[..], &[&unrolled]].concat())
}

const TILED: &str = include_str!("../matmul/tiled_exact.wgsl");

fn exact_tiled(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    tiled(tensor_type, &[F32_ROWS, TILED])
}

fn half_tiled(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    tiled(tensor_type, &[include_str!("../matmul/f16_rows.wgsl"), TILED])
}

fn fast_tiled(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    tiled(tensor_type, &[BLOCKS, include_str!("../matmul/tiled_fast.wgsl")])
}

fn embed_source(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    program(EMBED_ITEMS, &[&values(tensor_type)[..], &[include_str!("../embed/embed.wgsl")]].concat())
}

fn widen_source(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let unrolled = repeat(include_str!("../widen/widen.wgsl"), &[("$r", 4)]);
    bare_program(WIDEN_ITEMS, &[&values(tensor_type)[..], &[&unrolled]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump() {
        for v in variants() {
            let crate::table::Code::Text(text) = v.code else { continue };
            let name = format!("{}-{}", v.kernel, v.name).replace('/', "_");
            std::fs::write(format!("/tmp/kb/texts/{name}.wgsl"), &*text.text()).unwrap();
        }
    }

    #[test]
    fn marked_lines_are_repeated() {
        let text = "a$i = b;\nc;\nd[$i] = e$ju;\n";
        let repeated = "a0 = b;\na1 = b;\nc;\nd[0] = e0u;\nd[0] = e1u;\nd[1] = e0u;\nd[1] = e1u;\n";
        assert_eq!(repeat(text, &[("$i", 2), ("$j", 2)]), repeated);
    }
}
