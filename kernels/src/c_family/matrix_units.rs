//! Kernels for NVIDIA's matrix units in CUDA C++: products of row-major weights with f16 activations, and
//! attention over an f16 cache.
//!
//! | needs | instruction | |
//! | --- | --- | --- |
//! | [`Feature::Sm90a`] | `wgmma` | one warpgroup copies, the others multiply; for few rows, a cluster splits the columns of a tile |
//! | [`Feature::Sm80`] | `mma` | |
//! | [`Feature::Sm70`] | `wmma` | |
//!
//! For bf16 weights, `wgmma` and `mma` round x to bf16, with 8 significant bits (a relative error of 2e-3).
//! `wmma` converts bf16 weights to f16 instead.

use super::{Items, program};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel, KvType, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

type Compose = fn(KernelLanguage) -> Arc<str>;

/// Work items per group, except in kernels that use warpgroups.
const ITEMS: Items = Items(256);

/// Minimum number of rows of x for which programs prefer these products. With fewer rows, products with f32
/// activations are as fast, because the time to load the weights limits both.
const MIN_ROWS: u32 = 5;

/// Maximum number of rows of x for the few-row products.
const FEW: u32 = 64;

/// Tile of y that one group of a few-row product computes, in rows of weights and rows of x: `WEIGHT_ROWS`
/// and `TOKENS` in the source.
const FEW_TILE: (u32, u32) = (32, 32);

/// Bytes of one row of a tile in local memory.
pub(super) const TILE_ROW: u32 = 128;

/// Alignment, in bytes, that `wgmma` requires of data in local memory. Local memory itself may start at a
/// less aligned address.
pub(super) const ALIGNMENT: u32 = 1024;

/// Maximum number of queries that an attention group processes at once: `QUERIES` in the source.
const QUERIES: u32 = 128;

/// Minimum number of row tiles for attention, if the launch has enough rows. This number yields enough groups
/// to fill a device.
const MIN_TILES: u32 = 32;

/// Returns the products, best first.
pub(super) fn products() -> Vec<Variant> {
    [TensorType::F16, TensorType::BF16].into_iter().flat_map(products_of).collect()
}

/// Returns a function that composes the source of a product with bf16 or f16 weights.
macro_rules! composer {
    ($tensor_type:expr, $compose:ident $(, $figure:literal)*) => {
        match $tensor_type {
            TensorType::BF16 => (|_| $compose(TensorType::BF16 $(, $figure)*)) as Compose,
            _ => (|_| $compose(TensorType::F16 $(, $figure)*)) as Compose,
        }
    };
}

/// Returns a product that uses `wgmma`. The last four parameters are the number of consumer warpgroups, the
/// number of columns per tile, the number of pipeline stages, and the number of groups that share one tile.
macro_rules! wgmma {
    ($tensor_type:expr, $name:literal, $max_rows:expr, $consumers:literal, $columns:literal, $stages:literal, $split:literal) => {{
        let bytes = $stages * ((64 * $consumers + $columns) * TILE_ROW + 16) + ALIGNMENT;
        let compose = composer!($tensor_type, wgmma_source, $consumers, $columns, $stages, $split);
        let grid =
            |constants: &[u32], units| wgmma_grid(constants, (64 * $consumers, $columns), $split, units);
        let grid = Grid::PerDevice(grid);
        let text = text(compose, "matmul_wgmma", 128 * ($consumers + 1), bytes);
        product($tensor_type, $name, &[Feature::Sm90a], $max_rows, grid, text)
    }};
}

fn products_of(tensor_type: TensorType) -> Vec<Variant> {
    let few_bytes = ITEMS.0 / 32 * FEW_TILE.1 * (FEW_TILE.0 + 4) * 4;
    let few = text(composer!(tensor_type, few_source), "matmul_few", ITEMS.0, few_bytes);
    let mma = text(composer!(tensor_type, mma_source), "matmul_mma", ITEMS.0, 3 * 256 * TILE_ROW + TILE_ROW);
    let wmma = text(composer!(tensor_type, wmma_source), "matmul_wmma", 128, 0);
    let wmma = Text { local_bytes: 36 << 10, ..wmma };
    vec![
        wgmma!(tensor_type, "cuda-sm90a-wgmma-64", FEW, 1, 64, 6, 2),
        wgmma!(tensor_type, "cuda-sm90a-wgmma-128-split", 256, 2, 128, 6, 2),
        wgmma!(tensor_type, "cuda-sm90a-wgmma-128", 1024, 2, 128, 6, 1),
        wgmma!(tensor_type, "cuda-sm90a-wgmma-256", u32::MAX, 2, 256, 4, 1),
        product(tensor_type, "cuda-sm80-mma-few", &[Feature::Sm80], FEW, Grid::Fixed(few_grid), few),
        product(
            tensor_type,
            "cuda-sm80-mma",
            &[Feature::Sm80],
            u32::MAX,
            Grid::Fixed(|c| tiles(c, 128)),
            mma,
        ),
        product(
            tensor_type,
            "cuda-sm70-wmma",
            &[Feature::Sm70],
            u32::MAX,
            Grid::Fixed(|c| tiles(c, 64)),
            wmma,
        ),
    ]
}

fn product(
    tensor_type: TensorType,
    name: &'static str,
    requires: &'static [Feature],
    max_rows: u32,
    grid: Grid,
    text: Text,
) -> Variant {
    Variant {
        kernel: Kernel::MatMul(tensor_type, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires,
        abi: matmul::abi(tensor_type, Layout::RowMajor, Activations::F16),
        grid,
        layout: Some(Layout::RowMajor),
        min_rows: MIN_ROWS,
        max_rows,
        code: Code::Text(text),
    }
}

fn text(compose: Compose, function: &'static str, items: u32, dynamic_local_bytes: u32) -> Text {
    let local_bytes = u64::from(dynamic_local_bytes) + 16;
    let work_group = [items, 1, 1];
    Text { language: KernelLanguage::CudaC, compose, function, work_group, local_bytes, dynamic_local_bytes }
}

/// Returns a grid with one group per tile of `side` × `side` values of y. Neighbouring groups read the same
/// weights.
fn tiles(constants: &[u32], side: u32) -> [u32; 3] {
    [constants[0].div_ceil(side), constants[2].div_ceil(side), 1]
}

/// Returns a grid with one group per tile: tiles of weight rows in the first dimension, tiles of rows of x in
/// the second.
fn few_grid(constants: &[u32]) -> [u32; 3] {
    [constants[2].div_ceil(FEW_TILE.0), constants[0].div_ceil(FEW_TILE.1), 1]
}

/// Returns a grid with one cluster of `split` groups per tile. If `split` is 1, the grid has at most one
/// group per multiprocessor, and each group loops over tiles.
fn wgmma_grid(constants: &[u32], (rows, columns): (u32, u32), split: u32, multiprocessors: u32) -> [u32; 3] {
    let tiles = constants[0].div_ceil(rows).saturating_mul(constants[2].div_ceil(columns));
    [if split > 1 { tiles.saturating_mul(split) } else { tiles.min(multiprocessors) }, 1, 1]
}

/// Returns the attention kernels, best first.
pub(super) fn attention() -> [Variant; 4] {
    let parts_bytes = 2 * 64 * TILE_ROW * 2;
    let wgmma_bytes = 4 * (2 * QUERIES * TILE_ROW + 16) + 2 * parts_bytes + ALIGNMENT;
    let mma_bytes = 2 * 2 * QUERIES * TILE_ROW + TILE_ROW;
    let variant = |kernel: Kernel, name, requires, text| Variant {
        kernel,
        name,
        class: NumericsClass::Exact,
        requires,
        abi: kernel.abi(None),
        grid: Grid::Fixed(attention_grid),
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        code: Code::Text(text),
    };
    let wgmma = |compose| text(compose, "attention_wgmma", 384, wgmma_bytes);
    let mma = |compose| text(compose, "attention_flash", ITEMS.0, mma_bytes);
    let of = |kernel, wgmma, mma| {
        [
            variant(kernel, "cuda-sm90a-wgmma", &[Feature::Sm90a], wgmma),
            variant(kernel, "cuda-sm80-mma", &[Feature::Sm80], mma),
        ]
    };
    let whole = of(
        Kernel::Attention(KvType::F16),
        wgmma(|_| attention_wgmma_source(WHOLE)),
        mma(|_| attention_source(WHOLE)),
    );
    let shared = of(
        Kernel::AttentionShared(KvType::F16),
        wgmma(|_| attention_wgmma_source(PARTIAL)),
        mma(|_| attention_source(PARTIAL)),
    );
    let [[a, b], [c, d]] = [whole, shared];
    [a, b, c, d]
}

/// Returns a grid of kv heads × row tiles. A group processes up to 128 queries of one kv head. If there are
/// few rows, tiles are smaller, so that there are enough groups to fill a device.
fn attention_grid(constants: &[u32]) -> [u32; 3] {
    let (rows, heads, kv_heads) = (constants[0], constants[4], constants[5]);
    let sharing = heads.checked_div(kv_heads).unwrap_or(0).max(1);
    let height = rows.div_ceil(MIN_TILES).clamp(1, (QUERIES / sharing).max(1));
    [kv_heads, rows.div_ceil(height), 1]
}

pub(super) const INSTRUCTIONS: &str = include_str!("ptx.cu");
pub(super) const WARPGROUPS: &str = include_str!("wgmma.cu");
pub(super) const HALF: &str = include_str!("../matmul/half.cu");

/// Composes the source of a product: definitions for the weight type, the code that all products share, then
/// `parts`.
fn source(tensor_type: TensorType, parts: &[&str]) -> Arc<str> {
    let kind = match tensor_type {
        TensorType::BF16 => "#define WEIGHTS_BF16 1\n#define MULTIPLY multiply_bf16\n",
        _ => "#define WEIGHTS_BF16 0\n#define MULTIPLY multiply_f16\n",
    };
    program(KernelLanguage::CudaC, ITEMS, &[&[kind, INSTRUCTIONS, HALF], parts].concat())
}

fn few_source(tensor_type: TensorType) -> Arc<str> {
    source(tensor_type, &[include_str!("../matmul/few.cu")])
}

fn mma_source(tensor_type: TensorType) -> Arc<str> {
    source(tensor_type, &[include_str!("../matmul/mma.cu")])
}

fn wmma_source(tensor_type: TensorType) -> Arc<str> {
    source(tensor_type, &[include_str!("../matmul/wmma.cu")])
}

fn wgmma_source(tensor_type: TensorType, consumers: u32, columns: u32, stages: u32, split: u32) -> Arc<str> {
    let figures = format!(
        "#define CONSUMERS {consumers}\n#define COLUMNS {columns}\n#define STAGES {stages}\n#define SPLIT {split}\n"
    );
    let (left, values) = match tensor_type {
        TensorType::BF16 => (Left::Registers, "bf16"),
        _ => (Left::Memory, "f16"),
    };
    let product =
        Product { name: "tile_product", columns, left, values, begins: false, transposes: false }.function();
    source(tensor_type, &[WARPGROUPS, &figures, &product, include_str!("../matmul/wgmma.cu")])
}

/// Macro that makes the attention kernel represent each query and each softmax weight as the sum of two f16
/// values. This precision puts attention in the exact class.
const PARTS: &str = "#define PARTS 2\n";
const LISTS: &str = include_str!("lists.cl");
const FLASH: &str = include_str!("../attention/flash.cu");
const FLASH_MMA: &str = include_str!("../attention/flash_mma.cu");

/// Macros that make the attention kernel write its result, or partials.
const WHOLE: &str = "#define PARTIAL 0\n";
const PARTIAL: &str = "#define PARTIAL 1\n";

fn attention_source(results: &str) -> Arc<str> {
    let parts =
        [INSTRUCTIONS, PARTS, results, LISTS, FLASH, FLASH_MMA, include_str!("../attention/flash_kernel.cu")];
    program(KernelLanguage::CudaC, ITEMS, &parts)
}

fn attention_wgmma_source(results: &str) -> Arc<str> {
    let product = |name, columns, left, begins| {
        Product { name, columns, left, values: "f16", begins, transposes: true }.function()
    };
    let parts = [
        INSTRUCTIONS,
        PARTS,
        results,
        LISTS,
        FLASH,
        FLASH_MMA,
        WARPGROUPS,
        &product("product_of_keys", 64, Left::Memory, false),
        &product("first_product_of_keys", 64, Left::Memory, true),
        &product("product_of_values", 64, Left::Registers, false),
        &product("product_of_values", 128, Left::Registers, false),
        &product("product_of_values", 256, Left::Registers, false),
        include_str!("../attention/flash_wgmma.cu"),
    ];
    program(KernelLanguage::CudaC, ITEMS, &parts)
}

/// Location of the left factor of a `wgmma`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Memory,
    Registers,
}

/// Generated function that executes one `wgmma` of 64 × 16 by 16 × `columns` values and adds the product to
/// `columns / 2` floats per thread. Each shape needs its own function, because the instruction names every
/// register.
pub(super) struct Product {
    pub name: &'static str,
    pub columns: u32,
    pub left: Left,
    pub values: &'static str,
    /// Whether the product overwrites the accumulators instead of being added to them.
    pub begins: bool,
    /// Whether the right factor is stored row by row (16 × `columns`) instead of column by column.
    pub transposes: bool,
}

impl Product {
    pub fn function(&self) -> String {
        let Self { name, columns, left, values, begins, transposes } = *self;
        let sums = columns / 2;
        let list =
            |numbers: std::ops::Range<u32>| numbers.map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ");
        let constraint = if begins { "=f" } else { "+f" };
        let outputs: Vec<String> = (0..sums).map(|i| format!("\"{constraint}\"(d[{i}])")).collect();
        let (parameter, factor, right, inputs, left_order) = match left {
            Left::Memory => ("ulong left", list(sums..sums + 1), sums + 1, "\"l\"(left)", ", 0"),
            Left::Registers => (
                "const uint *a",
                format!("{{{}}}", list(sums..sums + 4)),
                sums + 4,
                "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])",
                "",
            ),
        };
        format!(
            "FN void {name}(float (&d)[{sums}], {parameter}, ulong right) {{\n    \
             asm volatile(\"{{ .reg .pred adds; setp.ne.b32 adds, {adds}, 0; \"\n        \
             \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{values}.{values} \"\n        \
             \"{{{registers}}}, \"\n        \
             \"{factor}, %{right}, adds, 1, 1{left_order}, {order}; }}\"\n        \
             : {outputs}\n        : {inputs}, \"l\"(right));\n}}\n",
            adds = u32::from(!begins),
            registers = list(0..sums),
            order = u32::from(transposes),
            outputs = outputs.join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_name_every_register_once() {
        let product = |left, columns| {
            let product =
                Product { name: "p", columns, left, values: "f16", begins: false, transposes: true };
            product.function()
        };
        let text = product(Left::Memory, 64);
        for expected in ["m64n64k16.f32.f16.f16", "%30, %31}, ", "%32, %33, adds, 1, 1, 0, 1;", "(d[31])"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let text = product(Left::Registers, 128);
        for expected in ["{%64, %65, %66, %67}, %68, adds, 1, 1, 1;", "\"+f\"(d[63])\n", "const uint *a"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn grids_cover_all_rows() {
        // Rows, sequences, table blocks, logit rows, heads, kv heads.
        for (rows, heads, kv_heads, grid) in [
            (0, 8, 2, [2, 0, 1]),
            (1, 8, 2, [2, 1, 1]),
            (64, 32, 8, [8, 32, 1]),
            (2048, 32, 8, [8, 64, 1]),
            (2048, 32, 32, [32, 32, 1]),
            (40, 300, 1, [1, 40, 1]),
        ] {
            assert_eq!(attention_grid(&[rows, 1, 1, 1, heads, kv_heads]), grid, "{rows} × {heads}");
        }
        for units in [132, 114, 7] {
            assert_eq!(wgmma_grid(&[2048, 0, 4096], (128, 256), 1, units), [units, 1, 1]);
            assert_eq!(wgmma_grid(&[128, 0, 512], (128, 256), 1, units), [2, 1, 1], "no more than tiles");
            assert_eq!(
                wgmma_grid(&[1000, 0, 1000], (64, 64), 2, units),
                [512, 1, 1],
                "clusters share no tiles"
            );
        }
        assert_eq!(wgmma_grid(&[33, 0, 100], (64, 64), 2, 132), [4, 1, 1]);
        assert_eq!(wgmma_grid(&[0, 0, 100], (64, 64), 2, 132), [0, 1, 1]);
    }
}
