//! Q3_K. A file block is `high: u8[32], low: u8[64], scales: u8[12], d: f16`. In each half of 128 values,
//! four sub-blocks of 32 share 32 bytes of `low`, with two bits per sub-block. Bit s of byte i of `high` is
//! the third bit of value i of sub-block s. value = d·(scale − 32)·(q − 4), with one 6-bit scale per 16
//! values.
//!
//! Sections in `Rows16`: 3 vectors per 32 columns; 16 × i8 scale of the first 16 columns and 16 × i8 scale of
//! the last 16 columns, per 32 columns; 16 × f16 d per 256 columns. The lower six bits of each byte of vector
//! j hold quads 2j and 2j + 1, three bits each. The upper two bits of vector 0 hold the low bits of quad 6.
//! Those of vector 1 hold the low bits of quad 7, and those of vector 2 hold the high bits of both quads.

use super::{Row, TensorType, half};
use crate::blocks::{WithScales, half_at, pack_bits, quants};
use crate::cpu::formats::{Quantised, Quants, arrays, halves, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, put, put_bytes, section};

pub(super) const ROW: Row = Row {
    name: "Q3_K",
    gguf_id: 11,
    file_type: 12,
    block_values: 256,
    block_bytes: 110,
    scales: &[half(108, 0.02306)],
    dequantise,
    quantise,
    sections: &[section(32, 192), section(32, 32), section(256, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q3_K as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: concat!(include_str!("../../c_family/weights/pairs.cu"), include_str!("pairs.cu")),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

/// Returns scale `j` of a block. The sixteen scales are packed into 12 bytes: the low nibbles, the high
/// nibbles, then the upper two bits of all scales.
fn scale(packed: &[u8], j: usize) -> i8 {
    let low = (packed[j % 8] >> (j / 8 * 4)) & 15;
    let high = (packed[8 + j % 4] >> (j / 4 * 2)) & 3;
    (low | high << 4).cast_signed() - 32
}

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 108);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let low = &block[32 + sub / 4 * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = ((low[i] >> (sub % 4 * 2)) & 3) | ((block[i] >> sub) & 1) << 2;
            let scale = scale(&block[96..108], sub * 2 + i / 16);
            *value = d * f32::from(scale) * (f32::from(q) - 4.0);
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales = WithScales::new(values, [-4.0, 3.0], 3.1, 32.0);
    let quants = quants::<256>(values, 7.0, |i, x| scales.quant(i, x) + 4.0);
    for (i, byte) in out[..32].iter_mut().enumerate() {
        *byte = pack_bits(&quants, i, 32, (8, 2, 1));
    }
    for (at, byte) in out[32..96].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 32 * 128 + at % 32, 32, (4, 0, 2));
    }
    let codes = scales.scales.map(|scale| (scale + 32).cast_unsigned());
    for (j, byte) in out[96..104].iter_mut().enumerate() {
        *byte = pack_bits(&codes, j, 8, (2, 0, 4));
    }
    for (j, byte) in out[104..108].iter_mut().enumerate() {
        *byte = pack_bits(&codes, j, 4, (4, 4, 2));
    }
    out[108..].copy_from_slice(&scales.d.to_le_bytes());
}

fn pack(unit: Unit<'_>, [quants, subs, tops, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(108, tops);
    let [lows, more_lows, highs] = unit.words(96);
    for array in 0..16 {
        // The words hold the fields of `scale`.
        let (lows, shift) = (if array / 4 % 2 == 0 { &lows } else { &more_lows }, array % 4 * 8);
        put_bytes(subs, array, |lane| {
            let low = (lows[lane] >> (shift + array / 8 * 4)) as u8 & 15;
            let high = (highs[lane] >> (shift + array / 4 * 2)) as u8 & 3;
            (low | high << 4).wrapping_sub(32)
        });
    }
    let third_bits = unit.words::<8>(0);
    for half in 0..2 {
        let words = unit.words::<8>(32 + half * 32);
        for quarter in 0..4 {
            let sub = half * 4 + quarter;
            let low = |j: usize, lane: usize| (words[j][lane] >> (quarter * 2)) & 0x0303_0303;
            let high = |j: usize, lane: usize| (third_bits[j][lane] >> sub) & 0x0101_0101;
            let both =
                |j, lane| low(j, lane) | high(j, lane) << 2 | low(j + 1, lane) << 3 | high(j + 1, lane) << 5;
            put(quants, sub * 3, |lane| both(0, lane) | low(6, lane) << 6);
            put(quants, sub * 3 + 1, |lane| both(2, lane) | low(7, lane) << 6);
            put(quants, sub * 3 + 2, |lane| both(4, lane) | high(6, lane) << 6 | high(7, lane) << 7);
        }
    }
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    quants: &'a [[u8; 192]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 32]],
}

quantised!(Q3_K, Group<'a>, quants, |[quants, subs, tops]: [_; 3]| {
    Group { quants: arrays(quants), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for Q3_K {
    const BITS: u32 = 3;
    const OFFSET: i32 = 4;
    const HALVES: bool = true;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let v = arrays::<64>(&group.quants[block]);
        let [a, b, c] = [s.load_bytes(&v[0]), s.load_bytes(&v[1]), s.load_bytes(&v[2])];
        // Low bits in bits 2 and 3, the high bit in bit 4.
        let sixth = s.join(s.bits::<4>(a, 12), s.bits::<6>(c, 1));
        let seventh = s.join(s.bits::<4>(b, 12), s.bits::<7>(c, 1));
        let quads = [
            s.bits::<0>(a, 7),
            s.bits::<3>(a, 7),
            s.bits::<0>(b, 7),
            s.bits::<3>(b, 7),
            s.bits::<0>(c, 7),
            s.bits::<3>(c, 7),
            s.bits::<2>(sixth, 7),
            s.bits::<2>(seventh, 7),
        ];
        let d = s.load_f16(&group.tops[block / 8]);
        let [first, last] = halves(&group.subs[block]);
        Quants {
            quads,
            scales: [s.mul(d, s.load_i8(first)), s.mul(d, s.load_i8(last))],
            minima: [s.zero(); 2],
        }
    }
}
