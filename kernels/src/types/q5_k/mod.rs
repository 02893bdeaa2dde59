//! Q5_K. A file block is `d, dmin: f16, scales: u8[12], high: u8[32], low: u8[128]`. The format is that of
//! Q4_K with a fifth bit per value: bit s of byte i of `high` is the fifth bit of value i of sub-block s.
//!
//! Sections in `Rows16`: 4 vectors of low bits per 32 columns; 1 vector of high bits per 32 columns; 16 × u8
//! scale and 16 × u8 minimum per 32 columns; 16 × f16 d and 16 × f16 dmin per 256 columns.

use super::{Row, TensorType, half};
use crate::blocks::{WithMinima, half_at, k_scale, pack_bits, quants};
use crate::cpu::formats::{Quantised, Quants, arrays, fifths, k_scale_and_minimum, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_k_nibbles, move_k_scales, pack_with, put, section};

pub(super) const ROW: Row = Row {
    name: "Q5_K",
    gguf_id: 13,
    file_type: 17,
    block_values: 256,
    block_bytes: 176,
    scales: &[half(0, 0.001902), half(2, 0.02948)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 64), section(32, 32), section(256, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q5_K as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q5_K"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let low = &block[48 + sub / 2 * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = ((low[i] >> (sub % 2 * 4)) & 15) | ((block[16 + i] >> sub) & 1) << 4;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales = WithMinima::new(values, 31.0, 63.0);
    let quants = quants::<256>(values, 31.0, |i, x| scales.quant(i, x));
    scales.write(&mut out[..16]);
    for (i, byte) in out[16..48].iter_mut().enumerate() {
        *byte = pack_bits(&quants, i, 32, (8, 4, 1));
    }
    for (i, byte) in out[48..].iter_mut().enumerate() {
        *byte = pack_bits(&quants, i / 32 * 64 + i % 32, 32, (2, 0, 4));
    }
}

fn pack(unit: Unit<'_>, [quants, highs, subs, tops]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 2>(0, tops);
    move_k_scales(&unit, subs);
    move_k_nibbles(&unit, 48, quants);
    let words = unit.words::<8>(16);
    for sub in 0..8 {
        let bits = |j: usize, lane: usize| (words[j][lane] >> sub) & 0x0101_0101;
        put(highs, sub, |lane| (0..8).fold(0, |word, j| word | bits(j, lane) << j));
    }
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    lows: &'a [[u8; 256]],
    highs: &'a [[u8; 64]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 64]],
}

quantised!(Q5_K, Group<'a>, lows, |[lows, highs, subs, tops]: [_; 4]| {
    Group { lows: arrays(lows), highs: arrays(highs), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for Q5_K {
    const BITS: u32 = 5;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let [scales, minima] = k_scale_and_minimum(s, &group.tops[block / 8], &group.subs[block]);
        Quants { quads: fifths(s, &group.lows[block], &group.highs[block]), scales, minima }
    }
}
