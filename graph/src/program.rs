//! Compiled stages as plain data. A stage lists the buffers that it needs, and one program (a sequence of
//! dispatches) per bucket. The device's actor maps each [`StageBuffer`] to a buffer id and records the dispatches.

use crate::error::ModelError;
use crate::kv_ring::KvRing;
use crate::rope_lengths::RopeLengths;
use crate::stack::StackedMatrix;
use crate::weights::{TensorInfo, Weights};
use ragtag_hal::{Access, Module};
use ragtag_kernels::TensorType;
use ragtag_kernels::blocks::dequantise;
use ragtag_kernels::params::ParamsShape;
use std::ops::Range;
use std::sync::Arc;

/// Stage buffer that a binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageBuffer {
    /// Weight buffer with this index in [`CompiledStage::weights`].
    Weight(usize),
    /// Key or value buffer with this index in [`CompiledStage::kv_bytes`].
    Kv(usize),
    /// The stage's scratch buffer. All micro-batches use the same buffer, because the compute queue runs them
    /// one after another.
    Scratch,
    /// The slot's residual rows, which the steps update in place. If the wire type is f32, the stage also
    /// receives rows into this buffer and sends them from it.
    Activation,
    /// The slot's rows in the wire type, if the wire type is not f32. The buffer first holds the received
    /// rows and later the rows to send.
    Crossing,
    /// The slot's logits (last stage only).
    Logits,
    /// The slot's parameter block.
    Params,
}

/// Byte range of a buffer that is bound to a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub buffer: StageBuffer,
    /// Offset of the first byte in the buffer.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Kind of access that the kernel needs: read, write or both.
    pub access: Access,
}

/// One dispatch of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramStep {
    /// Segment whose operators the dispatch computes.
    pub segment: usize,
    /// Index of the kernel entry in [`CompiledStage::module`].
    pub entry: u32,
    /// Buffer ranges for the kernel's arguments, in the order of the arguments.
    pub slices: Vec<Slice>,
    /// Values of the kernel's constants.
    pub constants: Vec<u32>,
    /// Number of work groups in each dimension.
    pub grid: [u32; 3],
}

/// Dispatches that a stage runs for micro-batches of one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Layout of the parameter block. `params.rows` is the bucket's capacity in rows.
    pub params: ParamsShape,
    /// Dispatches, in order. Each dispatch sees the writes of all earlier dispatches.
    pub steps: Vec<ProgramStep>,
}

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
        affine: crate::op::Affine,
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

/// A stage that was compiled for a device.
#[derive(Clone, Debug)]
pub struct CompiledStage {
    /// Segments of the stage.
    pub segments: Range<usize>,
    /// Module with all kernel entries that the programs use.
    pub module: Module,
    /// Weight buffers.
    pub weights: Vec<WeightBuffer>,
    /// Sizes of the key and value buffers in bytes.
    pub kv_bytes: Vec<u64>,
    /// Number of cache blocks in each buffer of the KV cache that holds all positions.
    pub kv_blocks: u32,
    /// KV ring of the layers with a window. `None` if all layers of the model keep all positions.
    pub kv_ring: Option<KvRing>,
    /// RoPE frequencies that depend on the length of a sequence. `None` if those of the model do not.
    pub rope_lengths: Option<RopeLengths>,
    /// Whether the blocks of each buffer of the KV cache are those of KV rings.
    pub is_kv_ring: Vec<bool>,
    /// Names of the kernel variants that implement the module's entries, for receipts.
    pub variants: Vec<String>,
    /// Size of the scratch buffer in bytes, or 0 if the stage needs no scratch.
    pub scratch_bytes: u64,
    /// Size of one residual row in bytes.
    pub row_bytes: u64,
    /// Size of one row in the wire type in bytes, or `None` if the wire type is f32.
    pub crossing_row_bytes: Option<u64>,
    /// Size of one row of logits in bytes. This is 0 unless the stage is the last one.
    pub logit_row_bytes: u64,
    /// Number of tokens in the model's vocabulary.
    pub vocabulary: u32,
    /// One program per bucket, in ascending order of capacity. The last bucket holds the largest micro-batch.
    pub programs: Vec<Program>,
}

impl CompiledStage {
    /// Returns the index of the program with the smallest bucket that holds `rows` rows, or `None` if no
    /// bucket does.
    pub fn program_for(&self, rows: u32) -> Option<usize> {
        self.programs.iter().position(|p| p.params.rows >= rows)
    }

    /// Returns the maximum number of rows in a micro-batch.
    pub fn max_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.rows)
    }

    /// Returns the maximum number of logit rows in a micro-batch.
    pub fn max_logit_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.logit_rows)
    }

    /// Returns the size in bytes of the parameters of a program: one parameter block, a second one with the
    /// block tables of KV rings if the model has any, and RoPE frequencies that depend on the length.
    pub fn params_bytes(&self, program: &Program) -> u64 {
        let pairs = self.rope_lengths.as_ref().map_or(0, RopeLengths::pairs);
        program.params.all_bytes(self.kv_ring.is_some(), pairs)
    }

    /// Returns the size in bytes of a cache block in a buffer of the KV cache.
    pub fn kv_block_bytes(&self, buffer: usize) -> u64 {
        let ring = self.kv_ring.filter(|_| self.is_kv_ring[buffer]);
        self.kv_bytes[buffer] / u64::from(ring.map_or(self.kv_blocks, |ring| ring.total).max(1))
    }

    /// Returns the sizes in bytes of the four buffers of one slot: parameters, residual rows, rows in the
    /// wire type, and logits. The size is 0 for a buffer that the slot lacks.
    pub fn slot_buffers(&self) -> [u64; 4] {
        let params = self.programs.iter().map(|p| self.params_bytes(p)).max().unwrap_or(0);
        let rows = u64::from(self.max_rows());
        let crossing = rows * self.crossing_row_bytes.unwrap_or(0);
        [params, rows * self.row_bytes, crossing, u64::from(self.max_logit_rows()) * self.logit_row_bytes]
    }

    /// Checks that every slice lies within its buffer.
    pub(crate) fn check_slices(&self) {
        let [_, activation, crossing, logits] = self.slot_buffers();
        for program in &self.programs {
            for slice in program.steps.iter().flat_map(|step| &step.slices) {
                let bytes = match slice.buffer {
                    StageBuffer::Weight(index) => self.weights[index].bytes(),
                    StageBuffer::Kv(index) => self.kv_bytes[index],
                    StageBuffer::Scratch => self.scratch_bytes,
                    StageBuffer::Activation => activation,
                    StageBuffer::Crossing => crossing,
                    StageBuffer::Logits => logits,
                    StageBuffer::Params => self.params_bytes(program),
                };
                assert!(slice.offset + slice.bytes <= bytes, "{slice:?} in a buffer of {bytes} bytes");
            }
        }
    }

    /// Returns the size in bytes of one row that the stage receives or sends.
    pub fn edge_row_bytes(&self) -> u64 {
        self.crossing_row_bytes.unwrap_or(self.row_bytes)
    }

    /// Returns the total size of one slot in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_buffers().iter().sum()
    }

    /// Returns the device memory in bytes that the stage needs with `slots` slots, excluding staging.
    pub fn device_bytes(&self, slots: u64) -> u64 {
        let weights: u64 = self.weights.iter().map(WeightBuffer::bytes).sum();
        weights + self.kv_bytes.iter().sum::<u64>() + self.scratch_bytes + slots * self.slot_bytes()
    }
}
