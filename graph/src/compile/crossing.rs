//! Emits the dispatches that convert rows between the wire type and f32 at both ends of a stage.

use super::emit::Emitter;
use crate::error::CompileError;
use crate::ops::{Argument, Call, row_copy};
use crate::program::{ProgramStep, StageBuffer};
use crate::wire_type::WireType;
use ragtag_kernels::params::ROWS;
use ragtag_kernels::{Activations, ElementType, Kernel};
use std::ops::Range;

impl Emitter<'_> {
    /// Returns the dispatch that converts received rows to f32. Returns `None` for the first stage and for
    /// the wire type f32.
    pub(super) fn arriving(&mut self, segments: &Range<usize>) -> Result<Option<ProgramStep>, CompileError> {
        if segments.start == 0 || self.lowering.wire_type == WireType::F32 {
            return Ok(None);
        }
        let (rows, width) = (self.params.rows, self.model.hyperparameters().width);
        let pitch = Activations::F16.row_bytes(width as usize) as u32 / 2;
        // The dispatch converts all rows of the buffer. No kernel reads rows beyond the micro-batch.
        let constants = row_copy([ElementType::F16, ElementType::F32], [rows, width], pitch);
        let arguments = vec![self.crossing_rows(), self.residual_rows()];
        let call = Call { kernel: Kernel::Copy, arguments, constants };
        self.dispatch(segments.start, rows, call).map(Some)
    }

    /// Returns the dispatch that converts residual rows to the wire type. Returns `None` for the last stage
    /// and for the wire type f32.
    pub(super) fn leaving(&mut self, segments: &Range<usize>) -> Result<Option<ProgramStep>, CompileError> {
        if segments.end == self.model.segment_count() || self.lowering.wire_type == WireType::F32 {
            return Ok(None);
        }
        let (rows, width) = (self.params.rows, self.model.hyperparameters().width);
        let params = (StageBuffer::Params, 0, self.params.bytes());
        let arguments = vec![params, self.residual_rows(), self.crossing_rows()];
        let kernel = Kernel::Quantize(Activations::F16);
        let call = Call { kernel, arguments, constants: vec![rows, ROWS, width] };
        self.dispatch(segments.end - 1, rows, call).map(Some)
    }

    fn residual_rows(&self) -> Argument {
        (StageBuffer::Activation, 0, self.bytes_of_rows(Activations::F32))
    }

    fn crossing_rows(&self) -> Argument {
        (StageBuffer::Crossing, 0, self.bytes_of_rows(Activations::F16))
    }

    fn bytes_of_rows(&self, form: Activations) -> u64 {
        let width = self.model.hyperparameters().width as usize;
        u64::from(self.params.rows) * form.row_bytes(width) as u64
    }
}
