//! xIELU: an activation function with learned numbers of a layer (arXiv 2411.13010).
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | numbers: f32 `[4]`, which are p, n, β and ε |
//! | 3 | out: f32 `[rows, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the width. A launch
//! has one group per row and per block of columns.
//!
//! Let s(a) = ln(1 + e^a). Positive x become s(p) · x² + β · x. Other x become (β + s(n)) · (e^y − 1 − x) + β · x, where y
//! is the smaller one of x and ε. NaN is preserved.

use crate::abi::{HEADER_BYTES, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::{RowKernel, part_grid};
use crate::wgsl::programs::plain;
use ragtag_hal::{Access, EntryAbi};

/// Count of the numbers of a layer.
pub const NUMBERS: u32 = 4;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "xielu",
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, _, width] = array(constants);
        let x = words(&[rows, width]);
        extents.copy_from_slice(&[HEADER_BYTES, x, words(&[NUMBERS]), x]);
    },
};

/// Computes one value in f64.
fn reference(x: f32, numbers: [f32; 4]) -> f64 {
    let (x, [p, n, beta, epsilon]) = (f64::from(x), numbers.map(f64::from));
    let softplus = |a: f64| a.exp().ln_1p();
    if x > 0.0 {
        return softplus(p) * x * x + beta * x;
    }
    (x.min(epsilon).exp_m1() - x) * (beta + softplus(n)) + beta * x
}

pub(crate) struct Xielu;

impl Spec for Xielu {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = plain!("xielu", [include_str!("xielu.wgsl")]);
        Some(RowKernel::new(part_grid, include_str!("xielu.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = [(32, 4.0), (70, 1.0), (64, 0.1), (2048, 8.0), (1, 30.0), (1030, 1e-3)];
        ROW_SHAPES.into_iter().zip(sizes).map(|(shape, size)| case(random, shape, size)).collect()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let size = [0.01, 1.0, 10.0][random.below(3)];
        let (shape, width) = (RowShape::random(random, 40), 1 + random.below(900));
        case(random, shape, (width, size))
    }
}

fn case(random: &mut Random, shape: RowShape, (width, size): (usize, f32)) -> Case {
    let x = random.floats(shape.capacity * width, size);
    let of_layer = random.floats(3, 2.0);
    let numbers = [of_layer[0], of_layer[1], of_layer[2].abs(), [-1e-6, -0.25][random.below(2)]];
    let mut expected = vec![None; x.len()];
    for (expected, x) in expected.iter_mut().zip(&x).take(shape.rows * width) {
        *expected = Some(reference(*x, numbers));
    }
    let constants = [shape.capacity, shape.count_word as usize, width];
    let build = Build::new(Kernel::Xielu, format!("{} up to {size}", shape.label(width)), &constants);
    let build = build.words(&shape.header()).floats(&x).floats(&numbers).poison(x.len() * 4);
    build.expect_f32(3, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        // s(0.5) and s(−1) from tables.
        let (positive, negative) = (0.974_076_984_180_107, 0.313_261_687_518_222_8);
        let numbers = [0.5, -1.0, 0.25, -0.5];
        for (x, wanted) in [
            (2.0, positive * 4.0 + 0.5),
            (-1.0, (0.25 + negative) * (-0.632_120_558_828_557_7 + 1.0) - 0.25),
            // The exponent is ε.
            (-0.25, (0.25 + negative) * (-0.393_469_340_287_366_6 + 0.25) - 0.0625),
        ] {
            assert!((reference(x, numbers) - wanted).abs() < 1e-12, "{x}");
        }
        assert!(reference(f32::NAN, numbers).is_nan());
    }
}
