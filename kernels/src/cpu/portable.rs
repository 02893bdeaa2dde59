//! Portable instruction set: operations on arrays, which the compiler vectorizes where it can.

use super::HostKernel;
use super::isa::Isa;
use half::{bf16, f16};
use ragtag_hal::{Feature, HostCall, HostFn};
use std::array::from_fn;
use std::ops::Range;

/// The portable instruction set. Every processor supports it.
#[derive(Clone, Copy)]
pub(crate) struct Portable(());

unsafe fn enter<K: HostKernel>(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: the caller guarantees the requirements of `run`.
    unsafe { K::run(Portable(()), call, groups) }
}

impl Isa for Portable {
    const NAME: &'static str = "portable";
    const FEATURES: &'static [Feature] = &[];
    const WIDE_OFFSET: i32 = 128;
    const LARGE_TILES: bool = false;
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];

    fn function<K: HostKernel>() -> HostFn {
        if cfg!(test) { |_, _| unreachable!("unit tests run no kernels") } else { enter::<K> }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        *out = v;
    }
    #[inline(always)]
    fn load_f32(self, x: &[u8; 64]) -> Self::F {
        from_fn(|i| f32::from_le_bytes([x[i * 4], x[i * 4 + 1], x[i * 4 + 2], x[i * 4 + 3]]))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> Self::F {
        from_fn(|i| f16::from_le_bytes([x[i * 2], x[i * 2 + 1]]).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> Self::F {
        from_fn(|i| bf16::from_le_bytes([x[i * 2], x[i * 2 + 1]]).to_f32())
    }
    #[inline(always)]
    fn to_f16(self, v: Self::F) -> [u16; 16] {
        v.map(|x| f16::from_f32(x).to_bits())
    }
    #[inline(always)]
    fn load_u8(self, x: &[u8; 16]) -> Self::F {
        x.map(f32::from)
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; 16]) -> Self::F {
        x.map(|b| f32::from(b as i8))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i] + c[i]) // A fused operation would be a library call per lane.
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::F {
        v.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn scale2(self, v: Self::F, n: Self::F) -> Self::F {
        from_fn(|i| v[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn keep(self, v: Self::F, count: usize, other: Self::F) -> Self::F {
        from_fn(|i| if i < count { v[i] } else { other[i] })
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let half: [f32; 8] = from_fn(|i| v[i] + v[i + 8]);
        let quarter: [f32; 4] = from_fn(|i| half[i] + half[i + 4]);
        (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
    }
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn largest_abs(self, a: Self::F, b: Self::F) -> f32 {
        // Without the sign, floats order like their bits, and NaN comes last.
        f32::from_bits(a.iter().chain(&b).map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
    }
    #[inline(always)]
    fn to_i8(self, v: Self::F) -> ([i8; 16], i32) {
        let q = v.map(|x| x.round_ties_even() as i8);
        (q, q.iter().map(|q| i32::from(*q)).sum())
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [x; 16]
    }
    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        v.map(|x| x as f32)
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Self::B {
        *x
    }
    #[inline(always)]
    fn bits<const SHIFT: u32>(self, v: Self::B, mask: u8) -> Self::B {
        v.map(|b| (b >> SHIFT) & mask)
    }
    #[inline(always)]
    fn join(self, low: Self::B, high: Self::B) -> Self::B {
        from_fn(|i| low[i] | (high[i] << 4))
    }
    #[inline(always)]
    fn look_up(self, v: Self::B, table: &[u8; 16]) -> Self::B {
        v.map(|b| table[usize::from(b & 15)])
    }
    #[inline(always)]
    fn bytes_to_f32(self, v: Self::B) -> [Self::F; 4] {
        from_fn(|j| from_fn(|i| f32::from(v[i * 4 + j])))
    }
    #[inline(always)]
    fn dot<const N: usize>(self, _: u32, weights: &[Self::B; N], x: &[i32; N], mut sum: Self::I) -> Self::I {
        for i in 0..N {
            let x = x[i].to_le_bytes().map(|b| i32::from(b as i8));
            sum = from_fn(|l| sum[l] + (0..4).map(|j| i32::from(weights[i][l * 4 + j]) * x[j]).sum::<i32>());
        }
        sum
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
