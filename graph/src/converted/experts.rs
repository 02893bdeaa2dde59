//! Tensors with the weights or biases of all experts, whose order in a checkpoint is not the one that products read.
//!
//! Sources: the classes of gpt-oss and the integration of MXFP4 in Hugging Face's `transformers`.

use super::{Conversion, TensorBytes};
use crate::error::SourceError;
use ragtag_kernels::TensorType;
use std::ops::Range;

/// Values of an MXFP4 block.
const BLOCK: usize = 32;
/// Bytes of a block: the exponent of its scale, then its quants.
const BLOCK_BYTES: usize = 1 + QUANT_BYTES;
const QUANT_BYTES: usize = BLOCK / 2;
/// Exponent that stands for NaN.
const NO_SCALE: u8 = 255;

/// Rows of each expert. Row i of part p of an expert is row `i · parts + p` of the expert in the file. So gates and up
/// projections, which alternate in the file, become two parts.
#[derive(Clone, Copy)]
pub(crate) struct ExpertRows {
    /// Number of rows per expert.
    pub(crate) rows: u64,
    /// Number of parts, a divisor of the rows.
    pub(crate) parts: u64,
}

impl ExpertRows {
    /// Divides rows of all experts into runs within one part of one expert.
    fn runs(self, rows: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let part_rows = self.rows / self.parts;
        let mut start = rows.start;
        std::iter::from_fn(move || {
            let end = ((start / part_rows + 1) * part_rows).min(rows.end);
            let run = start..end;
            start = end;
            (!run.is_empty()).then_some(run)
        })
    }

    /// Returns the expert of a row of all experts, and the number that the row has among the expert's rows in the file.
    fn in_file(self, row: u64) -> (u64, u64) {
        let (part_rows, of_expert) = (self.rows / self.parts, row % self.rows);
        (row / self.rows, of_expert % part_rows * self.parts + of_expert / part_rows)
    }
}

/// MXFP4 blocks whose quants and scales are two tensors. Byte i of a block's quants holds values 2i and 2i + 1.
pub(crate) struct Mxfp4 {
    /// Name of the tensor, for messages.
    pub(crate) tensor: String,
    pub(crate) columns: u64,
    pub(crate) rows: ExpertRows,
    pub(crate) quants: TensorBytes,
    pub(crate) scales: TensorBytes,
}

impl Mxfp4 {
    /// Writes neighbouring blocks. `first` is the index of the first one in the file.
    fn copy(&self, first: u64, out: &mut [[u8; BLOCK_BYTES]]) -> Result<(), SourceError> {
        let end = first + out.len() as u64;
        let quants = self.quants.part(first * QUANT_BYTES as u64..end * QUANT_BYTES as u64)?;
        let scales = self.scales.part(first..end)?;
        for ((block, quants), scale) in out.iter_mut().zip(quants.chunks_exact(QUANT_BYTES)).zip(&*scales) {
            if *scale == NO_SCALE {
                return Err(self.scales.invalid(&self.tensor, "a scale is NaN".into()));
            }
            let quant = |at: usize| quants[at / 2] >> (at % 2 * 4) & 15;
            block[0] = *scale;
            let pairs = block[1..].iter_mut().enumerate();
            pairs.for_each(|(at, byte)| *byte = quant(at) | quant(at + BLOCK / 2) << 4);
        }
        Ok(())
    }
}

impl Conversion for Mxfp4 {
    fn tensor_type(&self) -> TensorType {
        TensorType::MXFP4
    }

    fn values(&self) -> &TensorBytes {
        &self.quants
    }

    fn convert(&self, mut first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (mut out, blocks) = (out.as_chunks_mut::<BLOCK_BYTES>().0, self.columns / BLOCK as u64);
        while !out.is_empty() {
            // Rows of one part follow each other in the file.
            let (row, column) = (first / blocks, first % blocks);
            let run =
                if self.rows.parts == 1 { out.len() } else { out.len().min((blocks - column) as usize) };
            let (expert, in_file) = self.rows.in_file(row);
            let (done, rest) = out.split_at_mut(run);
            self.copy((expert * self.rows.rows + in_file) * blocks + column, done)?;
            (out, first) = (rest, first + run as u64);
        }
        Ok(())
    }
}

/// Matrices of experts that a checkpoint stores column by column.
pub(crate) struct Transposed {
    /// Type without blocks.
    pub(crate) tensor_type: TensorType,
    pub(crate) columns: u64,
    pub(crate) rows: ExpertRows,
    pub(crate) values: TensorBytes,
}

impl Conversion for Transposed {
    fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let size = self.tensor_type.block_bytes();
        let end = first + (out.len() / size) as u64;
        let mut found = Vec::new();
        for run in self.rows.runs(first / self.columns..end.div_ceil(self.columns)) {
            let (expert, first_in_file) = self.rows.in_file(run.start);
            // A column of the file has all rows of the run, and between them those of the other parts.
            found.resize((((run.end - run.start - 1) * self.rows.parts + 1) as usize) * size, 0);
            for column in 0..self.columns {
                let at = ((expert * self.columns + column) * self.rows.rows + first_in_file) * size as u64;
                self.values.source.read(self.values.offset + at, &mut found)?;
                let values = found.chunks_exact(size).step_by(self.rows.parts as usize);
                for (row, value) in run.clone().zip(values) {
                    let at = row * self.columns + column;
                    if (first..end).contains(&at) {
                        out[(at - first) as usize * size..][..size].copy_from_slice(value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Biases of experts whose parts alternate in a checkpoint. All biases of a part follow each other.
pub(crate) struct PartedBiases {
    /// Type without blocks.
    pub(crate) tensor_type: TensorType,
    pub(crate) experts: u64,
    pub(crate) rows: ExpertRows,
    pub(crate) values: TensorBytes,
}

impl Conversion for PartedBiases {
    fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    fn values(&self) -> &TensorBytes {
        &self.values
    }

    fn convert(&self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (all, size) = (self.values.all()?, self.tensor_type.block_bytes());
        let ExpertRows { rows, parts } = self.rows;
        for (at, value) in (first..).zip(out.chunks_exact_mut(size)) {
            let (part, of_part) = (at / (self.experts * rows / parts), at % (self.experts * rows / parts));
            let (expert, row) = (of_part / (rows / parts), of_part % (rows / parts));
            let from = (expert * rows + row * parts + part) as usize * size;
            value.copy_from_slice(&all[from..from + size]);
        }
        Ok(())
    }
}
