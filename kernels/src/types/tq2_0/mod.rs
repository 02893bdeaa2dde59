//! TQ2_0. A file block is `q: u8[64], d: f16`. In each half of 128 values, four sub-blocks of 32 share 32 bytes,
//! with two bits per sub-block; value = d·(q − 1).
//!
//! Sections in `Rows16`: 2 vectors per 32 columns; 16 × f16 d per 256 columns. Each byte of vector j holds
//! one value from each of the quads 4j … 4j + 3, starting at the lowest bits.

use super::{Row, TensorType, half};
use crate::blocks::{half_at, inverse_of, largest, pack_bits, put_half, quants, rounded};
use crate::cpu::formats::{Quantised, Quants, Scaled, pairs, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, move_pairs, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "TQ2_0",
    gguf_id: 35,
    file_type: 37,
    block_values: 256,
    block_bytes: 66,
    scales: &[half(64, 0.8163)],
    dequantise,
    quantise,
    sections: &[section(32, 128), section(256, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::TQ2_0 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("TERNARY"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 64);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let quants = &block[sub / 4 * 32..][..32];
        for (value, &q) in values.iter_mut().zip(quants) {
            *value = d * (f32::from((q >> (sub % 4 * 2)) & 3) - 1.0);
        }
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let d = largest(values).abs();
    let quants = quants::<256>(values, 2.0, |_, x| rounded(x * inverse_of(d)) + 1.0);
    for (at, byte) in out[..64].iter_mut().enumerate() {
        *byte = pack_bits(&quants, at / 32 * 128 + at % 32, 32, (4, 0, 2));
    }
    put_half(out, 64, d);
}

fn pack(unit: Unit<'_>, [quants, tops, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(64, tops);
    move_pairs(&unit, 0, quants);
}

quantised!(TQ2_0, Scaled<'a, 128, 32>, quants, Scaled::new);

impl Quantised for TQ2_0 {
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
