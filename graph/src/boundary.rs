//! The form in which activations cross from one stage to the next.
//!
//! A stage keeps the residual rows as f32, whatever they cross as. As f16 they are half the bytes, for one small dispatch at
//! either end: the last one of a stage narrows them, the first one of the next widens them again.
//!
//! f16 rows are those of [`ragtag_kernels::half_rows`]: values are rounded to nearest, what is beyond ±65504 becomes ±65504,
//! never an infinity, and NaN stays NaN. The residual stream of some models has outliers beyond that: they lose the excess at
//! every boundary, which no error tells. Such a model should cross as f32.

use ragtag_kernels::Activations;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The form in which activations cross from one stage to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// As they are kept: a pipeline computes what one device does.
    #[default]
    F32,
    /// Rounded to f16: of the fast numerics class.
    F16,
}

impl Boundary {
    /// Every form.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// Bytes of one row that crosses, where a row that is kept takes `kept_row_bytes`.
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

impl fmt::Display for Boundary {
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
    fn rows_of_f16_are_whole_cache_lines() {
        assert_eq!(Boundary::F32.row_bytes(4 * 96), 4 * 96);
        assert_eq!(Boundary::F16.row_bytes(4 * 96), 2 * 128);
        assert_eq!(Boundary::F16.row_bytes(4 * 4096), 2 * 4096);
        assert!(Boundary::F16.row_bytes(u64::MAX) > 1 << 62);
    }
}
