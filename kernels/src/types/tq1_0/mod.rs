//! TQ1_0. A file block is `q: u8[48], last: u8[4], d: f16`. Each byte represents a number of five base-3
//! digits, multiplied by 256/243 and rounded up. In the first 32 bytes, digit n belongs to values 32n …
//! 32n + 31. The next 16 bytes hold 80 values, and their digit n belongs to values 160 + 16n … 160 +
//! 16n + 15. `last` holds the last 16 values in the same way, with four digits of four values each. value =
//! d·(q − 1).
//!
//! `Rows16`: the layout of TQ2_0. With five digits per byte, each read would need divisions.

use super::{Row, TensorType, half, tq2_0};
use crate::blocks::{half_at, inverse_of, largest, put_half, quants, rounded};
use crate::cpu::formats::{Quantised, Quants, Scaled, pairs, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{GROUP_ROWS, SECTIONS, Unit, pack_with, put};

pub(super) const ROW: Row = Row {
    name: "TQ1_0",
    gguf_id: 34,
    file_type: 36,
    block_values: 256,
    block_bytes: 54,
    scales: &[half(52, 1.224)],
    dequantise,
    quantise,
    pack: |layout, source, out| pack_with::<{ TensorType::TQ1_0 as usize }>(layout, source, out, pack),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
    ..tq2_0::ROW
};

/// Returns digit `n` of `byte`. The most significant digit is digit 0.
fn digit(byte: u8, n: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}

/// Returns the quants of a block, from 0 to 2.
fn digits(bytes: &[u8]) -> [u8; 256] {
    let mut out = [0; 256];
    for (source, values) in [(0..32, 0..160), (32..48, 160..240), (48..52, 240..256)] {
        let bytes = &bytes[source];
        for (n, values) in out[values].chunks_exact_mut(bytes.len()).enumerate() {
            values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = digit(*byte, n));
        }
    }
    out
}

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 52);
    for (value, q) in out.iter_mut().zip(digits(block)) {
        *value = d * (f32::from(q) - 1.0);
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let d = largest(values).abs();
    let quants = quants::<256>(values, 2.0, |_, x| rounded(x * inverse_of(d)) + 1.0);
    for (bytes, values, count) in [(0..32, 0..160, 5), (32..48, 160..240, 5), (48..52, 240..256, 4)] {
        let (stride, quants) = (bytes.len(), &quants[values]);
        for (first, byte) in out[bytes].iter_mut().enumerate() {
            let digit = |n: usize| if n < count { u16::from(quants[first + n * stride]) } else { 0 };
            *byte = ((0..5).fold(0, |number, n| number * 3 + digit(n)) * 256).div_ceil(243) as u8;
        }
    }
    put_half(out, 52, d);
}

fn pack(unit: Unit<'_>, [quants, tops, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(52, tops);
    let digits: [_; GROUP_ROWS] = std::array::from_fn(|lane| digits(unit.row(lane, 0)));
    for vector in 0..16 {
        put(quants, vector, |lane| {
            let quads = &digits[lane].as_chunks::<4>().0[vector * 4..][..4];
            (0..4).fold(0, |word, field| word | u32::from_le_bytes(quads[field]) << (field * 2))
        });
    }
}

quantised!(TQ1_0, Scaled<'a, 128, 32>, quants, Scaled::new);

impl Quantised for TQ1_0 {
    const BITS: u32 = 2;
    const OFFSET: i32 = 1;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = pairs(s, &group.quants[block]);
        Quants { quads, scales: [s.load_f16(&group.scales[block / 8]); 2], minima: [s.zero(); 2] }
    }
}
