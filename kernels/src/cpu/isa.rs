//! What a host kernel needs of an instruction set: sixteen lanes.
//!
//! Kernels are written once over [`Isa`] and instantiated for each instruction set. A value of an `Isa` type is the
//! proof that the processor has its features, so the operations are safe. Everything here and above is inlined into
//! one function per kernel and instruction set that enables the features.

use super::HostKernel;
use ragtag_hal::{Feature, HostFn};

/// An instruction set, as operations on 16 lanes: of f32 (`F`), of i32 (`I`), and of four bytes (`B`).
pub(crate) trait Isa: Copy + 'static {
    /// As in variants' names.
    const NAME: &'static str;
    /// What a device must have.
    const FEATURES: &'static [Feature];
    /// What [`Isa::dot_wide`] adds to each weight, as seen by the caller.
    const WIDE_OFFSET: i32;
    /// Whether there are registers for tiles of 8 × 2 vectors.
    const LARGE_TILES: bool;

    /// 16 floats.
    type F: Copy;
    /// 16 integers.
    type I: Copy;
    /// 16 × 4 bytes.
    type B: Copy;

    /// The entry of a kernel with the features enabled: the one place where a value of the type comes from.
    fn function<K: HostKernel>() -> HostFn;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Loads.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Stores.
    fn store(self, v: Self::F, out: &mut [f32; 16]);
    /// Loads little-endian f32.
    fn load_f32(self, x: &[u8; 64]) -> Self::F;
    /// Loads little-endian f16.
    fn load_f16(self, x: &[u8; 32]) -> Self::F;
    /// Loads little-endian bf16.
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// Rounds to f16, to nearest, ties to even.
    fn to_f16(self, v: Self::F) -> [u16; 16];
    /// Unsigned bytes as floats.
    fn load_u8(self, x: &[u8; 16]) -> Self::F;
    /// Signed bytes as floats.
    fn load_i8(self, x: &[u8; 16]) -> Self::F;
    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a − b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a ÷ b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger; b where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once where the instruction set can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// v · 2ⁿ for integers n in −126 … 127.
    fn scale2(self, v: Self::F, n: Self::F) -> Self::F;
    /// `v` in the first `count` lanes, `other` in the rest.
    fn keep(self, v: Self::F, count: usize, other: Self::F) -> Self::F;
    /// Sum of the lanes, in an order of the instruction set's own.
    fn sum(self, v: Self::F) -> f32;
    /// Largest lane.
    fn largest(self, v: Self::F) -> f32;
    /// Largest absolute value in `a` and `b`; NaN if there is one.
    fn largest_abs(self, a: Self::F, b: Self::F) -> f32;
    /// Rounded to integers of eight bits (the caller keeps them in range), and their sum.
    fn to_i8(self, v: Self::F) -> ([i8; 16], i32);

    /// All lanes `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// As floats.
    fn to_f32(self, v: Self::I) -> Self::F;

    /// Loads.
    fn load_bytes(self, x: &[u8; 64]) -> Self::B;
    /// `SHIFT` bits further right and masked, byte by byte; the mask has no more than 8 − `SHIFT` bits.
    fn bits<const SHIFT: u32>(self, v: Self::B, mask: u8) -> Self::B;
    /// low + 16 · high, byte by byte; both below 16.
    fn join(self, low: Self::B, high: Self::B) -> Self::B;
    /// Unsigned byte 0, 1, 2, 3 of each lane as floats.
    fn bytes_to_f32(self, v: Self::B) -> [Self::F; 4];
    /// Adds to each lane the products of its four weights, each below 128, and the four signed bytes of `x`.
    fn dot(self, acc: Self::I, weights: Self::B, x: i32) -> Self::I;
    /// The same for weights up to 255. The instruction set may take 128 from each weight: then `WIDE_OFFSET` is 0, else
    /// it is 128. `x` has no −128.
    fn dot_wide(self, acc: Self::I, weights: Self::B, x: i32) -> Self::I;

    /// Asks for the cache line of an address, which need not be valid.
    fn prefetch(self, address: *const u8);

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// eˣ to about 1e-7; zero or nearly so below −87, capped above 88. NaN stays NaN.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let x = self.max(self.splat(-87.0), self.min(self.splat(88.0), x));
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first with few enough bits that n times it is exact.
        let r = self.fma(n, self.splat(-0.693_359_4), x);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = self.fma(p, r, self.splat(c));
        }
        self.scale2(p, n)
    }
}
