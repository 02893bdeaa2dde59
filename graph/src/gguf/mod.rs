//! Zero-copy reader for untrusted GGUF files (little-endian, versions 2 and 3), and a writer for tools and
//! tests.
//!
//! The reader checks every length, count, offset and type before use. It never sizes an allocation by a
//! number from the file. The layout follows the GGUF specification in ggml's repository.

mod header;
mod metadata;
mod reader;
mod split;
mod types;
mod value;
mod writer;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use metadata::Metadata;
pub use split::shard_names;
pub use types::{ValueType, tensor_type_name};
pub use value::{Array, FromValue, List, Value};
pub use writer::{ToValue, Writer};

use crate::converted::{self, Packing, Place, Ternary};
use crate::error::{FormatError, Quoted};
use crate::source::Source;
use crate::weights::{TensorInfo, Weights};
use header::I2_S_TAIL_BYTES;
use ragtag_kernels::TensorType;
use std::sync::Arc;

/// Metadata and weights of a model in GGUF files.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Metadata, including hyperparameters and vocabulary.
    pub metadata: Metadata,
    /// Weight tensors.
    pub weights: Weights,
}

impl ModelFile {
    /// Reads the headers of a single model file, or of all shards of a split model in order (see
    /// [`shard_names`]). Checks everything except the values of the weights.
    ///
    /// # Errors
    /// Fails if a file is invalid. The error names the file, the position and the problem.
    pub fn open(sources: Vec<Arc<dyn Source>>) -> Result<ModelFile, FormatError> {
        Self::read(sources, true)
    }

    /// Reads the headers of files that may lack tensor data. A model without data can be planned but not run
    /// (see [`Weights::without_data`]).
    ///
    /// # Errors
    /// Fails for the same reasons as [`ModelFile::open`], except that missing data is not an error.
    pub fn open_headers(sources: Vec<Arc<dyn Source>>) -> Result<ModelFile, FormatError> {
        Self::read(sources, false)
    }

    fn read(mut sources: Vec<Arc<dyn Source>>, whole: bool) -> Result<ModelFile, FormatError> {
        let mut headers = Vec::new();
        for (shard, source) in sources.iter().enumerate() {
            headers.push(header::parse(source, shard, whole)?);
        }
        split::check(&headers)?;
        let mut metadata = None;
        let mut tensors = Vec::new();
        for header in headers {
            metadata.get_or_insert(header.metadata);
            for tensor in header.tensors {
                let is_i2_s = header.i2_s.contains(&tensor.name);
                tensors.push(if is_i2_s { i2_s(&mut sources, &tensor)? } else { tensor });
            }
        }
        match metadata {
            Some(metadata) => Ok(ModelFile { metadata, weights: Weights::new(sources, tensors)? }),
            None => Err(FormatError::Shards { file: "model".into(), cause: "no file given".into() }),
        }
    }
}

/// Adds a source that makes the blocks of a tensor in I2_S, and returns the tensor's description. If the file
/// lacks tensor data, there is no scale, and the description has the more compact type.
fn i2_s(sources: &mut Vec<Arc<dyn Source>>, tensor: &TensorInfo) -> Result<TensorInfo, FormatError> {
    let TensorInfo { ref name, ref shape, shard, offset, bytes, .. } = *tensor;
    let invalid = |cause: &str| FormatError::Invalid {
        file: sources.get(shard).map_or_else(String::new, |source| source.name().to_owned()),
        at: offset,
        what: format!("tensor {}", Quoted(name)),
        cause: cause.to_owned(),
    };
    let (Some(source), &[columns, rows]) = (sources.get(shard).cloned(), shape.as_slice()) else {
        return Err(invalid("is not a matrix"));
    };
    let tail = offset.saturating_add(bytes).saturating_sub(I2_S_TAIL_BYTES);
    let scale = source.range(tail..tail + 4).ok().and_then(|bytes| bytes.first_chunk().copied());
    let scale = scale.map_or(1.0, f32::from_le_bytes);
    let has_data = offset.saturating_add(bytes) <= source.bytes();
    let values = Place { source, offset, bytes };
    let too_large = invalid("has too many values");
    if !has_data {
        let is_whole = columns.is_multiple_of(TensorType::TQ2_0.block_values() as u64);
        let tensor_type = if is_whole { TensorType::TQ2_0 } else { TensorType::F8_E4M3 };
        let described = TensorInfo::described(name, tensor_type, shape.clone());
        // With this offset, `Weights::without_data` finds that no file has the data.
        return described.map(|info| TensorInfo { offset: u64::MAX, ..info }).map_err(|_| too_large);
    }
    let conversion = Ternary::new(name, [columns, rows], values, Packing::I2S, Some(scale))?;
    converted::add(sources, name.clone(), shape.clone(), conversion).ok_or(too_large)
}
