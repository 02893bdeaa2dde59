//! The general operators other than products. All of them are in one program.

use super::{Function, Items, names, program};
use crate::kernel::Kernel;
use crate::table::Variant;
use crate::{
    binary, copy, elements, file_blocks, gather_rows, layer_norm, reduce, rope, softmax_axis, unary,
};
use ragtag_hal::{EntryAbi, KernelLanguage};
use std::sync::Arc;

const ITEMS: Items = Items(elements::ITEMS);

pub(super) fn variants() -> Vec<Variant> {
    [
        function(Kernel::Copy, &copy::ABI, copy::grid, "copy_elements"),
        function(Kernel::GatherRows, &gather_rows::ABI, gather_rows::grid, "gather_rows"),
        function(Kernel::Unary, &unary::ABI, unary::grid, "unary"),
        function(Kernel::Binary, &binary::ABI, binary::grid, "binary"),
        function(Kernel::Reduce, &reduce::ABI, reduce::grid, "reduce"),
        function(Kernel::SoftmaxAxis, &softmax_axis::ABI, softmax_axis::grid, "softmax_axis"),
        function(Kernel::LayerNorm, &layer_norm::ABI, layer_norm::grid, "layer_norm"),
        function(Kernel::Rope, &rope::ABI, rope::grid, "rope"),
        function(Kernel::DecodeBlocks, &file_blocks::DECODE_ABI, file_blocks::decode_grid, "decode_blocks"),
        function(Kernel::EncodeBlocks, &file_blocks::ENCODE_ABI, file_blocks::encode_grid, "encode_blocks"),
    ]
    .into_iter()
    .flat_map(Function::variants)
    .collect()
}

fn function(
    kernel: Kernel,
    abi: &'static EntryAbi,
    grid: fn(&[u32]) -> [u32; 3],
    function: &'static str,
) -> Function {
    Function {
        kernel,
        names: names!(""),
        abi,
        grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source,
        function,
        items: ITEMS,
        local_bytes: 1 << 10,
    }
}

fn source(language: KernelLanguage) -> Arc<str> {
    let functions = match language {
        KernelLanguage::OpenClC => "",
        _ => include_str!("functions.cu"),
    };
    let parts = [
        functions,
        include_str!("elements.cl"),
        include_str!("columns.cl"),
        include_str!("tanh.cl"),
        include_str!("../copy/copy.cl"),
        include_str!("../gather_rows/gather_rows.cl"),
        include_str!("../unary/unary.cl"),
        include_str!("../binary/binary.cl"),
        include_str!("../reduce/reduce.cl"),
        include_str!("../softmax_axis/softmax_axis.cl"),
        include_str!("../layer_norm/layer_norm.cl"),
        include_str!("../rope/rope.cl"),
        include_str!("../file_blocks/decode.cl"),
        include_str!("../file_blocks/encode.cl"),
    ];
    let codecs: Vec<&str> = file_blocks::types().map(|t| t.row().codec_c).collect();
    let kernels = file_blocks::repeat(include_str!("../file_blocks/file_blocks.cl"));
    program(language, ITEMS, &[&parts, &codecs[..], &[&kernels]].concat())
}
