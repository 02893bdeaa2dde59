//! Dequantizes tensors in file format. This is the reference implementation for every resident layout and
//! kernel.
//!
//! The formats are the block structures of ggml, named as in the GGUF specification. The code is scalar and
//! does not depend on resident layouts.

use super::TensorType;
use half::f16;

/// Error for blocks whose size does not match the number of values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of {tensor_type} are not {values} values")]
pub struct SizeError {
    /// Type of the blocks.
    pub tensor_type: TensorType,
    /// Actual number of bytes.
    pub bytes: usize,
    /// Number of values that the blocks should hold.
    pub values: usize,
}

/// Dequantizes whole `blocks` of a file into `out`.
///
/// # Errors
/// Returns [`SizeError`] if `blocks` does not hold exactly `out.len()` values.
pub fn dequantise(tensor_type: TensorType, blocks: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
    if tensor_type.bytes(out.len() as u64) != Some(blocks.len() as u64) {
        return Err(SizeError { tensor_type, bytes: blocks.len(), values: out.len() });
    }
    let row = tensor_type.row();
    let pairs = blocks.chunks_exact(row.block_bytes).zip(out.chunks_exact_mut(row.block_values));
    for (block, values) in pairs {
        (row.dequantise)(block, values);
    }
    Ok(())
}

/// Returns the f16 value at byte `at` of a block.
pub(crate) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the 32 quants of a block with `high: u32, low: u8[16]`. Byte i of `low` holds the low bits of
/// values i and i + 16, and bit i of `high` is the fifth bit of value i.
pub(crate) fn fives(high_and_low: &[u8]) -> [f32; 32] {
    let (high, low) = (&high_and_low[..4], &high_and_low[4..20]);
    std::array::from_fn(|i| {
        let nibble = (low[i % 16] >> (i / 16 * 4)) & 15;
        f32::from(nibble | ((high[i / 8] >> (i % 8)) & 1) << 4)
    })
}

/// Returns the scale and minimum of sub-block `j`. A block of Q4_K or Q5_K packs the 6-bit scales and minima
/// of eight sub-blocks into 12 bytes.
pub(crate) fn k_scale(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), (packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors for each type: random blocks, and the values that an independent implementation (the
    /// `gguf` package, and PyTorch for F8_E4M3) decodes from them.
    macro_rules! vectors {
        ($($name:ident $folder:literal,)*) => {
            [$((
                TensorType::$name,
                &include_bytes!(concat!("../types/", $folder, "/vectors.blocks"))[..],
                &include_bytes!(concat!("../types/", $folder, "/vectors.f32"))[..],
            ),)*]
        };
    }

    #[test]
    fn values_match_another_implementation() {
        let vectors = vectors! {
            F16 "float16", BF16 "bfloat16", F8_E4M3 "f8_e4m3", Q8_0 "q8_0", Q4_0 "q4_0", Q4_1 "q4_1", Q5_0 "q5_0", Q5_1 "q5_1",
            Q2_K "q2_k", Q3_K "q3_k", Q4_K "q4_k", Q5_K "q5_k", Q6_K "q6_k", IQ4_NL "iq4_nl",
            IQ4_XS "iq4_xs", MXFP4 "mxfp4", TQ1_0 "tq1_0", TQ2_0 "tq2_0",
        };
        assert_eq!(vectors.len() + 1, TensorType::ALL.len(), "each type but F32 has vectors");
        for (tensor_type, blocks, expected) in vectors {
            let mut out = [f32::NAN; 512];
            dequantise(tensor_type, blocks, &mut out).unwrap();
            for (i, (value, bytes)) in out.iter().zip(expected.as_chunks::<4>().0).enumerate() {
                let wanted = f32::from_le_bytes(*bytes);
                assert_eq!(
                    value.to_bits(),
                    wanted.to_bits(),
                    "{tensor_type} value {i}: {value}, not {wanted}"
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
