//! Products of row-major weights and f16 activations on matrix units. They use cooperative matrices of 16 ×
//! 16 f16 values, with f32 accumulation. BF16 weights are converted to f16.
//!
//! The sub-group size affects only the speed. If sub-groups have 32 work items, each sub-group computes one
//! slice of its group's tile.

use super::weights::PRODUCT;
use super::{program, repeat};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Minimum number of rows of x for which programs prefer these products. With fewer rows, most of a tile is
/// empty. This value was not measured.
const MIN_ROWS: u32 = 16;

/// Maximum number of rows of x for the smaller tile, which yields enough groups to fill a device even with
/// few rows. This value was not measured.
const FEW: u32 = 128;

/// Assumed number of work items per sub-group. NVIDIA's devices have this size, and so do AMD's devices with
/// matrix units.
const SUB_GROUP: u32 = 32;

/// Division of a group's tile into slices, and of a slice into squares.
#[derive(Clone, Copy)]
struct Tile {
    /// Number of slices along x and along the weights. Each sub-group computes one slice.
    slices: [u32; 2],
    /// Number of squares of 16 × 16 values per slice, along x and along the weights.
    lines: [u32; 2],
    /// Number of columns of x and of weights that local memory holds at once. It divides 64.
    k_step: u32,
}

/// Tile for few rows. Loading the weights limits the speed, so each of the few groups keeps many loads
/// outstanding.
const SMALL: Tile = Tile { slices: [2, 2], lines: [2, 1], k_step: 64 };
/// Tile for many rows. Two groups fill the registers of an NVIDIA multiprocessor, so one group can multiply
/// while the other waits for loads.
const LARGE: Tile = Tile { slices: [2, 2], lines: [4, 4], k_step: 64 };
/// Large tile for devices with 32 KiB of local memory. Each sub-group has half as many accumulators as with
/// `LARGE`, so that more sub-groups fit into the registers. The speed of `WIDE` and `LARGE` was not compared
/// on devices that support both.
const WIDE: Tile = Tile { slices: [4, 2], lines: [2, 4], k_step: 32 };

impl Tile {
    const fn items(self) -> u32 {
        self.slices[0] * self.slices[1] * SUB_GROUP
    }

    /// Returns the number of rows of x and of weight rows per tile.
    const fn rows(self) -> [u32; 2] {
        [self.slices[0] * self.lines[0] * 16, self.slices[1] * self.lines[1] * 16]
    }

    /// Returns the number of 16-byte loads of x and of weights, per work item and step.
    fn loads(self) -> [u32; 2] {
        self.rows().map(|rows| rows * (self.k_step / 8) / self.items())
    }

    /// Returns a grid with one group per tile: tiles of x in the first dimension, tiles of weights in the
    /// second. Neighbouring groups read the same weights.
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

/// All tiles. The const parameters named `TILE` are indices into this array.
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

/// Returns a product with bf16 or f16 weights that uses tile `TILE` of [`TILES`].
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
