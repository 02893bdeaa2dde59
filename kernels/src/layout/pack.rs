//! Packs file rows into resident groups. Every byte of a model passes through this code at load time. The
//! code for each type therefore computes all 16 rows of a group at once. All lengths within a unit of columns
//! are constants, so the compiler can unroll and vectorise the loops.

use super::{COLUMN_BLOCK, GROUP_ROWS, Resident, row_pitch_bytes, sections};
use crate::blocks::TensorType;

/// Maximum number of sections in a group of any type.
pub(crate) const SECTIONS: usize = 4;

/// Copies rows into the row-major layout and adds the padding.
pub(super) fn pad_rows(layout: &Resident, source: &[u8], out: &mut [u8]) {
    let row_bytes = layout.file_row_bytes();
    let mut rows = source.chunks_exact(row_bytes);
    for out in out.chunks_exact_mut(row_pitch_bytes(layout.tensor_type(), layout.columns())) {
        let (values, padding) = out.split_at_mut(row_bytes);
        match rows.next() {
            Some(row) => values.copy_from_slice(row),
            None => values.fill(0),
        }
        padding.fill(0);
    }
}

/// Returns the number of columns that form a unit: one file block, or several if blocks are short.
const fn unit_columns(tensor_type: TensorType) -> usize {
    let block = tensor_type.row().block_values;
    if block > COLUMN_BLOCK { block } else { COLUMN_BLOCK }
}

/// Returns the number of bytes that a unit has in each section of a group.
const fn part_bytes(tensor_type: TensorType) -> [usize; SECTIONS] {
    let (sections, mut bytes, mut i) = (sections(tensor_type), [0; SECTIONS], 0);
    while i < sections.len() {
        bytes[i] = unit_columns(tensor_type) / sections[i].columns * sections[i].bytes;
        i += 1;
    }
    bytes
}

/// One unit of columns in the 16 rows of a group.
pub(crate) struct Unit<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    /// Position of the unit in each row, in bytes.
    start: usize,
}

impl Unit<'_> {
    /// Returns the bytes of a row from byte `offset` of the unit.
    #[inline(always)]
    pub(crate) fn row(&self, lane: usize, offset: usize) -> &[u8] {
        &self.rows[lane * self.row_bytes + self.start + offset..]
    }

    /// Moves `COUNT` values of `BYTES` bytes from byte `offset` of each row to `out`. There, 16 × value 0
    /// comes first, then 16 × value 1.
    #[inline(always)]
    pub(crate) fn interleave<const BYTES: usize, const COUNT: usize>(&self, offset: usize, out: &mut [u8]) {
        let out = &mut out[..GROUP_ROWS * BYTES * COUNT];
        for lane in 0..GROUP_ROWS {
            let values = &self.row(lane, offset)[..BYTES * COUNT];
            for (at, value) in values.as_chunks::<BYTES>().0.iter().enumerate() {
                out[(at * GROUP_ROWS + lane) * BYTES..][..BYTES].copy_from_slice(value);
            }
        }
    }

    /// Returns `COUNT` 32-bit words from byte `offset` of each row. The first index selects the word, and the
    /// second index selects the row.
    #[inline(always)]
    pub(crate) fn words<const COUNT: usize>(&self, offset: usize) -> [[u32; GROUP_ROWS]; COUNT] {
        let mut words = [[0; GROUP_ROWS]; COUNT];
        for lane in 0..GROUP_ROWS {
            let row = &self.row(lane, offset)[..COUNT * 4];
            for (word, lanes) in row.as_chunks().0.iter().zip(&mut words) {
                lanes[lane] = u32::from_le_bytes(*word);
            }
        }
        words
    }
}

/// Packs the groups of `out`, one unit of columns at a time. The units of 16 rows are 16 streams of reads,
/// and each section is one stream of writes.
///
/// `TYPE` is the index in [`TensorType::ALL`] of a type with the same shape as the type of `layout`.
#[inline(always)]
pub(crate) fn pack_with<const TYPE: usize>(
    layout: &Resident,
    source: &[u8],
    out: &mut [u8],
    pack_unit: impl Fn(Unit<'_>, [&mut [u8]; SECTIONS]),
) {
    let part_bytes = const { part_bytes(TensorType::ALL[TYPE]) };
    let unit_columns = const { unit_columns(TensorType::ALL[TYPE]) };
    let row_bytes = layout.file_row_bytes();
    let units = layout.columns() / unit_columns;
    let groups = source.chunks(GROUP_ROWS * row_bytes).zip(out.chunks_exact_mut(layout.group_bytes()));
    let mut padded = Vec::new();
    for (mut rows, group) in groups {
        if rows.len() < GROUP_ROWS * row_bytes {
            padded.extend_from_slice(rows);
            padded.resize(GROUP_ROWS * row_bytes, 0);
            rows = &padded;
        }
        let mut rest = group;
        let [a, b, c, d] = part_bytes.map(|bytes| {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(units * bytes);
            part
        });
        rest.fill(0);
        for at in 0..units {
            let parts = [
                &mut a[at * part_bytes[0]..][..part_bytes[0]],
                &mut b[at * part_bytes[1]..][..part_bytes[1]],
                &mut c[at * part_bytes[2]..][..part_bytes[2]],
                &mut d[at * part_bytes[3]..][..part_bytes[3]],
            ];
            pack_unit(Unit { rows, row_bytes, start: row_bytes / units * at }, parts);
        }
    }
}

/// Writes a word for each row to vector `vector`. `word` receives the row.
#[inline(always)]
pub(crate) fn put(out: &mut [u8], vector: usize, word: impl Fn(usize) -> u32) {
    for (lane, out) in out[vector * 64..][..64].as_chunks_mut().0.iter_mut().enumerate() {
        *out = word(lane).to_le_bytes();
    }
}

/// Writes a byte for each row to array `array`. `byte` receives the row.
#[inline(always)]
pub(crate) fn put_bytes(out: &mut [u8], array: usize, byte: impl Fn(usize) -> u8) {
    for (lane, out) in out[array * GROUP_ROWS..][..GROUP_ROWS].iter_mut().enumerate() {
        *out = byte(lane);
    }
}

/// Packs 2-bit quants, which begin at byte `offset` of the unit. In each half of 128 values, four sub-blocks
/// of 32 share 32 bytes. Each byte of vector j of 32 columns receives one value from each of the quads
/// 4j … 4j + 3, starting at the lowest bits.
#[inline(always)]
pub(crate) fn move_pairs(unit: &Unit<'_>, offset: usize, quants: &mut [u8]) {
    for half in 0..2 {
        let words = unit.words::<8>(offset + half * 32);
        for quarter in 0..4 {
            let pairs = |j: usize, lane: usize| (words[j][lane] >> (quarter * 2)) & 0x0303_0303;
            for j in 0..2 {
                put(quants, (half * 4 + quarter) * 2 + j, |lane| {
                    (0..4).fold(0, |word, field| word | pairs(j * 4 + field, lane) << (field * 2))
                });
            }
        }
    }
}

/// Packs the fifth bits of blocks of 32 values. They begin at byte `offset` of the unit. Bit 4j + i of the
/// file goes to bit j of byte i.
#[inline(always)]
pub(crate) fn move_fifth_bits(unit: &Unit<'_>, offset: usize, highs: &mut [u8]) {
    let [bits] = unit.words(offset);
    // The multiplication repeats the nibble four times, seven bits apart. So bit i of copy i becomes bit 0 of
    // byte i.
    let spread = |nibble: u32| nibble.wrapping_mul(0x0020_4081) & 0x0101_0101;
    put(highs, 0, |lane| (0..8).fold(0, |word, j| word | spread((bits[lane] >> (j * 4)) & 15) << j));
}

/// Packs the scales and minima of the sub-blocks of Q4_K or Q5_K. [`k_scale`](crate::blocks::k_scale) defines
/// their format. This function reads four bytes at a time.
#[inline(always)]
pub(crate) fn move_k_scales(unit: &Unit<'_>, subs: &mut [u8]) {
    let [scales, minima, lows] = unit.words(4);
    for sub in 0..8 {
        let shift = sub % 4 * 8;
        let upper = |words: &[u32; GROUP_ROWS], lane: usize| (words[lane] >> (shift + 2)) as u8 & 48;
        let byte = |words: &[u32; GROUP_ROWS], lane: usize| (words[lane] >> shift) as u8;
        if sub < 4 {
            put_bytes(subs, sub * 2, |lane| byte(&scales, lane) & 63);
            put_bytes(subs, sub * 2 + 1, |lane| byte(&minima, lane) & 63);
        } else {
            put_bytes(subs, sub * 2, |lane| (byte(&lows, lane) & 15) | upper(&scales, lane));
            put_bytes(subs, sub * 2 + 1, |lane| byte(&lows, lane) >> 4 | upper(&minima, lane));
        }
    }
}

/// Packs the nibbles of Q4_K or Q5_K. They begin at byte `offset` of the unit. A byte in the file holds value
/// i of a sub-block and value i of the next sub-block.
#[inline(always)]
pub(crate) fn move_k_nibbles(unit: &Unit<'_>, offset: usize, quants: &mut [u8]) {
    for (pair, quants) in quants.chunks_exact_mut(512).enumerate() {
        let words = unit.words::<8>(offset + pair * 32);
        for j in 0..4 {
            let (first, last) = (&words[j], &words[j + 4]);
            put(quants, j, |lane| (first[lane] & 0x0f0f_0f0f) | ((last[lane] & 0x0f0f_0f0f) << 4));
            put(quants, 4 + j, |lane| ((first[lane] >> 4) & 0x0f0f_0f0f) | (last[lane] & 0xf0f0_f0f0));
        }
    }
}
