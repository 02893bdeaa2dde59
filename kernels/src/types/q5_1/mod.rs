//! Q5_1. A file block is `d, m: f16, high: u32, low: u8[16]`, with quants as in Q5_0; value = d·q + m.
//!
//! Sections in `Rows16`: 4 vectors of low bits per 32 columns; 1 vector of high bits per 32 columns; 16 × f16
//! d and 16 × f16 m per 32 columns.

use super::{Row, TensorType, half};
use crate::blocks::{fives, half_at, inverse_of, pack_fives, put_half, quants, range};
use crate::cpu::formats::{Q5Group, Quantised, Quants, fifths, quantised, scale_and_minimum};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_fifth_bits, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q5_1",
    gguf_id: 7,
    file_type: 9,
    block_values: 32,
    block_bytes: 24,
    scales: &[half(0, 0.1083), half(2, -1.678)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 64), section(32, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q5_1 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q5_1"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (value, q) in out.iter_mut().zip(fives(&block[4..])) {
        *value = d * q + m;
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let [least, most] = range(values);
    let d = (most - least) / 31.0;
    put_half(out, 0, d);
    put_half(out, 2, least);
    let quants = quants::<32>(values, 31.0, |_, x| ((x - least) * inverse_of(d) + 0.5).floor());
    pack_fives(&quants, &mut out[4..]);
}

fn pack(unit: Unit<'_>, [quants, highs, scales, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 2>(0, scales);
    move_fifth_bits(&unit, 4, highs);
    unit.interleave::<4, 4>(8, quants); // The file also pairs values i and i + 16.
}

quantised!(Q5_1, Q5Group<'a, 64>, lows, Q5Group::new);

impl Quantised for Q5_1 {
    const BITS: u32 = 5;
    const OFFSET: i32 = 0;
    const HALVES: bool = false;
    const MINIMA: bool = true;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let [scales, minima] = scale_and_minimum(s, &group.scales[block]);
        Quants { quads: fifths(s, &group.lows[block], &group.highs[block]), scales, minima }
    }
}
