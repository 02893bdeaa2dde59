//! Products on matrix units, with cooperative matrices of 16 × 16 f16 values and f32 sums: row-major weights
//! with f16 activations. BF16 weights are converted to f16.
//!
//! The sub-group size only affects speed: with 32 work items, each sub-group has one slice of its group's
//! tile.

use super::weights::PRODUCT;
use super::{program, repeat};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::table::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Rows of x from which these products are preferred: with fewer, most of a tile is empty. Not measured.
const MIN_ROWS: u32 = 16;

/// Maximum rows of x for the smaller tile, which yields enough groups to fill a device. Not measured.
const FEW: u32 = 128;

/// Work items of a sub-group, for the division of work: that of NVIDIA's devices, and of AMD's with matrix
/// units.
const SUB_GROUP: u32 = 32;

/// Division of a group's tile.
#[derive(Clone, Copy)]
struct Tile {
    /// Slices, one per sub-group, along x and along weights.
    slices: [u32; 2],
    /// Squares of 16 × 16 per slice, along x and along weights.
    lines: [u32; 2],
    /// Columns in local memory at once. Divides 64.
    k_step: u32,
}

/// Few groups with many outstanding loads each, because read bandwidth of weights is the limit.
const SMALL: Tile = Tile { slices: [2, 2], lines: [2, 1], k_step: 64 };
/// Two groups fill the registers of an NVIDIA multiprocessor: one multiplies while the other waits.
const LARGE: Tile = Tile { slices: [2, 2], lines: [4, 4], k_step: 64 };
/// Large tile for devices with 32 KiB of local memory. Its sub-groups have half the sums, so that more of
/// them fit into the registers. Not compared with `LARGE` where both fit.
const WIDE: Tile = Tile { slices: [4, 2], lines: [2, 4], k_step: 32 };

impl Tile {
    const fn items(self) -> u32 {
        self.slices[0] * self.slices[1] * SUB_GROUP
    }

    /// Returns the rows of x and of weights.
    const fn rows(self) -> [u32; 2] {
        [self.slices[0] * self.lines[0] * 16, self.slices[1] * self.lines[1] * 16]
    }

    /// Returns the 16-byte loads per work item and step, of x and of weights.
    fn loads(self) -> [u32; 2] {
        self.rows().map(|rows| rows * (self.k_step / 8) / self.items())
    }

    /// Tiles that read the same weights are neighbours.
    fn grid(self, constants: &[u32]) -> [u32; 3] {
        let [x, weights] = self.rows();
        [constants[0].div_ceil(x), constants[2].div_ceil(weights), 1]
    }

    fn local_bytes(self) -> u64 {
        let [x, weights] = self.rows();
        let tiles = (x + weights) * (self.k_step + 8) * 2;
        let squares = self.slices[0] * self.slices[1] * 256 * 4;
        u64::from(tiles + squares + 16)
    }

    fn figures(self) -> String {
        let Self { slices: [slices_x, slices_w], lines: [lines_x, lines_w], k_step } = self;
        let figures = [
            ("SLICES_X", slices_x),
            ("SLICES_W", slices_w),
            ("LINES_X", lines_x),
            ("LINES_W", lines_w),
            ("K_STEP", k_step),
        ];
        figures.map(|(name, figure)| format!("const {name}: u32 = {figure}u;\n")).concat()
    }
}

/// Tiles by number.
const TILES: [Tile; 3] = [SMALL, LARGE, WIDE];

/// Returns the products, best first.
pub(super) fn variants() -> [Variant; 6] {
    [
        product::<false, 0>("wgsl-matrices-small", FEW),
        product::<false, 1>("wgsl-matrices", u32::MAX),
        product::<false, 2>("wgsl-matrices-wide", u32::MAX),
        product::<true, 0>("wgsl-matrices-small", FEW),
        product::<true, 1>("wgsl-matrices", u32::MAX),
        product::<true, 2>("wgsl-matrices-wide", u32::MAX),
    ]
}

/// Returns a product with bf16 or f16 weights, in one of the tiles.
fn product<const BF16: bool, const TILE: usize>(name: &'static str, max_rows: u32) -> Variant {
    let (weights, shape) = (tensor_type(BF16), TILES[TILE]);
    Variant {
        kernel: Kernel::MatMul(weights, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires: &[Feature::CooperativeMatrix, Feature::Fp16, Feature::SubGroups],
        abi: matmul::abi(weights, Layout::RowMajor, Activations::F16),
        grid: Grid::Fixed(|constants| TILES[TILE].grid(constants)),
        layout: Some(Layout::RowMajor),
        min_rows: MIN_ROWS,
        max_rows,
        code: Code::Text(Text {
            language: KernelLanguage::Wgsl,
            compose: |_| source(tensor_type(BF16), TILES[TILE]),
            function: "matmul_matrices",
            work_group: [shape.items(), 1, 1],
            local_bytes: shape.local_bytes(),
            dynamic_local_bytes: 0,
        }),
    }
}

fn tensor_type(is_bf16: bool) -> TensorType {
    if is_bf16 { TensorType::BF16 } else { TensorType::F16 }
}

fn source(tensor_type: TensorType, tile: Tile) -> Arc<str> {
    let weights = match tensor_type {
        TensorType::BF16 => include_str!("../matmul/bf16_weights.wgsl"),
        _ => include_str!("../matmul/f16_weights.wgsl"),
    };
    let multiply = (0..tile.k_step / 16)
        .map(|step| include_str!("../matmul/multiply.wgsl").replace("$s", &step.to_string()))
        .collect::<String>();
    let text = include_str!("../matmul/matrices.wgsl").replace("        MULTIPLY;\n", &multiply);
    let ([x, w], [i, j]) = (tile.loads(), tile.lines);
    let text = repeat(&text, &[("$x", x), ("$w", w), ("$i", i), ("$j", j)]);
    let text = program(tile.items(), &[&tile.figures(), PRODUCT, weights, &text]);
    ["enable f16;\nenable wgpu_cooperative_matrix;\n", &text].concat().into()
}
