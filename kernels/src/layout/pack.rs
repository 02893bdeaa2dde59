//! Packs file rows into resident groups. Every byte of a model passes through this code at load time. The
//! code for each type therefore moves four bytes at a time where the format allows it.

use super::{GROUP_ROWS, Resident, row_pitch_bytes, sections};
use crate::blocks::{TensorType, k_scale};

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
fn unit_columns(tensor_type: TensorType) -> usize {
    tensor_type.block_values().max(super::COLUMN_BLOCK)
}

/// Packs the groups of `out`, one unit of columns at a time. For each unit, the function packs all 16 rows of
/// a group. It therefore reads 16 streams and writes to few cache lines.
pub(crate) fn pack_with(
    layout: &Resident,
    source: &[u8],
    out: &mut [u8],
    mover: impl Fn(&[u8], usize, [&mut [u8]; SECTIONS]),
) {
    let tensor_type = layout.tensor_type();
    let row_bytes = layout.file_row_bytes();
    let unit = unit_columns(tensor_type);
    let unit_bytes = unit / tensor_type.block_values() * tensor_type.block_bytes();
    let groups = source.chunks(GROUP_ROWS * row_bytes).zip(out.chunks_exact_mut(layout.group_bytes()));
    for (rows, group) in groups {
        if rows.len() < GROUP_ROWS * row_bytes {
            group.fill(0);
        }
        let mut parts: [&mut [u8]; SECTIONS] = Default::default();
        let mut part_bytes = [0; SECTIONS];
        let mut rest = group;
        for (i, section) in sections(tensor_type).iter().enumerate() {
            (parts[i], rest) = rest.split_at_mut(layout.columns() / section.columns * section.bytes);
            part_bytes[i] = unit / section.columns * section.bytes;
        }
        rest.fill(0);
        for at in 0..layout.columns() / unit {
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                let mut i = 0;
                let out = parts.each_mut().map(|part| {
                    let range = at * part_bytes[i]..(at + 1) * part_bytes[i];
                    i += 1;
                    &mut part[range]
                });
                mover(&row[at * unit_bytes..][..unit_bytes], lane, out);
            }
        }
    }
}

/// Returns the four bytes of quad `quad` in `source`.
pub(crate) fn quad(source: &[u8], quad: usize) -> u32 {
    u32::from_le_bytes([source[quad * 4], source[quad * 4 + 1], source[quad * 4 + 2], source[quad * 4 + 3]])
}

/// Writes four bytes to lane `lane` of vector `vector`.
pub(crate) fn put(out: &mut [u8], vector: usize, lane: usize, value: u32) {
    out[vector * 64 + lane * 4..][..4].copy_from_slice(&value.to_le_bytes());
}

/// Moves the first 16-bit value of `source` to lane `lane`.
pub(crate) fn move_half(out: &mut [u8], lane: usize, source: &[u8]) {
    out[lane * 2..][..2].copy_from_slice(&source[..2]);
}

/// Moves the first two 16-bit values of a block to lane `lane` of two arrays, one for each value.
pub(crate) fn move_halves(out: &mut [u8], lane: usize, source: &[u8]) {
    move_half(out, lane, source);
    move_half(&mut out[32..], lane, &source[2..]);
}

/// Moves the nibbles of a block of 32 values to lane `lane`.
pub(crate) fn move_nibbles(source: &[u8], lane: usize, quants: &mut [u8]) {
    let (source, quants) = (&source[..16], &mut quants[..256]);
    for j in 0..4 {
        put(quants, j, lane, quad(source, j)); // The file also pairs values i and i + 16.
    }
}

/// Moves the fifth bits of a block of 32 values to lane `lane`. Bit 4j + i of the file goes to bit j of byte
/// i.
pub(crate) fn move_fifth_bits(source: &[u8], lane: usize, highs: &mut [u8]) {
    let bits = quad(source, 0);
    // The multiplication repeats the nibble four times, seven bits apart. So bit i of copy i becomes bit 0 of
    // byte i.
    let spread = |nibble: u32| nibble.wrapping_mul(0x0020_4081) & 0x0101_0101;
    put(highs, 0, lane, (0..8).fold(0, |word, j| word | spread((bits >> (j * 4)) & 15) << j));
}

/// Moves the scales and minima of the sub-blocks of Q4_K or Q5_K to lane `lane`.
pub(crate) fn move_k_scales(source: &[u8], lane: usize, subs: &mut [u8]) {
    for (sub, sub_scales) in subs.chunks_exact_mut(32).enumerate() {
        (sub_scales[lane], sub_scales[16 + lane]) = k_scale(source, sub);
    }
}

/// Moves the nibbles of Q4_K or Q5_K to lane `lane`. A byte in the file holds value i of a sub-block and
/// value i of the next sub-block.
pub(crate) fn move_k_nibbles(source: &[u8], lane: usize, quants: &mut [u8]) {
    for (source, quants) in source.chunks_exact(32).zip(quants.chunks_exact_mut(512)) {
        for j in 0..4 {
            let (first, last) = (quad(source, j), quad(source, j + 4));
            put(quants, j, lane, (first & 0x0f0f_0f0f) | ((last & 0x0f0f_0f0f) << 4));
            put(quants, 4 + j, lane, ((first >> 4) & 0x0f0f_0f0f) | (last & 0xf0f0_f0f0));
        }
    }
}
