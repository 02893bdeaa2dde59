//! Instruction sets for CPU kernels, as operations on sixteen lanes.
//!
//! Kernels are generic over [`Isa`] and instantiated for each instruction set. A value of an `Isa` type
//! proves that the processor has the required features, so the operations are safe. Each kernel and
//! instruction set has one function that enables the features, and all of this code is inlined into that
//! function.

use super::HostKernel;
use ragtag_hal::{Feature, HostFn};

/// An instruction set, as operations on 16 lanes of f32 (`F`), of i32 (`I`), or of four bytes (`B`).
pub(crate) trait Isa: Copy + 'static {
    /// Name of the instruction set in the names of variants.
    const NAME: &'static str;
    /// Features that the device must have.
    const FEATURES: &'static [Feature];
    /// Offset that the caller must subtract from each weight after [`Isa::dot_wide`].
    const WIDE_OFFSET: i32;
    /// Whether the registers suffice for tiles of 8 × 2 vectors.
    const LARGE_TILES: bool;

    /// 16 floats.
    type F: Copy;
    /// 16 integers.
    type I: Copy;
    /// 16 × 4 bytes.
    type B: Copy;

    /// Returns the entry point of a kernel, which enables the features. Only entry points create values of
    /// this type.
    fn function<K: HostKernel>() -> HostFn;

    /// Sets all lanes to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Loads 16 floats.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Stores 16 floats.
    fn store(self, v: Self::F, out: &mut [f32; 16]);
    /// Loads little-endian f32.
    fn load_f32(self, x: &[u8; 64]) -> Self::F;
    /// Loads little-endian f16.
    fn load_f16(self, x: &[u8; 32]) -> Self::F;
    /// Loads little-endian bf16.
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// Rounds to f16, to nearest, ties to even.
    fn to_f16(self, v: Self::F) -> [u16; 16];
    /// Converts unsigned bytes to floats.
    fn load_u8(self, x: &[u8; 16]) -> Self::F;
    /// Converts signed bytes to floats.
    fn load_i8(self, x: &[u8; 16]) -> Self::F;
    /// Computes a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a − b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a · b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a ÷ b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the larger value, or b if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the smaller value, or b if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Computes a · b + c. Rounds only once if the instruction set has fused multiply-add.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// Computes v · 2ⁿ for integers n in −126 … 127.
    fn scale2(self, v: Self::F, n: Self::F) -> Self::F;
    /// Returns `v` in the first `count` lanes and `other` in the rest.
    fn keep(self, v: Self::F, count: usize, other: Self::F) -> Self::F;
    /// Sums the lanes, in an order that depends on the instruction set.
    fn sum(self, v: Self::F) -> f32;
    /// Returns the largest lane.
    fn largest(self, v: Self::F) -> f32;
    /// Returns the largest absolute value in `a` and `b`, or NaN if they contain NaN.
    fn largest_abs(self, a: Self::F, b: Self::F) -> f32;
    /// Rounds to 8-bit integers and returns them with their sum. The caller keeps the values in range.
    fn to_i8(self, v: Self::F) -> ([i8; 16], i32);

    /// Sets all lanes to `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// Converts to floats.
    fn to_f32(self, v: Self::I) -> Self::F;

    /// Loads 64 bytes.
    fn load_bytes(self, x: &[u8; 64]) -> Self::B;
    /// Shifts each byte right by `SHIFT` bits and masks it. The mask has at most 8 − `SHIFT` bits.
    fn bits<const SHIFT: u32>(self, v: Self::B, mask: u8) -> Self::B;
    /// Computes low + 16 · high per byte, where both values are below 16.
    fn join(self, low: Self::B, high: Self::B) -> Self::B;
    /// Replaces each byte, which is below 16, by an entry of a table.
    fn look_up(self, v: Self::B, table: &[u8; 16]) -> Self::B;
    /// Converts unsigned bytes 0, 1, 2 and 3 of each lane to floats.
    fn bytes_to_f32(self, v: Self::B) -> [Self::F; 4];
    /// Multiplies the four weights of each lane (each below 128) by the four signed bytes of `x`, and adds
    /// the products to the lane of `acc`.
    fn dot(self, acc: Self::I, weights: Self::B, x: i32) -> Self::I;
    /// Like [`Isa::dot`], but for weights up to 255. If the instruction set subtracts 128 from each weight,
    /// `WIDE_OFFSET` is 0, else it is 128. `x` must not contain −128.
    fn dot_wide(self, acc: Self::I, weights: Self::B, x: i32) -> Self::I;

    /// Prefetches the cache line of an address. The address may be invalid.
    fn prefetch(self, address: *const u8);

    /// Sets all lanes to zero.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// Computes eˣ with a relative error of about 1e-7. The result is nearly zero below −87 and capped above
    /// 88. NaN is preserved.
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
