//! TopK: returns the k largest values of each row, and their positions.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | values: f32 `[rows, k]`, written |
//! | 3 | indices: u32 `[rows, k]`, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width,
//! and k. k is 1 to [`MAX_K`], and at most the width. A launch has one group per row.
//!
//! Values are in descending order, as defined by [`arg_max`](crate::arg_max): among equal values, the one at
//! the lowest position comes first, and NaN comes after every number.

use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::add::grid;
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::wgsl::programs::{ORDER, reducing};
use ragtag_hal::{Access, EntryAbi};

/// Maximum value of k.
pub const MAX_K: u32 = 64;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "top_k",
    bindings: &[Access::Read, Access::Read, Access::Write, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [rows, _, width, k] = array(constants);
        let out = if (1..=MAX_K.min(width)).contains(&k) { words(&[rows, k]) } else { IMPOSSIBLE };
        extents.copy_from_slice(&[HEADER_BYTES, words(&[rows, width]), out, out]);
    },
};

/// Reference implementation. Sorts the whole row and returns its first `k` values with their positions.
fn reference(row: &[f32], k: usize) -> Vec<(f32, u32)> {
    let mut all: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
    all.sort_by(|(a, _), (b, _)| match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(a).expect("neither is NaN"),
        (a, b) => a.cmp(&b),
    });
    all.truncate(k);
    all
}

pub(crate) struct TopK;

impl Spec for TopK {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = reducing!("top_k", [ORDER, include_str!("top_k.wgsl")]);
        Some(RowKernel::new(grid, include_str!("top_k.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = ROW_SHAPES.into_iter().zip([(32, 32), (70, 64), (768, 40), (33, 5), (64, 64), (1, 1)]);
        let vocabulary = [
            (RowShape { capacity: 9, rows: 8, count_word: 0 }, (32000, 64)),
            (RowShape { capacity: 2, rows: 2, count_word: 1 }, (32000, 1)),
        ];
        let mut out = Vec::new();
        for (shape, (width, k)) in shapes.chain(vocabulary) {
            out.push(case(random, shape, width, k));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 20), 1 + random.below(2000));
        let k = 1 + random.below(width.min(MAX_K as usize));
        case(random, shape, width, k)
    }
}

fn case(random: &mut Random, shape: RowShape, width: usize, k: usize) -> Case {
    let rows: Vec<Vec<f32>> = (0..shape.capacity).map(|i| random.awkward(i, width)).collect();
    let best = rows.iter().map(|row| reference(row, k));
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for (i, (value, index)) in best.flatten().enumerate() {
        values.push((i < shape.rows * k).then_some(value));
        indices.push((i < shape.rows * k).then_some(index));
    }
    let constants = [shape.capacity, shape.count_word as usize, width, k];
    let label = format!("{k} of {}", shape.label(width));
    let case = Build::new(Kernel::TopK, label, &constants).words(&shape.header());
    let case = case.floats(&rows.concat()).floats(&vec![7.0; values.len()]).poison(indices.len() * 4);
    case.expect(2, Content::Same(values)).expect(3, Content::Words(indices)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_definition() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let row = [nan, 1.0, infinity, -infinity, 1.0, nan, -0.0, 0.0];
        let indices: Vec<u32> = reference(&row, 8).iter().map(|(_, i)| *i).collect();
        assert_eq!(indices, [2, 1, 4, 6, 7, 3, 0, 5]);
        assert_eq!(reference(&row, 2), [(infinity, 2), (1.0, 1)]);
    }

    #[test]
    fn k_beyond_the_width_or_the_maximum_is_impossible() {
        let extents = |width, k| {
            let mut out = [0; 4];
            (ABI.extents)(&[3, 0, width, k], &mut out);
            out
        };
        assert_eq!(extents(70, 64), [16, 840, 768, 768]);
        for (width, k) in [(70, 65), (70, 0), (7, 8), (0, 0)] {
            assert_eq!(extents(width, k)[2..], [IMPOSSIBLE; 2], "{k} of {width}");
        }
    }
}
