//! Peaks: the best logits of the parts of each row, as records of [`picks`](crate::picks).
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | parts: `[rows, parts]` records, written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, the width, and the
//! number of values per part, 1 to [`MAX_PART`]. The draws are the last parameter words in use. The last part of a row may be shorter. A launch has one group per row
//! and part. The ids of a record are positions in the row.

use super::noise::Draw;
use super::{LOCAL_BYTES, RECORD_WORDS, Record, content, draws, params, records, wgsl};
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::RowKernel;
use crate::wgsl::programs::{ORDER, in_groups};
use ragtag_hal::{Access, EntryAbi};

/// Maximum number of values in a part.
pub const MAX_PART: u32 = 4096;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "peaks",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 4,
    extents: |constants, extents| {
        let [rows, _, width, part] = array(constants);
        let [x, out] = match width > 0 && (1..=MAX_PART).contains(&part) {
            true => [words(&[rows, width]), records(&[rows, width.div_ceil(part)])],
            false => [IMPOSSIBLE; 2],
        };
        extents.copy_from_slice(&[HEADER_BYTES, x, out]);
    },
};

/// Returns a grid of rows × parts.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    [constants[0], constants[2].div_ceil(constants[3].max(1)), 1]
}

pub(crate) struct Peaks;

impl Spec for Peaks {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(1e-5)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        // The part of `picks` follows and uses the same functions.
        let c = concat!(include_str!("best.cl"), "\n", include_str!("peaks.cl"));
        Some(RowKernel { local_bytes: LOCAL_BYTES, ..RowKernel::new(grid, c, wgsl!("peaks")) })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = ROW_SHAPES.into_iter().zip([(32, 32), (70, 64), (768, 300), (33, 5), (64, 64), (1, 1)]);
        let vocabulary = [
            (RowShape { capacity: 9, rows: 8, count_word: 0 }, (32000, 4096)),
            (RowShape { capacity: 2, rows: 2, count_word: 1 }, (5000, 4096)),
        ];
        let mut out = Vec::new();
        for (shape, (width, part)) in shapes.chain(vocabulary) {
            out.push(case(random, shape, width, part));
        }
        out.push(ascending(random));
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 20), 1 + random.below(9000));
        let part = 1 + random.below(width.min(MAX_PART as usize));
        case(random, shape, width, part.max(width.div_ceil(100)))
    }
}

fn case(random: &mut Random, shape: RowShape, width: usize, part: usize) -> Case {
    let rows: Vec<Vec<f32>> = (0..shape.capacity).map(|i| random.awkward(i, width)).collect();
    let draws = draws(random, &rows, part);
    with_rows(shape, &rows, &draws, part)
}

/// Returns a case in which the best values belong to few work items, or to successive ones.
fn ascending(random: &mut Random) -> Case {
    let width = MAX_PART as usize;
    let up = (0..width).map(|i| i as f32 / 1e3).collect();
    let few = (0..width).map(|i| if i % 256 < 4 { i as f32 / 1e3 } else { -1.0 }).collect();
    let rows = [up, few];
    let draws = draws(random, &rows, width);
    with_rows(RowShape { capacity: 2, rows: 2, count_word: 1 }, &rows, &draws, width)
}

fn with_rows(shape: RowShape, rows: &[Vec<f32>], draws: &[Draw], part: usize) -> Case {
    let width = rows[0].len();
    let records = rows.iter().zip(draws).flat_map(|(row, draw)| {
        (0..).step_by(part).zip(row.chunks(part)).map(|(first, part)| Record::new(part, first, draw))
    });
    let records: Vec<_> = records.collect();
    let count = width.div_ceil(part);
    let label = format!("{count} parts of {}", shape.label(width));
    let constants = [shape.capacity, shape.count_word as usize, width, part];
    let case = Build::new(Kernel::Peaks, label, &constants).words(&params(&shape, draws));
    let case = case.floats(&rows.concat()).poison(records.len() * RECORD_WORDS * 4);
    case.expect(2, content(&records, shape.rows * count)).done()
}
