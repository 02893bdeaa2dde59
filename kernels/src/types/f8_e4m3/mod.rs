//! F8_E4M3: floats with four exponent bits and three mantissa bits. No file stores these blocks. The reader
//! of safetensors files makes them from bytes and scales that are apart. A block is `q: u8[32], d: f32`;
//! value = d·q. Codes 0x7f and 0xff stand for NaN in files, which the reader refuses. Here they are ±480.
//!
//! Sections in `Rows16`: 8 vectors per 32 columns; 16 × f32 d per 32 columns.
//!
//! The quants are no integers. So products take f32 activations, or f16 activations on matrix units.

use super::{BlockScale, NOT_IN_GGUF, Row, TensorType};
use crate::blocks::{inverse_of, largest};
use crate::cpu::formats::{Format, Isa, Scaled, Variant, arrays, split};
use crate::layout::{SECTIONS, Unit, pack_with, put, section};

pub(super) const ROW: Row = Row {
    name: "F8_E4M3",
    gguf_id: NOT_IN_GGUF,
    file_type: NOT_IN_GGUF,
    block_values: 32,
    block_bytes: 36,
    scales: &[BlockScale { at: 32, typical: 0.009_231_862, write: put_single }],
    dequantise: |block, out| {
        let d = f32::from_le_bytes([block[32], block[33], block[34], block[35]]);
        for (value, &q) in out.iter_mut().zip(&block[..32]) {
            *value = d * value_of(q);
        }
    },
    quantise: |values, out| {
        let d = largest(values).abs() / 448.0;
        put_single(out, 32, d);
        for (q, x) in out.iter_mut().zip(values) {
            *q = nearest(x * inverse_of(d));
        }
    },
    sections: &[section(32, 512), section(32, 64)],
    pack: |layout, source, out| pack_with::<{ TensorType::F8_E4M3 as usize }>(layout, source, out, pack),
    c: include_str!("weights.cl"),
    wgsl: include_str!("weights.wgsl"),
    pairs: "",
    codec_c: "",
    decode_wgsl: "",
    encode_wgsl: "",
};

fn put_single(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Returns the value of a quant.
fn value_of(quant: u8) -> f32 {
    let magnitude = quant & 0x7f;
    let value = if magnitude < 8 {
        f32::from(magnitude) / 512.0
    } else {
        f32::from_bits((u32::from(magnitude) << 20) + (120 << 23))
    };
    if quant < 0x80 { value } else { -value }
}

/// Returns the quant of the nearest value, ties to even, at most ±448.
fn nearest(x: f32) -> u8 {
    let magnitude = x.abs().min(448.0);
    // Values of the same exponent are equally far apart.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (magnitude / 2f32.powi(exponent - 3)).round_ties_even() as u8;
    // A mantissa that rounds up to 16 carries to the exponent.
    ((exponent + 6) as u8 * 8 + steps) | if x < 0.0 { 0x80 } else { 0 }
}

fn pack(unit: Unit<'_>, [quants, scales, ..]: [&mut [u8]; SECTIONS]) {
    unit.interleave::<4, 1>(32, scales);
    for (vector, words) in unit.words::<8>(0).iter().enumerate() {
        put(quants, vector, |lane| words[lane]);
    }
}

/// F8_E4M3 blocks.
#[allow(non_camel_case_types)] // Standard names in this field.
pub(crate) struct F8_E4M3;

impl Format for F8_E4M3 {
    const TYPE: TensorType = TensorType::F8_E4M3;
    type Group<'a> = Scaled<'a, 512, 64>;
    type Block<'a, S: Isa> = (&'a [u8; 512], S::F);

    #[inline(always)]
    fn open(group: &[u8], columns: usize) -> Self::Group<'_> {
        Scaled::new(split(Self::TYPE, group, columns))
    }
    #[inline(always)]
    fn bytes<'a>(group: Self::Group<'a>, block: usize) -> &'a [u8] {
        &group.quants[block]
    }
    #[inline(always)]
    fn block<'a, S: Isa>(s: S, group: Self::Group<'a>, block: usize) -> Self::Block<'a, S> {
        (&group.quants[block], s.load_f32(&group.scales[block]))
    }
    #[inline(always)]
    fn quad<S: Isa>(s: S, (quants, scale): &Self::Block<'_, S>, quad: usize) -> [S::F; 4] {
        let quants = s.load_bytes(&arrays::<64>(&quants[..])[quad]);
        let signs = s.bytes_to_f32(s.bits::<7>(quants, 1));
        let exponents = s.bytes_to_f32(s.bits::<3>(quants, 15));
        let mut values = s.bytes_to_f32(s.bits::<0>(quants, 7));
        for i in 0..4 {
            // Exponent 0 has the step of exponent 1, but no leading one.
            let leading = s.min(exponents[i], s.splat(1.0));
            let power = s.add(s.max(exponents[i], s.splat(1.0)), s.splat(-10.0));
            let magnitude = s.scale2(s.fma(leading, s.splat(8.0), values[i]), power);
            let sign = s.fma(signs[i], s.splat(-2.0), s.splat(1.0));
            values[i] = s.mul(s.mul(magnitude, sign), *scale);
        }
        values
    }
    fn variants<S: Isa>(out: &mut Vec<Variant>) {
        crate::cpu::blocks::<S, Self>(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_are_the_nearest_values() {
        let codes = (0..=255u8).filter(|code| code & 0x7f != 0x7f);
        for code in codes.clone().filter(|code| *code != 0x80) {
            assert_eq!(nearest(value_of(code)), code);
        }
        for (x, wanted) in
            [(1e9, 0x7e), (-460.0, 0xfe), (1e-9, 0), (0.001, 1), (1.0625, 0x38), (1.1875, 0x3a)]
        {
            assert_eq!(nearest(x), wanted, "{x}");
        }
    }
}
