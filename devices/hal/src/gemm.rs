//! Matrix products by a library: the one operation that the hardware layer knows by name.
//!
//! An API may have a library of products (cuBLASLt, rocBLAS) that is found when the program runs. A module's entry may then
//! be a product in place of a kernel: a dispatch of it has the bindings and constants of the entry's ABI like any other, and
//! [`GemmEntry`] says which product they are. This module must not know any library, operator or model.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What rows of x and of W begin at multiples of, in values: 16 bytes, as libraries want it for matrix units.
pub const GEMM_PITCH_VALUES: u32 = 8;

/// y = x · Wᵀ, or y += x · Wᵀ.
///
/// x is `[rows, depth]` and W `[columns, depth]`, both of f16; y is `[rows, columns]` of f32, and so are the sums. A row
/// begins so many values after the last (its matrix's pitch), and what lies between rows is not touched. The pitches of x and
/// W are multiples of [`GEMM_PITCH_VALUES`]; that of y is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Rows of x and of y.
    pub rows: u32,
    /// Columns of y, which are rows of W.
    pub columns: u32,
    /// Columns of x and of W.
    pub depth: u32,
    /// Values from one row of x to the next.
    pub x_pitch: u32,
    /// Values from one row of W to the next.
    pub weights_pitch: u32,
    /// Values from one row of y to the next.
    pub y_pitch: u32,
    /// Whether it is added to y.
    pub accumulate: bool,
}

impl Gemm {
    /// Whether it can be asked of a library: there is something to do, rows do not overlap, pitches are as they must be, and
    /// nothing is beyond what a library counts in 32 bits with a sign.
    pub fn is_sound(&self) -> bool {
        let Self { rows, columns, depth, x_pitch, weights_pitch, y_pitch, .. } = *self;
        let sizes = [rows, columns, depth, x_pitch, weights_pitch, y_pitch];
        sizes.iter().all(|size| (1..=i32::MAX as u32).contains(size))
            && [x_pitch, weights_pitch].iter().all(|p| *p >= depth && p.is_multiple_of(GEMM_PITCH_VALUES))
            && y_pitch >= columns
    }

    /// Bytes from the first to the last of x, of W and of y.
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

/// An entry of a module that is a product.
#[derive(Clone, Copy, Debug)]
pub struct GemmEntry {
    /// Which of the entry's bindings are x, W and y.
    pub bindings: [usize; 3],
    /// The product that a dispatch with these constants is; they are as many as the entry's ABI says.
    pub product: fn(constants: &[u32]) -> Gemm,
}

/// A library of products that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GemmLibrary {
    /// Its name: cuBLASLt, rocBLAS.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Memory of the device that it works in, taken when the first module with a product is made, in bytes.
    pub workspace_bytes: u64,
    /// Whether it comes before kernels that would do as well, where a product is large enough to be worth it. Else it serves
    /// where there are no kernels for the device's matrix units.
    pub preferred: bool,
}

/// Who computes products of many rows where a library was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GemmChoice {
    /// Kernels for the device's matrix units; the library where there are none.
    #[default]
    Auto,
    /// Kernels, always.
    Own,
    /// The library.
    Library,
}

impl GemmChoice {
    /// What is left of a library that was found.
    pub fn of(self, found: Option<GemmLibrary>) -> Option<GemmLibrary> {
        let preferred = self == GemmChoice::Library;
        found.filter(|_| self != GemmChoice::Own).map(|library| GemmLibrary { preferred, ..library })
    }
}

/// A word that is no choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of auto, own and library")]
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
    fn what_no_library_could_do_is_not_sound() {
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
    fn a_choice_says_what_is_left_of_a_library() {
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
