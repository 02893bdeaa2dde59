//! Matrix products that a library computes. They are the only operation that the hardware layer knows by
//! name.
//!
//! Some APIs have a product library (cuBLASLt, rocBLAS) that Ragtag looks for at run time. If it is found, a
//! module entry may be a product instead of a kernel. A dispatch of such an entry has the bindings and
//! constants of the entry's ABI, like any other dispatch. [`GemmEntry`] describes the product. This module
//! knows no library, operator or model.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Required alignment of the rows of x and W, in f16 values. Eight values are 16 bytes, the alignment that
/// libraries require to use matrix units.
pub const GEMM_PITCH_VALUES: u32 = 8;

/// y = x · Wᵀ, or y += x · Wᵀ.
///
/// x is `[rows, depth]` and W is `[columns, depth]`, both f16. y is `[rows, columns]` in f32, and the product
/// accumulates in f32. The pitch of a matrix is the number of values from the start of one row to the start
/// of the next. The product does not access the gaps between rows. The pitches of x and W are multiples of
/// [`GEMM_PITCH_VALUES`]. The pitch of y need not be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Rows of x and y.
    pub rows: u32,
    /// Columns of y; rows of W.
    pub columns: u32,
    /// Columns of x and W.
    pub depth: u32,
    /// Pitch of x in values.
    pub x_pitch: u32,
    /// Pitch of W in values.
    pub weights_pitch: u32,
    /// Pitch of y in values.
    pub y_pitch: u32,
    /// Whether the product is added to y. Otherwise the product replaces y.
    pub accumulate: bool,
}

impl Gemm {
    /// Returns true if a library can compute the product: no size is zero, rows do not overlap, the pitches
    /// of x and W are aligned, and all sizes fit in a signed 32-bit integer.
    pub fn is_sound(&self) -> bool {
        let Self { rows, columns, depth, x_pitch, weights_pitch, y_pitch, .. } = *self;
        let sizes = [rows, columns, depth, x_pitch, weights_pitch, y_pitch];
        sizes.iter().all(|size| (1..=i32::MAX as u32).contains(size))
            && [x_pitch, weights_pitch].iter().all(|p| *p >= depth && p.is_multiple_of(GEMM_PITCH_VALUES))
            && y_pitch >= columns
    }

    /// Returns the number of bytes from the first to the last value of each of x, W and y.
    pub fn extents(&self) -> [u64; 3] {
        let reach = |rows: u32, pitch: u32, width: u32, bytes: u64| {
            let before = u64::from(rows.saturating_sub(1)).saturating_mul(pitch.into());
            before.saturating_add(width.into()).saturating_mul(bytes)
        };
        [
            reach(self.rows, self.x_pitch, self.depth, 2),
            reach(self.columns, self.weights_pitch, self.depth, 2),
            reach(self.rows, self.y_pitch, self.columns, 4),
        ]
    }
}

/// A module entry that is a matrix product.
#[derive(Clone, Copy, Debug)]
pub struct GemmEntry {
    /// Indices of the bindings of x, W and y.
    pub bindings: [usize; 3],
    /// Function that returns the product of a dispatch with `constants`. The caller ensures that the number
    /// of constants matches the entry's ABI.
    pub product: fn(constants: &[u32]) -> Gemm,
}

/// A product library found at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GemmLibrary {
    /// Name, such as cuBLASLt or rocBLAS.
    pub name: String,
    /// Version that the library reports.
    pub version: String,
    /// Size of the library's workspace in device memory, in bytes. The first module with a product allocates
    /// the workspace.
    pub workspace_bytes: u64,
    /// Whether to prefer the library to Ragtag's kernels for large products. Otherwise Ragtag uses the
    /// library only if it has no kernels for the device's matrix units.
    pub preferred: bool,
}

/// Choice between Ragtag's kernels and a product library for products with many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GemmChoice {
    /// Ragtag's kernels if there are any for the device's matrix units, otherwise the library if it is
    /// installed.
    #[default]
    Auto,
    /// Always Ragtag's kernels.
    Own,
    /// The library if it is installed.
    Library,
}

impl GemmChoice {
    /// Returns `found` with [`GemmLibrary::preferred`] set according to this choice. Returns `None` if the
    /// choice does not allow a library.
    pub fn of(self, found: Option<GemmLibrary>) -> Option<GemmLibrary> {
        let preferred = self == GemmChoice::Library;
        found.filter(|_| self != GemmChoice::Own).map(|library| GemmLibrary { preferred, ..library })
    }
}

/// An invalid choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of auto, own and library")]
pub struct NoGemmChoice(String);

impl FromStr for GemmChoice {
    type Err = NoGemmChoice;

    fn from_str(text: &str) -> Result<Self, NoGemmChoice> {
        match text {
            "auto" => Ok(GemmChoice::Auto),
            "own" => Ok(GemmChoice::Own),
            "library" => Ok(GemmChoice::Library),
            other => Err(NoGemmChoice(other.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Gemm =
        Gemm { rows: 3, columns: 5, depth: 7, x_pitch: 8, weights_pitch: 16, y_pitch: 5, accumulate: false };

    #[test]
    fn extents_reach_to_the_last_value() {
        assert_eq!(PLAIN.extents(), [(2 * 8 + 7) * 2, (4 * 16 + 7) * 2, 15 * 4]);
        let wide = Gemm { rows: u32::MAX, x_pitch: u32::MAX, ..PLAIN };
        assert_eq!(wide.extents()[0], (u64::from(u32::MAX - 1) * u64::from(u32::MAX) + 7).saturating_mul(2));
    }

    #[test]
    fn unsupported_products_are_not_sound() {
        assert!(PLAIN.is_sound());
        assert!(Gemm { y_pitch: 6, accumulate: true, ..PLAIN }.is_sound());
        for bad in [
            Gemm { rows: 0, ..PLAIN },
            Gemm { columns: 0, ..PLAIN },
            Gemm { depth: 0, ..PLAIN },
            Gemm { x_pitch: 12, ..PLAIN },
            Gemm { weights_pitch: 0, ..PLAIN },
            Gemm { depth: 17, ..PLAIN },
            Gemm { y_pitch: 4, ..PLAIN },
            Gemm { rows: 1 << 31, ..PLAIN },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }

    #[test]
    fn a_choice_applies_to_a_found_library() {
        let library = |preferred| GemmLibrary {
            name: "name".into(),
            version: "1".into(),
            workspace_bytes: 0,
            preferred,
        };
        assert_eq!(GemmChoice::Own.of(Some(library(false))), None);
        assert_eq!(GemmChoice::Auto.of(Some(library(false))), Some(library(false)));
        assert_eq!(GemmChoice::Library.of(Some(library(false))), Some(library(true)));
        assert_eq!(GemmChoice::Library.of(None), None);
        assert_eq!("library".parse(), Ok(GemmChoice::Library));
        assert!("Library".parse::<GemmChoice>().is_err());
    }
}
