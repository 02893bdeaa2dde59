//! GGUF, versions 2 and 3, little-endian: read without trust and without copies, and written for tools and tests.
//!
//! Every length, count, offset and type is checked before it is used; nothing is allocated from a claimed count. The
//! layout follows the GGUF specification in ggml's repository.
//!
//! This module must not know any architecture or tokenizer.

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

/// An opened model: what its files say, and where its weights lie.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Hyperparameters and vocabulary.
    pub metadata: Metadata,
    /// Weight tensors.
    pub weights: Weights,
}

impl ModelFile {
    /// Reads the headers of a model's files: one, or all shards of a split model in order (see [`shard_names`]).
    /// Checks everything but the values of the weights.
    ///
    /// # Errors
    /// What is wrong with which file, and where.
    pub fn open(sources: Vec<Arc<dyn Source>>) -> Result<ModelFile, FormatError> {
        Self::read(sources, true)
    }

    /// The same of files that may end after their headers: what there is can be planned for, not run
    /// ([`Weights::without_data`]).
    ///
    /// # Errors
    /// As [`ModelFile::open`], but for data that is not there.
    pub fn open_headers(sources: Vec<Arc<dyn Source>>) -> Result<ModelFile, FormatError> {
        Self::read(sources, false)
    }

    fn read(sources: Vec<Arc<dyn Source>>, whole: bool) -> Result<ModelFile, FormatError> {
        let mut headers = Vec::new();
        for (shard, source) in sources.iter().enumerate() {
            headers.push(header::parse(source, shard, whole)?);
        }
        split::check(&headers)?;
        let mut metadata = None;
        let mut tensors = Vec::new();
        for header in headers {
            metadata.get_or_insert(header.metadata);
            tensors.extend(header.tensors);
        }
        match metadata {
            Some(metadata) => Ok(ModelFile { metadata, weights: Weights::new(sources, tensors)? }),
            None => Err(FormatError::Shards { file: "model".into(), cause: "no file given".into() }),
        }
    }
}
