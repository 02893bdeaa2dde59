//! IQ4_NL. A file block has the format of Q4_0, but its nibbles are indices into [`VALUES`]; value =
//! d·`VALUES[q]`.
//!
//! `Rows16`: the layout of Q4_0. The layout stores indices, and kernels look up the values, because storing
//! the values themselves would take twice the memory.

use super::{Row, half, q4_0};
use crate::blocks::{half_at, inverse_of, largest, pack_nibbles, put_half, quants};
use crate::cpu::formats::{Quantised, Quants, Scaled, look_up, nibbles, quantised};
use crate::cpu::isa::Isa;

pub(super) const ROW: Row = Row {
    name: "IQ4_NL",
    gguf_id: 20,
    file_type: 25,
    scales: &[half(0, 0.01483)],
    dequantise,
    quantise,
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: concat!(include_str!("../../c_family/weights/pairs.cu"), include_str!("pairs.cu")),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
    ..q4_0::ROW
};

/// Values that the quants represent (ggml's `kvalues_iq4nl`).
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `VALUES`, with 128 added to each value.
pub(super) const UNSIGNED: [u8; 16] = {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = VALUES[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    out
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = d * f32::from(VALUES[usize::from(q & 15)]);
        out[i + 16] = d * f32::from(VALUES[usize::from(q >> 4)]);
    }
}

/// Returns the index of the value in [`VALUES`] that is nearest to `x`.
pub(super) fn nearest(x: f32) -> usize {
    let is_above = |pair: &&[i8]| 2.0 * x > f32::from(pair[0]) + f32::from(pair[1]);
    VALUES.windows(2).take_while(is_above).count()
}

/// Returns the best scale for 32 values.
pub(super) fn scale_of(values: &[f32]) -> f32 {
    let inverse = inverse_of(largest(values));
    let (mut scale, mut best) = (0.0, 0.0);
    for step in -7_i8..=7 {
        let inverse = (f32::from(step) - 127.0) * inverse;
        let (mut products, mut squares) = (0.0, 0.0);
        for x in values {
            let q = f32::from(VALUES[nearest(x * inverse)]);
            products += q * x;
            squares += q * q;
        }
        // With the scale that fits best, the squared error is smallest where this is largest.
        let gain = products * products / squares;
        if gain > best {
            (scale, best) = (products / squares, gain);
        }
    }
    scale
}

fn quantise(values: &[f32], out: &mut [u8]) {
    put_half(out, 0, scale_of(values));
    let inverse = inverse_of(half_at(out, 0));
    pack_nibbles(&quants::<32>(values, 15.0, |_, x| nearest(x * inverse) as f32), &mut out[2..]);
}

quantised!(IQ4_NL, Scaled<'a, 256, 32>, quants, Scaled::new);

impl Quantised for IQ4_NL {
    const BITS: u32 = 8;
    const OFFSET: i32 = 128;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = look_up(s, nibbles(s, &group.quants[block]), &UNSIGNED);
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minima: [s.zero(); 2] }
    }
}
