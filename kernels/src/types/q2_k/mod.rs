//! Q2_K. A file block is `scales: u8[16], q: u8[64], d, dmin: f16`. In each half of 128 values, four
//! sub-blocks of 32 share 32 bytes of `q`, with two bits per sub-block. A byte of `scales` holds the scale of
//! 16 values in its low nibble and their minimum in its high nibble; value = d·scale·q − dmin·minimum.
//!
//! Sections in `Rows16`: 2 vectors per 32 columns, as TQ2_0 has them; 16 × u8 of `scales` for the first 16
//! columns and 16 × u8 for the last 16 columns, per 32 columns; 16 × f16 d and 16 × f16 dmin per 256 columns.

use super::{Row, TensorType, half};
use crate::blocks::{WithMinima, half_at, pack_bits, quants};
use crate::cpu::formats::{Quantised, Quants, arrays, halves, pairs, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_pairs, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q2_K",
    gguf_id: 10,
    file_type: 10,
    block_values: 256,
    block_bytes: 84,
    scales: &[half(80, 0.07207), half(82, 0.10811)],
    dequantise,
    quantise,
    sections: &[section(32, 128), section(32, 32), section(256, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q2_K as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: concat!(include_str!("../../c_family/weights/pairs.cu"), include_str!("pairs.cu")),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let q = (block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
        let both = block[i / 16];
        *value = d * f32::from(both & 15) * f32::from(q) - dmin * f32::from(both >> 4);
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales = WithMinima::<16>::new(values, 3.0, 15.0);
    let quants = quants::<256>(values, 3.0, |i, x| scales.quant(i, x));
    for (j, byte) in out[..16].iter_mut().enumerate() {
        *byte = scales.scales[j] | scales.minima[j] << 4;
    }
    for (at, byte) in out[16..80].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 32 * 128 + at % 32, 32, (4, 0, 2));
    }
    scales.write_factors(&mut out[80..]);
}

fn pack(unit: Unit<'_>, [quants, subs, tops, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 2>(80, tops);
    unit.interleave::<1, 16>(0, subs);
    move_pairs(&unit, 16, quants);
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    quants: &'a [[u8; 128]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 64]],
}

quantised!(Q2_K, Group<'a>, quants, |[quants, subs, tops]: [_; 3]| {
    Group { quants: arrays(quants), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for Q2_K {
    const BITS: u32 = 2;
    const OFFSET: i32 = 0;
    const HALVES: bool = true;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let [d, dmin] = halves(&group.tops[block / 8]);
        let (d, dmin) = (s.load_f16(d), s.load_f16(dmin));
        let subs = &group.subs[block];
        let (mut scales, mut minima) = (*subs, *subs);
        for i in 0..subs.len() {
            scales[i] &= 15;
            minima[i] >>= 4;
        }
        let [scales, minima] = [halves(&scales), halves(&minima)];
        Quants {
            quads: pairs(s, &group.quants[block]),
            scales: [s.mul(d, s.load_u8(scales[0])), s.mul(d, s.load_u8(scales[1]))],
            minima: [s.mul(dmin, s.load_u8(minima[0])), s.mul(dmin, s.load_u8(minima[1]))],
        }
    }
}
