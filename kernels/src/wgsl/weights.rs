//! Kernels that read weights: embedding, products and dequantization, each for every tensor type.
//!
//! Each tensor type defines a few functions, which the shared files in `weights/` call. Types without blocks
//! use the row-major layout, and the other types use groups of 16 rows. For products with few rows of x, one
//! source file multiplies columns, and another combines the sums of the work items.

use super::{Function, bare_program, program, repeat};
use crate::blocks::TensorType;
use crate::composer::{Compose, composer};
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, Layout, layout_in};
use crate::variant::{NEVER, Variant};
use crate::{add, experts, matmul, widen};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Number of rows of x per tile, and number of rows of weights per tile.
const TILE: u32 = 64;

const EMBED_ITEMS: u32 = 256;
const TILED_ITEMS: u32 = 128;
/// Work items per group: 16 for each block of 32 columns. A group has [`widen::GROUP_COLUMNS`] / 32 = 16
/// blocks.
const WIDEN_ITEMS: u32 = 256;
const EXPERT_ITEMS: u32 = 128;
/// Maximum number of rows for which each assignment reads the weights of its expert. With more rows, the assignments to
/// an expert share them.
const EXPERT_ROWS: u32 = 8;
/// Returns two numbers for products of row-major weights with `m` activation rows: the work items per group,
/// and the outstanding vector loads per weight row. These values were the fastest on an H200. A launch has
/// many groups, and each group has little work.
const fn rows_figures(m: u32, form: u8) -> (u32, u32) {
    match (m, form) {
        (1, GATED) => (128, 8),
        (1, _) => (256, 2),
        _ => (128, 2),
    }
}
/// Number of weight rows per group: `LINES` in the source.
const ROWS_LINES: u32 = 8;

/// Minimum number of rows of x for which products use dequantized weights. For fewer rows, it is faster to
/// unpack the weights inside the product than to dequantize them once to f16 for matrix units.
const WIDEN_ROWS: u32 = 32;

pub(super) fn variants() -> Vec<Variant> {
    let mut out: Vec<Function> = TensorType::ALL.into_iter().map(embed_function).collect();
    for activations in [Activations::F32, Activations::Int8] {
        let takes = |t: &TensorType| matmul::takes(*t, activations);
        out.extend(TensorType::ALL.into_iter().filter(takes).flat_map(|t| products(t, activations)));
    }
    out.extend(TensorType::ALL.into_iter().flat_map(normed_products));
    out.extend([TensorType::F16, TensorType::BF16].map(half_product));
    out.extend(TensorType::ALL.into_iter().filter(|t| is_quantised(*t)).map(widen_function));
    out.extend(TensorType::ALL.into_iter().flat_map(expert_functions));
    out.into_iter().map(Function::variant).collect()
}

fn is_quantised(tensor_type: TensorType) -> bool {
    tensor_type.block_values() > 1
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

/// Returns the products of `tensor_type` with f32 or int8 activations: for one row of x, for a few rows, and
/// for many.
fn products(tensor_type: TensorType, activations: Activations) -> Vec<Function> {
    let tiled = match activations {
        Activations::Int8 => composer!(tensor_type, fast_tiled),
        Activations::F32 | Activations::F16 => composer!(tensor_type, exact_tiled),
    };
    let tiled = tiled_product(tensor_type, activations, tiled);
    let few = match activations {
        Activations::Int8 => int8_composers(tensor_type),
        Activations::F32 | Activations::F16 => composers::<PLAIN>(tensor_type),
    };
    few_rows(tiled, tensor_type, few).chain([tiled]).collect()
}

/// Returns the products with a fused norm, with and without a gate. Quantized weights use f32 activations
/// only if the results must be exact. They have no 8-row variants, because an 8-row variant would sum in a
/// different order from the other variants and change the result.
fn normed_products(tensor_type: TensorType) -> Vec<Function> {
    let tiled = tiled_product(tensor_type, Activations::F32, composer!(tensor_type, exact_tiled));
    let normed = Function { kernel: Kernel::NormMatMul(tensor_type), ..tiled };
    let gated = Function { kernel: Kernel::GatedMatMul(tensor_type), ..tiled };
    let all = few_rows(normed, tensor_type, composers::<NORMED>(tensor_type)).chain(few_rows(
        gated,
        tensor_type,
        composers::<GATED>(tensor_type),
    ));
    let most = if is_quantised(tensor_type) { 4 } else { 8 };
    all.filter(|function| function.max_rows <= most).collect()
}

/// Returns the product for many rows of x.
fn tiled_product(tensor_type: TensorType, activations: Activations, compose: Compose) -> Function {
    let layout = layout(tensor_type);
    Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        name: "wgsl-tiled",
        requires: &[],
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

/// Forms of the products with f32 activations and few rows of x: plain, with a fused norm of x, or with a
/// fused norm and a fused gate.
const PLAIN: u8 = 0;
const NORMED: u8 = 1;
const GATED: u8 = 2;

/// Functions that compose the sources for up to 1, 4 and 8 rows of x, each without and with sub-groups.
type Composers = [[Compose; 2]; 3];

fn composers<const FORM: u8>(tensor_type: TensorType) -> Composers {
    [
        [
            composer!(tensor_type, exact_gemv::<false, 1, FORM>),
            composer!(tensor_type, exact_gemv::<true, 1, FORM>),
        ],
        [
            composer!(tensor_type, exact_gemv::<false, 4, FORM>),
            composer!(tensor_type, exact_gemv::<true, 4, FORM>),
        ],
        [
            composer!(tensor_type, exact_gemv::<false, 8, FORM>),
            composer!(tensor_type, exact_gemv::<true, 8, FORM>),
        ],
    ]
}

fn int8_composers(tensor_type: TensorType) -> Composers {
    [
        [composer!(tensor_type, fast_gemv::<false, 1>), composer!(tensor_type, fast_gemv::<true, 1>)],
        [composer!(tensor_type, fast_gemv::<false, 4>), composer!(tensor_type, fast_gemv::<true, 4>)],
        [composer!(tensor_type, fast_gemv::<false, 8>), composer!(tensor_type, fast_gemv::<true, 8>)],
    ]
}

/// Returns the variants of `product` for up to 1, 4 and 8 rows of x. Variants that use sub-groups come first.
fn few_rows(
    product: Function,
    tensor_type: TensorType,
    composers: Composers,
) -> impl Iterator<Item = Function> {
    let is_quantised = is_quantised(tensor_type);
    let form = match product.kernel {
        Kernel::GatedMatMul(_) => GATED,
        Kernel::NormMatMul(_) => NORMED,
        _ => PLAIN,
    };
    let names = [
        ["wgsl-gemv-1", "wgsl-sub-groups-gemv-1"],
        ["wgsl-gemv-4", "wgsl-sub-groups-gemv-4"],
        ["wgsl-gemv-8", "wgsl-sub-groups-gemv-8"],
    ];
    let kinds = [true, false].into_iter().flat_map(|sub_groups| [0, 1, 2].map(|i| (sub_groups, i)));
    kinds.map(move |(sub_groups, i)| {
        let max_rows = [1, 4, 8][i];
        let items = if is_quantised { block_items(max_rows) } else { rows_figures(max_rows, form).0 };
        let grid = match (is_quantised, form) {
            (true, GATED) => gated_blocks_grid,
            (true, _) => blocks_grid,
            (false, _) => rows_grid,
        };
        // Each work item stores sums of four weight rows. Every second work item also stores the squares of
        // x.
        let item_bytes = if form == PLAIN { 16 } else { 18 };
        Function {
            name: names[i][usize::from(sub_groups)],
            requires: if sub_groups { &[Feature::SubGroups] } else { &[] },
            grid,
            max_rows,
            compose: composers[i][usize::from(sub_groups)],
            function: "matmul_gemv",
            items,
            local_bytes: u64::from(items * max_rows * item_bytes),
            ..product
        }
    })
}

/// Returns the product with f16 activations for devices without matrix units. It is no faster than the
/// product with f32 activations.
fn half_product(tensor_type: TensorType) -> Function {
    let function = tiled_product(tensor_type, Activations::F16, composer!(tensor_type, half_tiled));
    Function { min_rows: NEVER, ..function }
}

/// Returns the kernel that dequantizes weights. It pays off only on devices with matrix units, and only with
/// enough rows. The variants of the f16 product, not this kernel, check for matrix units.
fn widen_function(tensor_type: TensorType) -> Function {
    Function {
        kernel: Kernel::Widen(tensor_type),
        name: "wgsl",
        requires: &[],
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

/// Returns the products with the weights of experts: for a few rows of x, and for many.
fn expert_functions(tensor_type: TensorType) -> [Function; 2] {
    let few = Function {
        kernel: Kernel::ExpertMatMul(tensor_type, Activations::F32),
        grid: experts::matmul::grid,
        max_rows: EXPERT_ROWS,
        compose: composer!(tensor_type, expert_source),
        function: "expert_matmul",
        items: EXPERT_ITEMS,
        local_bytes: 2 << 10,
        ..embed_function(tensor_type)
    };
    let many = Function {
        name: "wgsl-tiled",
        grid: experts::matmul::tiled_grid::<64>,
        max_rows: u32::MAX,
        compose: composer!(tensor_type, tiled_expert_source),
        function: "expert_matmul_tiled",
        local_bytes: 15 << 10,
        ..few
    };
    [few, many]
}

/// Returns a grid with one work group per group of 16 weight rows.
fn blocks_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(GROUP_ROWS as u32), 1, 1] }
}

/// Returns a grid with one work group per 16 gate rows and the corresponding 16 up rows.
fn gated_blocks_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(2 * GROUP_ROWS as u32), 1, 1] }
}

/// Returns a grid with one work group per [`ROWS_LINES`] weight rows.
fn rows_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(ROWS_LINES), 1, 1] }
}

/// Returns the number of work items of a product of quantized weights with `m` rows of x. The sums of each
/// work item take 16 bytes of local memory per row of x, at most 16 KiB in total.
const fn block_items(m: u32) -> u32 {
    if m > 4 { 128 } else { 256 }
}

const QUANTISED: &str = include_str!("weights/quantised.wgsl");
const INTEGERS: &str = include_str!("weights/integers.wgsl");
const ROW_MAJOR: &str = include_str!("weights/row_major.wgsl");
const VALUES: &str = include_str!("weights/values.wgsl");

/// Returns the source that reads weights of `tensor_type`: the shared part for its layout, then the type's
/// own part.
fn reader(tensor_type: TensorType) -> [&'static str; 3] {
    let integers = if tensor_type.has_integer_quants() { INTEGERS } else { "" };
    [if is_quantised(tensor_type) { QUANTISED } else { ROW_MAJOR }, integers, tensor_type.row().wgsl]
}

/// Returns the source that reads the values of a quad (four consecutive columns).
fn values(tensor_type: TensorType) -> [&'static str; 4] {
    let [shared, integers, own] = reader(tensor_type);
    [shared, integers, own, if is_quantised(tensor_type) { VALUES } else { "" }]
}

/// Code that all products share.
pub(super) const PRODUCT: &str = include_str!("../matmul/product.wgsl");
/// Declaration of the binding of the weights.
const WEIGHTS: &str = "@group(0) @binding(1) var<storage, read> weights: array<vec4<u32>>;\n";
const BLOCKS: &str = include_str!("../matmul/blocks.wgsl");
const F32_ROWS: &str = include_str!("../matmul/f32_rows.wgsl");

/// Composes a product for up to `M` rows of x: the reader of the weights, then `parts`. Each work item has
/// `batch` loads outstanding and computes four weight rows.
fn gemv<const SUB_GROUPS: bool, const M: u32, const FORM: u8>(
    tensor_type: TensorType,
    batch: u32,
    parts: &[&str],
) -> Arc<str> {
    let (items, fours) = match (is_quantised(tensor_type), FORM) {
        (true, GATED) => (block_items(M), 8),
        (true, _) => (block_items(M), 4),
        (false, _) => (rows_figures(M, FORM).0, ROWS_LINES / 4),
    };
    let figures =
        format!("const M: u32 = {M}u;\nconst BATCH: u32 = {batch}u;\nconst PARTS: u32 = {fours}u;\n");
    let (sums, squares) = match SUB_GROUPS {
        true => (include_str!("sub_group_sums.wgsl"), include_str!("sub_group_squares.wgsl")),
        false => (include_str!("sums.wgsl"), include_str!("squares.wgsl")),
    };
    let product = match FORM {
        PLAIN => PRODUCT.into(),
        _ => PRODUCT.replace("    stride: u32,\n", "    stride: u32,\n    epsilon: f32,\n"),
    };
    let (each, gated) = (include_str!("../matmul/each_row.wgsl"), include_str!("../matmul/gated_rows.wgsl"));
    let (plain, normed) = (include_str!("../matmul/plain.wgsl"), include_str!("../matmul/normed.wgsl"));
    let form: &[&str] = match FORM {
        PLAIN => &[each, plain],
        NORMED => &[each, squares, normed],
        _ => &[include_str!("../silu_mul/silu.wgsl"), gated, squares, normed],
    };
    let unrolled = [parts, &[include_str!("../matmul/gemv.wgsl")]].concat().join("\n");
    let unrolled = repeat(&unrolled, &[("$b", batch), ("$m", M), ("$p", 4)]);
    let texts = [&[&product, WEIGHTS, &figures, sums], &reader(tensor_type)[..], form, &[&unrolled]];
    program(items, &texts.concat())
}

/// Returns the source with which products of form `form` read x. It is empty for the fused forms, because
/// their own sources read x.
const fn four_of(form: u8) -> &'static str {
    if form == PLAIN { include_str!("../matmul/plain_rows.wgsl") } else { "" }
}

/// Composes a product for up to `M` rows of f32 activations.
fn exact_gemv<const SUB_GROUPS: bool, const M: u32, const FORM: u8>(
    _: KernelLanguage,
    tensor_type: TensorType,
) -> Arc<str> {
    let four_of = four_of(FORM);
    if is_quantised(tensor_type) {
        let (block, exact) = (include_str!("../matmul/block.wgsl"), include_str!("../matmul/exact.wgsl"));
        return gemv::<SUB_GROUPS, M, FORM>(tensor_type, 1, &[four_of, block, exact]);
    }
    let (_, batch) = rows_figures(M, FORM);
    gemv::<SUB_GROUPS, M, FORM>(tensor_type, batch, &[four_of, include_str!("../matmul/rows.wgsl")])
}

/// Composes a product for up to `M` rows of int8 activations.
fn fast_gemv<const SUB_GROUPS: bool, const M: u32>(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let batch = if M == 1 { 2 } else { 1 };
    let parts = [BLOCKS, include_str!("../matmul/block.wgsl"), include_str!("../matmul/fast.wgsl")];
    gemv::<SUB_GROUPS, M, PLAIN>(tensor_type, batch, &parts)
}

/// Composes a tiled product from `parts`.
fn tiled(tensor_type: TensorType, parts: &[&str]) -> Arc<str> {
    let unrolled = repeat(&parts.join("\n"), &[("$i", 4), ("$j", 4)]);
    program(TILED_ITEMS, &[&[PRODUCT, WEIGHTS], &values(tensor_type)[..], &[&unrolled]].concat())
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
    program(
        EMBED_ITEMS,
        &[&[WEIGHTS], &values(tensor_type)[..], &[include_str!("../embed/embed.wgsl")]].concat(),
    )
}

fn expert_source(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let source = include_str!("../experts/matmul.wgsl");
    program(EXPERT_ITEMS, &[&[WEIGHTS], &values(tensor_type)[..], &[source]].concat())
}

fn tiled_expert_source(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let source = repeat(include_str!("../experts/tiled.wgsl"), &[("$i", 4)]);
    program(EXPERT_ITEMS, &[&[WEIGHTS], &values(tensor_type)[..], &[&source]].concat())
}

fn widen_source(_: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let unrolled = repeat(include_str!("../widen/widen.wgsl"), &[("$r", 4)]);
    bare_program(WIDEN_ITEMS, &[&values(tensor_type)[..], &[&unrolled]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_marked_lines() {
        let text = "a$i = b;\nc;\nd[$i] = e$ju;\n";
        let repeated = "a0 = b;\na1 = b;\nc;\nd[0] = e0u;\nd[0] = e1u;\nd[1] = e0u;\nd[1] = e1u;\n";
        assert_eq!(repeat(text, &[("$i", 2), ("$j", 2)]), repeated);
    }
}
