//! The weight tensors of a model file: what they are called, how they are stored, where their bytes lie.
//!
//! This module must not know any format or architecture.

use crate::error::{FormatError, Quoted, SourceError};
use crate::source::Source;
use ragtag_kernels::TensorType;
use std::collections::HashMap;
use std::sync::Arc;

/// One weight tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// How its values are stored.
    pub tensor_type: TensorType,
    /// Extents, the contiguous dimension first (the order of GGUF): `shape[0]` is the length of a row.
    pub shape: Vec<u64>,
    /// Which of the model's files holds it.
    pub shard: usize,
    /// Its first byte in that file.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Values in a row.
    pub fn columns(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Rows: the product of all other extents.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).fold(1, |product: u64, extent| product.saturating_mul(*extent))
    }
}

/// The weight tensors of a model, over all its files.
#[derive(Clone)]
pub struct Weights {
    sources: Vec<Arc<dyn Source>>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Weights {
    /// Weights whose [`TensorInfo::shard`] counts `sources`.
    ///
    /// # Errors
    /// Two tensors have one name.
    pub(crate) fn new(sources: Vec<Arc<dyn Source>>, tensors: Vec<TensorInfo>) -> Result<Self, FormatError> {
        let mut index = HashMap::new();
        for (number, tensor) in tensors.iter().enumerate() {
            if index.insert(tensor.name.clone(), number).is_some() {
                return Err(FormatError::DuplicateTensor {
                    file: sources.get(tensor.shard).map_or_else(String::new, |s| s.name().to_owned()),
                    tensor: Quoted(&tensor.name).to_string(),
                });
            }
        }
        Ok(Weights { sources, tensors, index })
    }

    /// All tensors in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|number| self.tensors.get(*number))
    }

    /// The first tensor of which the files hold a description alone, if there is one: such a model can be planned for, not
    /// run.
    pub fn without_data(&self) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| !self.holds(tensor))
    }

    /// Whether the data of a tensor lies within its file.
    pub(crate) fn holds(&self, tensor: &TensorInfo) -> bool {
        let bytes = self.sources.get(tensor.shard).map_or(0, |source| source.bytes());
        tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= bytes)
    }

    /// The stored bytes of a tensor, without a copy.
    ///
    /// # Errors
    /// The file has shrunk, or the tensor is not one of [`Weights::tensors`].
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], FormatError> {
        let end = tensor.offset.saturating_add(tensor.bytes);
        match self.sources.get(tensor.shard) {
            Some(source) => Ok(source.range(tensor.offset..end)?),
            None => Err(SourceError::OutOfRange {
                name: format!("shard {}", tensor.shard),
                start: tensor.offset,
                end,
                bytes: 0,
            }
            .into()),
        }
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&str> = self.sources.iter().map(|s| s.name()).collect();
        f.debug_struct("Weights").field("files", &files).field("tensors", &self.tensors).finish()
    }
}
