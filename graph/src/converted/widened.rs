//! F16 and BF16 matrices as F32 matrices. Rows whose length is not a multiple of 32 exist only as F32 on devices.

use super::{Conversion, TensorBytes, add, values};
use crate::error::{FormatError, SourceError};
use crate::weights::{TensorInfo, Weights, stored_bytes};
use ragtag_kernels::TensorType;
use ragtag_kernels::layout::COLUMN_BLOCK;

/// A matrix of F16 or BF16 values.
struct Widened {
    values: TensorBytes,
    tensor_type: TensorType,
}

impl Conversion for Widened {
    fn tensor_type(&self) -> TensorType {
        TensorType::F32
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let bytes = self.tensor_type.block_bytes() as u64;
        let stored = self.values.part(first * bytes..(first + out.len() as u64 / 4) * bytes)?;
        for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values(self.tensor_type, &stored)) {
            *out = value.to_le_bytes();
        }
        Ok(())
    }
}

/// Returns `weights` with F32 matrices instead of F16 and BF16 matrices whose rows are no multiple of 32 values.
///
/// # Errors
/// Fails if a matrix is larger than any file.
pub(crate) fn widen_rows(weights: Weights) -> Result<Weights, FormatError> {
    let is_odd = |tensor: &TensorInfo| {
        let is_half = matches!(tensor.tensor_type, TensorType::F16 | TensorType::BF16);
        is_half && tensor.shape.len() > 1 && !tensor.columns().is_multiple_of(COLUMN_BLOCK as u64)
    };
    if !weights.tensors().iter().any(is_odd) {
        return Ok(weights);
    }
    let mut sources = weights.sources().to_vec();
    let widened = |tensor: &TensorInfo| {
        if !is_odd(tensor) {
            return Ok(tensor.clone());
        }
        let (tensor_type, shape) = (TensorType::F32, tensor.shape.clone());
        let cause = |cause| FormatError::Invalid {
            file: sources.get(tensor.shard).map_or_else(String::new, |source| source.name().to_owned()),
            at: tensor.offset,
            what: format!("tensor {}", tensor.name),
            cause,
        };
        let bytes = stored_bytes(tensor_type, &shape).map_err(cause)?;
        let source = sources.get(tensor.shard).filter(|_| weights.holds(tensor));
        let Some(source) = source.cloned() else {
            // A matrix without data stays one, because it is now larger.
            return Ok(TensorInfo { tensor_type, bytes, ..tensor.clone() });
        };
        let values = TensorBytes { source, offset: tensor.offset, bytes: tensor.bytes };
        let conversion = Widened { values, tensor_type: tensor.tensor_type };
        let added = add(&mut sources, tensor.name.clone(), shape, conversion);
        Ok(added.expect("blocks of one value"))
    };
    let tensors = weights.tensors().iter().map(widened).collect::<Result<_, FormatError>>()?;
    Weights::new(sources, tensors)
}
