//! MXFP4. A file block is `e: u8, q: u8[16]`. Byte i of `q` holds value i in its low nibble and value i + 16
//! in its high nibble. A nibble is a float with two exponent bits and one mantissa bit. [`DOUBLED`] contains
//! twice its magnitude, so value = ±2^(e − 128)·`DOUBLED[q]`. Exponents 0 and 1 give subnormal scales.
//!
//! Sections in `Rows16`: 4 vectors per 32 columns; 16 × u8 e per 32 columns.

use super::{BlockScale, Row, TensorType, half, q4_0};
use crate::blocks::{largest, pack_nibbles, quants};
use crate::cpu::formats::{Quantised, Quants, Scaled, look_up, nibbles, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "MXFP4",
    gguf_id: 39,
    file_type: 38,
    block_bytes: 17,
    scales: &[BlockScale { write: put_exponent, ..half(0, 0.1709) }],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 16)],
    pack: |layout, source, out| pack_with::<{ TensorType::MXFP4 as usize }>(layout, source, out, pack),
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
    ..q4_0::ROW
};

/// Twice the magnitudes that quants 0 to 7 represent (ggml's `kvalues_mxfp4`). Quants 8 to 15 are negative.
const DOUBLED: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// Doubled values of all quants, with 12 added to each value.
const UNSIGNED: [u8; 16] = {
    let mut out = [12; 16];
    let mut i = 0;
    while i < 8 {
        out[i] += DOUBLED[i];
        out[i + 8] -= DOUBLED[i];
        i += 1;
    }
    out
};

/// Returns half the scale that `exponent` stands for.
#[inline(always)]
fn half_scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

/// Writes the exponent whose power of two is nearest to the magnitude of `scale`, on a logarithmic scale.
fn put_exponent(block: &mut [u8], at: usize, scale: f32) {
    block[at] = (scale.abs().log2().round() + 128.0).clamp(0.0, 254.0) as u8;
}

fn dequantise(block: &[u8], out: &mut [f32]) {
    let scale = half_scale(block[0]);
    let value = |q: u8| scale * (f32::from(UNSIGNED[usize::from(q)]) - 12.0);
    for (i, &q) in block[1..17].iter().enumerate() {
        out[i] = value(q & 15);
        out[i + 16] = value(q >> 4);
    }
}

/// Returns the quant of the nearest value, where `x` is in units of half the scale.
fn nearest(x: f32) -> u8 {
    let is_above = |pair: &&[u8]| 2.0 * x.abs() > f32::from(pair[0]) + f32::from(pair[1]);
    let magnitude = DOUBLED.windows(2).take_while(is_above).count() as u8;
    if magnitude > 0 && x < 0.0 { magnitude | 8 } else { magnitude }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    // The exponent of the largest value minus 2, because the largest quant represents 6. If this exponent is
    // below the range, all quants are zero.
    out[0] = (largest(values).abs().to_bits() >> 23).saturating_sub(2) as u8;
    let inverse = if out[0] == 0 { 0.0 } else { f32::from_bits((255 - u32::from(out[0])) << 23) };
    pack_nibbles(&quants::<32>(values, 15.0, |_, x| f32::from(nearest(x * inverse))), &mut out[1..]);
}

fn pack(unit: Unit<'_>, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<1, 1>(0, scales);
    unit.interleave::<4, 4>(1, quants); // The file also pairs values i and i + 16.
}

quantised!(MXFP4, Scaled<'a, 256, 16>, quants, Scaled::new);

impl Quantised for MXFP4 {
    const BITS: u32 = 5;
    const OFFSET: i32 = 12;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = look_up(s, nibbles(s, &group.quants[block]), &UNSIGNED);
        let mut scales = [0.0; 16];
        for (scale, exponent) in scales.iter_mut().zip(&group.scales[block]) {
            *scale = half_scale(*exponent);
        }
        let scale = s.load(&scales);
        Quants { quads, scales: [scale; 2], minima: [s.zero(); 2] }
    }
}
