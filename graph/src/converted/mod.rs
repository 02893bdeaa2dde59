//! Tensors whose bytes in a file are not the blocks of a tensor type, for example because scales are apart. A
//! [`Converted`] source makes the blocks whenever they are read, so the rest of the program sees a tensor of
//! an ordinary type.

mod experts;
mod float8;
mod key_heads;
mod latent;
mod layers;
mod lookup;
mod ternary;
#[cfg(test)]
mod tests;
mod two_bits;
mod widened;

pub(crate) use experts::{ExpertRows, Mxfp4, PartedBiases, Transposed};
pub(crate) use float8::{Float8, Scales};
pub(crate) use key_heads::split_key_heads;
pub(crate) use latent::split_latents;
pub(crate) use layers::split_layers;
pub(crate) use lookup::{Lookup, Table, bytes as lookup_bytes};
pub(crate) use ternary::{Packing, Ternary};
pub(crate) use two_bits::TwoBits;
pub(crate) use widened::widen_rows;

use crate::error::SourceError;
use crate::source::Source;
use crate::weights::{TensorInfo, stored_bytes};
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::dequantise;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a tensor in a file.
#[derive(Clone)]
pub(crate) struct TensorBytes {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl TensorBytes {
    /// Returns all bytes.
    pub(crate) fn all(&self) -> Result<Cow<'_, [u8]>, SourceError> {
        self.part(0..self.bytes)
    }

    /// Returns a range of the tensor's bytes.
    fn part(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, SourceError> {
        let [start, end] = [range.start, range.end].map(|at| self.offset.saturating_add(at));
        self.source.range(start..end)
    }

    /// Returns the error for invalid content of `tensor`.
    fn invalid(&self, tensor: &str, cause: String) -> SourceError {
        SourceError::Content { name: self.source.name().to_owned(), tensor: tensor.to_owned(), cause }
    }
}

/// Returns the values of blocks as f32. `bytes` must be whole blocks.
fn values(tensor_type: TensorType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / tensor_type.block_bytes() * tensor_type.block_values()];
    dequantise(tensor_type, bytes, &mut values).expect("a value for each value of whole blocks");
    values
}

/// Makes the blocks of a tensor.
pub(crate) trait Conversion: Send + Sync + 'static {
    /// Type of the blocks.
    fn tensor_type(&self) -> TensorType;

    /// Returns the bytes in the file.
    fn values(&self) -> &TensorBytes;

    /// Returns the factor by which the values of the blocks must be multiplied.
    fn factor(&self) -> f32 {
        1.0
    }

    /// Writes blocks to `out`, whose length is a multiple of the size of a block. `first` is the index of the
    /// first block in the tensor.
    ///
    /// # Errors
    /// Fails if the file can no longer be read, or if it contains invalid values.
    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError>;
}

/// Source of the blocks that a conversion makes.
struct Converted<C> {
    conversion: C,
    bytes: u64,
}

/// Adds a source for the tensor `name` to `sources`, and returns the tensor's description. `shape` starts
/// with the number of columns. Returns `None` if rows are not whole blocks.
pub(crate) fn add(
    sources: &mut Vec<Arc<dyn Source>>,
    name: String,
    shape: Vec<u64>,
    conversion: impl Conversion,
) -> Option<TensorInfo> {
    let tensor_type = conversion.tensor_type();
    let bytes = stored_bytes(tensor_type, &shape).ok()?;
    let shard = sources.len();
    sources.push(Arc::new(Converted { conversion, bytes }));
    Some(TensorInfo { name, tensor_type, shape, shard, offset: 0, bytes })
}

impl<C: Conversion> Source for Converted<C> {
    fn name(&self) -> &str {
        self.conversion.values().source.name()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn factor(&self) -> f32 {
        self.conversion.factor()
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let block = self.conversion.tensor_type().block_bytes() as u64;
        let end = start.saturating_add(out.len() as u64);
        if end > self.bytes {
            let name = self.name().to_owned();
            return Err(SourceError::OutOfRange { name, start, end, bytes: self.bytes });
        }
        let (first, skipped) = (start / block, (start % block) as usize);
        if skipped == 0 && (out.len() as u64).is_multiple_of(block) {
            return self.conversion.convert(first, out);
        }
        let mut blocks = vec![0; ((end.div_ceil(block) - first) * block) as usize];
        self.conversion.convert(first, &mut blocks)?;
        out.copy_from_slice(&blocks[skipped..skipped + out.len()]);
        Ok(())
    }
}
