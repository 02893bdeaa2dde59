//! The kernels that read weights in blocks: the embedding and the products, each once for every tensor type.

use super::{Function, Items, names, program};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel};
use crate::layout::GROUP_ROWS;
use crate::table::Variant;
use crate::{add, embed, matmul};
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Rows of x, and rows of weights, that a group of the tiled product computes.
const TILE: u32 = 64;

const EMBED_ITEMS: Items = Items(256);
/// Weights that are not in blocks are many bytes for one row of x: many items hide the memory's latency. A device that
/// takes smaller groups only, or has less local memory, has the variant for four rows.
const WIDE_ITEMS: Items = Items(1024);
const GEMV_ITEMS: Items = Items(256);
const TILED_ITEMS: Items = Items(128);

type Compose = fn(KernelLanguage) -> Arc<str>;

/// A function that composes a text for a type that is known when this crate is compiled.
macro_rules! composer {
    ($tensor_type:expr, $compose:expr) => {
        composer!(
            $tensor_type, $compose; F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K TQ1_0 TQ2_0
        )
    };
    ($tensor_type:expr, $compose:expr; $($name:ident)*) => {
        match $tensor_type {
            $(TensorType::$name => (|language| $compose(language, TensorType::$name)) as Compose,)*
        }
    };
}

pub(super) fn variants() -> Vec<Variant> {
    let mut out: Vec<Function> = TensorType::ALL.into_iter().map(embed_function).collect();
    for activations in [Activations::F32, Activations::Int8] {
        let takes = |t: &TensorType| matmul::activations_for(*t, activations) == activations;
        out.extend(TensorType::ALL.into_iter().filter(takes).flat_map(|t| matmul_functions(t, activations)));
    }
    out.into_iter().flat_map(Function::variants).collect()
}

fn embed_function(tensor_type: TensorType) -> Function {
    Function {
        kernel: Kernel::Embed(tensor_type),
        names: names!(""),
        abi: embed::abi(tensor_type),
        grid: add::grid,
        max_rows: u32::MAX,
        source: composer!(tensor_type, embed_source),
        function: "embed",
        items: EMBED_ITEMS,
        local_bytes: 0,
    }
}

/// The products: for one row of x, for a few, and for many.
fn matmul_functions(tensor_type: TensorType, activations: Activations) -> [Function; 4] {
    let gemv = |names, max_rows, source| Function {
        kernel: Kernel::MatMul(tensor_type, activations),
        names,
        abi: matmul::abi(tensor_type, activations),
        grid: gemv_grid,
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
    let tiled = |source| Function {
        grid: tiled_grid,
        function: "matmul_tiled",
        items: TILED_ITEMS,
        local_bytes: 20 << 10,
        ..gemv(names!("-tiled"), u32::MAX, source)
    };
    match activations {
        Activations::F32 => [
            single(composer!(tensor_type, exact_gemv::<1>)),
            gemv(names!("-gemv-4"), 4, composer!(tensor_type, exact_gemv::<4>)),
            gemv(names!("-gemv-8"), 8, composer!(tensor_type, exact_gemv::<8>)),
            tiled(composer!(tensor_type, exact_tiled)),
        ],
        Activations::Int8 => [
            single(composer!(tensor_type, fast_gemv::<1>)),
            gemv(names!("-gemv-4"), 4, composer!(tensor_type, fast_gemv::<4>)),
            gemv(names!("-gemv-8"), 8, composer!(tensor_type, fast_gemv::<8>)),
            tiled(composer!(tensor_type, fast_tiled)),
        ],
    }
}

/// A group of rows of weights for each work group.
fn gemv_grid(constants: &[u32]) -> [u32; 3] {
    if constants[0] == 0 { [0; 3] } else { [constants[2].div_ceil(GROUP_ROWS as u32), 1, 1] }
}

/// Tiles of rows of x × tiles of rows of weights: those that read the same weights are neighbours.
fn tiled_grid(constants: &[u32]) -> [u32; 3] {
    [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1]
}

const PLAIN: &str = include_str!("weights/plain.cl");
const QUANTISED: &str = include_str!("weights/quantised.cl");
const VALUES: &str = include_str!("weights/values.cl");

/// How weights of this type are read.
fn reader(tensor_type: TensorType) -> [&'static str; 3] {
    let quantised = |text| [QUANTISED, text, VALUES];
    match tensor_type {
        TensorType::F32 => [include_str!("weights/f32.cl"), PLAIN, ""],
        TensorType::F16 => [include_str!("weights/f16.cl"), PLAIN, ""],
        TensorType::BF16 => [include_str!("weights/bf16.cl"), PLAIN, ""],
        TensorType::Q8_0 => quantised(include_str!("weights/q8_0.cl")),
        TensorType::Q4_0 => quantised(include_str!("weights/q4_0.cl")),
        TensorType::Q4_1 => quantised(include_str!("weights/q4_1.cl")),
        TensorType::Q5_0 => quantised(include_str!("weights/q5_0.cl")),
        TensorType::Q5_1 => quantised(include_str!("weights/q5_1.cl")),
        TensorType::Q4_K => quantised(include_str!("weights/q4_k.cl")),
        TensorType::Q5_K => quantised(include_str!("weights/q5_k.cl")),
        TensorType::Q6_K => quantised(include_str!("weights/q6_k.cl")),
        TensorType::TQ1_0 | TensorType::TQ2_0 => quantised(include_str!("weights/ternary.cl")),
    }
}

/// Items of a product for `m` rows of x.
fn gemv_items(tensor_type: TensorType, m: u32) -> Items {
    if m == 1 && tensor_type.block_values() == 1 { WIDE_ITEMS } else { GEMV_ITEMS }
}

fn with_reader(language: KernelLanguage, tensor_type: TensorType, items: Items, parts: &[&str]) -> Arc<str> {
    program(language, items, &[&reader(tensor_type)[..], parts].concat())
}

fn embed_source(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, EMBED_ITEMS, &[include_str!("../embed/embed.cl")])
}

const BLOCKS: &str = include_str!("../matmul/blocks.cl");
const GEMV: &str = include_str!("../matmul/gemv.cl");

/// `M` rows of f32.
fn exact_gemv<const M: u32>(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let input = format!("#define M {M}\n#define INPUT float\n#define ROW_LENGTH(k) (k)\n");
    let sums = match tensor_type.block_values() {
        1 => include_str!("../matmul/plain.cl"),
        _ => include_str!("../matmul/exact.cl"),
    };
    with_reader(language, tensor_type, gemv_items(tensor_type, M), &[&input, sums, GEMV])
}

/// `M` rows of int8 activations.
fn fast_gemv<const M: u32>(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    let input = format!("#define M {M}\n#define INPUT uchar\n#define ROW_LENGTH(k) row_bytes(k)\n");
    with_reader(
        language,
        tensor_type,
        gemv_items(tensor_type, M),
        &[&input, BLOCKS, include_str!("../matmul/fast.cl"), GEMV],
    )
}

fn exact_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, TILED_ITEMS, &[include_str!("../matmul/tiled_exact.cl")])
}

fn fast_tiled(language: KernelLanguage, tensor_type: TensorType) -> Arc<str> {
    with_reader(language, tensor_type, TILED_ITEMS, &[BLOCKS, include_str!("../matmul/tiled_fast.cl")])
}
