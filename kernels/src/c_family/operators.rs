//! Operators that compute products: gemm, dense attention, convolution.

use super::{Function, Items, names, program};
use crate::kernel::{ElementType, Kernel};
use crate::variant::Variant;
use crate::{attention_dense, conv2d, gemm};
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

/// Work items per group of a tiled operator: `LINE` × `LANE` = 16 × 8 in the source.
const TILE_ITEMS: Items = Items(128);

/// Upper bound on the local memory for two tiles, in bytes.
const TILE_BYTES: u64 = 10 << 10;

/// Work items per attention group: 16 × 16 or 64 × 4 in the source.
const ATTENTION_ITEMS: Items = Items(256);

pub(super) fn variants() -> Vec<Variant> {
    let products = ElementType::ALL.into_iter().map(gemm_function);
    let attention = ElementType::ALL.into_iter().map(attention_function);
    let convolutions = ElementType::ALL.into_iter().map(conv2d_function);
    products.chain(attention).chain(convolutions).flat_map(Function::variants).collect()
}

/// Returns a function that composes the source for an element type. The type is known at compile time.
macro_rules! composer {
    ($element:expr, $compose:expr) => {
        match $element {
            ElementType::F32 => |language| $compose(language, ElementType::F32),
            ElementType::F16 => |language| $compose(language, ElementType::F16),
            ElementType::BF16 => |language| $compose(language, ElementType::BF16),
        }
    };
}

/// Returns the source that reads values of type `element`.
fn elements(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => include_str!("elements/f32.cl"),
        ElementType::F16 => include_str!("elements/f16.cl"),
        ElementType::BF16 => include_str!("elements/bf16.cl"),
    }
}

const TILE: &str = include_str!("tile.cl");

fn gemm_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::Gemm(element),
        names: names!("-tiled"),
        grid: gemm::grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source: composer!(element, gemm_source),
        function: "gemm",
        items: TILE_ITEMS,
        local_bytes: TILE_BYTES,
    }
}

fn gemm_source(language: KernelLanguage, element: ElementType) -> Arc<str> {
    program(language, TILE_ITEMS, &[elements(element), TILE, include_str!("../gemm/gemm.cl")])
}

fn attention_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::AttentionDense(element),
        grid: attention_dense::grid,
        source: composer!(element, attention_source),
        function: "attention_dense",
        items: ATTENTION_ITEMS,
        local_bytes: 14 << 10,
        ..gemm_function(element)
    }
}

fn attention_source(language: KernelLanguage, element: ElementType) -> Arc<str> {
    let source = include_str!("../attention_dense/attention_dense.cl");
    program(language, ATTENTION_ITEMS, &[elements(element), include_str!("tanh.cl"), source])
}

fn conv2d_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::Conv2d(element),
        grid: conv2d::grid,
        source: composer!(element, conv2d_source),
        function: "conv2d",
        ..gemm_function(element)
    }
}

fn conv2d_source(language: KernelLanguage, element: ElementType) -> Arc<str> {
    program(language, TILE_ITEMS, &[elements(element), TILE, include_str!("../conv2d/conv2d.cl")])
}
