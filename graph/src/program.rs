//! Compiled stages. For a run of segments on one device: the buffers it needs and, for each bucket of rows,
//! the dispatches over them. Plain data: a device actor maps places to buffer ids and records the steps.

use crate::model::ModelError;
use crate::stack::StackedMatrix;
use crate::weights::{TensorInfo, Weights};
use ragtag_hal::{Access, Module};
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::{SizeError, dequantise};
use ragtag_kernels::layout::LayoutError;
use ragtag_kernels::params::ParamsShape;
use std::ops::Range;
use std::sync::Arc;

/// Buffer of a stage that a step's binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Buffer of [`CompiledStage::weights`].
    Weight(usize),
    /// Buffer of [`CompiledStage::kv_bytes`].
    Kv(usize),
    /// The stage's scratch buffer. The steps of a micro-batch share it, and the compute queue serializes
    /// micro-batches.
    Scratch,
    /// The slot's rows: the residual stream, updated in place. They arrive over one edge and leave over the
    /// next, unless the wire type differs.
    Activation,
    /// The slot's rows in the wire type, if it differs from the resident type: first the received rows, then
    /// the sent ones.
    Crossing,
    /// The slot's logits (last stage only).
    Logits,
    /// The slot's parameter block.
    Params,
}

/// A byte range of a place, bound to a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub place: Place,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Access by the kernel.
    pub access: Access,
}

/// One dispatch of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramStep {
    /// Segment that the dispatch belongs to.
    pub segment: usize,
    /// Entry of [`CompiledStage::module`].
    pub entry: u32,
    /// Arguments.
    pub slices: Vec<Slice>,
    /// Constants.
    pub constants: Vec<u32>,
    /// Work groups.
    pub grid: [u32; 3],
}

/// Steps of a stage for micro-batches up to a bucket's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Layout of the parameter block. `params.rows` is the bucket.
    pub params: ParamsShape,
    /// Dispatches, in order. Each sees the writes of those before it.
    pub steps: Vec<ProgramStep>,
}

/// Content of a weight buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightContent {
    /// A matrix in its resident layout.
    Matrix(StackedMatrix),
    /// Vector with the buffer's name, as f32 values.
    Vector {
        /// Number of values.
        values: u64,
    },
    /// Values computed during lowering.
    Generated(Arc<[f32]>),
}

impl WeightContent {
    /// Returns the bytes on the device.
    pub fn bytes(&self) -> u64 {
        match self {
            WeightContent::Matrix(matrix) => matrix.resident().bytes(),
            WeightContent::Vector { values } => values * 4,
            WeightContent::Generated(values) => values.len() as u64 * 4,
        }
    }
}

/// A weight buffer and the source of its content.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightBuffer {
    /// Names of its tensors, or a name for generated content. Parts of one matrix share it.
    pub name: String,
    /// Content of the buffer.
    pub content: WeightContent,
    /// First segment that needs it.
    pub segment: usize,
}

/// A piece of a weight buffer that is written in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightChunk {
    /// First byte in the buffer.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl WeightBuffer {
    /// Returns the bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.content.bytes()
    }

    /// Returns whether two buffers have the same content, whichever segments need them.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.content == other.content
    }

    /// Splits the buffer into parts of at most `max_bytes`, in order. They share the name. Only matrices can
    /// be split. `is_widened` tells whether matrices of a type may be dequantized on the device.
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

    /// Cuts the buffer into pieces of at most `max_bytes`, or of the smallest size that its layout allows.
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

    /// Writes one of [`WeightBuffer::chunks`] to `out`, which must have its length.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn fill(&self, weights: &Weights, chunk: &WeightChunk, out: &mut [u8]) -> Result<(), ModelError> {
        let tensor = || {
            weights.tensor(&self.name).ok_or_else(|| ModelError::MissingTensor { name: self.name.clone() })
        };
        match &self.content {
            WeightContent::Matrix(matrix) => {
                let group_bytes = matrix.resident().group_bytes() as u64;
                let groups = (chunk.offset / group_bytes) as usize
                    ..((chunk.offset + chunk.bytes) / group_bytes) as usize;
                matrix.fill(weights, groups, out)?;
            }
            WeightContent::Vector { .. } => write_values(&vector_values(tensor()?, weights)?, chunk, out),
            WeightContent::Generated(values) => write_values(values, chunk, out),
        }
        Ok(())
    }
}

/// Returns the values of a vector tensor.
pub(crate) fn vector_values(tensor: &TensorInfo, weights: &Weights) -> Result<Vec<f32>, ModelError> {
    let bytes = weights.bytes(tensor)?;
    let mut values =
        vec![0.0; bytes.len() / tensor.tensor_type.block_bytes() * tensor.tensor_type.block_values()];
    dequantise(tensor.tensor_type, bytes, &mut values)?;
    Ok(values)
}

impl From<SizeError> for ModelError {
    fn from(error: SizeError) -> Self {
        ModelError::Unsupported { what: error.to_string() }
    }
}

impl From<LayoutError> for ModelError {
    fn from(error: LayoutError) -> Self {
        ModelError::Unsupported { what: error.to_string() }
    }
}

fn write_values(values: &[f32], chunk: &WeightChunk, out: &mut [u8]) {
    for (bytes, value) in out.chunks_exact_mut(4).zip(&values[(chunk.offset / 4) as usize..]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// A stage, compiled for a device.
#[derive(Clone, Debug)]
pub struct CompiledStage {
    /// Segments of the stage.
    pub segments: Range<usize>,
    /// All kernel entries that its programs use.
    pub module: Module,
    /// Weight buffers.
    pub weights: Vec<WeightBuffer>,
    /// Sizes of the key and value buffers.
    pub kv_bytes: Vec<u64>,
    /// Names of the kernel variants behind the module's entries, for receipts.
    pub variants: Vec<String>,
    /// Size of the scratch buffer; 0 if none is needed.
    pub scratch_bytes: u64,
    /// Bytes of one activation row as the stage stores it.
    pub row_bytes: u64,
    /// Bytes of one activation row in the wire type, if it differs from the stored one.
    pub crossing_row_bytes: Option<u64>,
    /// Bytes of one row of logits; 0 unless this is the last stage.
    pub logit_row_bytes: u64,
    /// One program per bucket, by ascending rows. The last bucket is the largest micro-batch.
    pub programs: Vec<Program>,
}

impl CompiledStage {
    /// Returns the program with the smallest bucket that holds `rows` rows.
    pub fn program_for(&self, rows: u32) -> Option<usize> {
        self.programs.iter().position(|p| p.params.rows >= rows)
    }

    /// Returns the maximum rows of a micro-batch.
    pub fn max_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.rows)
    }

    /// Returns the maximum logit rows of a micro-batch.
    pub fn max_logit_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.logit_rows)
    }

    /// Returns the bytes of the buffers of one slot: parameters, activations, activations in the wire type,
    /// logits. 0 means that the slot lacks the buffer.
    pub fn slot_buffers(&self) -> [u64; 4] {
        let params = self.programs.iter().map(|p| p.params.bytes()).max().unwrap_or(0);
        let rows = u64::from(self.max_rows());
        let crossing = rows * self.crossing_row_bytes.unwrap_or(0);
        [params, rows * self.row_bytes, crossing, u64::from(self.max_logit_rows()) * self.logit_row_bytes]
    }

    /// Returns the bytes of one activation row on the edges of the stage.
    pub fn edge_row_bytes(&self) -> u64 {
        self.crossing_row_bytes.unwrap_or(self.row_bytes)
    }

    /// Returns the bytes of one slot.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_buffers().iter().sum()
    }

    /// Returns the bytes that the stage needs with `slots` slots, without staging.
    pub fn device_bytes(&self, slots: u64) -> u64 {
        let weights: u64 = self.weights.iter().map(WeightBuffer::bytes).sum();
        weights + self.kv_bytes.iter().sum::<u64>() + self.scratch_bytes + slots * self.slot_bytes()
    }
}
