//! Order of the weights in BitNet's types TL1 and TL2. Several weights form the index into a table, and a
//! nibble holds the index. Matrices are cut into tiles, and tiles into runs of 32 or 64 rows, so that kernels
//! read nibbles in order. The sizes of tiles depend on the matrix. Files do not contain them.
//!
//! Source: `utils/convert-hf-to-gguf-bitnet.py` and the kernel configurations in Microsoft's repository
//! `BitNet`.

/// Columns of the tiles in the part of TL2 that holds pairs.
const PAIR_COLUMNS: u64 = 32;

/// Meaning of the nibbles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// TL1: pairs of weights.
    Pairs,
    /// TL2: magnitudes of three weights, then the signs of these, then pairs of the columns that are left.
    Triples,
}

/// Sizes of tiles. A run has [`Tiles::run`] rows and as many columns as fill 64 bytes in TL1, or 32 bytes in
/// TL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    pub rows: u64,
    pub columns: u64,
    pub run: u64,
}

/// Order of the weights of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    table: Table,
    rows: u64,
    columns: u64,
    tiles: Tiles,
}

/// Tiles of each matrix, by its rows and columns. Microsoft's converter knows no others. The table leaves out
/// matrices for which the repository contains several tile sizes.
const TL1: [(u64, u64, Tiles); 6] = [
    (1536, 4096, Tiles { rows: 256, columns: 128, run: 32 }),
    (1536, 1536, Tiles { rows: 128, columns: 64, run: 64 }),
    (4096, 1536, Tiles { rows: 256, columns: 128, run: 32 }),
    (3200, 8640, Tiles { rows: 160, columns: 64, run: 32 }),
    (3200, 3200, Tiles { rows: 320, columns: 128, run: 64 }),
    (8640, 3200, Tiles { rows: 320, columns: 64, run: 32 }),
];
const TL2: [(u64, u64, Tiles); 10] = [
    (1536, 4096, Tiles { rows: 256, columns: 96, run: 32 }),
    (1536, 1536, Tiles { rows: 128, columns: 192, run: 32 }),
    (4096, 1536, Tiles { rows: 256, columns: 96, run: 32 }),
    (3200, 8640, Tiles { rows: 160, columns: 96, run: 32 }),
    (3200, 3200, Tiles { rows: 320, columns: 96, run: 32 }),
    (8640, 3200, Tiles { rows: 320, columns: 96, run: 32 }),
    (14336, 4096, Tiles { rows: 256, columns: 96, run: 32 }),
    (4096, 14336, Tiles { rows: 128, columns: 96, run: 32 }),
    (1024, 4096, Tiles { rows: 256, columns: 96, run: 32 }),
    (4096, 4096, Tiles { rows: 128, columns: 96, run: 32 }),
];

/// Returns the number of bytes of a matrix before its scale, or `None` if the matrix is too large.
pub(crate) fn bytes(table: Table, [columns, rows]: [u64; 2]) -> Option<u64> {
    let values = columns.checked_mul(rows)?;
    match table {
        Table::Pairs => Some(values / 4),
        // The converter's numbers. At most 256 columns can be pairs, and the file has space for as many.
        Table::Triples => {
            let pairs = rows.checked_mul(256)?;
            let triples = values.checked_sub(pairs)? / 3;
            (triples.checked_mul(5)? / 8 + pairs / 4).checked_next_multiple_of(32)
        }
    }
}

impl Lookup {
    /// Returns the order of the weights of a matrix, if it is known.
    pub(crate) fn find(table: Table, [columns, rows]: [u64; 2]) -> Option<Self> {
        let known: &[_] = if table == Table::Pairs { &TL1 } else { &TL2 };
        let (.., tiles) = *known.iter().find(|matrix| (matrix.0, matrix.1) == (rows, columns))?;
        Some(Self::new(table, [columns, rows], tiles))
    }

    /// Creates the order for tiles that divide the matrix. In TL2, the columns that are left over are whole
    /// tiles of pairs.
    pub(super) fn new(table: Table, [columns, rows]: [u64; 2], tiles: Tiles) -> Self {
        Self { table, rows, columns, tiles }
    }

    /// Returns the index of a run, for tiles of `tile` columns and runs of `width` columns.
    fn run(&self, [columns, tile, width]: [u64; 3], row: u64, column: u64) -> u64 {
        let Tiles { rows, run, .. } = self.tiles;
        let tiles = row / rows * (columns / tile) + column / tile;
        (tiles * (rows / run) + row % rows / run) * (tile / width) + column % tile / width
    }

    /// Writes the codes 0 to 2 of weights of one row, or 3 where the bytes are invalid. The first weight is in
    /// column `first`.
    pub(super) fn codes(&self, bytes: &[u8], row: u64, first: u64, codes: &mut [u8]) {
        let at = |index: u64| usize::try_from(index).ok().and_then(|index| bytes.get(index)).copied();
        for (column, code) in (first..).zip(codes) {
            *code = self.code(&at, row, column).unwrap_or(3);
        }
    }

    fn code(&self, at: &impl Fn(u64) -> Option<u8>, row: u64, column: u64) -> Option<u8> {
        let Tiles { columns: tile, run, .. } = self.tiles;
        let lane = row % self.tiles.rows % run;
        if self.table == Table::Pairs {
            let width = 256 / run;
            let (run_bytes, quads) = (64, width / 4);
            let in_run = (lane / 16 * quads + column % width / 4) * 16 + lane % 16;
            let byte = at(self.run([self.columns, tile, width], row, column) * run_bytes + in_run)?;
            return of_pair(nibble(byte, column % 4 / 2), column);
        }
        // Of each 32 rows, the second and the third eight are exchanged.
        let lane_byte = [0, 2, 1, 3][(lane / 8) as usize % 4] * 8 + lane % 8;
        let triples = self.columns - self.columns % tile;
        let signs = self.rows * triples / 6;
        if column >= triples {
            let column = column - triples;
            let run = self.run([self.columns - triples, PAIR_COLUMNS, 4], row, column);
            let byte = at(signs + self.rows * triples / 24 + run * 32 + lane_byte)?;
            return of_pair(nibble(byte, column % 4 / 2), column);
        }
        let byte = at(self.run([triples, tile, 6], row, column) * 32 + lane_byte)?;
        let magnitude = nibble(byte, column % 6 / 3);
        // A bit per triple, in words of 16 bits from the highest bit on.
        let word = self.run([triples, tile, 24], row, column) * 16 + lane % 16;
        let bit = 15 - (column % 24 / 3 * 2 + lane / 16);
        let is_negative = (at(signs + word * 2 + bit / 8)? >> (bit % 8)) & 1 == 1;
        let index = if is_negative { 13u8.checked_sub(magnitude)? } else { 13 + magnitude };
        let digit = index / [9, 3, 1][(column % 3) as usize];
        (index < 27).then_some(digit % 3)
    }
}

/// Returns the high nibble of a byte for index 0, and the low nibble for index 1.
fn nibble(byte: u8, index: u64) -> u8 {
    if index == 0 { byte >> 4 } else { byte & 15 }
}

/// Returns the weight of a pair that is in `column`.
fn of_pair(index: u8, column: u64) -> Option<u8> {
    let digit = if column.is_multiple_of(2) { index / 3 } else { index % 3 };
    (index < 9).then_some(digit)
}
