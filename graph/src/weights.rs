//! Weight tensors of a model: names, storage types and file positions.

use crate::error::{FormatError, ModelError, Quoted, SourceError};
use crate::source::Source;
use ragtag_kernels::TensorType;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Description of one weight tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Storage type of the values.
    pub tensor_type: TensorType,
    /// Sizes of the dimensions, contiguous dimension first (GGUF order). `shape[0]` is the row length.
    pub shape: Vec<u64>,
    /// Index of the file that holds the tensor.
    pub shard: usize,
    /// Offset of the tensor's first byte in its file.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Creates the description of a tensor that has no data and no file.
    pub(crate) fn described(
        name: &str,
        tensor_type: TensorType,
        shape: Vec<u64>,
    ) -> Result<Self, ModelError> {
        let bytes = stored_bytes(tensor_type, &shape)
            .map_err(|cause| ModelError::Unsupported { what: format!("tensor {name}: {cause}") })?;
        Ok(Self { name: name.into(), tensor_type, shape, shard: 0, offset: 0, bytes })
    }

    /// Returns the number of elements per row.
    pub fn columns(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of elements.
    pub(crate) fn values(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns the number of rows: the product of all dimensions except the first.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).fold(1, |product: u64, extent| product.saturating_mul(*extent))
    }
}

/// Returns the size of a tensor in bytes. Fails if its rows are not whole blocks, or if it is larger than any file.
pub(crate) fn stored_bytes(tensor_type: TensorType, shape: &[u64]) -> Result<u64, String> {
    let (columns, block) = (shape.first().copied().unwrap_or(1), tensor_type.block_values());
    if !columns.is_multiple_of(block as u64) {
        return Err(format!("rows of {columns} values are not whole blocks of {block} ({tensor_type})"));
    }
    let values = shape.iter().try_fold(1u64, |values, extent| values.checked_mul(*extent));
    values.and_then(|values| tensor_type.bytes(values)).ok_or_else(|| "is larger than any file".to_owned())
}

/// The weight tensors of a model in all its files.
#[derive(Clone)]
pub struct Weights {
    sources: Vec<Arc<dyn Source>>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Weights {
    /// Creates weights whose tensors are stored in `sources`. [`TensorInfo::shard`] is an index into
    /// `sources`.
    ///
    /// # Errors
    /// Fails if two tensors have the same name.
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

    /// Returns the files, and conversions of their tensors.
    pub(crate) fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor called `name`, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|number| self.tensors.get(*number))
    }

    /// Returns the tensor called `name`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] if there is none.
    pub(crate) fn required(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.tensor(name).ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// Returns the first tensor whose data is missing from the files, if any. A model with such a tensor can
    /// be planned but not run.
    pub fn without_data(&self) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| !self.holds(tensor))
    }

    /// Returns whether all data of `tensor` lies within its file.
    pub(crate) fn holds(&self, tensor: &TensorInfo) -> bool {
        let bytes = self.sources.get(tensor.shard).map_or(0, |source| source.bytes());
        tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= bytes)
    }

    /// Returns the blocks of a tensor. Copies them, except from a model in memory.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has changed, or if the tensor is not one of [`Weights::tensors`].
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<Cow<'_, [u8]>, FormatError> {
        let end = tensor.offset.saturating_add(tensor.bytes);
        Ok(self.source(tensor)?.range(tensor.offset..end)?)
    }

    /// Copies stored bytes of a tensor to `out`. The first one is the byte `start` of the tensor.
    ///
    /// # Errors
    /// Fails like [`Weights::bytes`].
    pub fn read(&self, tensor: &TensorInfo, start: u64, out: &mut [u8]) -> Result<(), FormatError> {
        Ok(self.source(tensor)?.read(tensor.offset.saturating_add(start), out)?)
    }

    /// Returns the factor by which products with the tensor `name` are multiplied.
    pub(crate) fn factor(&self, name: &str) -> f32 {
        let tensor = self.tensor(name).unwrap_or_else(|| panic!("no tensor is called {name}"));
        // A model without data has no sources.
        self.sources.get(tensor.shard).map_or(1.0, |source| source.factor())
    }

    fn source(&self, tensor: &TensorInfo) -> Result<&dyn Source, SourceError> {
        let missing = || SourceError::OutOfRange {
            name: format!("shard {}", tensor.shard),
            start: tensor.offset,
            end: tensor.offset.saturating_add(tensor.bytes),
            bytes: 0,
        };
        self.sources.get(tensor.shard).map(AsRef::as_ref).ok_or_else(missing)
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&str> = self.sources.iter().map(|s| s.name()).collect();
        f.debug_struct("Weights").field("files", &files).field("tensors", &self.tensors).finish()
    }
}
