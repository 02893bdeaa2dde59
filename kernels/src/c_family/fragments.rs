//! Products on the matrix units of AMD's devices, in HIP C++: row-major weights times f16 activations.
//!
//! | needs | instruction | |
//! | --- | --- | --- |
//! | [`Feature::Wmma`] | WMMA, 16 × 16 × 16 | RDNA 3 and 4; the two generations assign matrix elements to lanes differently |
//! | [`Feature::Mfma`], [`Feature::Wave64`] | MFMA, 32 × 32 × 8 | CDNA |
//!
//! With bf16 weights, the products round x to bf16, which has 8 significant bits (a relative error of 2e-3).

use super::{HALF_ROWS, Items, program};
use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::table::{Code, Grid, Text, Variant};
use ragtag_hal::{Feature, KernelLanguage};
use std::sync::Arc;

const ITEMS: Items = Items(256);

/// Minimum number of rows of x for which programs prefer these products. With fewer rows, most of a tile is
/// empty. This value was not measured.
const MIN_ROWS: u32 = 16;

/// Maximum number of rows of x for the smaller tile, which yields enough groups to fill a device even with
/// few rows. This value was not measured.
const FEW: u32 = 128;

/// Bytes of one row of a tile in local memory: `TILE_PITCH` in the source.
const TILE_ROW: u32 = 80;

/// Returns the products, best first.
pub(super) fn products() -> [Variant; 8] {
    [
        product::<false, false, 64>("hip-wmma-64", FEW),
        product::<false, false, 128>("hip-wmma", u32::MAX),
        product::<false, true, 64>("hip-mfma-64", FEW),
        product::<false, true, 128>("hip-mfma", u32::MAX),
        product::<true, false, 64>("hip-wmma-64", FEW),
        product::<true, false, 128>("hip-wmma", u32::MAX),
        product::<true, true, 64>("hip-mfma-64", FEW),
        product::<true, true, 128>("hip-mfma", u32::MAX),
    ]
}

/// Returns a product with bf16 or f16 weights, for CDNA or RDNA. A group multiplies `TILE` rows of x by
/// `TILE` rows of weights.
fn product<const BF16: bool, const CDNA: bool, const TILE: u32>(
    name: &'static str,
    max_rows: u32,
) -> Variant {
    let tensor_type = if BF16 { TensorType::BF16 } else { TensorType::F16 };
    Variant {
        kernel: Kernel::MatMul(tensor_type, Activations::F16),
        name,
        class: NumericsClass::Fast,
        requires: if CDNA { &[Feature::Mfma, Feature::Wave64] } else { &[Feature::Wmma] },
        abi: matmul::abi(tensor_type, Layout::RowMajor, Activations::F16),
        // Neighbouring groups read the same weights.
        grid: Grid::Fixed(|constants| [constants[0].div_ceil(TILE), constants[2].div_ceil(TILE), 1]),
        layout: Some(Layout::RowMajor),
        min_rows: MIN_ROWS,
        max_rows,
        code: Code::Text(Text {
            language: KernelLanguage::HipC,
            compose: source::<BF16, CDNA, TILE>,
            function: "matmul_fragments",
            work_group: [ITEMS.0, 1, 1],
            local_bytes: u64::from(2 * TILE * TILE_ROW),
            dynamic_local_bytes: 0,
        }),
    }
}

fn source<const BF16: bool, const CDNA: bool, const TILE: u32>(language: KernelLanguage) -> Arc<str> {
    let figures = format!(
        "#define WEIGHTS_BF16 {}\n#define FRAGMENTS_OF_CDNA {}\n#define TILE {TILE}\n",
        u32::from(BF16),
        u32::from(CDNA)
    );
    let parts = [&figures, HALF_ROWS, include_str!("fragments.cu"), include_str!("../matmul/fragments.cl")];
    program(language, ITEMS, &parts)
}
