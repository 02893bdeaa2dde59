//! Values of element types, both as stored bytes and as numbers.

use super::Random;
use crate::kernel::ElementType;
use half::{bf16, f16};

/// Values that are rounded to an element type.
pub(crate) struct Stored {
    /// The values as stored, padded to a multiple of four bytes.
    pub bytes: Vec<u8>,
    /// The values that the stored bytes represent.
    pub values: Vec<f64>,
}

impl Stored {
    /// Rounds `values` to type `element`. Padding in the last word is NaN.
    pub fn new(element: ElementType, values: &[f32]) -> Self {
        let mut bytes: Vec<u8> = match element {
            ElementType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            ElementType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            ElementType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        };
        bytes.resize(bytes.len().next_multiple_of(4), 0xff);
        let stored = |v: &f32| match element {
            ElementType::F32 => f64::from(*v),
            ElementType::F16 => f16::from_f32(*v).to_f64(),
            ElementType::BF16 => bf16::from_f32(*v).to_f64(),
        };
        Self { bytes, values: values.iter().map(stored).collect() }
    }
}

/// Returns the index of the first value of each row. `dimensions` lists the (count, stride) of each dimension
/// along which rows repeat. The last dimension varies fastest.
pub(crate) fn row_starts(dimensions: &[(usize, usize)]) -> Vec<usize> {
    dimensions.iter().fold(vec![0], |starts, &(count, stride)| {
        starts.into_iter().flat_map(|start| (0..count).map(move |i| start + i * stride)).collect()
    })
}

impl Random {
    /// Returns a random element type.
    pub fn element(&mut self) -> ElementType {
        ElementType::ALL[self.below(ElementType::ALL.len())]
    }

    /// Returns rows of `width` random values between −`size` and `size`. `dimensions` lists the (count,
    /// stride) of each dimension along which rows repeat. Gaps between rows are NaN. Returns at least one
    /// value, because devices cannot bind an empty buffer.
    pub fn rows(&mut self, width: usize, dimensions: &[(usize, usize)], size: f32) -> Vec<f32> {
        let starts = row_starts(dimensions);
        let mut out = vec![f32::NAN; starts.iter().max().map_or(0, |last| last + width).max(1)];
        for start in starts {
            out[start..start + width].fill_with(|| self.float(size));
        }
        out
    }
}
