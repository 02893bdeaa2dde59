//! Reader for untrusted GGUF files (little-endian, versions 2 and 3), and a writer for tools and
//! tests.
//!
//! The reader checks every length, count, offset and type before use. It never sizes an allocation by a
//! number from the file. The layout follows the GGUF specification in ggml's repository.

mod bitnet;
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

use crate::error::FormatError;
use crate::source::Source;
use crate::weights::Weights;
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
                tensors.push(match header.packed.get(&tensor.name) {
                    Some(packed) => packed.add(&mut sources, &tensor)?,
                    None => tensor,
                });
            }
        }
        let metadata = metadata.expect("`split::check` refuses a model without files");
        Ok(ModelFile { metadata, weights: Weights::new(sources, tensors)? })
    }
}
