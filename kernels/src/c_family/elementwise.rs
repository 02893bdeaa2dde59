//! The general operators other than products. All of them are in one program.

use super::{Function, Items, names, program};
use crate::elements::{self, operators};
use crate::file_blocks;
use crate::kernel::Kernel;
use crate::variant::Variant;
use ragtag_hal::KernelLanguage;
use std::sync::Arc;

const ITEMS: Items = Items(elements::ITEMS);

pub(super) fn variants() -> Vec<Variant> {
    let function = |(kernel, operator): (Kernel, elements::Operator)| Function {
        kernel,
        names: names!(""),
        grid: operator.grid,
        layout: None,
        min_rows: 0,
        max_rows: u32::MAX,
        source,
        function: kernel.abi(None).name,
        items: ITEMS,
        local_bytes: 1 << 10,
    };
    operators().map(function).flat_map(Function::variants).collect()
}

/// Returns the functions that OpenCL C has, for the other languages.
pub(super) fn functions(language: KernelLanguage) -> &'static str {
    if language == KernelLanguage::OpenClC { "" } else { include_str!("functions.cu") }
}

fn source(language: KernelLanguage) -> Arc<str> {
    let shared = [
        functions(language),
        include_str!("elements.cl"),
        include_str!("columns.cl"),
        include_str!("tanh.cl"),
    ];
    let operators: Vec<&str> = operators().map(|(_, operator)| operator.c).collect();
    let codecs: Vec<&str> = file_blocks::types().map(|t| t.row().codec_c).collect();
    let blocks = file_blocks::repeat(include_str!("../file_blocks/file_blocks.cl"));
    program(language, ITEMS, &[&shared, &operators[..], &codecs, &[&blocks]].concat())
}
