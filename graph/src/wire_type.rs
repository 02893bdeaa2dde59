//! Wire type of activations between stages.
//!
//! A stage keeps the residual rows as f32, whatever the wire type. f16 halves the bytes at the cost of one
//! small dispatch at either end: the last dispatch of a stage narrows the rows, and the first one of the next
//! stage widens them again.
//!
//! f16 rows are those of [`ragtag_kernels::half_rows`]: values are rounded to nearest, values beyond ±65504
//! saturate and never become infinite, and NaN is preserved. The residual stream of some models has outliers
//! beyond ±65504. They are clamped at every stage boundary without an error. Such a model should use f32.

use ragtag_kernels::Activations;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Wire type of activations between stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// As stored: a pipeline computes the same as a single device.
    #[default]
    F32,
    /// Rounded to f16: the fast numerics class.
    F16,
}

impl WireType {
    /// All wire types.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// Returns the bytes of one row on the wire, given the bytes of a stored row.
    pub fn row_bytes(self, kept_row_bytes: u64) -> u64 {
        match self {
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
        assert!(WireType::F16.row_bytes(u64::MAX) > 1 << 62);
    }
}
