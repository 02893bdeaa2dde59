//! Kernels in OpenCL C for devices with sub-groups of 16 work items, such as Intel's GPUs: norms, products for
//! few rows, and products for many rows on devices without matrix units.
//!
//! | kernels | what sub-groups replace |
//! | --- | --- |
//! | norms, products of few rows | sums over a group in local memory |
//! | products of many rows | tiles of x in local memory: an item loads a row of x and broadcasts its values |
//!
//! Products with f16 activations multiply in f16. They add up 16 products in f16, and larger sums in f32.
//! Intel's GPUs compute f16 at twice the rate of f32. Weights without blocks use these products and are
//! row-major on devices with sub-groups and f16 arithmetic. For other weights, dot products of int8 are
//! faster.
//!
//! The products of a type with the same activations are one program. Products of weights with blocks and f32
//! activations, class *exact*, have no variants here.

use super::weights::{self, BLOCKS, FAST};
use super::{Function, HALF_ROWS, Items, Names, names, program};
use crate::blocks::TensorType;
use crate::composer::{Compose, composer};
use crate::kernel::{Activations, Kernel};
use crate::layout::Layout;
use crate::rows::part_grid;
use crate::variant::{ADDS_IN_F16, Variant};
use crate::{add, head_norm, layer_norm, matmul};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Work items per group: 16 sub-groups.
const ITEMS: Items = Items(256);

/// Work items of a group that normalises one head.
const HEAD_ITEMS: Items = Items(128);

/// Minimum number of rows of x for which programs prefer products in f16. With fewer rows, most of a tile is
/// empty. This value was not measured.
const MIN_ROWS: u32 = 16;

/// Number of weight rows per group of a product for few rows.
const ROWS: u32 = 16;

/// Number of rows of x, and of weight rows, per group of a tiled product.
const TILE: u32 = 64;

const SUB_GROUPS: &[Feature] = &[Feature::SubGroups];

/// Returns the kernels that reduce rows.
pub(super) fn rows() -> Vec<Variant> {
    row_functions().into_iter().map(|function| variant(function, SUB_GROUPS)).collect()
}

/// Returns the products, best first for each number of rows.
pub(super) fn products() -> Vec<Variant> {
    let types = || TensorType::ALL.into_iter();
    let quantised = types().filter(|t| matmul::takes(*t, Activations::Int8)).flat_map(int8_functions);
    let plain = types().filter(|t| t.block_values() == 1).flat_map(f32_functions);
    let halves = [TensorType::F16, TensorType::BF16].into_iter().map(f16_function);
    let products = quantised.chain(plain).map(|function| variant(function, SUB_GROUPS));
    products.chain(halves.map(|function| variant(function, ADDS_IN_F16))).collect()
}

fn variant(function: Function, requires: &'static [Feature]) -> Variant {
    Variant { requires, ..function.variant(KernelLanguage::OpenClC) }
}

fn row_functions() -> [Function; 7] {
    let row = |kernel, function| Function {
        kernel,
        names: names!("-sub-groups"),
        grid: add::grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source: row_source,
        function,
        items: ITEMS,
        local_bytes: 4 << 10,
    };
    let head = row(Kernel::HeadNorm, "head_norm");
    // The norms call these functions, whose kernels are thus in the same program.
    let quantize =
        |activations, function| Function { grid: part_grid, ..row(Kernel::Quantize(activations), function) };
    [
        row(Kernel::RmsNorm(Activations::F32), "rms_norm_f32"),
        row(Kernel::RmsNorm(Activations::Int8), "rms_norm_int8"),
        row(Kernel::RmsNorm(Activations::F16), "rms_norm_f16"),
        Function { grid: layer_norm::grid, ..row(Kernel::LayerNorm, "layer_norm") },
        Function { grid: head_norm::grid, source: head_source, items: HEAD_ITEMS, ..head },
        quantize(Activations::Int8, "quantize"),
        quantize(Activations::F16, "quantize_f16"),
    ]
}

fn row_source(language: KernelLanguage) -> Arc<str> {
    let parts = [
        COMMON,
        SUMS,
        HALF_ROWS,
        include_str!("elements.cl"),
        include_str!("../quantize/quantize.cl"),
        include_str!("../rms_norm/rms_norm.cl"),
        include_str!("../layer_norm/layer_norm.cl"),
    ];
    program(language, ITEMS, &parts)
}

fn head_source(language: KernelLanguage) -> Arc<str> {
    program(language, HEAD_ITEMS, &[COMMON, SUMS, include_str!("../head_norm/head_norm.cl")])
}

/// Returns the products of weights with integer quants: for one row of x, and for many. With a few rows,
/// reductions take a smaller part of the time, and the kernels for all devices are used.
fn int8_functions(tensor_type: TensorType) -> [Function; 2] {
    let types = (tensor_type, Activations::Int8, Layout::Rows16);
    let source = composer!(tensor_type, int8_source);
    [few(names!("-sub-groups-gemv-1"), types, 1, source, "matmul_gemv"), tiled(types, source)]
}

/// Returns the products of weights without blocks and f32 activations: for one row of x, for a few rows, and
/// for many.
fn f32_functions(tensor_type: TensorType) -> [Function; 4] {
    let types = (tensor_type, Activations::F32, Layout::RowMajor);
    let source = composer!(tensor_type, f32_source);
    [
        few(names!("-sub-groups-gemv-1"), types, 1, source, "matmul_rows_1"),
        few(names!("-sub-groups-gemv-4"), types, 4, source, "matmul_rows_4"),
        few(names!("-sub-groups-gemv-8"), types, 8, source, "matmul_rows_8"),
        tiled(types, source),
    ]
}

/// Returns the product of weights without blocks and f16 activations.
fn f16_function(tensor_type: TensorType) -> Function {
    let types = (tensor_type, Activations::F16, Layout::RowMajor);
    Function { min_rows: MIN_ROWS, ..tiled(types, composer!(tensor_type, f16_source)) }
}

type Types = (TensorType, Activations, Layout);

/// Returns the product for up to `max_rows` rows of x.
fn few(names: Names, types: Types, max_rows: u32, source: Compose, function: &'static str) -> Function {
    let (tensor_type, activations, layout) = types;
    Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        names,
        grid: |constants| if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(ROWS), 1, 1] },
        layout: Some(layout),
        min_rows: 0,
        max_rows,
        source,
        function,
        items: ITEMS,
        local_bytes: 10 << 10,
    }
}

/// Returns the product for many rows of x.
fn tiled(types: Types, source: Compose) -> Function {
    Function {
        grid: |constants| [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1],
        local_bytes: 17 << 10,
        ..few(names!("-sub-groups-tiled"), types, u32::MAX, source, "matmul_tiled")
    }
}

const COMMON: &str = include_str!("sub_groups.cl");
const DOT4: &str = include_str!("sub_group_dot4.cl");
const SUMS: &str = include_str!("sub_group_sums.cl");
const TILED: &str = include_str!("../matmul/sub_groups_tiled.cl");

fn int8_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let [quantised, own, _] = weights::reader(tensor_type);
    // With more blocks at a time, Intel's compiler spills registers in sub-groups of 16.
    let one_row = ["#define M 1\n#define BATCH 1\n", FAST, include_str!("../matmul/sub_groups_gemv.cl")];
    let many_rows = [include_str!("../matmul/sub_groups_fast.cl")];
    let parts = [&[COMMON, DOT4, quantised, own, BLOCKS], &one_row[..], &many_rows];
    program(language, ITEMS, &parts.concat())
}

fn f32_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let rows = include_str!("../matmul/sub_groups_rows.cl");
    let few = [1, 4, 8].map(|m| {
        let named = rows.replace("matmul_rows", &format!("matmul_rows_{m}"));
        format!("#define M {m}\n{named}#undef M\n")
    });
    let f32_rows = include_str!("../matmul/sub_groups_f32_rows.cl");
    with_rows(language, tensor_type, &[&few.concat(), f32_rows, TILED])
}

fn f16_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let rows = include_str!("../matmul/sub_groups_f16_rows.cl");
    with_rows(language, tensor_type, &[HALF_ROWS, rows, TILED])
}

/// Composes a program that reads weights without blocks in the row-major layout.
fn with_rows(language: KernelLanguage, tensor_type: TensorType, parts: &[&str]) -> Arc<str> {
    let before = [COMMON, tensor_type.row().c, weights::ROW_MAJOR];
    program(language, ITEMS, &[&before, parts].concat())
}
