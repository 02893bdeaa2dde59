//! IQ4_XS. A file block is `d: f16, high: u16, low: u8[4], q: u8[128]`. A sub-block of 32 values has 16 bytes
//! of `q`, in the format of IQ4_NL, and a 6-bit scale. `low` holds the low nibbles of the scales, and `high`
//! their upper two bits; value = d·(scale − 32)·`VALUES[q]`, with [`VALUES`] of IQ4_NL.
//!
//! Sections in `Rows16`: 4 vectors per 32 columns; 16 × i8 scale per 32 columns; 16 × f16 d per 256 columns.

use super::iq4_nl::{UNSIGNED, VALUES, nearest, scale_of};
use super::{Row, TensorType, half};
use crate::blocks::{half_at, inverse_of, largest, pack_bits, put_half, quants, rounded};
use crate::cpu::formats::{Quantised, Quants, arrays, look_up, nibbles, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, put_bytes, section};

pub(super) const ROW: Row = Row {
    name: "IQ4_XS",
    gguf_id: 23,
    file_type: 30,
    block_values: 256,
    block_bytes: 136,
    scales: &[half(0, 0.0008025)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 16), section(256, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::IQ4_XS as usize }>(layout, source, out, pack),
    c: concat!(
        include_str!("table.cl"),
        include_str!("../../c_family/weights/indices.cl"),
        include_str!("weights.cl")
    ),
    wgsl: concat!(include_str!("weights.wgsl"), include_str!("../../wgsl/weights/indices.wgsl")),
    pairs: concat!(include_str!("../../c_family/weights/pairs.cu"), include_str!("pairs.cu")),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

/// Returns the scale of sub-block `j`. `packed` contains `high` and `low`.
fn scale(packed: &[u8], j: usize) -> i8 {
    let low = (packed[2 + j / 2] >> (j % 2 * 4)) & 15;
    let high = (packed[j / 4] >> (j % 4 * 2)) & 3;
    (low | high << 4).cast_signed() - 32
}

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let scale = d * f32::from(scale(&block[2..8], j));
        for (i, &q) in block[8 + j * 16..][..16].iter().enumerate() {
            values[i] = scale * f32::from(VALUES[usize::from(q & 15)]);
            values[i + 16] = scale * f32::from(VALUES[usize::from(q >> 4)]);
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let scales: [f32; 8] = std::array::from_fn(|j| scale_of(&values[j * 32..][..32]));
    let d = largest(&scales) / -32.0;
    put_half(out, 0, d);
    let stored = half_at(out, 0);
    let scales = scales.map(|scale| rounded(scale * inverse_of(d)).clamp(-32.0, 31.0));
    let inverses = scales.map(|scale| inverse_of(stored * scale));
    let codes = scales.map(|scale| (scale + 32.0) as u8);
    for (at, byte) in out[2..4].iter_mut().enumerate() {
        *byte = pack_bits(&codes, at * 4, 1, (4, 4, 2));
    }
    for (at, byte) in out[4..8].iter_mut().enumerate() {
        *byte = pack_bits(&codes, at * 2, 1, (2, 0, 4));
    }
    let quants = quants::<256>(values, 15.0, |i, x| nearest(x * inverses[i / 32]) as f32);
    for (at, byte) in out[8..].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 16 * 32 + at % 16, 16, (2, 0, 4));
    }
}

fn pack(unit: Unit<'_>, [quants, subs, tops, _]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(0, tops);
    for (j, quants) in quants.chunks_exact_mut(256).enumerate() {
        unit.interleave::<4, 4>(8 + j * 16, quants); // The file also pairs values i and i + 16.
        put_bytes(subs, j, |lane| scale(&unit.row(lane, 2)[..6], j).cast_unsigned());
    }
}

/// Sections of a group of rows.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    quants: &'a [[u8; 256]],
    subs: &'a [[u8; 16]],
    tops: &'a [[u8; 32]],
}

quantised!(IQ4_XS, Group<'a>, quants, |[quants, subs, tops]: [_; 3]| {
    Group { quants: arrays(quants), subs: arrays(subs), tops: arrays(tops) }
});

impl Quantised for IQ4_XS {
    const BITS: u32 = 8;
    const OFFSET: i32 = 128;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = look_up(s, nibbles(s, &group.quants[block]), &UNSIGNED);
        let scale = s.mul(s.load_f16(&group.tops[block / 8]), s.load_i8(&group.subs[block]));
        Quants { quads, scales: [scale; 2], minima: [s.zero(); 2] }
    }
}
