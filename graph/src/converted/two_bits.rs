//! Weights −2, −1, 1 and 2 in two bits each, which become Q4_0 blocks. So no value changes.
//!
//! Source: the loader of GGUF files in the repository `BitNet-rs`.

use super::{Conversion, TensorBytes, values};
use crate::error::SourceError;
use ragtag_kernels::TensorType;

/// f16 of 1.
const ONE: [u8; 2] = [0, 0x3c];

/// Bytes of the codes of 32 weights.
const CODE_BYTES: usize = 8;

/// Weights whose bytes hold four codes each, from the lowest bits on.
pub(crate) struct TwoBits {
    pub(crate) tensor: String,
    pub(crate) values: TensorBytes,
    /// Whether an f16 scale follows the codes of each 32 weights. Otherwise the scale is 1.
    pub(crate) has_scales: bool,
}

impl Conversion for TwoBits {
    fn tensor_type(&self) -> TensorType {
        TensorType::Q4_0
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let size = CODE_BYTES + if self.has_scales { 2 } else { 0 };
        let blocks = out.chunks_exact_mut(TensorType::Q4_0.block_bytes());
        let start = first.saturating_mul(size as u64);
        let from = self.values.part(start..start.saturating_add((blocks.len() * size) as u64))?;
        for (block, from) in blocks.zip(from.chunks_exact(size)) {
            let (codes, d) = from.split_at(CODE_BYTES);
            let d = if self.has_scales { d } else { &ONE };
            let scale = values(TensorType::F16, d)[0];
            if !(scale.is_finite() && scale > 0.0) {
                let cause = format!("the scale {scale} of a block is not finite and positive");
                return Err(self.values.invalid(&self.tensor, cause));
            }
            let quant = |i: usize| [6, 7, 9, 10][usize::from((codes[i / 4] >> (i % 4 * 2)) & 3)];
            let (to, quants) = block.split_at_mut(2);
            to.copy_from_slice(d);
            quants.iter_mut().enumerate().for_each(|(i, byte)| *byte = quant(i) | quant(i + 16) << 4);
        }
        Ok(())
    }
}
