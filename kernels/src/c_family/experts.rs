//! Products of f16 activations and the weights of experts on NVIDIA's matrix units, in CUDA C++. Warps decode quantised
//! weights on their way to the units, so that even launches with few rows per expert read no more than these weights.

use super::matrix_units::INSTRUCTIONS;
use super::streams::{define_sections, section_bytes};
use super::units::HALF_PAIRS;
use super::weights::{EXPERT_ROWS, QUANTISED};
use super::{Items, program};
use crate::blocks::TensorType;
use crate::composer::composer;
use crate::experts::matmul::{abi, tiled_grid};
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::{GROUP_ROWS, Layout};
use crate::matmul::takes;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

const ITEMS: Items = Items(128);

/// Number of weight rows per work group: `TILE_ROWS` in the source.
const TILE_ROWS: u32 = 128;

/// Columns of a chunk of quantised weights: whole blocks of every type.
const CHUNK: u32 = 256;

/// Columns of a chunk of plain weights.
const PLAIN_CHUNK: u32 = 128;

/// Dynamic local memory for tiles of x, in bytes: `X_STAGES · X_STAGE` in the source.
const X_BYTES: u32 = 3 * 64 * 128;

/// Number of chunks in flight, each of all groups of 16 rows of a tile.
const CHUNKS: u32 = 2;

/// Upper bound of the local memory for the list of assignments, in bytes.
const LIST_BYTES: u64 = 9 << 10;

/// Returns the products.
pub(super) fn products() -> Vec<Variant> {
    TensorType::ALL.into_iter().filter(|t| takes(*t, Activations::F16)).map(product).collect()
}

fn product(tensor_type: TensorType) -> Variant {
    let layout = if is_plain(tensor_type) { Layout::RowMajor } else { Layout::Rows16 };
    let dynamic_local_bytes = X_BYTES + TILE_ROWS / 16 * CHUNKS * stage(tensor_type);
    Variant {
        kernel: Kernel::ExpertMatMul(tensor_type, Activations::F16),
        name: "cuda-sm80-units",
        class: NumericsClass::Fast,
        requires: &[Feature::Sm80],
        abi: abi(tensor_type, layout, Activations::F16),
        grid: Grid::Fixed(tiled_grid::<TILE_ROWS>),
        layout: Some(layout),
        min_rows: EXPERT_ROWS + 1,
        max_rows: u32::MAX,
        code: Code::Text(Text {
            language: KernelLanguage::CudaC,
            compose: composer!(tensor_type, |_, t| source(t)),
            function: "expert_matmul_units",
            work_group: [ITEMS.0, 1, 1],
            local_bytes: u64::from(dynamic_local_bytes) + LIST_BYTES,
            dynamic_local_bytes,
        }),
    }
}

fn is_plain(tensor_type: TensorType) -> bool {
    tensor_type.block_values() == 1
}

/// Returns the bytes of a chunk of a group of 16 rows.
fn stage(tensor_type: TensorType) -> u32 {
    if is_plain(tensor_type) {
        return PLAIN_CHUNK * 2 * GROUP_ROWS as u32;
    }
    section_bytes(tensor_type).iter().sum::<u32>().next_multiple_of(16)
}

fn source(tensor_type: TensorType) -> Arc<str> {
    let chunk = if is_plain(tensor_type) { PLAIN_CHUNK } else { CHUNK };
    let figures = format!("#define CHUNK {chunk}\n#define STAGE {}\n", stage(tensor_type));
    let (row, sections) = (tensor_type.row(), define_sections(tensor_type));
    let blocks = include_str!("../experts/chunk_blocks.cu");
    let rows = include_str!("../experts/chunk_rows.cu");
    let weights: &[&str] = match tensor_type {
        TensorType::F16 => &["#define WEIGHTS_BF16 0\n", rows],
        TensorType::BF16 => &["#define WEIGHTS_BF16 1\n", rows],
        _ => &[&sections, QUANTISED, row.c, row.pairs, HALF_PAIRS, blocks],
    };
    let parts = [&[INSTRUCTIONS, &figures], weights, &[include_str!("../experts/units.cu")]].concat();
    program(KernelLanguage::CudaC, ITEMS, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiprocessor_holds_two_work_groups() {
        for variant in products() {
            let Code::Text(text) = variant.code else { unreachable!() };
            assert!(2 * text.local_bytes <= 227 << 10, "{}", variant.kernel);
        }
    }
}
