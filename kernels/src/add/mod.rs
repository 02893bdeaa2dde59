//! Add: addition in place, `x += y`.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]`, read and written |
//! | 2 | y: f32 `[rows, width]` |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the
//! width. A launch has one group per row.

use crate::abi::{HEADER_BYTES, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape, untouched_after};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::rows::{RowKernel, part_grid};
use crate::wgsl::programs::plain;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "add",
    bindings: &[Access::Read, Access::ReadWrite, Access::Read],
    constants: 3,
    extents: |constants, extents| {
        let [rows, _, width] = array(constants);
        extents.copy_from_slice(&[HEADER_BYTES, words(&[rows, width]), words(&[rows, width])]);
    },
};

/// Returns a grid of one group per row, for kernels whose first constant is the number of rows.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], 1, 1]
}

/// Computes the sums in f64.
fn reference(x: &[f32], y: &[f32]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) + f64::from(*y)).collect()
}

pub(crate) struct Add;

impl Spec for Add {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = plain!("add", [include_str!("add.wgsl")]);
        Some(RowKernel::new(part_grid, include_str!("add.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (shape, width) in ROW_SHAPES.into_iter().zip([32, 70, 64, 768, 1, 256]) {
            out.push(case(random, shape, width));
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 40), 1 + random.below(900));
        case(random, shape, width)
    }
}

fn case(random: &mut Random, shape: RowShape, width: usize) -> Case {
    let (x, y) = (random.floats(shape.capacity * width, 2.0), random.floats(shape.capacity * width, 2.0));
    let expected = untouched_after(reference(&x, &y), shape.rows * width);
    let case =
        Build::new(Kernel::Add, shape.label(width), &[shape.capacity, shape.count_word as usize, width]);
    case.words(&shape.header()).floats(&x).floats(&y).expect_f32(1, expected)
}
