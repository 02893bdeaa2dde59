//! Q4_1. A file block is `d, m: f16, q: u8[16]`, with nibbles as in Q4_0; value = d·q + m.
//!
//! Sections in `Rows16`: 4 vectors per 32 columns; 16 × f16 d and 16 × f16 m per 32 columns.

use super::{Row, TensorType, half};
use crate::blocks::{half_at, inverse_of, pack_nibbles, put_half, quants, range};
use crate::cpu::formats::{Quantised, Quants, Scaled, nibbles, quantised, scale_and_minimum};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q4_1",
    gguf_id: 3,
    file_type: 3,
    block_values: 32,
    block_bytes: 20,
    scales: &[half(0, 0.2171), half(2, -1.628)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q4_1 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q4_1"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &q) in block[4..20].iter().enumerate() {
        out[i] = d * f32::from(q & 15) + m;
        out[i + 16] = d * f32::from(q >> 4) + m;
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let [least, most] = range(values);
    let d = (most - least) / 15.0;
    put_half(out, 0, d);
    put_half(out, 2, least);
    let quants = quants::<32>(values, 15.0, |_, x| ((x - least) * inverse_of(d) + 0.5).floor());
    pack_nibbles(&quants, &mut out[4..]);
}

fn pack(unit: Unit<'_>, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 2>(0, scales);
    unit.interleave::<4, 4>(4, quants); // The file also pairs values i and i + 16.
}

quantised!(Q4_1, Scaled<'a, 256, 64>, quants, Scaled::new);

impl Quantised for Q4_1 {
    const BITS: u32 = 4;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let [scales, minima] = scale_and_minimum(s, &group.scales[block]);
        Quants { quads: nibbles(s, &group.quants[block]), scales, minima }
    }
}
