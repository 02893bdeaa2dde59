//! Weights that operators read. A stage holds each of them in one buffer, or a matrix in several parts.

use crate::arch::rope::Rope;
use crate::stack::Stack;

/// Change of a norm's weights: each weight w becomes scale · (w + offset).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Factor of the sum.
    pub scale: f32,
    /// Number that is added to the weight.
    pub offset: f32,
}

impl Affine {
    /// No change.
    pub const IDENTITY: Self = Self { scale: 1.0, offset: 0.0 };

    /// Returns the changed weight.
    pub(crate) fn of(self, weight: f32) -> f32 {
        self.scale * (weight + self.offset)
    }
}

/// Content of the buffer of a weight.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Weight {
    /// A matrix in the resident layout of the device.
    Matrix(Stack),
    /// Changed f32 values of tensors, concatenated.
    Vector { tensors: Vec<String>, affine: Affine },
    /// The changed values of one tensor, and after [`pair_pitch`] values those of a second one. If there is none, zeros
    /// replace it.
    Pair { tensors: Vec<String>, affine: Affine },
    /// RoPE frequencies that do not depend on the length of a sequence.
    Frequencies(Rope),
    /// One factor, or the factors of columns. Each factor has the length of its run of columns.
    Factors(Vec<(f32, u32)>),
}

impl Weight {
    /// Returns the name of the buffer.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Matrix(stack) => stack.name(),
            Self::Vector { .. } | Self::Pair { .. } => self.tensors().join(" + "),
            Self::Frequencies(rope) => format!("rotary frequencies: {rope}"),
            Self::Factors(factors) => match factors[..] {
                [(factor, _)] => format!("factor {factor}"),
                _ => {
                    let run = |(factor, columns): &(f32, u32)| format!("{factor} × {columns}");
                    format!("factors {}", factors.iter().map(run).collect::<Vec<_>>().join(", "))
                }
            },
        }
    }

    /// Returns the names of the tensors in the buffer.
    pub(crate) fn tensors(&self) -> &[String] {
        match self {
            Self::Matrix(stack) => &stack.tensors,
            Self::Vector { tensors, .. } | Self::Pair { tensors, .. } => tensors,
            Self::Frequencies(_) | Self::Factors(_) => &[],
        }
    }
}

/// Returns the distance in values between the starts of two vectors of `width` values in one buffer. It aligns the
/// second vector to 512 bytes, as NVIDIA's OpenCL requires.
pub(crate) fn pair_pitch(width: u64) -> u64 {
    width.next_multiple_of(128)
}
