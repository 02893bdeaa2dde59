//! Ternary weights of BitNet models, with one scale per tensor. They become TQ2_0 blocks if rows are whole
//! blocks, otherwise F8_E4M3 blocks, whose scale is f32. If f16 cannot hold the scale, the graph multiplies
//! products with TQ2_0 blocks by a factor. So no value changes by more than the rounding of this factor.
//!
//! Sources: `integrations/bitnet.py` in Hugging Face's `transformers` for packed rows and for weights that
//! are rounded while the model runs; the converter in Microsoft's repository `BitNet` for I2_S, TL1 and TL2.

use super::{Conversion, Lookup, TensorBytes, values};
use crate::error::SourceError;
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::quantise;
use std::borrow::Cow;

/// Weights that are read at once, to find the scale of weights that are rounded.
const PIECE: u64 = 1 << 16;

/// Form of the weights in the file.
#[derive(Clone, Copy)]
pub(crate) enum Packing {
    /// Each byte holds four weights of a column, a quarter of all rows apart, from the lowest bits on.
    Rows,
    /// GGUF's I2_S: 32 bytes hold 128 weights of a row. Byte i holds the weights i, i + 32, i + 64 and i +
    /// 96, from the highest bits on.
    I2S,
    /// GGUF's TL1 or TL2.
    Lookup(Lookup),
    /// Weights of this type. The scale is the mean of their magnitudes, and each weight divided by the scale
    /// is rounded to −1, 0 or 1.
    Rounded(TensorType),
}

/// Ternary weights with one scale.
pub(crate) struct Ternary {
    tensor: String,
    columns: u64,
    rows: u64,
    values: TensorBytes,
    packing: Packing,
    tensor_type: TensorType,
    /// Factor by which the values of the blocks must be multiplied.
    factor: f32,
    scale: f32,
}

impl Ternary {
    /// Creates the conversion of the weights in `values`. `scale` is `None` for [`Packing::Rounded`] only, whose
    /// scale takes a read of all weights.
    ///
    /// # Errors
    /// Fails if the scale is not finite and positive, or if the weights cannot be read.
    pub(crate) fn new(
        tensor: &str,
        [columns, rows]: [u64; 2],
        values: TensorBytes,
        packing: Packing,
        scale: Option<f32>,
    ) -> Result<Self, SourceError> {
        let scale = match (packing, scale) {
            (Packing::Rounded(tensor_type), _) => {
                mean_magnitude(&values, tensor_type, columns.saturating_mul(rows))?
            }
            (_, scale) => scale.expect("packed weights have a scale"),
        };
        if !(scale.is_finite() && scale > 0.0) {
            return Err(values.invalid(tensor, format!("its scale {scale} is not finite and positive")));
        }
        let is_blocks = columns.is_multiple_of(TensorType::TQ2_0.block_values() as u64);
        let (tensor_type, factor) =
            if is_blocks { (TensorType::TQ2_0, factor(scale)) } else { (TensorType::F8_E4M3, 1.0) };
        Ok(Self { tensor: tensor.to_owned(), columns, rows, values, packing, tensor_type, factor, scale })
    }

    /// Returns the stored bytes of the weights `first` to `end`, and the position of their first byte in the
    /// tensor.
    fn packed(&self, first: u64, end: u64) -> Result<(u64, Cow<'_, [u8]>), SourceError> {
        let quarter = self.rows / 4 * self.columns;
        let range = match self.packing {
            Packing::Rows if first / quarter == end.saturating_sub(1) / quarter => {
                first % quarter..first % quarter + (end - first)
            }
            Packing::I2S => first / 128 * 32..end.div_ceil(128) * 32,
            Packing::Rounded(tensor_type) => {
                let bytes = tensor_type.block_bytes() as u64;
                first * bytes..end * bytes
            }
            Packing::Rows | Packing::Lookup(_) => 0..self.values.bytes,
        };
        Ok((range.start, self.values.part(range)?))
    }

    /// Writes the codes 0 to 2 of weights of one row to `codes`. The first weight is weight `first` of the
    /// tensor, and the first of a run of 32. `packed` holds the result of [`Self::packed`].
    fn codes(&self, packed: (u64, &[u8]), first: u64, codes: &mut [u8]) -> Result<(), SourceError> {
        let bytes = |from: u64| &packed.1[(from - packed.0) as usize..];
        match self.packing {
            Packing::Rows => {
                let (quarter, row) = (self.rows / 4, first / self.columns);
                let from = row % quarter * self.columns + first % self.columns;
                let shift = row / quarter * 2;
                codes.iter_mut().zip(bytes(from)).for_each(|(code, byte)| *code = (byte >> shift) & 3);
            }
            Packing::I2S => {
                for (run, codes) in (first / 32..).zip(codes.chunks_exact_mut(32)) {
                    let shift = 6 - run % 4 * 2;
                    let bytes = bytes(run / 4 * 32);
                    codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = (byte >> shift) & 3);
                }
            }
            Packing::Lookup(lookup) => {
                let (row, column) = (first / self.columns, first % self.columns);
                lookup.codes(packed.1, row, column, codes);
            }
            Packing::Rounded(tensor_type) => {
                let size = tensor_type.block_bytes();
                let stored = &bytes(first * size as u64)[..codes.len() * size];
                let values = values(tensor_type, stored);
                let inverse = 1.0 / self.scale;
                for (code, value) in codes.iter_mut().zip(values) {
                    *code = ((value * inverse).round_ties_even().clamp(-1.0, 1.0) + 1.0) as u8;
                }
            }
        }
        if codes.contains(&3) {
            let row = first / self.columns;
            return Err(self.values.invalid(&self.tensor, format!("a weight of row {row} is not ternary")));
        }
        Ok(())
    }
}

/// Returns the scale of weights that are rounded, as `transformers` computes it in f32.
fn mean_magnitude(weights: &TensorBytes, tensor_type: TensorType, count: u64) -> Result<f32, SourceError> {
    let (mut sum, mut at) = (0.0, 0);
    while at < count {
        let bytes = tensor_type.block_bytes() as u64;
        let values = values(tensor_type, &weights.part(at * bytes..count.min(at + PIECE) * bytes)?);
        sum += values.iter().map(|value| f64::from(value.abs())).sum::<f64>();
        at += values.len() as u64;
    }
    let mean = (sum / count as f64) as f32;
    // A mean that is not a number stays one.
    Ok(if mean < 1e-5 { 1e-5 } else { mean })
}

/// Returns the factor that belongs to a scale: the scale divided by the nearest f16, which TQ2_0 blocks hold. The
/// blocks of a scale that is too large or too small for f16 hold 1.
fn factor(scale: f32) -> f32 {
    let nearest = rounded(TensorType::F16, scale);
    if (nearest / scale - 1.0).abs() < 1e-3 { (f64::from(scale) / f64::from(nearest)) as f32 } else { scale }
}

/// Returns the value of `tensor_type` nearest to `x`.
fn rounded(tensor_type: TensorType, x: f32) -> f32 {
    let mut bytes = vec![0; tensor_type.block_bytes()];
    quantise(tensor_type, &[x], &mut bytes).expect("a block of one value");
    values(tensor_type, &bytes)[0]
}

impl Conversion for Ternary {
    fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn factor(&self) -> f32 {
        self.factor
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (scale, count) = (self.scale / self.factor, self.tensor_type.block_values());
        let mut codes = vec![0; count];
        let blocks = out.chunks_exact_mut(self.tensor_type.block_bytes());
        let [start, end] = [first, first + blocks.len() as u64].map(|block| block * count as u64);
        let (position, packed) = self.packed(start, end)?;
        for (at, block) in (first..).zip(blocks) {
            self.codes((position, &packed), at * count as u64, &mut codes)?;
            let values: Vec<f32> = codes.iter().map(|code| scale * (f32::from(*code) - 1.0)).collect();
            if self.tensor_type == TensorType::TQ2_0 {
                // The scale of the block is the largest magnitude, which rounds to the intended f16.
                quantise(TensorType::TQ2_0, &values, block).expect("the values of a block");
            } else {
                let (quants, d) = block.split_at_mut(count);
                quants
                    .iter_mut()
                    .zip(&codes)
                    .for_each(|(quant, code)| *quant = [0xb8, 0, 0x38][usize::from(*code)]);
                d.copy_from_slice(&scale.to_le_bytes());
            }
        }
        Ok(())
    }
}
