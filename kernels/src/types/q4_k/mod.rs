//! Q4_K. A file block is `d, dmin: f16, scales: u8[12], q: u8[128]`. Bytes 32c … 32c + 31 of `q` hold
//! sub-block 2c in their low nibbles and sub-block 2c + 1 in their high nibbles; value = d·scale·q −
//! dmin·minimum.
//!
//! Sections in `Rows16`: 4 vectors per 32 columns; 16 × u8 scale and 16 × u8 minimum per 32 columns; 16 × f16
//! d and 16 × f16 dmin per 256 columns.

use super::{Row, TensorType, half};
use crate::blocks::{WithMinima, half_at, k_scale, pack_bits, quants};
use crate::cpu::formats::{Quantised, Quants, arrays, k_scale_and_minimum, nibbles, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_k_nibbles, move_k_scales, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q4_K",
    gguf_id: 12,
    file_type: 15,
    block_values: 256,
    block_bytes: 144,
    scales: &[half(0, 0.003878), half(2, 0.02909)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 32), section(256, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q4_K as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q4_K"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let quants = &block[16 + sub / 2 * 32..][..32];
        for (value, &q) in values.iter_mut().zip(quants) {
            *value = scale * f32::from((q >> (sub % 2 * 4)) & 15) - minimum;
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales = WithMinima::new(values, 15.0, 63.0);
    let quants = quants::<256>(values, 15.0, |i, x| scales.quant(i, x));
    scales.write(&mut out[..16]);
    for (i, byte) in out[16..].iter_mut().enumerate() {
        *byte = pack_bits(&quants, i / 32 * 64 + i % 32, 32, (2, 0, 4));
    }
}

fn pack(unit: Unit<'_>, [quants, subs, tops, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 2>(0, tops);
    move_k_scales(&unit, subs);
    move_k_nibbles(&unit, 16, quants);
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    quants: &'a [[u8; 256]],
    subs: &'a [[u8; 32]],
    tops: &'a [[u8; 64]],
}

quantised!(Q4_K, Group<'a>, quants, |[quants, subs, tops]: [_; 3]| {
    Group { quants: arrays(quants), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for Q4_K {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let [scales, minima] = k_scale_and_minimum(s, &group.tops[block / 8], &group.subs[block]);
        Quants { quads: nibbles(s, &group.quants[block]), scales, minima }
    }
}
