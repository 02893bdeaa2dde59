//! Compiled stages as plain data. A stage lists the buffers that it needs, and the programs of each bucket.

use crate::kv_ring::KvRing;
use crate::program::{Program, RowKind, StageBuffer};
use crate::rope_lengths::RopeLengths;
use crate::weight_buffer::WeightBuffer;
use ragtag_hal::Module;
use ragtag_kernels::picks::RECORD_BYTES;
use std::ops::Range;

/// Result of a stage for each row of a micro-batch that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageResult {
    /// Nothing. The stage sends residual rows to the next one instead.
    Nothing,
    /// Logits: one f32 per token of the vocabulary.
    Logits {
        /// Number of tokens in the vocabulary.
        vocabulary: u32,
    },
    /// Logits, and the best of them: a record of [`ragtag_kernels::picks`].
    Picks {
        /// Number of tokens in the vocabulary.
        vocabulary: u32,
    },
    /// Hidden rows in place of logits, with records of their largest values in place of the best logits.
    Hidden {
        /// Number of values in a row.
        width: u32,
        /// Number of tokens in the vocabulary.
        vocabulary: u32,
    },
}

impl StageResult {
    /// Returns the number of tokens in the vocabulary, if the stage is the last one.
    pub fn vocabulary(self) -> Option<u32> {
        match self {
            StageResult::Nothing => None,
            StageResult::Logits { vocabulary }
            | StageResult::Picks { vocabulary }
            | StageResult::Hidden { vocabulary, .. } => Some(vocabulary).filter(|vocabulary| *vocabulary > 0),
        }
    }

    /// Returns the size of one row of logits, or of one hidden row, in bytes.
    pub fn row_bytes(self) -> u64 {
        let values = match self {
            StageResult::Hidden { width, .. } => width,
            _ => self.vocabulary().unwrap_or(0),
        };
        u64::from(values) * 4
    }

    /// Returns the size of the best logits of one row in bytes.
    pub fn picks_row_bytes(self) -> u64 {
        if matches!(self, StageResult::Picks { .. } | StageResult::Hidden { .. }) { RECORD_BYTES } else { 0 }
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
    /// Result that the stage returns to the host. Only the last stage returns anything.
    pub result: StageResult,
    /// Programs in ascending order of capacity. The last one holds the largest micro-batch. A large bucket has up
    /// to three. The last of them is for any rows.
    pub programs: Vec<Program>,
}

impl CompiledStage {
    /// Returns the index of the first program for a micro-batch with `rows` rows of `sequences` sequences.
    /// `logit_rows` rows need logits. The first `decode_rows` rows are single rows of their sequences. Returns
    /// `None` if no program holds the micro-batch.
    pub fn program_for(
        &self,
        [rows, logit_rows]: [u32; 2],
        sequences: u32,
        decode_rows: u32,
    ) -> Option<usize> {
        self.programs.iter().position(|Program { params, kind, .. }| {
            let is_kind = match kind {
                RowKind::Any => true,
                RowKind::Decode => decode_rows == rows,
                RowKind::Mixed => decode_rows > 0,
            };
            let holds = params.rows >= rows && params.logit_rows >= logit_rows;
            holds && params.sequences >= sequences && is_kind
        })
    }

    /// Returns the maximum number of rows in a micro-batch.
    pub fn max_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.rows)
    }

    /// Returns the maximum number of logit rows in a micro-batch.
    pub fn max_logit_rows(&self) -> u32 {
        self.programs.last().map_or(0, |p| p.params.logit_rows)
    }

    /// Returns the maximum size in bytes of the logits of a micro-batch.
    pub fn max_logits_bytes(&self) -> u64 {
        u64::from(self.max_logit_rows()) * self.result.row_bytes()
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

    /// Returns the maximum size in bytes of the best logits of a micro-batch.
    pub fn max_picks_bytes(&self) -> u64 {
        u64::from(self.max_logit_rows()) * self.result.picks_row_bytes()
    }

    /// Returns the sizes in bytes of the five buffers of one slot: parameters, residual rows, rows in the
    /// wire type, logits, and the best logits. The size is 0 for a buffer that the slot lacks.
    pub fn slot_buffers(&self) -> [u64; 5] {
        let params = self.programs.iter().map(|p| self.params_bytes(p)).max().unwrap_or(0);
        let rows = u64::from(self.max_rows());
        let crossing = rows * self.crossing_row_bytes.unwrap_or(0);
        [params, rows * self.row_bytes, crossing, self.max_logits_bytes(), self.max_picks_bytes()]
    }

    /// Checks that every slice lies within its buffer.
    pub(crate) fn check_slices(&self) {
        let [_, activation, crossing, logits, picks] = self.slot_buffers();
        for program in &self.programs {
            for slice in program.steps.iter().flat_map(|step| &step.slices) {
                let bytes = match slice.buffer {
                    StageBuffer::Weight(index) => self.weights[index].bytes(),
                    StageBuffer::Kv(index) => self.kv_bytes[index],
                    StageBuffer::Scratch => self.scratch_bytes,
                    StageBuffer::Activation => activation,
                    StageBuffer::Crossing => crossing,
                    StageBuffer::Logits => logits,
                    StageBuffer::Picks => picks,
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
