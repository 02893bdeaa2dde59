//! Packs file rows into resident groups. Every byte of a model passes through this code at load time. So each
//! type moves four bytes at a time where its format allows.

use super::{GROUP_ROWS, Resident, row_pitch_bytes, sections};
use crate::blocks::{TensorType, k_scale, tq1_0_quants};

/// Maximum number of sections of any type.
const SECTIONS: usize = 4;

/// Scatters one unit of a row ([`unit_columns`] columns) into lane `lane` of each section. `out` holds the
/// unit's bytes in each section.
type Move = fn(source: &[u8], lane: usize, out: [&mut [u8]; SECTIONS]);

/// Copies rows with padding.
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

pub(super) fn pack(layout: &Resident, source: &[u8], out: &mut [u8]) {
    match layout.tensor_type() {
        TensorType::F32 => pack_with(layout, source, out, f32),
        TensorType::F16 | TensorType::BF16 => pack_with(layout, source, out, f16),
        TensorType::Q8_0 => pack_with(layout, source, out, q8_0),
        TensorType::Q4_0 => pack_with(layout, source, out, q4_0),
        TensorType::Q4_1 => pack_with(layout, source, out, q4_1),
        TensorType::Q5_0 => pack_with(layout, source, out, q5_0),
        TensorType::Q5_1 => pack_with(layout, source, out, q5_1),
        TensorType::Q4_K => pack_with(layout, source, out, q4_k),
        TensorType::Q5_K => pack_with(layout, source, out, q5_k),
        TensorType::Q6_K => pack_with(layout, source, out, q6_k),
        TensorType::TQ1_0 => pack_with(layout, source, out, tq1_0),
        TensorType::TQ2_0 => pack_with(layout, source, out, tq2_0),
    }
}

/// Returns the number of columns that move together: one file block, or several if blocks are short.
fn unit_columns(tensor_type: TensorType) -> usize {
    tensor_type.block_values().max(super::COLUMN_BLOCK)
}

/// Packs the groups of `out`, unit by unit, and all 16 rows of a group per unit. It reads 16 streams and
/// writes to few cache lines.
fn pack_with(
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

const _: [Move; 12] = [f32, f16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, tq1_0, tq2_0];

fn f32(source: &[u8], lane: usize, [out, ..]: [&mut [u8]; SECTIONS]) {
    for (value, lanes) in
        source.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0.as_chunks_mut::<16>().0)
    {
        lanes[lane] = *value;
    }
}

fn f16(source: &[u8], lane: usize, [out, ..]: [&mut [u8]; SECTIONS]) {
    for (value, lanes) in
        source.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0.as_chunks_mut::<16>().0)
    {
        lanes[lane] = *value;
    }
}

/// Returns the four bytes at quad `quad`.
fn quad(source: &[u8], quad: usize) -> u32 {
    u32::from_le_bytes([source[quad * 4], source[quad * 4 + 1], source[quad * 4 + 2], source[quad * 4 + 3]])
}

/// Writes four bytes to a lane of vector `vector`.
fn put(out: &mut [u8], vector: usize, lane: usize, value: u32) {
    out[vector * 64 + lane * 4..][..4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a 16-bit value to a lane.
fn put_half(out: &mut [u8], lane: usize, source: &[u8]) {
    out[lane * 2..][..2].copy_from_slice(&source[..2]);
}

fn q8_0(source: &[u8], lane: usize, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    let (source, quants) = (&source[..34], &mut quants[..512]);
    put_half(scales, lane, source);
    for j in 0..8 {
        put(quants, j, lane, quad(&source[2..], j) ^ 0x8080_8080);
    }
}

/// Writes the two leading 16-bit values of a block to one array each.
fn put_halves(out: &mut [u8], lane: usize, source: &[u8]) {
    put_half(out, lane, source);
    put_half(&mut out[32..], lane, &source[2..]);
}

/// Moves the nibbles of a block of 32 values.
fn nibbles(source: &[u8], lane: usize, quants: &mut [u8]) {
    let (source, quants) = (&source[..16], &mut quants[..256]);
    for j in 0..4 {
        put(quants, j, lane, quad(source, j)); // The file also pairs values i and i + 16.
    }
}

/// Moves the fifth bits of a block of 32 values. Bit 4j + i goes to bit j of byte i.
fn fifth_bits(source: &[u8], lane: usize, highs: &mut [u8]) {
    let bits = quad(source, 0);
    // The multiplication repeats the nibble four times, seven bits apart. So bit i of copy i becomes bit 0 of
    // byte i.
    let spread = |nibble: u32| nibble.wrapping_mul(0x0020_4081) & 0x0101_0101;
    put(highs, 0, lane, (0..8).fold(0, |word, j| word | spread((bits >> (j * 4)) & 15) << j));
}

fn q4_0(source: &[u8], lane: usize, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    put_half(scales, lane, source);
    nibbles(&source[2..18], lane, quants);
}

fn q4_1(source: &[u8], lane: usize, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    put_halves(scales, lane, source);
    nibbles(&source[4..20], lane, quants);
}

fn q5_0(source: &[u8], lane: usize, [quants, highs, scales, _]: [&mut [u8]; SECTIONS]) {
    put_half(scales, lane, source);
    fifth_bits(&source[2..6], lane, highs);
    nibbles(&source[6..22], lane, quants);
}

fn q5_1(source: &[u8], lane: usize, [quants, highs, scales, _]: [&mut [u8]; SECTIONS]) {
    put_halves(scales, lane, source);
    fifth_bits(&source[4..8], lane, highs);
    nibbles(&source[8..24], lane, quants);
}

/// Moves the scales and minima of the sub-blocks of Q4_K and Q5_K.
fn k_scales(source: &[u8], lane: usize, subs: &mut [u8]) {
    for (sub, sub_scales) in subs.chunks_exact_mut(32).enumerate() {
        (sub_scales[lane], sub_scales[16 + lane]) = k_scale(source, sub);
    }
}

/// Moves the nibbles of Q4_K and Q5_K. The file pairs value i of a sub-block with value i of the next
/// sub-block.
fn k_nibbles(source: &[u8], lane: usize, quants: &mut [u8]) {
    for (source, quants) in source.chunks_exact(32).zip(quants.chunks_exact_mut(512)) {
        for j in 0..4 {
            let (first, last) = (quad(source, j), quad(source, j + 4));
            put(quants, j, lane, (first & 0x0f0f_0f0f) | ((last & 0x0f0f_0f0f) << 4));
            put(quants, 4 + j, lane, ((first >> 4) & 0x0f0f_0f0f) | (last & 0xf0f0_f0f0));
        }
    }
}

fn q4_k(source: &[u8], lane: usize, [quants, subs, tops, _]: [&mut [u8]; SECTIONS]) {
    put_halves(tops, lane, source);
    k_scales(&source[4..16], lane, subs);
    k_nibbles(&source[16..144], lane, quants);
}

fn q5_k(source: &[u8], lane: usize, [quants, highs, subs, tops]: [&mut [u8]; SECTIONS]) {
    put_halves(tops, lane, source);
    k_scales(&source[4..16], lane, subs);
    k_nibbles(&source[48..176], lane, quants);
    for (sub, highs) in highs.chunks_exact_mut(64).enumerate() {
        let bits = |j| (quad(&source[16..48], j) >> sub) & 0x0101_0101;
        put(highs, 0, lane, (0..8).fold(0, |word, j| word | bits(j) << j));
    }
}

fn q6_k(source: &[u8], lane: usize, [lows, highs, subs, tops]: [&mut [u8]; SECTIONS]) {
    put_half(tops, lane, &source[208..]);
    for (sub, sub_scales) in subs.chunks_exact_mut(32).enumerate() {
        (sub_scales[lane], sub_scales[16 + lane]) = (source[192 + sub * 2], source[193 + sub * 2]);
    }
    for (sub, (low, high)) in lows.chunks_exact_mut(256).zip(highs.chunks_exact_mut(128)).enumerate() {
        let (half, quarter) = (sub / 4, sub % 4);
        let nibbles =
            |j| (quad(&source[half * 64 + quarter % 2 * 32..][..32], j) >> (quarter / 2 * 4)) & 0x0f0f_0f0f;
        let pairs = |j| (quad(&source[128 + half * 32..][..32], j) >> (quarter * 2)) & 0x0303_0303;
        for j in 0..4 {
            put(low, j, lane, nibbles(j) | (nibbles(j + 4) << 4));
        }
        for j in 0..2 {
            put(high, j, lane, pairs(j) | (pairs(j + 2) << 2) | (pairs(j + 4) << 4) | (pairs(j + 6) << 6));
        }
    }
}

fn tq1_0(source: &[u8], lane: usize, [quants, tops, ..]: [&mut [u8]; SECTIONS]) {
    put_half(tops, lane, &source[52..]);
    for (digits, quants) in tq1_0_quants(source).as_chunks::<32>().0.iter().zip(quants.chunks_exact_mut(128))
    {
        for j in 0..2 {
            let at = |field: usize| quad(digits, j * 4 + field) << (field * 2);
            put(quants, j, lane, at(0) | at(1) | at(2) | at(3));
        }
    }
}

fn tq2_0(source: &[u8], lane: usize, [quants, tops, ..]: [&mut [u8]; SECTIONS]) {
    put_half(tops, lane, &source[64..]);
    for (sub, quants) in quants.chunks_exact_mut(128).enumerate() {
        let pairs = |j| (quad(&source[sub / 4 * 32..][..32], j) >> (sub % 4 * 2)) & 0x0303_0303;
        for j in 0..2 {
            let at = |field: usize| pairs(j * 4 + field) << (field * 2);
            put(quants, j, lane, at(0) | at(1) | at(2) | at(3));
        }
    }
}
