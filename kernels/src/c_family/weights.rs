//! Kernels that read weights: embedding, products and dequantization, each for every tensor type.

use super::{Function, HALF_ROWS, Items, Names, names, program};
use crate::blocks::TensorType;
use crate::composer::{Compose, composer};
use crate::kernel::{Activations, Kernel};
use crate::layout::{GROUP_ROWS, Layout};
use crate::variant::{NARROW, NEVER, Variant};
use crate::{add, experts, matmul, widen};
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Number of rows of x, and number of rows of weights, per group of the tiled product.
const TILE: u32 = 64;

const EMBED_ITEMS: Items = Items(256);
/// Work items per group for plain weights and one row of x. Plain weights have many bytes per value, so
/// hiding the latency of their loads takes many work items. Devices that support only smaller groups, or have
/// less local memory, use the variant for four rows.
const WIDE_ITEMS: Items = Items(1024);
const GEMV_ITEMS: Items = Items(256);
const TILED_ITEMS: Items = Items(128);
/// Work items per group: 16 for each block of 32 columns. A group has [`widen::GROUP_COLUMNS`] / 32 = 16
/// blocks.
const WIDEN_ITEMS: Items = Items(256);
const EXPERT_ITEMS: Items = Items(128);
/// Maximum number of rows for which each assignment reads the weights of its expert. With more rows, the assignments to
/// an expert share them.
pub(super) const EXPERT_ROWS: u32 = 8;

/// Number of rows of x per group of a narrow product.
const NARROW_ROWS: u32 = 8;

/// Number of work items that share a row of weights: `SHARING` in the source of the row-major products.
const SHARING: u32 = 32;

/// Minimum number of rows of x for which products use dequantized weights. For fewer rows, it is faster to
/// unpack the weights inside the product than to dequantize them once to f16 for matrix units.
pub(super) const WIDEN_ROWS: u32 = 32;

pub(super) fn variants() -> Vec<Variant> {
    let quantised = |t: &TensorType| t.block_values() > 1;
    let mut out: Vec<Function> = TensorType::ALL.into_iter().map(embed_function).collect();
    for activations in [Activations::F32, Activations::Int8] {
        let takes = |t: &TensorType| matmul::takes(*t, activations);
        out.extend(TensorType::ALL.into_iter().filter(takes).flat_map(|t| matmul_functions(t, activations)));
    }
    out.extend(TensorType::ALL.into_iter().filter(|t| !quantised(t)).flat_map(row_major_functions));
    out.extend([TensorType::F16, TensorType::BF16].map(half_product_function));
    out.extend(TensorType::ALL.into_iter().filter(quantised).map(widen_function));
    out.extend(TensorType::ALL.into_iter().flat_map(expert_functions));
    let takes_int8 = |t: &TensorType| matmul::takes(*t, Activations::Int8);
    out.extend(TensorType::ALL.into_iter().filter(takes_int8).map(int8_expert_function));
    out.extend(TensorType::ALL.into_iter().filter(|t| !quantised(t)).flat_map(row_major_expert_functions));
    out.into_iter().flat_map(Function::variants).collect()
}

fn embed_function(tensor_type: TensorType) -> Function {
    embedding(names!(""), tensor_type, Layout::Rows16, composer!(tensor_type, embed_source))
}

fn embedding(names: Names, tensor_type: TensorType, layout: Layout, source: Compose) -> Function {
    Function {
        kernel: Kernel::Embed(tensor_type),
        names,
        grid: add::grid,
        layout: Some(layout),
        min_rows: 0,
        max_rows: u32::MAX,
        source,
        function: "embed",
        items: EMBED_ITEMS,
        local_bytes: 0,
    }
}

/// Returns the products of `tensor_type` with `activations`: for one row of x, for a few rows, and for many.
fn matmul_functions(tensor_type: TensorType, activations: Activations) -> [Function; 4] {
    let gemv = |names, max_rows, source| Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        names,
        grid: gemv_grid,
        layout: Some(Layout::Rows16),
        min_rows: 0,
        max_rows,
        source,
        function: "matmul_gemv",
        items: GEMV_ITEMS,
        local_bytes: 12 << 10,
    };
    let single = |source| Function {
        items: gemv_items(tensor_type, 1),
        local_bytes: if tensor_type.block_values() == 1 { 36 << 10 } else { 12 << 10 },
        ..gemv(names!("-gemv-1"), 1, source)
    };
    let tiled = |source| tiled(names!("-tiled"), tensor_type, (Layout::Rows16, activations), source);
    match activations {
        Activations::Int8 => [
            single(composer!(tensor_type, fast_gemv::<1>)),
            gemv(names!("-gemv-4"), 4, composer!(tensor_type, fast_gemv::<4>)),
            gemv(names!("-gemv-8"), 8, composer!(tensor_type, fast_gemv::<8>)),
            tiled(composer!(tensor_type, fast_tiled)),
        ],
        Activations::F32 | Activations::F16 => [
            single(composer!(tensor_type, exact_gemv::<1>)),
            gemv(names!("-gemv-4"), 4, composer!(tensor_type, exact_gemv::<4>)),
            gemv(names!("-gemv-8"), 8, composer!(tensor_type, exact_gemv::<8>)),
            tiled(composer!(tensor_type, exact_tiled)),
        ],
    }
}

/// Returns the product for many rows of x.
fn tiled(
    names: Names,
    tensor_type: TensorType,
    (layout, activations): (Layout, Activations),
    source: Compose,
) -> Function {
    Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        names,
        grid: tiled_grid,
        layout: Some(layout),
        min_rows: 0,
        max_rows: u32::MAX,
        source,
        function: "matmul_tiled",
        items: TILED_ITEMS,
        local_bytes: 20 << 10,
    }
}

/// Returns all kernels with f32 activations that read plain weights in the row-major layout.
fn row_major_functions(tensor_type: TensorType) -> [Function; 6] {
    let form = (Layout::RowMajor, Activations::F32);
    let gemv = |names, max_rows, source| Function {
        grid: rows_grid,
        max_rows,
        function: "matmul_rows",
        items: GEMV_ITEMS,
        local_bytes: 8 << 10,
        ..tiled(names, tensor_type, form, source)
    };
    let embed = composer!(tensor_type, row_major_embed_source);
    let narrow = gemv(names!("-row-major-narrow"), NARROW, composer!(tensor_type, narrow_source));
    [
        embedding(names!("-row-major"), tensor_type, Layout::RowMajor, embed),
        gemv(names!("-row-major-gemv-1"), 1, composer!(tensor_type, row_major_gemv::<1>)),
        gemv(names!("-row-major-gemv-4"), 4, composer!(tensor_type, row_major_gemv::<4>)),
        gemv(names!("-row-major-gemv-8"), 8, composer!(tensor_type, row_major_gemv::<8>)),
        Function { grid: narrow_grid, ..narrow },
        tiled(names!("-row-major-tiled"), tensor_type, form, composer!(tensor_type, row_major_tiled)),
    ]
}

/// Returns the product with f16 activations for devices that have neither matrix units nor f16 arithmetic in
/// sub-groups. It is no faster than the product with f32 activations.
fn half_product_function(tensor_type: TensorType) -> Function {
    let form = (Layout::RowMajor, Activations::F16);
    let function = tiled(names!("-tiled"), tensor_type, form, composer!(tensor_type, half_tiled));
    Function { min_rows: NEVER, ..function }
}

/// Returns the kernel that dequantizes weights. It pays off only on devices with matrix units, and only with
/// enough rows. The variants of the f16 product, not this kernel, check for matrix units.
fn widen_function(tensor_type: TensorType) -> Function {
    Function {
        kernel: Kernel::Widen(tensor_type),
        names: names!(""),
        grid: widen::grid,
        layout: Some(Layout::Rows16),
        min_rows: WIDEN_ROWS,
        max_rows: u32::MAX,
        source: composer!(tensor_type, widen_source),
        function: "widen",
        items: WIDEN_ITEMS,
        local_bytes: 0,
    }
}

/// Returns the products with the weights of experts: for a few rows of x, and for many.
fn expert_functions(tensor_type: TensorType) -> [Function; 2] {
    let few = Function {
        kernel: Kernel::ExpertMatMul(tensor_type, Activations::F32),
        names: names!(""),
        grid: experts::matmul::grid,
        layout: Some(Layout::Rows16),
        min_rows: 0,
        max_rows: EXPERT_ROWS,
        source: composer!(tensor_type, expert_source),
        function: "expert_matmul",
        items: EXPERT_ITEMS,
        local_bytes: 4 << 10,
    };
    let many = Function {
        names: names!("-tiled"),
        grid: experts::matmul::tiled_grid::<64>,
        max_rows: u32::MAX,
        source: composer!(tensor_type, tiled_expert_source),
        function: "expert_matmul_tiled",
        local_bytes: 27 << 10,
        ..few
    };
    [few, many]
}

/// Returns the product of a few rows of int8 activations and the weights of experts.
fn int8_expert_function(tensor_type: TensorType) -> Function {
    let [few, _] = expert_functions(tensor_type);
    Function {
        kernel: Kernel::ExpertMatMul(tensor_type, Activations::Int8),
        source: composer!(tensor_type, int8_expert_source),
        function: "expert_matmul_int8",
        ..few
    }
}

fn row_major_expert_functions(tensor_type: TensorType) -> [Function; 2] {
    let [few, many] = expert_functions(tensor_type);
    let layout = Some(Layout::RowMajor);
    let source = composer!(tensor_type, row_major_expert_source);
    let tiled = composer!(tensor_type, row_major_tiled_expert_source);
    [
        Function { names: names!("-row-major"), layout, source, ..few },
        Function { names: names!("-row-major-tiled"), layout, source: tiled, ..many },
    ]
}

/// Returns a grid with one work group per group of 16 weight rows.
fn gemv_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(GROUP_ROWS as u32), 1, 1] }
}

/// Returns a grid with one work group per `GEMV_ITEMS / SHARING` weight rows.
fn rows_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(GEMV_ITEMS.0 / SHARING), 1, 1] }
}

/// Returns the grid of [`rows_grid`] for each [`NARROW_ROWS`] rows of x.
fn narrow_grid(constants: &[u32]) -> [u32; 3] {
    [rows_grid(constants)[0], constants[0].div_ceil(NARROW_ROWS), 1]
}

/// Returns a grid with one group per tile: tiles of rows of x in the first dimension, tiles of weight rows in
/// the second. Neighbouring groups read the same weights.
fn tiled_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1]
}

const PLAIN: &str = include_str!("weights/plain.cl");
pub(super) const QUANTISED: &str = include_str!("weights/quantised.cl");
pub(super) const ROW_MAJOR: &str = include_str!("weights/row_major.cl");
const VALUES: &str = include_str!("weights/values.cl");

/// Returns the sources that read weights of `tensor_type` in the `Rows16` layout.
pub(super) fn reader(tensor_type: TensorType) -> [&'static str; 3] {
    let own = tensor_type.row().c;
    if tensor_type.block_values() == 1 { [own, PLAIN, ""] } else { [QUANTISED, own, VALUES] }
}

/// Returns the work items per group of a product with up to `m` rows of x.
fn gemv_items(tensor_type: TensorType, m: u32) -> Items {
    if m == 1 && tensor_type.block_values() == 1 { WIDE_ITEMS } else { GEMV_ITEMS }
}

fn with_reader(language: KernelLanguage, tensor_type: TensorType, items: Items, parts: &[&str]) -> Arc<str> {
    program(language, items, &[&reader(tensor_type)[..], parts].concat())
}

fn embed_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, EMBED_ITEMS, &[include_str!("../embed/embed.cl")])
}

pub(super) const BLOCKS: &str = include_str!("../matmul/blocks.cl");
/// Sums of int8 products. `BATCH` blocks are loaded at a time.
pub(super) const FAST: &str = include_str!("../matmul/fast.cl");
const GEMV: &str = include_str!("../matmul/gemv.cl");
const TILED: &str = include_str!("../matmul/tiled_exact.cl");
const F32_ROWS: &str = include_str!("../matmul/f32_rows.cl");

/// Composes a product for up to `M` rows of f32 activations.
fn exact_gemv<const M: u32>(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let input = format!("#define M {M}\n#define INPUT float\n#define ROW_LENGTH(k) (k)\n");
    let sums = match tensor_type.block_values() {
        1 => include_str!("../matmul/plain.cl"),
        _ => include_str!("../matmul/exact.cl"),
    };
    with_reader(language, tensor_type, gemv_items(tensor_type, M), &[&input, sums, GEMV])
}

/// Composes a product for up to `M` rows of int8 activations.
fn fast_gemv<const M: u32>(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let input = format!("#define M {M}\n#define INPUT uchar\n#define ROW_LENGTH(k) row_bytes(k)\n");
    with_reader(
        language,
        tensor_type,
        gemv_items(tensor_type, M),
        &[&input, BLOCKS, include_str!("../matmul/fast_batch.cl"), FAST, GEMV],
    )
}

fn exact_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, TILED_ITEMS, &[F32_ROWS, TILED])
}

fn fast_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, TILED_ITEMS, &[BLOCKS, include_str!("../matmul/tiled_fast.cl")])
}

/// Composes a program that reads plain weights in the row-major layout.
fn with_rows(language: KernelLanguage, tensor_type: TensorType, items: Items, parts: &[&str]) -> Arc<str> {
    let reader = [tensor_type.row().c, ROW_MAJOR];
    program(language, items, &[&reader[..], parts].concat())
}

const EXPERT_MATMUL: &str = include_str!("../experts/matmul.cl");

fn expert_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, EXPERT_ITEMS, &[EXPERT_MATMUL])
}

fn int8_expert_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let product = include_str!("../experts/matmul_int8.cl");
    with_reader(language, tensor_type, EXPERT_ITEMS, &[BLOCKS, product])
}

fn row_major_expert_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_rows(language, tensor_type, EXPERT_ITEMS, &[EXPERT_MATMUL])
}

const TILED_EXPERTS: &str = include_str!("../experts/tiled.cl");

fn tiled_expert_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, EXPERT_ITEMS, &[TILED_EXPERTS])
}

fn row_major_tiled_expert_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_rows(language, tensor_type, EXPERT_ITEMS, &[TILED_EXPERTS])
}

fn row_major_embed_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_rows(language, tensor_type, EMBED_ITEMS, &[include_str!("../embed/embed.cl")])
}

/// Composes a row-major product for up to `M` rows of f32 activations.
fn row_major_gemv<const M: u32>(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    row_products(language, tensor_type, M, false)
}

/// Composes a row-major product for many rows of x and few results.
fn narrow_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    row_products(language, tensor_type, NARROW_ROWS, true)
}

fn row_products(language: KernelLanguage, tensor_type: TensorType, rows: u32, is_narrow: bool) -> Arc<str> {
    let figures = format!("#define M {rows}\n#define NARROW {}\n", u32::from(is_narrow));
    with_rows(language, tensor_type, GEMV_ITEMS, &[&figures, include_str!("../matmul/rows.cl")])
}

fn row_major_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_rows(language, tensor_type, TILED_ITEMS, &[F32_ROWS, TILED])
}

fn half_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let f16_rows = include_str!("../matmul/f16_rows.cl");
    with_rows(language, tensor_type, TILED_ITEMS, &[HALF_ROWS, f16_rows, TILED])
}

fn widen_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, WIDEN_ITEMS, &[HALF_ROWS, include_str!("../widen/widen.cl")])
}
