//! Products of f16 activations and the weights of experts on NVIDIA's matrix units, in CUDA C++. Warps decode quantised
//! weights on their way to the units, so that even launches with few rows per expert read no more than these weights.
//!
//! | needs | instruction | |
//! | --- | --- | --- |
//! | [`Feature::Sm90a`] | `wgmma` | quantised weights; work groups share the pieces of work of all experts |
//! | [`Feature::Sm80`] | `mma` | a work group for some rows of weights of one expert |

use super::matrix_units::{ALIGNMENT, HALF, INSTRUCTIONS, Left, Product, TILE_ROW, WARPGROUPS};
use super::streams::{RING_BULK, define_sections, section_bytes};
use super::units::HALF_PAIRS;
use super::weights::{EXPERT_ROWS, QUANTISED};
use super::{Items, program};
use crate::blocks::TensorType;
use crate::composer::composer;
use crate::experts::matmul::{abi, tiled_grid};
use crate::experts::route::MAX_EXPERTS;
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

/// Returns the products, best first.
pub(super) fn products() -> Vec<Variant> {
    let types = || TensorType::ALL.into_iter().filter(|t| takes(*t, Activations::F16));
    let warpgroups = types().filter(|t| t.has_integer_quants()).flat_map(|t| {
        [
            warpgroup_product(t, &FEW, "cuda-sm90a-wgmma-64", composer!(t, |_, t| warpgroup_source(t, &FEW))),
            warpgroup_product(
                t,
                &MANY,
                "cuda-sm90a-wgmma-128",
                composer!(t, |_, t| warpgroup_source(t, &MANY)),
            ),
        ]
    });
    warpgroups.chain(types().map(product)).collect()
}

/// A product with `wgmma`.
struct Shape {
    /// Warpgroups that multiply, each 64 rows of weights.
    consumers: u32,
    /// Assignments that are multiplied at a time.
    tokens: u32,
    /// Tiles of x in flight.
    x_stages: u32,
    /// Registers of a work item that multiplies, and of one that copies. All together are those that the work group
    /// starts with.
    registers: [u32; 2],
    max_rows: u32,
}

/// Many warps decode weights: with few assignments per expert, this takes most of the time.
static FEW: Shape = Shape { consumers: 4, tokens: 64, x_stages: 8, registers: [104, 64], max_rows: 256 };

static MANY: Shape =
    Shape { consumers: 3, tokens: 128, x_stages: 5, registers: [152, 56], max_rows: u32::MAX };

/// Upper bound of the dynamic shared memory of a work group, in bytes. A multiprocessor has 227 KiB for a work group. The
/// list and the barriers take the rest.
const MOST_BYTES: u32 = 184 << 10;

/// Upper bound of the shared memory for the list, the experts' numbers and the barriers, in bytes.
const NUMBERS_BYTES: u64 = 42 << 10;

impl Shape {
    fn items(&self) -> Items {
        Items(128 * (self.consumers + 1))
    }

    /// Returns the columns of a chunk of weights: whole blocks, and few enough that two chunks of each warp fit.
    fn chunk(tensor_type: TensorType) -> u32 {
        if tensor_type.block_values() < CHUNK as usize
            && tensor_type.block_bytes() > tensor_type.block_values()
        {
            CHUNK / 2
        } else {
            CHUNK
        }
    }

    /// Returns the bytes of a stage of a warp's ring: a chunk of a group of 16 rows.
    fn stage(tensor_type: TensorType) -> u32 {
        (section_bytes(tensor_type).iter().sum::<u32>() * Self::chunk(tensor_type) / CHUNK)
            .next_multiple_of(128)
    }

    fn x_bytes(&self) -> u32 {
        self.x_stages * self.tokens * TILE_ROW
    }

    /// Returns the number of stages of a warp's ring.
    fn stages(&self, tensor_type: TensorType) -> u32 {
        let left = MOST_BYTES - ALIGNMENT - self.x_bytes();
        (left / (4 * self.consumers * Self::stage(tensor_type))).clamp(1, 8)
    }

    /// Returns the dynamic shared memory of a work group, in bytes.
    fn bytes(&self, tensor_type: TensorType) -> u32 {
        self.x_bytes() + 4 * self.consumers * self.stages(tensor_type) * Self::stage(tensor_type) + ALIGNMENT
    }

    fn define(&self, tensor_type: TensorType) -> String {
        let Self { consumers, tokens, x_stages, registers: [consuming, copying], .. } = self;
        let (chunk, stage, stages) =
            (Self::chunk(tensor_type), Self::stage(tensor_type), self.stages(tensor_type));
        format!(
            "#define TOKENS {tokens}\n#define CONSUMERS {consumers}\n#define X_STAGES {x_stages}\n\
             #define CONSUMER_REGISTERS {consuming}\n#define COPIER_REGISTERS {copying}\n\
             #define CHUNK {chunk}\n#define STAGE {stage}\n#define STAGES {stages}\n\
             #define MAX_EXPERTS {MAX_EXPERTS}\n#define IN_ORDER 1\n"
        )
    }
}

fn warpgroup_product(
    tensor_type: TensorType,
    shape: &Shape,
    name: &'static str,
    compose: fn(KernelLanguage) -> Arc<str>,
) -> Variant {
    let dynamic_local_bytes = shape.bytes(tensor_type);
    Variant {
        kernel: Kernel::ExpertMatMul(tensor_type, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires: &[Feature::Sm90a],
        abi: abi(tensor_type, Layout::Rows16, Activations::F16),
        // One work group of a multiprocessor, whatever the number of assignments of each expert is.
        grid: Grid::PerDevice(|constants, multiprocessors| {
            [if constants[0] > 0 && constants[2] > 0 { multiprocessors } else { 0 }, 1, 1]
        }),
        layout: Some(Layout::Rows16),
        min_rows: EXPERT_ROWS + 1,
        max_rows: shape.max_rows,
        code: Code::Text(Text {
            language: KernelLanguage::CudaC,
            compose,
            function: "expert_matmul_wgmma",
            work_group: [shape.items().0, 1, 1],
            local_bytes: u64::from(dynamic_local_bytes) + NUMBERS_BYTES,
            dynamic_local_bytes,
        }),
    }
}

fn warpgroup_source(tensor_type: TensorType, shape: &Shape) -> Arc<str> {
    // For fewer assignments than `tokens`, fewer columns are multiplied.
    let columns = [16, 32, 64, 128].into_iter().filter(|columns| *columns <= 64.max(shape.tokens));
    let product = |columns| {
        let (left, values) = (Left::Registers, "f16");
        Product { name: "tile_product", columns, left, values, begins: false, transposes: false }.function()
    };
    let products: String = columns.map(product).collect();
    let row = tensor_type.row();
    let parts = [
        "#define WEIGHTS_BF16 0\n",
        INSTRUCTIONS,
        HALF,
        WARPGROUPS,
        &shape.define(tensor_type),
        &products,
        RING_BULK,
        &define_sections(tensor_type),
        QUANTISED,
        row.c,
        row.pairs,
        HALF_PAIRS,
        include_str!("../experts/wgmma.cu"),
    ];
    program(KernelLanguage::CudaC, shape.items(), &parts)
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
        for variant in products().into_iter().filter(|variant| variant.name == "cuda-sm80-units") {
            let Code::Text(text) = variant.code else { unreachable!() };
            assert!(2 * text.local_bytes <= 227 << 10, "{}", variant.kernel);
        }
    }

    #[test]
    fn rings_of_two_chunks_fit_into_shared_memory() {
        for tensor_type in TensorType::ALL.into_iter().filter(|t| t.has_integer_quants()) {
            for shape in [&FEW, &MANY] {
                assert!(shape.stages(tensor_type) >= 2, "{tensor_type:?}");
                assert!(u64::from(shape.bytes(tensor_type)) + NUMBERS_BYTES <= 227 << 10, "{tensor_type:?}");
            }
        }
    }

    #[test]
    fn registers_are_those_that_a_work_group_starts_with() {
        for Shape { consumers, registers: [consuming, copying], .. } in [&FEW, &MANY] {
            let each = 65_536 / (128 * (consumers + 1)) / 8 * 8;
            assert_eq!(consumers * consuming + copying, (consumers + 1) * each);
        }
    }
}
