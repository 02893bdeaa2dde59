//! Element types of the general operators, with conversions of their values to f32.

use super::isa::Isa;
use crate::kernel::ElementType;
use half::{bf16, f16};

/// An element type. Its values are plain data.
pub(crate) trait Element: Copy + 'static {
    /// The type as a value of [`ElementType`].
    const TYPE: ElementType;

    /// Converts the value to f32.
    fn value(self) -> f32;
    /// Loads sixteen values and converts them to f32.
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
        s.load_f16(&bytes(values, |value| value.to_le_bytes()))
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
        s.load_bf16(&bytes(values, |value| value.to_le_bytes()))
    }
}

/// Returns the bytes of sixteen 16-bit values in memory order.
#[inline(always)]
fn bytes<E: Copy>(values: &[E; 16], of: impl Fn(E) -> [u8; 2]) -> [u8; 32] {
    let mut out = [0; 32];
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = of(*value);
    }
    out
}
