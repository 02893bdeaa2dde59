//! ArgMax: returns the position of the largest value of each row.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]`, width at least 1 |
//! | 2 | out: u32 `[rows]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the
//! width. A launch has one group per row.
//!
//! Among equal values, the first wins. +0 and −0 are equal. NaN ranks below every number, including −∞. If
//! all values are NaN, the result is position 0.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::add::grid;
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::wgsl::programs::{ORDER, reducing};
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "arg_max",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, _, width] = array(constants);
        let x = if width == 0 { IMPOSSIBLE } else { words(&[rows, width]) };
        extents.copy_from_slice(&[HEADER_BYTES, x, words(&[rows])]);
    },
};

/// Returns whether `a` ranks above `b`, which comes earlier in the row.
#[inline(always)]
pub(crate) fn beats(a: f32, b: f32) -> bool {
    a > b || (b.is_nan() && !a.is_nan())
}

fn reference(row: &[f32]) -> u32 {
    (1..row.len()).fold(0, |best, i| if beats(row[i], row[best]) { i } else { best }) as u32
}

pub(crate) struct ArgMax;

impl Spec for ArgMax {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        // The part of `top_k` follows and uses the order, too.
        let c = concat!(include_str!("../c_family/order.cl"), "\n", include_str!("arg_max.cl"));
        let wgsl = reducing!("arg_max", [ORDER, include_str!("arg_max.wgsl")]);
        Some(RowKernel::new(grid, c, wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = ROW_SHAPES.into_iter().zip([32, 70, 768, 33, 64, 1]);
        let vocabulary = [(RowShape { capacity: 9, rows: 8, count_word: 1 }, 32000)];
        let mut out = Vec::new();
        for (shape, width) in shapes.chain(vocabulary) {
            out.push(case(random, shape, width));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 20), 1 + random.below(2000));
        case(random, shape, width)
    }
}

fn case(random: &mut Random, shape: RowShape, width: usize) -> Case {
    let rows: Vec<Vec<f32>> = (0..shape.capacity).map(|i| random.awkward(i, width)).collect();
    let expected = rows.iter().enumerate().map(|(i, row)| (i < shape.rows).then(|| reference(row))).collect();
    let constants = [shape.capacity, shape.count_word as usize, width];
    let case = Build::new(Kernel::ArgMax, shape.label(width), &constants).words(&shape.header());
    let case = case.floats(&rows.concat()).poison(shape.capacity * 4);
    case.expect(2, Content::Words(expected)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        assert_eq!(reference(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(reference(&[-0.0, 0.0]), 0);
        assert_eq!(reference(&[nan, -infinity, nan]), 1);
        assert_eq!(reference(&[nan, nan]), 0);
        assert_eq!(reference(&[3.4e38, infinity, nan]), 1);
    }
}
