//! Wire type of activations between stages.
//!
//! A stage always keeps residual rows as f32. The wire type f16 halves the transferred bytes, and costs two
//! small dispatches per transfer. The last dispatch of a stage converts rows to f16, and the first dispatch
//! of the next stage converts them back.
//!
//! f16 rows have the format of [`ragtag_kernels::half_rows`]. Values are rounded to nearest, values beyond
//! ±65504 saturate, and NaN is preserved. In some models the residual stream has outliers beyond ±65504,
//! which are clamped at every transfer without an error. Use f32 for such models.

use ragtag_kernels::Activations;
use ragtag_kernels::layout::COLUMN_BLOCK;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Wire type of activations between stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// f32, the type in which stages keep residual rows. With this wire type, a pipeline computes the same
    /// results as a single device.
    #[default]
    F32,
    /// f16. Results belong to the fast numerics class, because rows are rounded.
    F16,
}

impl WireType {
    /// All wire types.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// Returns the wire type of rows of `width` values. Rows whose length is not a multiple of 32 pass as f32.
    pub(crate) fn of_rows(self, width: u64) -> Self {
        if width.is_multiple_of(COLUMN_BLOCK as u64) { self } else { Self::F32 }
    }

    /// Returns the size of one row in the wire type in bytes, given the size of the f32 row.
    pub fn row_bytes(self, kept_row_bytes: u64) -> u64 {
        match self.of_rows(kept_row_bytes / 4) {
            Self::F32 => kept_row_bytes,
            Self::F16 => {
                let width = usize::try_from(kept_row_bytes / 4).unwrap_or(usize::MAX / 4);
                Activations::F16.row_bytes(width) as u64
            }
        }
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_rows_are_whole_cache_lines() {
        assert_eq!(WireType::F32.row_bytes(4 * 96), 4 * 96);
        assert_eq!(WireType::F16.row_bytes(4 * 96), 2 * 128);
        assert_eq!(WireType::F16.row_bytes(4 * 4096), 2 * 4096);
        assert_eq!(WireType::F16.row_bytes(4 * 33), 4 * 33);
        assert!(WireType::F16.row_bytes(u64::MAX) > 1 << 62);
    }
}
