//! Tensors of F8_E4M3 values, whose scales are in another tensor.
//!
//! Sources: the fine-grained FP8 format in the documentation of Hugging Face's `transformers`, and the format
//! `float-quantized` of `compressed-tensors`. In both, value = quant · scale.

use super::{Conversion, TensorBytes, values};
use crate::error::SourceError;
use ragtag_kernels::TensorType;

/// Values of a block.
const BLOCK: usize = 32;

/// Scales of a matrix, row by row.
pub(crate) struct Scales {
    pub(crate) values: TensorBytes,
    /// F32, F16 or BF16.
    pub(crate) tensor_type: TensorType,
    /// Rows and columns of weights that share a scale. The columns are whole blocks.
    pub(crate) tile: [u64; 2],
}

/// Values with scales.
pub(crate) struct Float8 {
    /// Name of the tensor, for messages.
    pub(crate) tensor: String,
    pub(crate) columns: u64,
    pub(crate) values: TensorBytes,
    pub(crate) scales: Scales,
}

impl Float8 {
    /// Returns the scale of the block at column `column` of row `row`.
    fn scale(&self, scales: &[u8], row: u64, column: u64) -> Result<f32, SourceError> {
        let [rows, columns] = self.scales.tile;
        let at = (row / rows * self.columns.div_ceil(columns) + column / columns) as usize;
        let bytes = self.scales.tensor_type.block_bytes();
        // The sizes of the tensors were checked.
        let scale = values(self.scales.tensor_type, &scales[at * bytes..(at + 1) * bytes])[0];
        if !scale.is_finite() {
            return Err(self.values.invalid(&self.tensor, format!("a scale of row {row} is not finite")));
        }
        Ok(scale)
    }
}

impl Conversion for Float8 {
    fn tensor_type(&self) -> TensorType {
        TensorType::F8_E4M3
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (scales, blocks) = (self.scales.values.all()?, self.columns / BLOCK as u64);
        let out = out.as_chunks_mut::<{ BLOCK + 4 }>().0;
        let end = first.saturating_add(out.len() as u64);
        let values = self.values.part(first * BLOCK as u64..end * BLOCK as u64)?;
        for (at, (block, values)) in (first..).zip(out.iter_mut().zip(values.as_chunks::<BLOCK>().0)) {
            let (row, column) = (at / blocks, at % blocks * BLOCK as u64);
            if values.iter().any(|value| value & 0x7f == 0x7f) {
                return Err(self.values.invalid(&self.tensor, format!("a value of row {row} is NaN")));
            }
            block[..BLOCK].copy_from_slice(values);
            block[BLOCK..].copy_from_slice(&self.scale(&scales, row, column)?.to_le_bytes());
        }
        Ok(())
    }
}
