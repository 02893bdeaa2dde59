//! Q6_K. A file block is `low: u8[128], high: u8[64], scales: i8[16], d: f16`. Each half of 128 values has
//! four sub-blocks of 32. The low nibbles of 64 bytes of `low` hold two of these sub-blocks, and the high
//! nibbles hold the other two. The four sub-blocks share 32 bytes of `high`: each byte holds the upper two
//! bits of one value from each sub-block. value = d·scale·(q − 32), with one scale per 16 values.
//!
//! Sections in `Rows16`: 4 vectors of low bits per 32 columns; 2 vectors of high bits per 32 columns; 16 × i8
//! scale of the first 16 columns and 16 × i8 scale of the last 16 columns, per 32 columns; 16 × f16 d per 256
//! columns. Vector j of the high bits holds quads j, j + 2, j + 4 and j + 6.

use super::{Row, TensorType, half};
use crate::blocks::{WithScales, half_at, pack_bits, quants};
use crate::cpu::formats::{Quantised, Quants, arrays, halves, nibbles, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, put, put_bytes, section};

pub(super) const ROW: Row = Row {
    name: "Q6_K",
    gguf_id: 14,
    file_type: 18,
    block_values: 256,
    block_bytes: 210,
    scales: &[half(208, 0.0007332)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 128), section(32, 32), section(256, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q6_K as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q6_K"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = &block[half * 64 + quarter % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = ((low[i] >> (quarter / 2 * 4)) & 15) | (((high[i] >> (quarter * 2)) & 3) << 4);
            let scale = block[192 + sub * 2 + i / 16] as i8;
            *value = d * f32::from(scale) * (f32::from(q) - 32.0);
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales = WithScales::new(values, [-32.0, 31.0], 31.1, 128.0);
    let quants = quants::<256>(values, 63.0, |i, x| scales.quant(i, x) + 32.0);
    for (at, byte) in out[..128].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 64 * 128 + at % 64, 64, (2, 0, 4));
    }
    for (at, byte) in out[128..192].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 32 * 128 + at % 32, 32, (4, 4, 2));
    }
    for (byte, scale) in out[192..].iter_mut().zip(scales.scales) {
        *byte = scale.cast_unsigned();
    }
    out[208..].copy_from_slice(&scales.d.to_le_bytes());
}

fn pack(unit: Unit<'_>, [lows, highs, subs, tops]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(208, tops);
    let scales = unit.words::<4>(192);
    for array in 0..16 {
        put_bytes(subs, array, |lane| (scales[array / 4][lane] >> (array % 4 * 8)) as u8);
    }
    for half in 0..2 {
        let (low, high) = (unit.words::<16>(half * 64), unit.words::<8>(128 + half * 32));
        for quarter in 0..4 {
            let nibbles =
                |j: usize, lane: usize| (low[quarter % 2 * 8 + j][lane] >> (quarter / 2 * 4)) & 0x0f0f_0f0f;
            let pairs = |j: usize, lane: usize| (high[j][lane] >> (quarter * 2)) & 0x0303_0303;
            let sub = half * 4 + quarter;
            for j in 0..4 {
                put(lows, sub * 4 + j, |lane| nibbles(j, lane) | nibbles(j + 4, lane) << 4);
            }
            for j in 0..2 {
                put(highs, sub * 2 + j, |lane| {
                    (0..4).fold(0, |word, field| word | pairs(j + field * 2, lane) << (field * 2))
                });
            }
        }
    }
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    lows: &'a [[u8; 256]],
    highs: &'a [[u8; 128]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 32]],
}

quantised!(Q6_K, Group<'a>, lows, |[lows, highs, subs, tops]: [_; 4]| {
    Group { lows: arrays(lows), highs: arrays(highs), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for Q6_K {
    const BITS: u32 = 6;
    const OFFSET: i32 = 32;
    const HALVES: bool = true;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let low = nibbles(s, &group.lows[block]);
        let [even, odd] = halves(&group.highs[block]);
        let (even, odd) = (s.load_bytes(even), s.load_bytes(odd));
        let quads = [
            s.join(low[0], s.bits::<0>(even, 3)),
            s.join(low[1], s.bits::<0>(odd, 3)),
            s.join(low[2], s.bits::<2>(even, 3)),
            s.join(low[3], s.bits::<2>(odd, 3)),
            s.join(low[4], s.bits::<4>(even, 3)),
            s.join(low[5], s.bits::<4>(odd, 3)),
            s.join(low[6], s.bits::<6>(even, 3)),
            s.join(low[7], s.bits::<6>(odd, 3)),
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
