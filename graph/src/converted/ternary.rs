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
use std::sync::OnceLock;

/// Weights that are read at once, to find the scale of weights that are rounded.
const PIECE: usize = 1 << 16;

/// Form of the weights in the file.
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
    /// Scale, once it is known.
    scale: OnceLock<Result<f32, SourceError>>,
}

impl Ternary {
    /// Creates the conversion of the weights in `values`. `scale` is `None` for [`Packing::Rounded`] only.
    ///
    /// # Errors
    /// Fails if the scale is not finite and positive.
    pub(crate) fn new(
        tensor: &str,
        [columns, rows]: [u64; 2],
        values: TensorBytes,
        packing: Packing,
        scale: Option<f32>,
    ) -> Result<Self, SourceError> {
        let is_half = match packing {
            // The scale has the type of the weights, and f16 holds the usual values of bf16.
            Packing::Rounded(tensor_type) => tensor_type != TensorType::F32,
            _ => true,
        };
        let is_half = is_half && columns.is_multiple_of(TensorType::TQ2_0.block_values() as u64);
        let tensor_type = if is_half { TensorType::TQ2_0 } else { TensorType::F8_E4M3 };
        let factor = scale.filter(|_| is_half).map_or(1.0, factor);
        let ternary = Self {
            tensor: tensor.to_owned(),
            columns,
            rows,
            values,
            packing,
            tensor_type,
            factor,
            scale: OnceLock::new(),
        };
        if let Some(scale) = scale {
            ternary.scale.get_or_init(|| ternary.checked(scale)).clone()?;
        }
        Ok(ternary)
    }

    /// Returns the scale, or the error for one that the blocks and the factor cannot represent.
    fn checked(&self, scale: f32) -> Result<f32, SourceError> {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(self
                .values
                .invalid(&self.tensor, format!("its scale {scale} is not finite and positive")));
        }
        let is_half = |scale| rounded(TensorType::F16, scale) == scale;
        if self.tensor_type == TensorType::TQ2_0 && self.factor == 1.0 && !is_half(scale) {
            return Err(self.values.invalid(&self.tensor, format!("f16 cannot hold its scale {scale}")));
        }
        Ok(scale)
    }

    fn scale(&self) -> Result<f32, SourceError> {
        self.scale.get_or_init(|| self.mean_magnitude().and_then(|mean| self.checked(mean))).clone()
    }

    /// Returns the number by which rounded weights are divided: the mean of their magnitudes.
    fn mean_magnitude(&self) -> Result<f32, SourceError> {
        let Packing::Rounded(tensor_type) = self.packing else { return Ok(f32::NAN) };
        let (count, mut sum, mut at) = (self.columns.saturating_mul(self.rows), 0.0, 0);
        while at < count {
            let values = self.plain(tensor_type, at, PIECE.min((count - at) as usize))?;
            sum += values.iter().map(|value| f64::from(value.abs())).sum::<f64>();
            at += values.len() as u64;
        }
        let inverse = 1.0 / ((sum / count as f64) as f32).max(1e-5);
        Ok(rounded(tensor_type, 1.0 / inverse))
    }

    /// Returns `count` weights as the file stores them, from weight `first` on.
    fn plain(&self, tensor_type: TensorType, first: u64, count: usize) -> Result<Vec<f32>, SourceError> {
        let bytes = tensor_type.block_bytes();
        Ok(values(tensor_type, &self.values.read(first.saturating_mul(bytes as u64), count * bytes)?))
    }

    /// Writes the codes 0 to 2 of weights of one row to `codes`. The first weight is weight `first` of the
    /// tensor, and the first of a run of 32.
    fn codes(&self, first: u64, codes: &mut [u8]) -> Result<(), SourceError> {
        match self.packing {
            Packing::Rows => {
                let (quarter, row) = (self.rows / 4, first / self.columns);
                let from = row % quarter * self.columns + first % self.columns;
                let bytes = self.values.part(from, codes.len())?;
                let shift = row / quarter * 2;
                codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = (byte >> shift) & 3);
            }
            Packing::I2S => {
                for (run, codes) in (first / 32..).zip(codes.chunks_exact_mut(32)) {
                    let bytes = self.values.part(run / 4 * 32, 32)?;
                    let shift = 6 - run % 4 * 2;
                    codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = (byte >> shift) & 3);
                }
            }
            Packing::Lookup(lookup) => {
                let (row, column) = (first / self.columns, first % self.columns);
                lookup.codes(self.values.all()?, row, column, codes);
            }
            Packing::Rounded(tensor_type) => {
                let values = self.plain(tensor_type, first, codes.len())?;
                let inverse = 1.0 / self.scale()?;
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
        let (scale, count) = (self.scale()? / self.factor, self.tensor_type.block_values());
        let mut codes = vec![0; count];
        for (at, block) in (first..).zip(out.chunks_exact_mut(self.tensor_type.block_bytes())) {
            self.codes(at * count as u64, &mut codes)?;
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
