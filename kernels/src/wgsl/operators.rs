//! Operators that compute products: gemm, dense attention, convolution.

use super::Function;
use crate::kernel::{ElementType, Kernel};
use crate::variant::Variant;
use crate::{attention_dense, conv2d, gemm};
use std::sync::Arc;

/// Work items per group of a tiled operator: 16 × 8 in the source.
const TILE_ITEMS: u32 = 128;

/// Upper bound on the local memory for two tiles, in bytes.
const TILE_BYTES: u64 = 10 << 10;

/// Work items per attention group: 16 × 16 or 64 × 4 in the source.
const ATTENTION_ITEMS: u32 = 256;

pub(super) fn variants() -> Vec<Variant> {
    let products = ElementType::ALL.into_iter().map(gemm_function);
    let attention = ElementType::ALL.into_iter().map(attention_function);
    let convolutions = ElementType::ALL.into_iter().map(conv2d_function);
    products.chain(attention).chain(convolutions).map(Function::variant).collect()
}

/// Returns a function that composes the source for an element type. The type is known at compile time.
macro_rules! composer {
    ($element:expr, $compose:expr) => {
        match $element {
            ElementType::F32 => |_| $compose(ElementType::F32),
            ElementType::F16 => |_| $compose(ElementType::F16),
            ElementType::BF16 => |_| $compose(ElementType::BF16),
        }
    };
}

/// Returns the source that reads values of type `element`.
fn elements(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => include_str!("elements/f32.wgsl"),
        ElementType::F16 => include_str!("elements/f16.wgsl"),
        ElementType::BF16 => include_str!("elements/bf16.wgsl"),
    }
}

/// Composes the source of a program. These operators have no parameter block, so the source omits the code
/// that other kernels share.
fn program(items: u32, parts: &[&str]) -> Arc<str> {
    let items = format!("const ITEMS: u32 = {items}u;\n");
    [items.as_str()].iter().chain(parts).copied().collect::<Vec<_>>().join("\n").into()
}

const TILE: &str = include_str!("tile.wgsl");

fn gemm_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::Gemm(element),
        name: "wgsl-tiled",
        requires: &[],
        grid: gemm::grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        compose: composer!(element, gemm_source),
        function: "gemm",
        items: TILE_ITEMS,
        local_bytes: TILE_BYTES,
    }
}

fn gemm_source(element: ElementType) -> Arc<str> {
    program(TILE_ITEMS, &[elements(element), TILE, include_str!("../gemm/gemm.wgsl")])
}

fn attention_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::AttentionDense(element),
        grid: attention_dense::grid,
        compose: composer!(element, attention_source),
        function: "attention_dense",
        items: ATTENTION_ITEMS,
        local_bytes: 14 << 10,
        ..gemm_function(element)
    }
}

fn attention_source(element: ElementType) -> Arc<str> {
    let source = include_str!("../attention_dense/attention_dense.wgsl");
    let parts = [elements(element), include_str!("numbers.wgsl"), include_str!("tanh.wgsl"), source];
    program(ATTENTION_ITEMS, &parts)
}

fn conv2d_function(element: ElementType) -> Function {
    Function {
        kernel: Kernel::Conv2d(element),
        grid: conv2d::grid,
        compose: composer!(element, conv2d_source),
        function: "conv2d",
        ..gemm_function(element)
    }
}

fn conv2d_source(element: ElementType) -> Arc<str> {
    program(TILE_ITEMS, &[elements(element), TILE, include_str!("../conv2d/conv2d.wgsl")])
}
