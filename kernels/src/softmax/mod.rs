//! Softmax: converts rows of scores to probabilities.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | out: f32 `[rows, width]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the
//! width. A launch has one group per row.
//!
//! out = exp(x − max) / Σ exp(x − max), in f32. The probability of −∞ is zero. If all values of a row are −∞,
//! its output is zero. If a row contains NaN or +∞, all its outputs are NaN.

use crate::abi::{HEADER_BYTES, words};
use crate::add::grid;
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape, untouched_after};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::wgsl::rows::{ORDER, reducing};
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "softmax",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, _, width] = *constants else { return };
        extents.copy_from_slice(&[HEADER_BYTES, words(&[rows, width]), words(&[rows, width])]);
    },
};

/// Computes the probabilities of one row in f64.
pub(crate) fn reference(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |max, x| max.max(f64::from(*x)));
    if row.iter().all(|x| *x == f32::NEG_INFINITY) {
        return vec![0.0; row.len()];
    }
    let weights: Vec<f64> = row.iter().map(|x| (f64::from(*x) - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

pub(crate) struct Softmax;

impl Spec for Softmax {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = reducing!("softmax", [ORDER, include_str!("softmax.wgsl")]);
        Some(RowKernel::new(grid, include_str!("softmax.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        let shapes = ROW_SHAPES.into_iter().zip([32, 70, 768, 33, 64, 1]);
        let vocabulary = [(RowShape { capacity: 3, rows: 2, count_word: 1 }, 32000)];
        for (shape, width) in shapes.chain(vocabulary) {
            out.push(case(random, shape, width));
        }
        out.push(edges(random));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 20), 1 + random.below(2000));
        case(random, shape, width)
    }
}

fn case(random: &mut Random, shape: RowShape, width: usize) -> Case {
    let mut x = random.floats(shape.capacity * width, 20.0);
    x.iter_mut().skip(5).step_by(23).for_each(|x| *x = f32::NEG_INFINITY);
    let expected = x.chunks_exact(width).flat_map(reference).collect();
    let constants = [shape.capacity, shape.count_word as usize, width];
    let case = Build::new(Kernel::Softmax, shape.label(width), &constants).words(&shape.header());
    let case = case.floats(&x).poison(x.len() * 4);
    case.expect_f32(2, untouched_after(expected, shape.rows * width))
}

/// Returns a case of rows whose probabilities are all zero, one or NaN.
fn edges(random: &mut Random) -> Case {
    const WIDTH: usize = 37;
    let (none, nan) = (f32::NEG_INFINITY, f32::NAN);
    let mut rows: [Vec<f32>; 6] =
        std::array::from_fn(|i| if i < 4 { vec![none; WIDTH] } else { random.floats(WIDTH, 3.0) });
    rows[1][random.below(WIDTH)] = -3.4e38; // The only finite value.
    rows[2][random.below(WIDTH)] = nan;
    (rows[3][2], rows[3][WIDTH - 1]) = (-3.4e38, 3.4e38);
    rows[4][random.below(WIDTH)] = nan;
    rows[5][random.below(WIDTH)] = f32::INFINITY;
    let x = rows.concat();
    let expected = x.chunks_exact(WIDTH).flat_map(reference).map(|p| Some(p as f32)).collect();
    let case = Build::new(Kernel::Softmax, "infinities and NaN".into(), &[rows.len(), 0, WIDTH]);
    let case = case.words(&[rows.len() as u32, 99, 99, 99]).floats(&x).floats(&vec![7.0; x.len()]);
    case.expect(2, Content::Same(expected)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        let quarter = [0.25; 4];
        assert_eq!(reference(&[1e30; 4]), quarter);
        assert_eq!(reference(&[f32::NEG_INFINITY; 2]), [0.0; 2]);
        assert_eq!(reference(&[0.0, f32::NEG_INFINITY]), [1.0, 0.0]);
        let odds = reference(&[2.0, 2.0 + std::f32::consts::LN_2]);
        assert!((odds[1] / odds[0] - 2.0).abs() < 1e-6);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(reference(&[bad, 0.0, f32::NEG_INFINITY]).iter().all(|p| p.is_nan()));
        }
        assert!(reference(&[f32::NEG_INFINITY, f32::NAN]).iter().all(|p| p.is_nan()));
    }
}
