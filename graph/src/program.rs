//! Programs as plain data: sequences of dispatches, up to three per bucket. The device's actor maps each
//! [`StageBuffer`] to a buffer id and records the dispatches.

use ragtag_hal::Access;
use ragtag_kernels::params::ParamsShape;

/// Stage buffer that a binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageBuffer {
    /// Weight buffer with this index in [`crate::CompiledStage::weights`].
    Weight(usize),
    /// Key or value buffer with this index in [`crate::CompiledStage::kv_bytes`].
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
    /// The best of the slot's logits (last stage only).
    Picks,
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
    /// Index of the kernel entry in [`crate::CompiledStage::module`].
    pub entry: u32,
    /// Buffer ranges for the kernel's arguments, in the order of the arguments.
    pub slices: Vec<Slice>,
    /// Values of the kernel's constants.
    pub constants: Vec<u32>,
    /// Number of work groups in each dimension.
    pub grid: [u32; 3],
}

/// Rows of the micro-batches that a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Any rows.
    Any,
    /// Decode rows: each sequence has a single row.
    Decode,
    /// Decode rows, then any rows. The parameters hold the number of decode rows.
    Mixed,
}

/// Dispatches that a stage runs for micro-batches of one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Layout of the parameter block. `params.rows` is the bucket's capacity in rows.
    pub params: ParamsShape,
    /// Rows that the program is for.
    pub kind: RowKind,
    /// Dispatches, in order. Each dispatch sees the writes of all earlier dispatches.
    pub steps: Vec<ProgramStep>,
}

impl Program {
    /// Returns the steps that belong to segment number `segment`.
    pub fn segment_steps(&self, segment: usize) -> impl Iterator<Item = &ProgramStep> {
        self.steps.iter().filter(move |s| s.segment == segment)
    }
}
