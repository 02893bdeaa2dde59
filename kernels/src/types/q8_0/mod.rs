//! Q8_0. A file block is `d: f16, q: i8[32]`; value = d·q.
//!
//! Sections in `Rows16`: 8 vectors of quants per 32 columns, with 128 added to each quant; 16 × f16 d per 32
//! columns.

use super::{Row, TensorType, half};
use crate::blocks::{half_at, inverse_of, largest, put_half, rounded};
use crate::cpu::formats::{Quantised, Quants, Scaled, arrays, quantised};
use crate::cpu::isa::Isa;
use crate::layout::{SECTIONS, Unit, pack_with, put, section};

pub(super) const ROW: Row = Row {
    name: "Q8_0",
    gguf_id: 8,
    file_type: 7,
    block_values: 32,
    block_bytes: 34,
    scales: &[half(0, 0.01353)],
    dequantise: |block, out| {
        let d = half_at(block, 0);
        for (value, &q) in out.iter_mut().zip(&block[2..]) {
            *value = d * f32::from(q as i8);
        }
    },
    quantise: |values, out| {
        let d = largest(values).abs() / 127.0;
        put_half(out, 0, d);
        for (q, x) in out[2..].iter_mut().zip(values) {
            *q = (rounded(x * inverse_of(d)) + 128.0).clamp(0.0, 255.0) as u8 ^ 0x80;
        }
    },
    sections: &[section(32, 512), section(32, 32)],
    pack: |layout, source, out| pack_with::<{ TensorType::Q8_0 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: pairs!("Q8_0"),
    codec_c: include_str!("codec.cl"),
    decode_wgsl: include_str!("decode.wgsl"),
    encode_wgsl: include_str!("encode.wgsl"),
};

fn pack(unit: Unit<'_>, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<2, 1>(0, scales);
    for (vector, words) in unit.words::<8>(2).iter().enumerate() {
        put(quants, vector, |lane| words[lane] ^ 0x8080_8080);
    }
}

quantised!(Q8_0, Scaled<'a, 512, 32>, quants, Scaled::new);

impl Quantised for Q8_0 {
    const BITS: u32 = 8;
    const OFFSET: i32 = 128;
    const HALVES: bool = false;
    const MINIMA: bool = false;

    #[inline(always)]
    fn quants<S: Isa>(s: S, group: Self::Group<'_>, block: usize) -> Quants<S> {
        let v = arrays::<64>(&group.quants[block]);
        let quads = [
            s.load_bytes(&v[0]),
            s.load_bytes(&v[1]),
            s.load_bytes(&v[2]),
            s.load_bytes(&v[3]),
            s.load_bytes(&v[4]),
            s.load_bytes(&v[5]),
            s.load_bytes(&v[6]),
            s.load_bytes(&v[7]),
        ];
        Quants { quads, scales: [s.load_f16(&group.scales[block]); 2], minima: [s.zero(); 2] }
    }
}
