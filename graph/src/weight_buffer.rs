//! Weight buffers of a stage: their content, and how it is read from the model's files.

use crate::error::ModelError;
use crate::ops::Affine;
use crate::stack::StackedMatrix;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::dequantise;
use std::sync::Arc;

/// Content of a weight buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightContent {
    /// A matrix in its resident layout.
    Matrix(StackedMatrix),
    /// Tensors converted to f32 values and concatenated.
    Vector {
        /// Names of the tensors, in order.
        tensors: Vec<String>,
        /// Total number of values in the buffer.
        values: u64,
        /// Distance between the starts of two tensors in values, if it is not the length of the first. The
        /// values between them are zero.
        pitch: Option<u64>,
        /// Change of the values of the first tensor, or of all tensors without a pitch.
        affine: Affine,
    },
    /// Values computed during lowering, such as RoPE frequencies.
    Generated(Arc<[f32]>),
}

impl WeightContent {
    /// Returns the size in device memory, in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            WeightContent::Matrix(matrix) => matrix.resident().bytes(),
            WeightContent::Vector { values, .. } => values * 4,
            WeightContent::Generated(values) => values.len() as u64 * 4,
        }
    }
}

/// A weight buffer and the source of its content.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightBuffer {
    /// Names of the tensors in the buffer, or a descriptive name for generated content. All parts of a split
    /// matrix share one name.
    pub name: String,
    /// Content of the buffer.
    pub content: WeightContent,
    /// First segment that reads the buffer.
    pub segment: usize,
}

/// Part of a weight buffer that one call of [`WeightBuffer::fill`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightChunk {
    /// First byte in the buffer.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl WeightBuffer {
    /// Returns the size in device memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.content.bytes()
    }

    /// Returns whether the values are computed instead of read from the model's files.
    pub fn is_generated(&self) -> bool {
        matches!(self.content, WeightContent::Generated(_))
    }

    /// Returns whether two buffers have the same name and content. The segments that read them may differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.content == other.content
    }

    /// Splits the buffer into parts of at most `max_bytes`, in order. The parts share the buffer's name. Only
    /// matrices are split. `is_widened` returns whether the device may dequantize matrices of a given type to
    /// f16.
    pub(crate) fn split(
        self,
        max_bytes: u64,
        is_widened: impl FnOnce(TensorType) -> bool,
    ) -> Result<Vec<Self>, ModelError> {
        let Self { name, content, segment } = self;
        let WeightContent::Matrix(matrix) = content else { return Ok(vec![Self { name, content, segment }]) };
        let is_widened = is_widened(matrix.resident().tensor_type());
        let parts = matrix.split(max_bytes, is_widened)?.into_iter();
        let buffer = |part| Self { name: name.clone(), content: WeightContent::Matrix(part), segment };
        Ok(parts.map(buffer).collect())
    }

    /// Divides the buffer into chunks of at most `max_bytes`. If the layout does not allow chunks that small,
    /// the chunks have the smallest size that it allows.
    pub fn chunks(&self, max_bytes: u64) -> Vec<WeightChunk> {
        let unit = match &self.content {
            WeightContent::Matrix(matrix) => matrix.resident().group_bytes() as u64,
            _ => self.bytes(),
        };
        let step = (max_bytes / unit.max(1)).max(1) * unit;
        let mut offset = 0;
        let mut chunks = Vec::new();
        while offset < self.bytes() {
            let bytes = step.min(self.bytes() - offset);
            chunks.push(WeightChunk { offset, bytes });
            offset += bytes;
        }
        chunks
    }

    /// Writes one of the chunks from [`WeightBuffer::chunks`] to `out`, which must have the chunk's length.
    ///
    /// # Errors
    /// Fails if a model file can no longer be read.
    pub fn fill(&self, weights: &Weights, chunk: &WeightChunk, out: &mut [u8]) -> Result<(), ModelError> {
        assert_eq!(out.len() as u64, chunk.bytes, "bytes for {chunk:?} of {}", self.name);
        match &self.content {
            WeightContent::Matrix(matrix) => {
                let group_bytes = matrix.resident().group_bytes() as u64;
                let end = chunk.offset + chunk.bytes;
                let is_whole = [chunk.offset, end].iter().all(|at| at.is_multiple_of(group_bytes));
                assert!(is_whole, "{chunk:?} of groups of {group_bytes} bytes");
                let groups = (chunk.offset / group_bytes) as usize..(end / group_bytes) as usize;
                matrix.fill(weights, groups, out)?;
            }
            WeightContent::Vector { tensors, values, pitch, affine } => {
                let mut all = Vec::new();
                for (i, name) in tensors.iter().enumerate() {
                    let mut found = vector_values(weights.required(name)?, weights)?;
                    if i == 0 || pitch.is_none() {
                        found.iter_mut().for_each(|value| *value = affine.of(*value));
                    }
                    let start = pitch.map_or(all.len(), |pitch| i * pitch as usize);
                    assert!(all.len() <= start, "{} values of {tensors:?} before value {start}", all.len());
                    all.resize(start, 0.0);
                    all.extend(found);
                }
                assert!(all.len() <= *values as usize, "{} of {values} values of {tensors:?}", all.len());
                all.resize(*values as usize, 0.0);
                write_values(&all, chunk, out);
            }
            WeightContent::Generated(values) => write_values(values, chunk, out),
        }
        Ok(())
    }
}

/// Returns the values of a vector tensor as f32.
pub(crate) fn vector_values(tensor: &TensorInfo, weights: &Weights) -> Result<Vec<f32>, ModelError> {
    let bytes = weights.bytes(tensor)?;
    let mut values =
        vec![0.0; bytes.len() / tensor.tensor_type.block_bytes() * tensor.tensor_type.block_values()];
    dequantise(tensor.tensor_type, &bytes, &mut values)?;
    Ok(values)
}

fn write_values(values: &[f32], chunk: &WeightChunk, out: &mut [u8]) {
    let values = &values[(chunk.offset / 4) as usize..((chunk.offset + chunk.bytes) / 4) as usize];
    for (bytes, value) in out.chunks_exact_mut(4).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}
