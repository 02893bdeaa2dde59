//! Products on the matrix units of AMD's devices, in HIP C++, and of Intel's, in OpenCL C: row-major weights
//! times f16 activations.
//!
//! | needs | instruction | |
//! | --- | --- | --- |
//! | [`Feature::Wmma`] | WMMA, 16 × 16 × 16 | RDNA 3 and 4; the two generations assign matrix elements to lanes differently |
//! | [`Feature::Mfma`], [`Feature::Wave64`] | MFMA, 32 × 32 × 8 | CDNA |
//! | [`Feature::Xmx`] | DPAS, 8 × 8 × 16 | Xe-HPG, in sub-groups of 8 |
//!
//! With bf16 weights, the products round x to bf16, which has 8 significant bits (a relative error of 2e-3).

use super::{HALF_ROWS, Items, program};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::variant::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

/// Matrix units of a kind of device.
#[derive(Clone, Copy)]
struct Units {
    language: KernelLanguage,
    requires: &'static [Feature],
    /// Work items per group for tiles of this number of rows.
    items: fn(tile: u32) -> Items,
    define: &'static str,
    /// Source of the instructions.
    source: &'static str,
}

const RDNA: usize = 0;
const CDNA: usize = 1;
const XE_HPG: usize = 2;

static ALL_UNITS: [Units; 3] = [
    Units {
        language: KernelLanguage::HipC,
        requires: &[Feature::Wmma],
        items: |_| Items(256),
        define: "#define FRAGMENTS_OF_CDNA 0\n",
        source: include_str!("fragments.cu"),
    },
    Units {
        language: KernelLanguage::HipC,
        requires: &[Feature::Mfma, Feature::Wave64],
        items: |_| Items(256),
        define: "#define FRAGMENTS_OF_CDNA 1\n",
        source: include_str!("fragments.cu"),
    },
    Units {
        language: KernelLanguage::OpenClC,
        requires: &[Feature::Xmx],
        // A sub-group of 8 work items has registers for 16 × 16 values of the result.
        items: |tile| Items(tile * tile / 32),
        define: "",
        source: include_str!("xmx.cl"),
    },
];

/// Minimum number of rows of x for which programs prefer these products. With fewer rows, most of a tile is
/// empty. This value was not measured.
const MIN_ROWS: u32 = 16;

/// Maximum number of rows of x for the smaller tile, which yields enough groups to fill a device even with
/// few rows. This value was not measured.
const FEW: u32 = 128;

/// Bytes of one row of a tile in local memory: `TILE_PITCH` in the source.
const TILE_ROW: u32 = 80;

/// Returns the products, best first.
pub(super) fn products() -> [Variant; 12] {
    [
        product::<false, RDNA, 64>("hip-wmma-64", FEW),
        product::<false, RDNA, 128>("hip-wmma", u32::MAX),
        product::<false, CDNA, 64>("hip-mfma-64", FEW),
        product::<false, CDNA, 128>("hip-mfma", u32::MAX),
        product::<false, XE_HPG, 64>("opencl-xmx-64", FEW),
        product::<false, XE_HPG, 128>("opencl-xmx", u32::MAX),
        product::<true, RDNA, 64>("hip-wmma-64", FEW),
        product::<true, RDNA, 128>("hip-wmma", u32::MAX),
        product::<true, CDNA, 64>("hip-mfma-64", FEW),
        product::<true, CDNA, 128>("hip-mfma", u32::MAX),
        product::<true, XE_HPG, 64>("opencl-xmx-64", FEW),
        product::<true, XE_HPG, 128>("opencl-xmx", u32::MAX),
    ]
}

/// Returns a product with bf16 or f16 weights on matrix `UNITS`. A group multiplies `TILE` rows of x by
/// `TILE` rows of weights.
fn product<const BF16: bool, const UNITS: usize, const TILE: u32>(
    name: &'static str,
    max_rows: u32,
) -> Variant {
    let tensor_type = if BF16 { TensorType::BF16 } else { TensorType::F16 };
    let units = ALL_UNITS[UNITS];
    Variant {
        kernel: Kernel::MatMul(tensor_type, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires: units.requires,
        abi: matmul::abi(tensor_type, Layout::RowMajor, Activations::F16),
        // Neighbouring groups read the same weights.
        grid: Grid::Fixed(|constants| [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1]),
        layout: Some(Layout::RowMajor),
        min_rows: MIN_ROWS,
        max_rows,
        code: Code::Text(Text {
            language: units.language,
            compose: source::<BF16, UNITS, TILE>,
            function: "matmul_fragments",
            work_group: [(units.items)(TILE).0, 1, 1],
            local_bytes: u64::from(2 * TILE * TILE_ROW),
            dynamic_local_bytes: 0,
        }),
    }
}

fn source<const BF16: bool, const UNITS: usize, const TILE: u32>(language: KernelLanguage) -> Arc<str> {
    let units = ALL_UNITS[UNITS];
    let figures = format!("#define WEIGHTS_BF16 {}\n#define TILE {TILE}\n", u32::from(BF16));
    let parts = [&figures, units.define, HALF_ROWS, units.source, include_str!("../matmul/fragments.cl")];
    program(language, (units.items)(TILE), &parts)
}
