//! The general operators other than products.

use super::Function;
use crate::kernel::Kernel;
use crate::table::Variant;
use crate::types::Row;
use crate::{
    binary, copy, elements, file_blocks, gather_rows, layer_norm, reduce, rope, softmax_axis, unary,
};
use ragtag_hal::{EntryAbi, KernelLanguage};
use std::sync::Arc;

pub(super) fn variants() -> Vec<Variant> {
    vec![
        function(Kernel::Copy, &copy::ABI, copy::grid, "copy_elements", |_| {
            text(&[include_str!("elements.wgsl"), include_str!("../copy/copy.wgsl")])
        }),
        function(Kernel::GatherRows, &gather_rows::ABI, gather_rows::grid, "gather_rows", |_| {
            text(&[include_str!("elements.wgsl"), include_str!("../gather_rows/gather_rows.wgsl")])
        }),
        function(Kernel::Unary, &unary::ABI, unary::grid, "unary", |_| {
            numbers(&[include_str!("tanh.wgsl"), include_str!("../unary/unary.wgsl")])
        }),
        function(Kernel::Binary, &binary::ABI, binary::grid, "binary", |_| {
            numbers(&[include_str!("../binary/binary.wgsl")])
        }),
        function(Kernel::Reduce, &reduce::ABI, reduce::grid, "reduce", |_| {
            in_columns(include_str!("../reduce/reduce.wgsl"))
        }),
        function(Kernel::SoftmaxAxis, &softmax_axis::ABI, softmax_axis::grid, "softmax_axis", |_| {
            in_columns(include_str!("../softmax_axis/softmax_axis.wgsl"))
        }),
        function(Kernel::LayerNorm, &layer_norm::ABI, layer_norm::grid, "layer_norm", |_| {
            in_columns(include_str!("../layer_norm/layer_norm.wgsl"))
        }),
        function(
            Kernel::DecodeBlocks,
            &file_blocks::DECODE_ABI,
            file_blocks::decode_grid,
            "decode_blocks",
            |_| blocks(include_str!("../file_blocks/decode.wgsl"), |row| row.decode_wgsl),
        ),
        function(
            Kernel::EncodeBlocks,
            &file_blocks::ENCODE_ABI,
            file_blocks::encode_grid,
            "encode_blocks",
            |_| blocks(include_str!("../file_blocks/encode.wgsl"), |row| row.encode_wgsl),
        ),
        function(Kernel::Rope, &rope::ABI, rope::grid, "rope", |_| {
            text(&[include_str!("elements.wgsl"), include_str!("../rope/rope.wgsl")])
        }),
    ]
    .into_iter()
    .map(Function::variant)
    .collect()
}

fn function(
    kernel: Kernel,
    abi: &'static EntryAbi,
    grid: fn(&[u32]) -> [u32; 3],
    function: &'static str,
    compose: fn(KernelLanguage) -> Arc<str>,
) -> Function {
    Function {
        kernel,
        name: "wgsl",
        requires: &[],
        abi,
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        compose,
        function,
        items: elements::ITEMS,
        local_bytes: 1 << 10,
    }
}

/// Composes a source: the number of work items, then `parts`. These kernels have no parameter block.
fn text(parts: &[&str]) -> Arc<str> {
    let items = format!("const ITEMS: u32 = {}u;\n", elements::ITEMS);
    std::iter::once(items.as_str()).chain(parts.iter().copied()).collect::<Vec<_>>().join("\n").into()
}

/// Composes the source of a kernel that processes file blocks. `of_type` returns the part of the source that
/// handles one tensor type.
fn blocks(part: &str, of_type: fn(&Row) -> &'static str) -> Arc<str> {
    let shared = [include_str!("../file_blocks/formats.wgsl"), part].map(file_blocks::repeat);
    let types: Vec<&str> = file_blocks::types().map(|t| of_type(t.row())).collect();
    text(&[&[include_str!("elements.wgsl"), &shared[0], &shared[1]], &types[..]].concat())
}

/// Composes the source of a kernel that tests for infinities and NaN.
fn numbers(parts: &[&str]) -> Arc<str> {
    text(&[&[include_str!("elements.wgsl"), include_str!("numbers.wgsl")], parts].concat())
}

/// Composes the source of a kernel that processes columns of lines along an axis.
fn in_columns(part: &str) -> Arc<str> {
    numbers(&[include_str!("columns.wgsl"), part])
}
