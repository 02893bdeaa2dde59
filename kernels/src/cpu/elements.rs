//! The values that operators take, as f32.

use super::isa::Isa;
use crate::kernel::ElementType;
use half::{bf16, f16};

/// A value of an operator's type: plain data.
pub(crate) trait Element: Copy + 'static {
    /// The type.
    const TYPE: ElementType;

    /// As f32.
    fn value(self) -> f32;
    /// Sixteen of them.
    fn load<S: Isa>(s: S, values: &[Self; 16]) -> S::F;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, values: &[Self; 16]) -> S::F {
        s.load(values)
    }
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, values: &[Self; 16]) -> S::F {
        s.load_f16(&bytes(values.map(f16::to_le_bytes)))
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::BF16;

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Isa>(s: S, values: &[Self; 16]) -> S::F {
        s.load_bf16(&bytes(values.map(bf16::to_le_bytes)))
    }
}

/// Sixteen values of 16 bits, as they lie in memory.
#[inline(always)]
fn bytes(values: [[u8; 2]; 16]) -> [u8; 32] {
    std::array::from_fn(|i| values[i / 2][i % 2])
}
