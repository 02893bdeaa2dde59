//! Products of up to 128 rows of f16 activations and quantised weights on NVIDIA's matrix units, in CUDA C++. Warps decode the weights
//! on their way to the units: no launch writes dequantised weights to memory.

use super::matrix_units::{ALIGNMENT, HALF, INSTRUCTIONS, Left, Product, TILE_ROW, WARPGROUPS};
use super::streams::{RING_BULK, define_sections, section_bytes};
use super::weights::QUANTISED;
use super::{Items, program};
use crate::blocks::TensorType;
use crate::composer::composer;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::{GROUP_ROWS, Layout};
use crate::matmul;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Number of work groups (a cluster) that share the columns of a tile. Pairs of multiprocessors hold clusters of
/// two on every device. Clusters of four do not fill a device whose parts have, say, 14 or 18 multiprocessors.
const SPLIT: u32 = 2;

/// Upper bound on the dynamic shared memory of a work group, in bytes. A multiprocessor has 227 KiB for a work
/// group, and barriers take a part of them.
const MOST_BYTES: u32 = 226 << 10;

/// Minimum number of rows of x for which programs prefer these products.
const MIN_ROWS: u32 = 9;

/// Returns the products, best first.
pub(super) fn products() -> Vec<Variant> {
    TensorType::ALL.into_iter().filter(|t| t.has_integer_quants()).flat_map(products_of).collect()
}

fn products_of(tensor_type: TensorType) -> [Variant; 2] {
    let few = composer!(tensor_type, |_, t| source(t, &FEW));
    let some = composer!(tensor_type, |_, t| source(t, &SOME));
    [
        product(tensor_type, &FEW, "cuda-sm90a-units-32", few, |c, units| FEW.grid(c, units)),
        product(tensor_type, &SOME, "cuda-sm90a-units-64", some, |c, units| SOME.grid(c, units)),
    ]
}

fn product(
    tensor_type: TensorType,
    shape: &Shape,
    name: &'static str,
    compose: fn(KernelLanguage) -> Arc<str>,
    grid: fn(&[u32], u32) -> [u32; 3],
) -> Variant {
    let bytes = shape.bytes(tensor_type);
    Variant {
        kernel: Kernel::MatMul(tensor_type, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires: &[Feature::Sm90a],
        abi: matmul::abi(tensor_type, Layout::Rows16, Activations::F16),
        grid: Grid::PerDevice(grid),
        layout: Some(Layout::Rows16),
        min_rows: MIN_ROWS,
        max_rows: shape.max_rows,
        code: Code::Text(Text {
            language: KernelLanguage::CudaC,
            compose,
            function: "matmul_units",
            work_group: [ITEMS.0, 1, 1],
            local_bytes: u64::from(bytes) + 1024,
            dynamic_local_bytes: bytes,
        }),
    }
}

/// Warps that multiply, each with a group of 16 rows of weights.
const CONSUMERS: u32 = 16;

/// Warps that copy x: one warpgroup.
const COPIERS: u32 = 4;

const ITEMS: Items = Items(32 * (CONSUMERS + COPIERS));

/// Registers of a work item that multiplies, and of one that copies. All together are those that the work group
/// starts with.
const REGISTERS: [u32; 2] = [104, 64];

/// Tiles of x in flight: two for each of up to four teams that share the columns of a work group.
const X_STAGES: u32 = 8;

/// Columns of a chunk of weights: whole blocks of every type.
const CHUNK: u32 = 256;

/// Rows of x of a work group, and of the programs that use it.
#[derive(Clone, Copy)]
struct Shape {
    tokens: u32,
    max_rows: u32,
}

static FEW: Shape = Shape { tokens: 32, max_rows: 32 };

/// From 65 rows on, two work groups read the same weights. For more than 128 rows, it is faster to widen all weights.
static SOME: Shape = Shape { tokens: 64, max_rows: 128 };

impl Shape {
    /// Returns a grid with one row of clusters per tile of x. All clusters of a row run at once, and get equal numbers of
    /// groups of rows of weights.
    fn grid(&self, constants: &[u32], multiprocessors: u32) -> [u32; 3] {
        let groups = constants[2].div_ceil(GROUP_ROWS as u32);
        if constants[0] == 0 || groups == 0 {
            return [0; 3];
        }
        let each = groups.div_ceil((multiprocessors / SPLIT).max(1));
        [groups.div_ceil(each) * SPLIT, constants[0].div_ceil(self.tokens), 1]
    }

    /// Returns the bytes of a stage of a warp's ring: [`CHUNK`] columns of a group of rows.
    fn stage(tensor_type: TensorType) -> u32 {
        section_bytes(tensor_type).iter().sum::<u32>().next_multiple_of(128)
    }

    /// Returns the bytes of the tiles of x, whose place the sums take after each round.
    fn x_bytes(&self) -> u32 {
        let sums = self.tokens * (CONSUMERS * GROUP_ROWS as u32 + 8) * 4;
        (X_STAGES * self.tokens * TILE_ROW).max(sums)
    }

    /// Returns the number of stages of a warp's ring.
    fn stages(&self, tensor_type: TensorType) -> u32 {
        let left = MOST_BYTES - ALIGNMENT - self.x_bytes();
        (left / (CONSUMERS * Self::stage(tensor_type))).clamp(1, 8)
    }

    /// Returns the dynamic shared memory of a work group, in bytes.
    fn bytes(&self, tensor_type: TensorType) -> u32 {
        self.x_bytes() + CONSUMERS * self.stages(tensor_type) * Self::stage(tensor_type) + ALIGNMENT
    }

    fn define(&self, tensor_type: TensorType) -> String {
        let (tokens, [consuming, copying], x_bytes) = (self.tokens, REGISTERS, self.x_bytes());
        let (stage, stages) = (Self::stage(tensor_type), self.stages(tensor_type));
        format!(
            "#define TOKENS {tokens}\n#define CONSUMERS {CONSUMERS}\n#define COPIERS {COPIERS}\n\
             #define CONSUMER_REGISTERS {consuming}\n#define COPIER_REGISTERS {copying}\n#define SPLIT {SPLIT}\n\
             #define CHUNK {CHUNK}\n#define STAGE {stage}\n#define STAGES {stages}\n\
             #define X_STAGES {X_STAGES}\n#define X_BYTES {x_bytes}\n"
        )
    }
}

/// Decodes quantised weights to f16 factors of matrix units.
pub(super) const HALF_PAIRS: &str = include_str!("weights/half_pairs.cu");

/// Composes the source of a product.
fn source(tensor_type: TensorType, shape: &Shape) -> Arc<str> {
    let (name, left) = ("tile_product", Left::Registers);
    let product =
        Product { name, columns: shape.tokens, left, values: "f16", begins: false, transposes: false };
    let row = tensor_type.row();
    let parts = [
        "#define WEIGHTS_BF16 0\n",
        INSTRUCTIONS,
        HALF,
        WARPGROUPS,
        &shape.define(tensor_type),
        &product.function(),
        RING_BULK,
        &define_sections(tensor_type),
        QUANTISED,
        row.c,
        row.pairs,
        HALF_PAIRS,
        include_str!("../matmul/units.cu"),
    ];
    program(KernelLanguage::CudaC, ITEMS, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_share_all_rows_of_weights() {
        for (rows, columns, multiprocessors, expected) in [
            (64, 4096, 132, [128, 1, 1]),
            (64, 6144, 132, [128, 1, 1]),
            (64, 11_008, 132, [126, 1, 1]),
            (100, 128_256, 132, [132, 2, 1]),
            (64, 1, 132, [2, 1, 1]),
            (64, 4096, 2, [2, 1, 1]),
            (0, 4096, 132, [0; 3]),
        ] {
            assert_eq!(SOME.grid(&[rows, 0, columns, 4096], multiprocessors), expected, "{columns}");
        }
    }

    #[test]
    fn rings_fit_into_shared_memory() {
        for variant in products() {
            let Code::Text(text) = variant.code else { unreachable!() };
            assert!(text.local_bytes <= 227 << 10, "{} {}", variant.kernel, variant.name);
        }
    }

    #[test]
    fn registers_are_those_that_a_work_group_starts_with() {
        // Registers of a work item are a multiple of 8.
        let [consuming, copying] = REGISTERS;
        let each = 65_536 / ITEMS.0 / 8 * 8;
        assert_eq!(32 * (CONSUMERS * consuming + COPIERS * copying), ITEMS.0 * each);
    }
}
