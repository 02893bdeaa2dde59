//! Q4_0. A file block is `d: f16, q: u8[16]`. Byte i holds value i in its low nibble and value i + 16 in its
//! high nibble; value = d·(q − 8).
//!
//! Sections in `Rows16`: 4 vectors per 32 columns; 16 × f16 d per 32 columns.

use super::{Row, TensorType, half};
use crate::blocks::{half_at, inverse_of, largest, pack_nibbles, put_half, quants};
use crate::cpu::formats::{Quantised, Quants, Scaled, nibbles, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, section};

pub(super) const ROW: Row = Row {
    name: "Q4_0",
    gguf_id: 2,
    file_type: 2,
    block_values: 32,
    block_bytes: 18,
    scales: &[half(0, 0.2157)],
    dequantise,
    quantise,
    sections: &[section(32, 256), section(32, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q4_0 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q4_0"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn dequantise(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = d * (f32::from(q & 15) - 8.0);
        out[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn quantise(values: &[f32], out: &mut [u8]) {
    let d = largest(values) / -8.0;
    put_half(out, 0, d);
    pack_nibbles(&quants::<32>(values, 15.0, |_, x| (x * inverse_of(d) + 8.5).floor()), &mut out[2..]);
}

fn pack(unit: Unit<'_>, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(0, scales);
    unit.interleave::<4, 4>(2, quants); // The file also pairs values i and i + 16.
}

quantised!(Q4_0, Scaled<'a, 256, 32>, quants, Scaled::new);

impl Quantised for Q4_0 {
    const BITS: u32 = 4;
    const OFFSET: i32 = 8;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let quads = nibbles(s, &group.quants[block]);
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minima: [s.zero(); 2] }
    }
}
