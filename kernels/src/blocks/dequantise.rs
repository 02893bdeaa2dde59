//! Dequantizes tensors in the layout of their file. This is the reference for every packed layout and kernel.
//!
//! The formats are the block structures of ggml, with the names of the GGUF specification. The code is scalar
//! and knows nothing about resident layouts.

use super::TensorType;
use half::{bf16, f16};

/// Mismatch between a number of bytes and a number of values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of {tensor_type} are not {values} values")]
pub struct SizeError {
    /// Type of the blocks.
    pub tensor_type: TensorType,
    /// Given bytes.
    pub bytes: usize,
    /// Expected values.
    pub values: usize,
}

/// Dequantizes whole `blocks` of a file into `out`.
///
/// # Errors
/// [`SizeError`] if `blocks` does not hold exactly `out.len()` values.
pub fn dequantise(tensor_type: TensorType, blocks: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
    if tensor_type.bytes(out.len() as u64) != Some(blocks.len() as u64) {
        return Err(SizeError { tensor_type, bytes: blocks.len(), values: out.len() });
    }
    let one: fn(&[u8], &mut [f32]) = match tensor_type {
        TensorType::F32 => |b, out| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => |b, out| out[0] = half_at(b, 0),
        TensorType::BF16 => |b, out| out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q8_0 => q8_0,
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q4_K => q4_k,
        TensorType::Q5_K => q5_k,
        TensorType::Q6_K => q6_k,
        TensorType::TQ1_0 => tq1_0,
        TensorType::TQ2_0 => tq2_0,
    };
    let pairs =
        blocks.chunks_exact(tensor_type.block_bytes()).zip(out.chunks_exact_mut(tensor_type.block_values()));
    for (block, values) in pairs {
        one(block, values);
    }
    Ok(())
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Decodes `d: f16, q: i8[32]`; value = d·q.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q as i8);
    }
}

/// Decodes `d: f16, q: u8[16]`. Byte i holds value i in its low nibble and value i + 16 in its high nibble;
/// value = d·(q − 8).
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = d * (f32::from(q & 15) - 8.0);
        out[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// Decodes `d, m: f16, q: u8[16]`. The nibbles are ordered as in Q4_0; value = d·q + m.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &q) in block[4..20].iter().enumerate() {
        out[i] = d * f32::from(q & 15) + m;
        out[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// Returns the 32 quants of `high: u32, low: u8[16]`. The nibbles are ordered as in Q4_0. Bit i of `high` is
/// the fifth bit of value i.
fn quants5(high_and_low: &[u8]) -> [f32; 32] {
    let (high, low) = (&high_and_low[..4], &high_and_low[4..20]);
    std::array::from_fn(|i| {
        let nibble = (low[i % 16] >> (i / 16 * 4)) & 15;
        f32::from(nibble | ((high[i / 8] >> (i % 8)) & 1) << 4)
    })
}

/// Decodes `d: f16, high: u32, low: u8[16]`; value = d·(q − 16).
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, q) in out.iter_mut().zip(quants5(&block[2..])) {
        *value = d * (q - 16.0);
    }
}

/// Decodes `d, m: f16, high: u32, low: u8[16]`; value = d·q + m.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (value, q) in out.iter_mut().zip(quants5(&block[4..])) {
        *value = d * q + m;
    }
}

/// Returns the scale and minimum of sub-block `j`. A Q4_K or Q5_K block packs eight 6-bit pairs of them into
/// 12 bytes.
pub(crate) fn k_scale(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), (packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
    }
}

/// Decodes `d, dmin: f16, scales: u8[12], q: u8[128]`. 32 bytes hold sub-block 2c in their low nibbles and
/// sub-block 2c + 1 in their high nibbles; value = d·scale·q − dmin·minimum.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let quants = &block[16 + sub / 2 * 32..][..32];
        for (value, &q) in values.iter_mut().zip(quants) {
            *value = scale * f32::from((q >> (sub % 2 * 4)) & 15) - minimum;
        }
    }
}

/// Decodes `d, dmin: f16, scales: u8[12], high: u8[32], low: u8[128]`. The format extends Q4_K: bit s of byte
/// i of `high` is the fifth bit of value i of sub-block s.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scale(&block[4..16], sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let low = &block[48 + sub / 2 * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = ((low[i] >> (sub % 2 * 4)) & 15) | ((block[16 + i] >> sub) & 1) << 4;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

/// Decodes `low: u8[128], high: u8[64], scales: i8[16], d: f16`. Each half of 128 values has four sub-blocks
/// of 32. Two sub-blocks are in the low nibbles of 64 bytes, and two in their high nibbles. The upper two
/// bits of all four share 32 bytes of `high`, two bits per sub-block. value = d·scale·(q − 32), with one
/// scale per 16 values.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = &block[half * 64 + quarter % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = ((low[i] >> (quarter / 2 * 4)) & 15) | (((high[i] >> (quarter * 2)) & 3) << 4);
            let scale = block[192 + sub * 2 + i / 16] as i8;
            *value = d * f32::from(scale) * (f32::from(q) - 32.0);
        }
    }
}

/// Returns digit `n` of the five base-3 digits in a byte of TQ1_0, most significant first. The byte stores
/// the five-digit number times 256/243, rounded up.
fn ternary_digit(byte: u8, n: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}

/// Returns the quants, 0 to 2, of `q: u8[48], last: u8[4]` in a TQ1_0 block. In the first 32 bytes, digit n
/// belongs to values 32n … 32n + 31. The next 16 bytes hold 80 values, and digit n belongs to values 160 +
/// 16n … 160 + 16n + 15. `last` holds the last 16 values in the same way, with four digits of four values
/// each.
pub(crate) fn tq1_0_quants(bytes: &[u8]) -> [u8; 256] {
    let mut out = [0; 256];
    for (source, values) in [(0..32, 0..160), (32..48, 160..240), (48..52, 240..256)] {
        let bytes = &bytes[source];
        for (n, values) in out[values].chunks_exact_mut(bytes.len()).enumerate() {
            values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = ternary_digit(*byte, n));
        }
    }
    out
}

/// Decodes `q: u8[48], last: u8[4], d: f16`; value = d·(q − 1).
fn tq1_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 52);
    for (value, q) in out.iter_mut().zip(tq1_0_quants(block)) {
        *value = d * (f32::from(q) - 1.0);
    }
}

/// Decodes `q: u8[64], d: f16`. In each half of 128 values, four sub-blocks of 32 share 32 bytes, with two
/// bits per sub-block; value = d·(q − 1).
fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 64);
    for (sub, values) in out.chunks_exact_mut(32).enumerate() {
        let quants = &block[sub / 4 * 32..][..32];
        for (value, &q) in values.iter_mut().zip(quants) {
            *value = d * (f32::from((q >> (sub % 4 * 2)) & 3) - 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random blocks, and their values as decoded by an independent implementation (the `gguf` package).
    const VECTORS: [(TensorType, &[u8], &[u8]); 12] = [
        (TensorType::F16, include_bytes!("vectors/f16.blocks"), include_bytes!("vectors/f16.f32")),
        (TensorType::BF16, include_bytes!("vectors/bf16.blocks"), include_bytes!("vectors/bf16.f32")),
        (TensorType::Q8_0, include_bytes!("vectors/q8_0.blocks"), include_bytes!("vectors/q8_0.f32")),
        (TensorType::Q4_0, include_bytes!("vectors/q4_0.blocks"), include_bytes!("vectors/q4_0.f32")),
        (TensorType::Q4_1, include_bytes!("vectors/q4_1.blocks"), include_bytes!("vectors/q4_1.f32")),
        (TensorType::Q5_0, include_bytes!("vectors/q5_0.blocks"), include_bytes!("vectors/q5_0.f32")),
        (TensorType::Q5_1, include_bytes!("vectors/q5_1.blocks"), include_bytes!("vectors/q5_1.f32")),
        (TensorType::Q4_K, include_bytes!("vectors/q4_k.blocks"), include_bytes!("vectors/q4_k.f32")),
        (TensorType::Q5_K, include_bytes!("vectors/q5_k.blocks"), include_bytes!("vectors/q5_k.f32")),
        (TensorType::Q6_K, include_bytes!("vectors/q6_k.blocks"), include_bytes!("vectors/q6_k.f32")),
        (TensorType::TQ1_0, include_bytes!("vectors/tq1_0.blocks"), include_bytes!("vectors/tq1_0.f32")),
        (TensorType::TQ2_0, include_bytes!("vectors/tq2_0.blocks"), include_bytes!("vectors/tq2_0.f32")),
    ];

    #[test]
    fn values_match_another_implementation() {
        for (tensor_type, blocks, expected) in VECTORS {
            let mut out = [f32::NAN; 512];
            dequantise(tensor_type, blocks, &mut out).unwrap();
            for (i, (value, bytes)) in out.iter().zip(expected.as_chunks::<4>().0).enumerate() {
                let wanted = f32::from_le_bytes(*bytes);
                assert!(
                    (value - wanted).abs() <= wanted.abs() * 1e-6,
                    "{tensor_type} value {i}: {value} is not {wanted}"
                );
            }
        }
    }

    #[test]
    fn f32_is_unchanged_and_sizes_must_agree() {
        let mut out = [0.0; 2];
        dequantise(TensorType::F32, &[0, 0, 128, 63, 0, 0, 0, 192], &mut out).unwrap();
        assert_eq!(out, [1.0, -2.0]);
        let wrong = dequantise(TensorType::Q8_0, &[0; 34], &mut [0.0; 33]).unwrap_err();
        assert_eq!(wrong.to_string(), "34 bytes of Q8_0 are not 33 values");
    }
}
