//! Conformance cases: seeded random inputs for every kernel, with the results that the kernel's reference
//! computes.
//!
//! This module does not depend on devices. The caller copies a case's bindings to the device, launches the
//! kernel, copies the bindings back, and calls [`Case::check`].

mod check;
mod elements;
mod random;

pub(crate) use check::{Build, untouched_after};
pub use check::{Case, Content, Expected};
pub(crate) use elements::{Stored, row_starts};
pub(crate) use random::Random;

use crate::kernel::{Activations, Kernel};
use crate::layout::Layout;
use crate::params::{BLOCK_TOKENS, DECODE_ROWS, LOGIT_ROWS, ParamsShape, ROWS, USED_WORDS};

/// Returns the cases of `kernel`. They have odd shapes, capacities beyond the counts, and poisoned outputs.
/// Weights are in `layout`, or in the layout of the CPU if `layout` is `None`.
pub fn cases(kernel: Kernel, layout: Option<Layout>, seed: u64) -> Vec<Case> {
    kernel.spec().cases(or_default(kernel, layout), &mut Random::new(seed))
}

/// Returns a case of random shape. `layout` has the same meaning as in [`cases`]. The case depends only on
/// `seed`, which is part of its label.
pub fn random_case(kernel: Kernel, layout: Option<Layout>, seed: u64) -> Case {
    let case = kernel.spec().random_case(or_default(kernel, layout), &mut Random::new(seed));
    Case { label: format!("{}, seed {seed}", case.label), ..case }
}

fn or_default(kernel: Kernel, layout: Option<Layout>) -> Layout {
    layout.or(kernel.layout(|_| Layout::Rows16)).unwrap_or(Layout::Rows16)
}

/// Number of work groups that exceeds the limit of some devices for one dimension of a launch.
pub(crate) const MANY: usize = 65_537;

/// Row capacity and used rows of a case for a kernel that processes rows.
#[derive(Clone, Copy)]
pub(crate) struct RowShape {
    pub capacity: usize,
    pub rows: usize,
    pub count_word: u32,
}

const fn rows(capacity: usize, rows: usize, count_word: u32) -> RowShape {
    RowShape { capacity, rows, count_word }
}

/// Shapes with one row, no row, full and partial capacities, and either count word. In some of them, the row
/// count in the parameters exceeds the capacity.
pub(crate) const ROW_SHAPES: [RowShape; 6] = [
    rows(1, 1, ROWS),
    rows(2, 2, LOGIT_ROWS),
    rows(17, 7, ROWS),
    rows(33, 33, ROWS),
    rows(4, 0, ROWS),
    rows(8, 3, LOGIT_ROWS),
];

/// Returns each of [`ROW_SHAPES`] with a width that the activation type supports.
pub(crate) fn wide_rows(activations: Activations) -> impl Iterator<Item = (RowShape, usize)> {
    let multiple = activations.select(1, 32, 32);
    let widths = [32, 70, 256, 768, 64, 96].map(|width| width / multiple * multiple);
    ROW_SHAPES.into_iter().zip(widths)
}

impl RowShape {
    /// Returns a shape with a capacity of up to `most` rows. In at least half of the cases, all rows are in
    /// use.
    pub fn random(random: &mut Random, most: usize) -> Self {
        let capacity = 1 + random.below(most);
        let used = if random.below(2) == 0 { capacity } else { random.below(capacity + 1) };
        rows(capacity, used, [ROWS, LOGIT_ROWS][random.below(2)])
    }

    /// Returns a description of the shape for messages.
    pub fn label(&self, width: usize) -> String {
        format!("{} of {} rows (word {}) × {width}", self.rows, self.capacity, self.count_word)
    }

    /// Returns the header of the parameter block. If all rows are in use, the row count in the header is the
    /// capacity plus one.
    pub fn header(&self) -> [u32; 4] {
        let mut words = [99; 4];
        words[self.count_word as usize] =
            if self.rows == self.capacity { self.rows + 1 } else { self.rows } as u32;
        words
    }
}

/// Contents of a parameter block.
pub(crate) struct Params {
    pub shape: ParamsShape,
    /// Number of decode rows that split attention computes.
    pub decode_rows: u32,
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub row_sequences: Vec<u32>,
    pub logit_rows: Vec<u32>,
    pub tables: Vec<Vec<u32>>,
}

impl Params {
    /// Creates an empty block with capacities `shape`.
    pub fn new(shape: ParamsShape) -> Self {
        let empty = Vec::new;
        Self {
            shape,
            decode_rows: 0,
            tokens: empty(),
            positions: empty(),
            row_sequences: empty(),
            logit_rows: empty(),
            tables: vec![],
        }
    }

    /// Returns the block as words. Its row count is the length of the longest list of rows. A table is packed
    /// up to the last block that a row needs. Unused words are poisoned.
    pub fn words(&self) -> Vec<u32> {
        let mut words = vec![u32::MAX; self.shape.words()];
        let rows = self.tokens.len().max(self.positions.len()).max(self.row_sequences.len());
        words[0] = rows as u32;
        words[1] = self.logit_rows.len() as u32;
        words[DECODE_ROWS as usize] = self.decode_rows;
        let mut put = |at: usize, list: &[u32]| words[at..at + list.len()].copy_from_slice(list);
        put(self.shape.tokens(), &self.tokens);
        put(self.shape.positions(), &self.positions);
        put(self.shape.row_sequences(), &self.row_sequences);
        put(self.shape.logit_rows(), &self.logit_rows);
        let tables = self.shape.tables();
        let mut used = tables;
        for (sequence, table) in self.tables.iter().enumerate() {
            let rows = || (0..rows).filter(|row| self.row_sequences.get(*row) == Some(&(sequence as u32)));
            let blocks = rows().map(|row| self.positions[row] as usize / BLOCK_TOKENS + 1).max();
            rows().for_each(|row| put(self.shape.table_starts() + row, &[(used - tables) as u32]));
            let table = &table[..blocks.unwrap_or_default().min(table.len())];
            put(used, table);
            used += table.len();
        }
        words[USED_WORDS as usize] = used as u32;
        words
    }
}
