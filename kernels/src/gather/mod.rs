//! Gather: selects the rows that need logits.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters; the kernel reads them up to the logit rows |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | out: f32 `[logit rows, width]`, written |
//!
//! The constants are the row capacity, the logit-row capacity, and the width. Row i of `out` is row
//! `logit_rows[i]` of `x`, or zero if `x` has no such row. A launch has one group per row of `out`.

use crate::abi::{array, params, words};
use crate::cases::{Build, Case, Params, Random, untouched_after};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use crate::params::ParamsShape;
use crate::rows::RowKernel;
use crate::wgsl::programs::plain;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "gather",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 3,
    extents: |constants, extents| {
        let [rows, logit_rows, width] = array(constants);
        extents.copy_from_slice(&[
            params(rows, 0, 0, logit_rows),
            words(&[rows, width]),
            words(&[logit_rows, width]),
        ]);
    },
};

/// Returns a grid of one group per output row.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[1], 1, 1]
}

pub(crate) struct Gather;

impl Spec for Gather {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let wgsl = plain!("gather", [include_str!("gather.wgsl")]);
        Some(RowKernel::new(grid, include_str!("gather.cl"), wgsl))
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        [(1, 1, vec![0], 32), (17, 8, vec![16, 0, 3], 70), (4, 3, vec![2, 4, 1], 256)]
            .map(|(rows, capacity, wanted, width)| case(random, rows, capacity, &wanted, width))
            .into()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (rows, capacity, width) = (1 + random.below(40), 1 + random.below(20), 1 + random.below(600));
        let wanted: Vec<u32> =
            (0..random.below(capacity + 1)).map(|_| random.below(rows + 1) as u32).collect();
        case(random, rows, capacity, &wanted, width)
    }
}

fn case(random: &mut Random, rows: usize, capacity: usize, wanted: &[u32], width: usize) -> Case {
    let x = random.floats(rows * width, 1.0);
    let shape = ParamsShape { rows: rows as u32, logit_rows: capacity as u32, sequences: 0, table_blocks: 0 };
    let params = Params { tokens: vec![0; rows], logit_rows: wanted.to_vec(), ..Params::new(shape) };
    let mut expected = vec![0.0; capacity * width];
    for (out, row) in expected.chunks_exact_mut(width).zip(wanted).filter(|(_, row)| (**row as usize) < rows)
    {
        let from = &x[*row as usize * width..];
        out.iter_mut().zip(from).for_each(|(out, x)| *out = f64::from(*x));
    }
    let label = format!("{wanted:?} of {rows} rows × {width}");
    let case = Build::new(Kernel::Gather, label, &[rows, capacity, width]).words(&params.words()).floats(&x);
    let expected = untouched_after(expected, wanted.len() * width);
    case.poison(capacity * width * 4).expect_f32(2, expected)
}
