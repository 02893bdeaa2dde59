//! Instruction sets for CPU kernels, as operations on sixteen lanes.
//!
//! Kernels are generic over [`Isa`], and the crate instantiates them for each instruction set. A value of an
//! `Isa` type proves that the processor has the required features, so the operations are safe. For each
//! kernel and instruction set, one entry-point function enables the features. The compiler inlines the whole
//! kernel into this function.
//!
//! Kernels call operations in loops, not in closures for `array::map` or `array::from_fn`. The compiler may leave
//! these two outside of the entry point, where the features are not enabled. There, each operation is a call.

use super::HostKernel;
use ragtag_hal::{Feature, HostFn};

/// An instruction set, as operations on sixteen lanes. A lane of `F` is an f32, a lane of `I` is an i32, and
/// a lane of `B` is four bytes.
pub(crate) trait Isa: Copy + 'static {
    /// Name of the instruction set, as it appears in the names of variants.
    const NAME: &'static str;
    /// Features that the processor must have.
    const FEATURES: &'static [Feature];
    /// Offset that the caller must subtract from each weight of 8 bits in [`Isa::dot`].
    const WIDE_OFFSET: i32;
    /// Whether the processor has enough registers for tiles of 8 × 2 vectors.
    const LARGE_TILES: bool;

    /// 16 lanes of f32.
    type F: Copy;
    /// 16 lanes of i32.
    type I: Copy;
    /// 16 lanes of 4 bytes.
    type B: Copy;

    /// Returns the entry point of kernel `K`, which enables the features. Only entry points create values of
    /// the implementing type.
    fn function<K: HostKernel>() -> HostFn;

    /// Sets all lanes to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Loads 16 floats.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Stores 16 floats.
    fn store(self, v: Self::F, out: &mut [f32; 16]);
    /// Loads 16 little-endian f32 values.
    fn load_f32(self, x: &[u8; 64]) -> Self::F;
    /// Loads 16 little-endian f16 values and converts them to f32.
    fn load_f16(self, x: &[u8; 32]) -> Self::F;
    /// Loads 16 little-endian bf16 values and converts them to f32.
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// Rounds each lane to f16, to nearest, ties to even.
    fn to_f16(self, v: Self::F) -> [u16; 16];
    /// Converts 16 unsigned bytes to floats.
    fn load_u8(self, x: &[u8; 16]) -> Self::F;
    /// Converts 16 signed bytes to floats.
    fn load_i8(self, x: &[u8; 16]) -> Self::F;
    /// Computes a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a − b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a · b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a ÷ b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the larger value per lane, or b if either value is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the smaller value per lane, or b if either value is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a · b + c, with a single rounding if the instruction set has fused multiply-add.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Rounds each lane to the nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// Computes v · 2ⁿ for integers n in −126 … 127.
    fn scale2(self, v: Self::F, n: Self::F) -> Self::F;
    /// Returns `v` in the first `count` lanes and `other` in the rest.
    fn keep(self, v: Self::F, count: usize, other: Self::F) -> Self::F;
    /// Returns the sum of all lanes. The order of summation depends on the instruction set.
    fn sum(self, v: Self::F) -> f32;
    /// Returns the largest value of all lanes.
    fn largest(self, v: Self::F) -> f32;
    /// Returns the largest absolute value in `a` and `b`, or NaN if any lane is NaN.
    fn largest_abs(self, a: Self::F, b: Self::F) -> f32;
    /// Rounds each lane to an 8-bit integer, and returns these integers and their sum. The caller must ensure
    /// that each rounded value fits into 8 bits.
    fn to_i8(self, v: Self::F) -> ([i8; 16], i32);

    /// Sets all lanes to `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// Converts each lane to a float.
    fn to_f32(self, v: Self::I) -> Self::F;

    /// Loads 64 bytes.
    fn load_bytes(self, x: &[u8; 64]) -> Self::B;
    /// Shifts each byte right by `SHIFT` bits, and keeps the bits in `mask`. `mask` has at most 8 − `SHIFT`
    /// bits.
    fn bits<const SHIFT: u32>(self, v: Self::B, mask: u8) -> Self::B;
    /// Computes low + 16 · high per byte, where both values are below 16.
    fn join(self, low: Self::B, high: Self::B) -> Self::B;
    /// Replaces each byte of `v`, which must be below 16, by the entry of `table` at that index.
    fn look_up(self, v: Self::B, table: &[u8; 16]) -> Self::B;
    /// Converts unsigned bytes 0, 1, 2 and 3 of each lane to floats.
    fn bytes_to_f32(self, v: Self::B) -> [Self::F; 4];
    /// Multiplies the four weights of each lane by the four signed bytes of a word of `x`, for each of `N`
    /// vectors, and adds the products to the lane of `sum`. The weights have `bits` bits. Some instruction sets
    /// subtract 128 from each weight of 8 bits and have a `WIDE_OFFSET` of 0. For all others, `WIDE_OFFSET` is
    /// 128. `x` must not contain −128.
    fn dot<const N: usize>(self, bits: u32, weights: &[Self::B; N], x: &[i32; N], sum: Self::I) -> Self::I;

    /// Prefetches the cache line that contains `address`. The address may be invalid.
    fn prefetch(self, address: *const u8);

    /// Sets all lanes to zero.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// Computes eˣ with a relative error of about 1e-7. For x below −87, the result is nearly zero. For x
    /// above 88, the result is capped. NaN is preserved.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let x = self.max(self.splat(-87.0), self.min(self.splat(88.0), x));
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        // Subtracts n · ln 2 in two parts. The first part has few enough bits that its product with n is
        // exact.
        let r = self.fma(n, self.splat(-0.693_359_4), x);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = self.fma(p, r, self.splat(c));
        }
        self.scale2(p, n)
    }
}
