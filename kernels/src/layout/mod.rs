//! Resident layouts of weight matrices, that is, their layouts in device memory. A device stores all matrices
//! of a tensor type in one layout, which [`layout_for`] returns.
//!
//! Both layouts divide the rows of a matrix into groups of 16. Each group is one contiguous range of bytes.
//! Zero rows pad the last group.
//!
//! # `RowMajor`
//!
//! Layout for F32, F16 and BF16. Each row holds its values in the same order as the file, padded with zeros
//! to a multiple of [`PITCH_VALUES`] values. Matrix units can load this layout, and 32 work items can stream
//! a row together.
//!
//! # `Rows16`
//!
//! Layout for every type. It interleaves the rows of a group, so that each SIMD lane holds one row and
//! products need no horizontal sums. A group consists of consecutive sections. Each section stores its blocks
//! in column order. The group is padded to 64 bytes. Each module in `types` lists the sections of its type.
//! In these lists, "16 × x" means one x per row.
//!
//! A *vector* is 64 bytes: 16 rows × 4 consecutive columns (a *quad*). Integer dot products need the weights
//! in this order. Quants are unsigned bytes. Each block of 32 columns has eight quads:
//!
//! - 4-bit vector j holds quad j in its low nibbles and quad j + 4 in its high nibbles.
//! - A vector of fifth bits holds quad j in bit j of each byte.
//!
//! Weights that are vectors (norms) are stored as plain f32, not in one of these layouts.

mod pack;
#[cfg(test)]
mod tests;

use crate::blocks::TensorType;
pub(crate) use pack::{
    SECTIONS, Unit, move_fifth_bits, move_k_nibbles, move_k_scales, move_pairs, pack_with, put, put_bytes,
};
use ragtag_hal::{Caps, Feature, KernelLanguage};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Rows per group.
pub const GROUP_ROWS: usize = 16;

/// Every matrix must have a multiple of this number of columns.
pub const COLUMN_BLOCK: usize = 32;

/// `RowMajor` pads each row to a multiple of this number of values.
pub const PITCH_VALUES: usize = 64;

/// Layout of a weight matrix in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Interleaved rows in groups of 16.
    Rows16,
    /// One row after another. Supports only types without blocks.
    RowMajor,
}

/// Returns the layout in which a device with `caps` stores matrices of `tensor_type`. All kernels for the
/// device read the type in this layout. Types without blocks are also row-major on Intel's devices with
/// matrix units or f16 arithmetic, because products with f16 activations read this layout.
pub fn layout_for(tensor_type: TensorType, caps: &Caps) -> Layout {
    let is_row_major = |language: &KernelLanguage| layout_in(tensor_type, *language) == Layout::RowMajor;
    let has = |features: &[Feature]| features.iter().all(|feature| caps.features.contains(feature));
    let multiplies_f16 = has(&[Feature::Xmx]) || has(&[Feature::SubGroups, Feature::Fp16]);
    let row_major =
        multiplies_f16 && tensor_type.block_values() == 1 || caps.languages.iter().any(is_row_major);
    if row_major { Layout::RowMajor } else { Layout::Rows16 }
}

/// Returns the layout that kernels in `language` read for `tensor_type`. Types without blocks are row-major
/// in each language whose devices may have matrix units.
pub(crate) fn layout_in(tensor_type: TensorType, language: KernelLanguage) -> Layout {
    match language {
        KernelLanguage::CudaC | KernelLanguage::Ptx | KernelLanguage::HipC | KernelLanguage::Wgsl
            if tensor_type.block_values() == 1 =>
        {
            Layout::RowMajor
        }
        _ => Layout::Rows16,
    }
}

/// Reason why a matrix cannot have a layout, or why its rows cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The number of columns is zero, or it is not a multiple of both the block size and [`COLUMN_BLOCK`].
    #[error("{columns} columns of {tensor_type} are not a positive multiple of {block}")]
    Columns {
        /// Type of the weights.
        tensor_type: TensorType,
        /// Requested number of columns.
        columns: u64,
        /// Required divisor of the number of columns.
        block: u64,
    },
    /// `RowMajor` was requested for a type with blocks.
    #[error("{tensor_type} has no row-major layout")]
    Blocks {
        /// Type of the weights.
        tensor_type: TensorType,
    },
    /// The matrix may have more than 2⁶³ − 1 bytes.
    #[error("{rows} × {columns} values of {tensor_type} are too many")]
    TooLarge {
        /// Type of the weights.
        tensor_type: TensorType,
        /// Requested number of rows.
        rows: u64,
        /// Requested number of columns.
        columns: u64,
    },
    /// The requested groups are not all inside the matrix.
    #[error("groups {start}..{end} are outside the matrix, which has {groups}")]
    Groups {
        /// First requested group.
        start: usize,
        /// End of the requested range of groups.
        end: usize,
        /// Number of groups of the matrix.
        groups: usize,
    },
    /// A slice has the wrong length.
    #[error("{what}: {got} bytes instead of {wanted}")]
    Bytes {
        /// Name of the slice in the error message.
        what: &'static str,
        /// Actual length, in bytes.
        got: usize,
        /// Required length, in bytes.
        wanted: usize,
    },
}

/// A section of a group. For every `columns` columns, the section has `bytes` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    pub columns: usize,
    pub bytes: usize,
}

/// Creates a section that has `bytes` bytes for every `columns` columns.
pub(crate) const fn section(columns: usize, bytes: usize) -> Section {
    Section { columns, bytes }
}

/// Returns the sections of a group, in the order that the module of `tensor_type` documents.
pub(crate) const fn sections(tensor_type: TensorType) -> &'static [Section] {
    tensor_type.row().sections
}

/// Shape and sizes of a weight matrix in its resident layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    tensor_type: TensorType,
    layout: Layout,
    rows: usize,
    columns: usize,
}

impl Resident {
    /// Creates the layout for a matrix of `rows` × `columns` values. The file must store the values of each
    /// row contiguously.
    ///
    /// # Errors
    /// Returns [`LayoutError::Blocks`] if `layout` does not support the type, [`LayoutError::Columns`] if the
    /// number of columns is invalid, and [`LayoutError::TooLarge`] if the size overflows.
    pub fn new(
        tensor_type: TensorType,
        layout: Layout,
        rows: u64,
        columns: u64,
    ) -> Result<Self, LayoutError> {
        if layout == Layout::RowMajor && tensor_type.block_values() > 1 {
            return Err(LayoutError::Blocks { tensor_type });
        }
        Self::of_blocks(tensor_type, layout, [rows, columns], tensor_type.block_values().max(COLUMN_BLOCK))
    }

    /// Creates the layout for a matrix of f32 values whose rows may have any length. Products of
    /// [`crate::matmul`] cannot read it.
    ///
    /// # Errors
    /// Returns [`LayoutError::Columns`] for rows without values, and [`LayoutError::TooLarge`] if the size overflows.
    pub fn of_any_columns(rows: u64, columns: u64) -> Result<Self, LayoutError> {
        Self::of_blocks(TensorType::F32, Layout::RowMajor, [rows, columns], 1)
    }

    fn of_blocks(
        tensor_type: TensorType,
        layout: Layout,
        [rows, columns]: [u64; 2],
        block: usize,
    ) -> Result<Self, LayoutError> {
        let block = block as u64;
        if columns == 0 || !columns.is_multiple_of(block) {
            return Err(LayoutError::Columns { tensor_type, columns, block });
        }
        // Each layout needs at most four bytes per value, and less padding than values. So no sum below
        // exceeds eight bytes per value.
        let padded = rows.checked_next_multiple_of(GROUP_ROWS as u64);
        let bytes = padded.and_then(|r| r.checked_mul(columns)).and_then(|v| v.checked_mul(8));
        match (bytes, usize::try_from(rows), usize::try_from(columns)) {
            (Some(bytes), Ok(rows), Ok(columns)) if isize::try_from(bytes).is_ok() => {
                Ok(Self { tensor_type, layout, rows, columns })
            }
            _ => Err(LayoutError::TooLarge { tensor_type, rows, columns }),
        }
    }

    /// Returns the layout of `rows` of the rows.
    #[must_use]
    pub fn with_rows(&self, rows: usize) -> Self {
        assert!(rows <= self.rows, "{rows} of {} rows", self.rows);
        Self { rows, ..*self }
    }

    /// Returns the tensor type of the weights.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// Returns the layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the number of rows, without padding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of groups of [`GROUP_ROWS`] rows.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP_ROWS)
    }

    /// Returns the number of bytes in one group.
    pub fn group_bytes(&self) -> usize {
        match self.layout {
            Layout::Rows16 => group_bytes(self.tensor_type, self.columns),
            Layout::RowMajor => GROUP_ROWS * row_pitch_bytes(self.tensor_type, self.columns),
        }
    }

    /// Returns the number of bytes in the whole matrix, with padding.
    pub fn bytes(&self) -> u64 {
        self.groups() as u64 * self.group_bytes() as u64
    }

    /// Returns the number of bytes of one row in the file.
    pub fn file_row_bytes(&self) -> usize {
        self.columns / self.tensor_type.block_values() * self.tensor_type.block_bytes()
    }

    /// Returns whether the file bytes of all rows, followed by the zero rows that pad the last group, are
    /// already the matrix in this layout.
    pub fn is_file_layout(&self) -> bool {
        self.group_bytes() == GROUP_ROWS * self.file_row_bytes() && self.layout == Layout::RowMajor
    }

    /// Returns the rows in `groups`. [`Resident::pack`] needs the file bytes of exactly these rows.
    pub fn rows_of(&self, groups: Range<usize>) -> Range<usize> {
        let row = |group: usize| group.saturating_mul(GROUP_ROWS).min(self.rows);
        row(groups.start)..row(groups.end)
    }

    /// Packs `groups` from `source_rows`, the file bytes of [their rows](Self::rows_of), and writes all of
    /// `out`. Several threads may pack disjoint ranges of groups.
    ///
    /// # Errors
    /// Returns [`LayoutError::Groups`] or [`LayoutError::Bytes`] if the range or a length is wrong, and
    /// leaves `out` unchanged.
    pub fn pack(&self, groups: Range<usize>, source_rows: &[u8], out: &mut [u8]) -> Result<(), LayoutError> {
        if groups.start > groups.end || groups.end > self.groups() {
            return Err(LayoutError::Groups { start: groups.start, end: groups.end, groups: self.groups() });
        }
        let check = |what, got, wanted| {
            if got == wanted { Ok(()) } else { Err(LayoutError::Bytes { what, got, wanted }) }
        };
        check(
            "rows of the file",
            source_rows.len(),
            self.rows_of(groups.clone()).len() * self.file_row_bytes(),
        )?;
        check("resident groups", out.len(), groups.len() * self.group_bytes())?;
        match self.layout {
            Layout::Rows16 => (self.tensor_type.row().pack)(self, source_rows, out),
            Layout::RowMajor => pack::pad_rows(self, source_rows, out),
        }
        Ok(())
    }
}

/// Returns the distance in bytes between consecutive rows of `RowMajor`.
pub(crate) fn row_pitch_bytes(tensor_type: TensorType, columns: usize) -> usize {
    columns.next_multiple_of(PITCH_VALUES) * tensor_type.block_bytes()
}

/// Returns the distance in values between consecutive rows of `RowMajor`.
pub fn pitch_values(columns: u32) -> u32 {
    columns.checked_next_multiple_of(PITCH_VALUES as u32).unwrap_or(u32::MAX)
}

/// Returns the number of bytes in one `Rows16` group. `columns` must be a multiple of the block size.
pub(crate) fn group_bytes(tensor_type: TensorType, columns: usize) -> usize {
    let sections = sections(tensor_type).iter();
    sections.map(|s| columns / s.columns * s.bytes).sum::<usize>().next_multiple_of(64)
}
