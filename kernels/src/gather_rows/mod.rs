//! GatherRows: looks up rows of a table by index and converts their type.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | indices: u32 `[rows]` |
//! | 1 | table: elements of type `from`, `[table rows, width]` |
//! | 2 | out: elements of type `to`, `[rows, width]`, written |
//!
//! The constants are `from` and `to` (the [numbers](crate::elements::number) of these types), rows, table
//! rows, and width. There are fewer than 2^32 elements.
//!
//! Row i of `out` is row `indices[i]` of the table, or zero if the table has no such row. The kernel converts
//! elements as [`crate::copy`] does.

use crate::abi::{array, product, words};
use crate::cases::{Build, Case, Content, Random};
use crate::copy::{poison, random_elements};
use crate::elements::{self, Operator, in_a_word};
use crate::kernel::{ElementType, Kernel, Spec};
use crate::layout::Layout;
use crate::wgsl;
use ragtag_hal::{Access, EntryAbi};

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "gather_rows",
    bindings: &[Access::Read, Access::Read, Access::Write],
    constants: 5,
    extents: |constants, extents| {
        let [from, to, rows, table_rows, width] = array(constants);
        let (table, out) = (product(&[table_rows, width]), product(&[rows, width]));
        extents.copy_from_slice(&[words(&[rows]), elements::bytes(from, table), elements::bytes(to, out)]);
    },
};

/// Returns a grid with one work item per output word.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let count = product(&[constants[2], constants[4]]);
    elements::grid(count.div_ceil(in_a_word(constants[1]).unwrap_or(1).into()) as u32)
}

pub(crate) struct GatherRows;

impl Spec for GatherRows {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn operator(&self) -> Option<Operator> {
        let wgsl = |_| wgsl::elementwise::elements(&[include_str!("gather_rows.wgsl")]);
        Some(Operator { grid, c: include_str!("gather_rows.cl"), wgsl })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        use ElementType::{BF16, F16, F32};
        [
            (F32, F32, vec![0], 1, 1),
            (F16, F32, vec![4, 0, 3, 5, 4, u32::MAX], 5, 67),
            (BF16, F32, vec![2, 16, 7], 17, 256),
            (F32, F16, vec![1, 1, 6], 7, 33),
            (F16, F16, vec![9, 0, 3, 4], 11, 31),
            (BF16, BF16, vec![0, 1, 2, 1, 0], 2, 1),
        ]
        .map(|(from, to, indices, table_rows, width)| case(random, from, to, &indices, table_rows, width))
        .into()
    }

    /// Returns a random case in which some indices are beyond the end of the table.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let mut element = || ElementType::ALL[random.below(3)];
        let (from, to) = (element(), element());
        let (table_rows, width) = (1 + random.below(40), 1 + random.below(300));
        let indices: Vec<u32> =
            (0..1 + random.below(50)).map(|_| random.below(table_rows + 1) as u32).collect();
        case(random, from, to, &indices, table_rows, width)
    }
}

fn case(
    random: &mut Random,
    from: ElementType,
    to: ElementType,
    indices: &[u32],
    table_rows: usize,
    width: usize,
) -> Case {
    let table = random_elements(random, from, table_rows * width);
    let [from_number, to_number] = [from, to].map(elements::number);
    let row = |index: &u32| match table.chunks(width).nth(*index as usize) {
        Some(row) => row.iter().map(|bits| elements::convert(from_number, to_number, *bits)).collect(),
        None => vec![0; width],
    };
    let wanted = elements::pack(to_number, &indices.iter().flat_map(row).collect::<Vec<u32>>());
    let label = format!("{} of {table_rows} rows of {width} {from} as {to}", indices.len());
    let constants = [from_number as usize, to_number as usize, indices.len(), table_rows, width];
    let case = Build::new(Kernel::GatherRows, label, &constants).words(indices);
    let case = case.words(&elements::pack(from_number, &table)).words(&poison(&wanted));
    case.expect(2, Content::Words(wanted.into_iter().map(Some).collect())).done()
}
