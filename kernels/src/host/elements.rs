//! The values that operators take, as f32.

use crate::kernel::ElementType;
use half::{bf16, f16};

/// A value of an operator's type: plain data.
pub(crate) trait Element: Copy + 'static {
    /// The type.
    const TYPE: ElementType;

    /// As f32.
    fn value(self) -> f32;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::BF16;

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
}
