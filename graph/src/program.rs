//! Compiled stages: for a run of segments on one device, the buffers it needs and, for each bucket of rows, the
//! dispatches over them. Plain data: a device actor turns places into buffer ids and records the steps.

use ragtag_hal::{Access, Module};
use ragtag_kernels::params::ParamsShape;
use std::ops::Range;

/// Which buffer of a stage a step's binding lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Buffer of [`CompiledStage::weights`].
    Weight(usize),
    /// Buffer of [`CompiledStage::kv_bytes`].
    Kv(usize),
    /// The stage's scratch buffer; steps of one micro-batch share it and the compute queue keeps micro-batches apart.
    Scratch,
    /// The slot's rows: what came in over the edge, updated in place, and what leaves over the next edge.
    Activation,
    /// The slot's logits (last stage only).
    Logits,
    /// The slot's parameter block.
    Params,
}

/// A range of a place, bound to a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub place: Place,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// How the kernel uses it.
    pub access: Access,
}

/// One dispatch of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The segment that it belongs to.
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

/// The steps of a stage for micro-batches of up to so many rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// How the parameter block is laid out; `params.rows` is the bucket.
    pub params: ParamsShape,
    /// The dispatches, in order; each sees what those before it wrote.
    pub steps: Vec<Step>,
}

/// A weight buffer and where its content comes from.
#[derive(Clone, Debug)]
pub struct WeightBuffer {
    /// The tensor's name, or what the generated content is.
    pub name: String,
    /// Size on the device.
    pub bytes: u64,
}

/// A stage, compiled for a device.
#[derive(Clone, Debug)]
pub struct CompiledStage {
    /// Its segments.
    pub segments: Range<usize>,
    /// Every kernel entry that its programs use.
    pub module: Module,
    /// Weight buffers.
    pub weights: Vec<WeightBuffer>,
    /// Sizes of the key and value buffers.
    pub kv_bytes: Vec<u64>,
    /// Size of the scratch buffer; 0 if none is needed.
    pub scratch_bytes: u64,
    /// Bytes of one row of activations, as they cross to the next stage.
    pub row_bytes: u64,
    /// Bytes of one row of logits; 0 unless this is the last stage.
    pub logit_row_bytes: u64,
    /// One program for each bucket, by ascending rows. The last bucket is the largest micro-batch.
    pub programs: Vec<Program>,
}

impl CompiledStage {
    /// The program with the smallest bucket that holds `rows` rows.
    pub fn program_for(&self, rows: u32) -> Option<usize> {
        self.programs.iter().position(|p| p.params.rows >= rows)
    }

    /// Most rows of a micro-batch.
    pub fn max_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.rows)
    }

    /// Most logit rows of a micro-batch.
    pub fn max_logit_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.logit_rows)
    }

    /// Bytes that one slot takes: parameters, activations, logits.
    pub fn slot_bytes(&self) -> u64 {
        let params = self.programs.iter().map(|p| p.params.bytes()).max().unwrap_or(0);
        params + u64::from(self.max_rows()) * self.row_bytes + u64::from(self.max_logit_rows()) * self.logit_row_bytes
    }

    /// Bytes that the stage takes with `slots` slots, staging apart.
    pub fn device_bytes(&self, slots: u64) -> u64 {
        let weights: u64 = self.weights.iter().map(|w| w.bytes).sum();
        weights + self.kv_bytes.iter().sum::<u64>() + self.scratch_bytes + slots * self.slot_bytes()
    }
}
