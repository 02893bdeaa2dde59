//! Variants that compute products with a GEMM library. [`Caps::gemm`](ragtag_hal::Caps::gemm) names the
//! library of a device.
//!
//! | needs | product |
//! | --- | --- |
//! | [`Caps::gemm`](ragtag_hal::Caps::gemm) | row-major f16 weights with f16 activations, f32 accumulation |
//!
//! A library does not read the parameter block. It computes all rows of a launch's capacity, including
//! padding rows with arbitrary contents. Its order of summation is unspecified, so equal rows of x at
//! different positions may give results that differ in their last bits, within the numerics class. Products
//! of bf16 weights use kernels instead: kernels can convert f16 activations to bf16, but libraries require
//! both factors to have the same type.

use crate::abi::array;
use crate::blocks::TensorType;
use crate::half_rows::PITCH_VALUES;
use crate::kernel::{Activations, Kernel, NumericsClass};
use crate::layout::Layout;
use crate::matmul;
use crate::variant::{Code, Grid, Variant};
use ragtag_hal::{Gemm, GemmEntry};

/// Minimum number of rows of x for which a library is faster than kernels, even with the cost of the call and
/// of the padding rows.
const MIN_ROWS: u32 = 512;

/// Returns all library variants.
pub(crate) fn variants() -> [Variant; 1] {
    [Variant {
        kernel: Kernel::MatMul(TensorType::F16, Activations::F16),
        name: "library",
        class: NumericsClass::Fast,
        requires: &[],
        abi: matmul::abi(TensorType::F16, Layout::RowMajor, Activations::F16),
        grid: Grid::Fixed(|constants| [u32::from(constants[0] > 0 && constants[2] > 0), 1, 1]),
        layout: Some(Layout::RowMajor),
        min_rows: MIN_ROWS,
        max_rows: u32::MAX,
        code: Code::Library(GemmEntry { bindings: [2, 1, 3], product }),
    }]
}

/// Converts the constants of a product to a [`Gemm`], the library's description of the product.
fn product(constants: &[u32]) -> Gemm {
    let [rows, _, columns, depth, accumulate, y_pitch] = array(constants);
    let pitch = depth.checked_next_multiple_of(PITCH_VALUES as u32).unwrap_or(0);
    Gemm { rows, columns, depth, x_pitch: pitch, weights_pitch: pitch, y_pitch, accumulate: accumulate != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_the_extents_of_its_abi() {
        let variant = variants()[0];
        for constants in [[1, 0, 1, 32, 0, 1], [515, 0, 257, 416, 1, 300], [7, 1, 16, 64, 0, 16]] {
            let product = product(&constants);
            assert!(product.is_sound());
            let mut extents = [0; 4];
            (variant.abi.extents)(&constants, &mut extents);
            let [x, weights, y] = product.extents();
            // f16 rows end with padding. The ABI counts the padding, but the library does not read it.
            assert!(weights <= extents[1] && x <= extents[2], "{constants:?}");
            assert_eq!(y, extents[3]);
        }
        assert!(!product(&[1, 0, 1, u32::MAX, 0, 1]).is_sound());
    }
}
