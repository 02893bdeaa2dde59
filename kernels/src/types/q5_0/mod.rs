//! Q5_0. A file block is `d: f16, high: u32, low: u8[16]`. `low` holds nibbles as in Q4_0, and bit i of `high`
//! is the fifth bit of value i; value = d·(q − 16).
//!
//! Sections in `Rows16`: 4 vectors of low bits per 32 columns; 1 vector of high bits per 32 columns; 16 × f16
//! d per 32 columns.

use super::{Row, TensorType, half};
use crate::blocks::{fives, half_at, inverse_of, largest, pack_fives, put_half, quants};
use crate::cpu::formats::{Q5Group, Quantised, Quants, fifths, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_fifth_bits, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q5_0",
    gguf_id: 6,
    file_type: 8,
    block_values: 32,
    block_bytes: 22,
    scales: &[half(0, 0.1082)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 64), section(32, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q5_0 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q5_0"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, q) in out.iter_mut().zip(fives(&block[2..])) {
        *value = d * (q - 16.0);
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let d = largest(values) / -16.0;
    put_half(out, 0, d);
    pack_fives(&quants::<32>(values, 31.0, |_, x| (x * inverse_of(d) + 16.5).floor()), &mut out[2..]);
}

fn pack(unit: Unit<'_>, [quants, highs, scales, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(0, scales);
    move_fifth_bits(&unit, 2, highs);
    unit.interleave::<4, 4>(6, quants); // The file also pairs values i and i + 16.
}

quantised!(Q5_0, Q5Group<'a, 32>, lows, Q5Group::new);

impl Quantised for Q5_0 {
    const BITS: u32 = 5;
    const OFFSET: i32 = 16;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = fifths(s, &group.lows[block], &group.highs[block]);
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minima: [s.zero(); 2] }
    }
}
