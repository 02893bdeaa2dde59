//! Stacks of weight tensors. A stack consists of rows of zeros, followed by the rows of one or more tensors
//! that share a type.
//!
//! If several products have the same input, stacking their weights lets a single launch compute all of them.
//! A device stores a stack as one matrix. Packing reads the rows of each tensor from its location in the
//! model's files.

use crate::error::ModelError;
use crate::weights::{TensorInfo, Weights};
use ragtag_kernels::layout::{COLUMN_BLOCK, GROUP_ROWS, Layout, Resident};
use ragtag_kernels::{TensorType, widen};
use std::ops::Range;

/// Alignment, in rows, of the parts of a split matrix. It aligns the output of each part to 256 bytes, as
/// devices require for bindings.
pub(crate) const PART_ROWS: usize = 64;

/// Maximum number of bytes that are read at once for packing, so that they stay in the cache of a core. A row
/// group may need more.
const PIECE_BYTES: usize = 128 << 10;

/// Number of tensors in a stack whose name has all their names.
const MOST_NAMES: usize = 3;

/// Weight tensors that together form the matrix of one product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of zero rows before the tensors.
    pub zero_rows: u32,
    /// Names of the tensors, at least one. All tensors have the same type, the shape `[columns, rows]`, and
    /// the same number of columns.
    pub tensors: Vec<String>,
}

impl Stack {
    /// Returns a stack of one tensor.
    pub fn of(tensor: &str) -> Self {
        Self { zero_rows: 0, tensors: vec![tensor.into()] }
    }

    /// Returns the name of the buffer that holds the stack. It has the first and the last of many tensors.
    pub fn name(&self) -> String {
        match &self.tensors[..] {
            [first, .., last] if self.tensors.len() > MOST_NAMES => {
                format!("{first} … {last} ({} tensors)", self.tensors.len())
            }
            few => few.join(" + "),
        }
    }

    /// Returns the type and shape of the stack. The graph contains only stacks of tensors that exist.
    pub(crate) fn shape(&self, weights: &Weights) -> StackShape {
        let infos = self.infos(weights).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        let rows = infos.iter().map(|tensor| tensor.rows() as u32).sum::<u32>();
        let (tensor_type, columns) = (infos[0].tensor_type, infos[0].columns() as u32);
        StackShape { tensor_type, rows: self.zero_rows + rows, columns }
    }

    /// Returns the description of each tensor in the stack.
    pub(crate) fn infos<'a>(&self, weights: &'a Weights) -> Result<Vec<&'a TensorInfo>, ModelError> {
        self.tensors.iter().map(|name| weights.required(name)).collect()
    }
}

/// Type and shape of the matrix that a stack forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackShape {
    pub(crate) tensor_type: TensorType,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
}

/// A stack in its resident layout, or a range of its rows. A device with a small binding limit stores a stack
/// in several parts.
#[derive(Clone, Debug, PartialEq)]
pub struct StackedMatrix {
    stack: Stack,
    whole: Resident,
    /// Index of the first row group of this part in the stack.
    first_group: usize,
    resident: Resident,
}

impl StackedMatrix {
    /// Creates the matrix of a stack. `kept` returns the resident layout for the tensors' type.
    pub(crate) fn new(
        weights: &Weights,
        stack: &Stack,
        kept: impl FnOnce(TensorType) -> Layout,
    ) -> Result<Self, ModelError> {
        let infos = stack.infos(weights)?;
        let first = infos.first().ok_or_else(|| unsupported("a product without weights".into()))?;
        let same = |t: &&TensorInfo| (t.tensor_type, t.columns()) == (first.tensor_type, first.columns());
        if !infos.iter().all(same) {
            return Err(unsupported(format!("{}: types and columns differ", stack.name())));
        }
        let rows = infos.iter().fold(u64::from(stack.zero_rows), |sum, t| sum.saturating_add(t.rows()));
        let is_usual = first.columns().is_multiple_of(COLUMN_BLOCK as u64);
        let resident = match first.tensor_type {
            TensorType::F32 if !is_usual => Resident::of_any_columns(rows, first.columns()),
            usual => Resident::new(usual, kept(usual), rows, first.columns()),
        };
        let resident = resident.map_err(|e| unsupported(format!("tensor {}: {e}", stack.name())))?;
        Ok(Self { stack: stack.clone(), whole: resident, first_group: 0, resident })
    }

    /// Returns the resident layout of this part.
    pub fn resident(&self) -> &Resident {
        &self.resident
    }

    /// Returns the index of this part's first row in the stack.
    pub(crate) fn first_row(&self) -> u64 {
        (self.first_group * GROUP_ROWS) as u64
    }

    /// Splits the matrix into parts of at most `max_bytes` each, in order. If `is_widened` is set, the limit
    /// also applies to the dequantized f16 matrix of each part. The number of rows is a multiple of
    /// [`PART_ROWS`] in every part except the last.
    ///
    /// # Errors
    /// Fails if [`PART_ROWS`] rows need more than `max_bytes`.
    pub(crate) fn split(self, max_bytes: u64, is_widened: bool) -> Result<Vec<Self>, ModelError> {
        let (rows, columns) = (self.whole.rows() as u32, self.whole.columns() as u32);
        let widened = |rows| if is_widened { widen::out_bytes(rows, columns) } else { 0 };
        if self.resident.bytes().max(widened(rows)) <= max_bytes {
            return Ok(vec![self]);
        }
        let (part_groups, groups) = (PART_ROWS / GROUP_ROWS, self.whole.groups());
        let group_bytes = widened(GROUP_ROWS as u32).max(self.whole.group_bytes() as u64);
        let most = usize::try_from(max_bytes / group_bytes).unwrap_or(usize::MAX);
        let step = most / part_groups * part_groups;
        if step == 0 {
            let what = format!("{}: {PART_ROWS} rows take more than {max_bytes} bytes", self.stack.name());
            return Err(unsupported(what));
        }
        let part = |first_group: usize| {
            let rows = self.whole.rows_of(first_group..(first_group + step).min(groups)).len();
            let resident = self.whole.with_rows(rows);
            Self { stack: self.stack.clone(), whole: self.whole, first_group, resident }
        };
        Ok((0..groups).step_by(step).map(part).collect())
    }

    /// Writes the row groups `groups` of this part to `out`, whose length must be exactly that of these
    /// groups.
    ///
    /// # Errors
    /// Fails if the files can no longer be read.
    pub(crate) fn fill(
        &self,
        weights: &Weights,
        groups: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        let infos = self.stack.infos(weights)?;
        let groups = groups.start + self.first_group..groups.end + self.first_group;
        let (row_bytes, group_bytes) = (self.whole.file_row_bytes(), self.whole.group_bytes());
        if self.whole.is_file_layout() {
            let rows = self.whole.rows_of(groups);
            let (values, padding) = out.split_at_mut(rows.len() * row_bytes);
            padding.fill(0);
            return self.read(weights, &infos, rows, values);
        }
        let step = (PIECE_BYTES / (GROUP_ROWS * row_bytes)).max(1);
        let mut source = Vec::new();
        for (first, out) in groups.clone().step_by(step).zip(out.chunks_mut(step * group_bytes)) {
            let piece = first..groups.end.min(first + step);
            let rows = self.whole.rows_of(piece.clone());
            source.resize(rows.len() * row_bytes, 0);
            self.read(weights, &infos, rows, &mut source)?;
            self.whole.pack(piece, &source, out)?;
        }
        Ok(())
    }

    /// Copies rows of the stack to `out` in file format. Fills rows without a tensor with zero bytes, which
    /// decode to 0.
    fn read(
        &self,
        weights: &Weights,
        infos: &[&TensorInfo],
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), ModelError> {
        let row_bytes = self.whole.file_row_bytes();
        let mut first = self.stack.zero_rows as usize;
        let zeros = first.clamp(rows.start, rows.end) - rows.start;
        out[..zeros * row_bytes].fill(0);
        for tensor in infos {
            let end = first + tensor.rows() as usize;
            let read = rows.start.max(first)..rows.end.min(end);
            if !read.is_empty() {
                let out =
                    &mut out[(read.start - rows.start) * row_bytes..(read.end - rows.start) * row_bytes];
                weights.read(tensor, ((read.start - first) * row_bytes) as u64, out)?;
            }
            first = end;
        }
        Ok(())
    }
}

fn unsupported(what: String) -> ModelError {
    ModelError::Unsupported { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use std::sync::Arc;

    /// Returns tensors named a, b, c … with 64 columns and the given numbers of rows, and the concatenated
    /// bytes of all tensors.
    fn weights(tensor_type: TensorType, rows: &[usize]) -> (Weights, Vec<u8>) {
        let row_bytes = 64 / tensor_type.block_values() * tensor_type.block_bytes();
        let file: Vec<u8> =
            (0..rows.iter().sum::<usize>() * row_bytes).map(|i| (i * 37 % 251) as u8).collect();
        let mut offset = 0;
        let tensors = ["a", "b", "c", "d"].iter().zip(rows).map(|(name, rows)| {
            let bytes = (rows * row_bytes) as u64;
            offset += bytes;
            let shape = vec![64, *rows as u64];
            TensorInfo { name: name.to_string(), tensor_type, shape, shard: 0, offset: offset - bytes, bytes }
        });
        let tensors = tensors.collect();
        (Weights::new(vec![Arc::new(MemorySource::new("file", file.clone()))], tensors).unwrap(), file)
    }

    #[test]
    fn stack_is_packed_like_one_tensor_however_it_is_split() {
        for (tensor_type, kept) in [
            (TensorType::F16, Layout::Rows16),
            (TensorType::F16, Layout::RowMajor),
            (TensorType::Q4_0, Layout::Rows16),
            (TensorType::Q5_1, Layout::Rows16),
        ] {
            for (zero_rows, rows) in [
                (0, vec![40]),
                (0, vec![32, 16, 16]),
                (0, vec![24, 5, 3, 41]),
                (64, vec![48]),
                (12, vec![20, 7]),
            ] {
                let (weights, file) = weights(tensor_type, &rows);
                let tensors = weights.tensors().iter().map(|t| t.name.clone()).collect();
                let matrix = StackedMatrix::new(&weights, &Stack { zero_rows, tensors }, |_| kept).unwrap();
                let layout = matrix.resident();
                assert_eq!(layout.rows(), zero_rows as usize + rows.iter().sum::<usize>());
                let zeros = vec![0; zero_rows as usize * layout.file_row_bytes()];
                let mut expected = vec![0xa5; layout.bytes() as usize];
                layout.pack(0..layout.groups(), &[zeros, file].concat(), &mut expected).unwrap();
                for step in 1..=layout.groups() {
                    let mut packed = Vec::new();
                    for first in (0..layout.groups()).step_by(step) {
                        let groups = first..layout.groups().min(first + step);
                        let mut out = vec![0x5a; groups.len() * layout.group_bytes()];
                        matrix.fill(&weights, groups, &mut out).unwrap();
                        packed.extend(out);
                    }
                    assert!(
                        packed == expected,
                        "{tensor_type} {kept:?} {zero_rows} + {rows:?}, {step} groups at a time"
                    );
                }
            }
        }
    }

    #[test]
    fn rejects_tensors_that_do_not_stack() {
        let (weights, _) = weights(TensorType::F16, &[16]);
        let new = |tensors: &[&str]| {
            let tensors = tensors.iter().map(|t| t.to_string()).collect();
            let stack = Stack { zero_rows: 0, tensors };
            StackedMatrix::new(&weights, &stack, |_| Layout::Rows16).map_err(|e| e.to_string())
        };
        assert!(new(&["a"]).is_ok());
        assert_eq!(new(&["a", "b"]), Err("tensor b is missing".into()));
        assert!(new(&[]).is_err());
    }
}
