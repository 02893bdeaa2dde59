//! AArch64 Advanced SIMD with the dot-product extension. Four registers together hold 16 lanes.

use super::HostKernel;
use super::isa::Isa;
use ragtag_hal::{Feature, HostCall, HostFn};
use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

/// Proof that the processor has Advanced SIMD and the dot-product extension.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

#[target_feature(enable = "neon,dotprod")]
unsafe fn enter<K: HostKernel>(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: the features are enabled here; the caller guarantees the other requirements of `run`.
    unsafe { K::run(Neon(()), call, groups) }
}

macro_rules! operations {
    ($(fn $name:ident$(<const $shift:ident: u32>)?($self:ident$(, $argument:ident: $type:ty)*) $(-> $result:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name$(<const $shift: u32>)?($self$(, $argument: $type)*) $(-> $result)? {
            #[allow(unused_unsafe)] // Advanced SIMD is in the base target; many operations are safe.
            // SAFETY: `self` proves the features; memory is reached through references to arrays of the size accessed.
            unsafe { $body }
        }
    )*};
}

/// Evaluates an expression once for each of the four registers.
macro_rules! each {
    ($i:ident => $value:expr) => {
        [
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
            {
                const $i: usize = 2;
                $value
            },
            {
                const $i: usize = 3;
                $value
            },
        ]
    };
}

type Floats = [float32x4_t; 4];
type Integers = [int32x4_t; 4];
type Bytes = [uint8x16_t; 4];

impl Neon {
    operations! {
        fn widen(self, x: uint16x4_t) -> float32x4_t {
            let out: float32x4_t;
            // The library's intrinsic takes a type that is not stable yet.
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) x, options(pure, nomem, nostack));
            out
        }
        fn narrow(self, x: float32x4_t) -> uint16x4_t {
            let out: uint16x4_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) x, options(pure, nomem, nostack));
            out
        }
        fn dot_quarter(self, acc: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
            let mut out = acc;
            asm!(
                ".arch_extension dotprod",
                "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                inout(vreg) out, in(vreg) weights, in(vreg) x, options(pure, nomem, nostack)
            );
            out
        }
        fn dot_quad(self, acc: Integers, weights: Bytes, x: i32) -> Integers {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            each!(I => self.dot_quarter(acc[I], vreinterpretq_s8_u8(weights[I]), x))
        }
        fn signed(self, v: Bytes) -> Bytes { each!(I => veorq_u8(v[I], vdupq_n_u8(128))) }
        fn widen_u8(self, x: uint8x16_t) -> Floats {
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_u8(vget_high_u8(x)));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
        fn widen_i8(self, x: int8x16_t) -> Floats {
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
        fn byte(self, x: uint32x4_t) -> float32x4_t { vcvtq_f32_u32(vandq_u32(x, vdupq_n_u32(255))) }
        fn power(self, n: float32x4_t) -> float32x4_t {
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127))))
        }
        fn magnitude(self, x: float32x4_t) -> uint32x4_t { vreinterpretq_u32_f32(vabsq_f32(x)) }
        fn larger(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcgtq_f32(a, b), a, b) }
        fn smaller(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcltq_f32(a, b), a, b) }
        fn kept(self, first: usize, v: float32x4_t, count: usize, other: float32x4_t) -> float32x4_t {
            let lanes = [first as u32, first as u32 + 1, first as u32 + 2, first as u32 + 3];
            let mask = vcgtq_u32(vdupq_n_u32(count.min(16) as u32), vld1q_u32(lanes.as_ptr()));
            vbslq_f32(mask, v, other)
        }
    }
}

impl Isa for Neon {
    const NAME: &'static str = "neon-dot";
    const FEATURES: &'static [Feature] = &[Feature::NeonDot];
    const WIDE_OFFSET: i32 = 0;
    const LARGE_TILES: bool = false;
    type F = Floats;
    type I = Integers;
    type B = Bytes;

    fn function<K: HostKernel>() -> HostFn {
        enter::<K>
    }

    #[inline(always)]
    fn dot<const N: usize>(
        self,
        bits: u32,
        weights: &[Bytes; N],
        x: &[i32; N],
        mut sum: Integers,
    ) -> Integers {
        for i in 0..N {
            let weights = if bits == 8 { self.signed(weights[i]) } else { weights[i] };
            sum = self.dot_quad(sum, weights, x[i]);
        }
        sum
    }

    operations! {
        fn splat(self, x: f32) -> Floats { [vdupq_n_f32(x); 4] }
        fn load(self, x: &[f32; 16]) -> Floats { each!(I => vld1q_f32(x.as_ptr().add(I * 4))) }
        fn store(self, v: Floats, out: &mut [f32; 16]) {
            vst1q_f32(out.as_mut_ptr(), v[0]);
            vst1q_f32(out.as_mut_ptr().add(4), v[1]);
            vst1q_f32(out.as_mut_ptr().add(8), v[2]);
            vst1q_f32(out.as_mut_ptr().add(12), v[3]);
        }
        fn load_f32(self, x: &[u8; 64]) -> Floats { each!(I => vreinterpretq_f32_u8(vld1q_u8(x.as_ptr().add(I * 16)))) }
        fn load_f16(self, x: &[u8; 32]) -> Floats {
            each!(I => self.widen(vreinterpret_u16_u8(vld1_u8(x.as_ptr().add(I * 8)))))
        }
        fn load_bf16(self, x: &[u8; 32]) -> Floats {
            each!(I => vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(x.as_ptr().add(I * 8))))))
        }
        fn to_f16(self, v: Floats) -> [u16; 16] {
            let mut out = [0; 16];
            vst1_u16(out.as_mut_ptr(), self.narrow(v[0]));
            vst1_u16(out.as_mut_ptr().add(4), self.narrow(v[1]));
            vst1_u16(out.as_mut_ptr().add(8), self.narrow(v[2]));
            vst1_u16(out.as_mut_ptr().add(12), self.narrow(v[3]));
            out
        }
        fn load_u8(self, x: &[u8; 16]) -> Floats { self.widen_u8(vld1q_u8(x.as_ptr())) }
        fn load_i8(self, x: &[u8; 16]) -> Floats { self.widen_i8(vld1q_s8(x.as_ptr().cast())) }
        fn add(self, a: Floats, b: Floats) -> Floats { each!(I => vaddq_f32(a[I], b[I])) }
        fn sub(self, a: Floats, b: Floats) -> Floats { each!(I => vsubq_f32(a[I], b[I])) }
        fn mul(self, a: Floats, b: Floats) -> Floats { each!(I => vmulq_f32(a[I], b[I])) }
        fn div(self, a: Floats, b: Floats) -> Floats { each!(I => vdivq_f32(a[I], b[I])) }
        fn max(self, a: Floats, b: Floats) -> Floats { each!(I => self.larger(a[I], b[I])) }
        fn min(self, a: Floats, b: Floats) -> Floats { each!(I => self.smaller(a[I], b[I])) }
        fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats { each!(I => vfmaq_f32(c[I], a[I], b[I])) }
        fn round(self, v: Floats) -> Floats { each!(I => vrndnq_f32(v[I])) }
        fn scale2(self, v: Floats, n: Floats) -> Floats { each!(I => vmulq_f32(v[I], self.power(n[I]))) }
        fn keep(self, v: Floats, count: usize, other: Floats) -> Floats {
            each!(I => self.kept(I * 4, v[I], count, other[I]))
        }
        fn sum(self, v: Floats) -> f32 { vaddvq_f32(vaddq_f32(vaddq_f32(v[0], v[1]), vaddq_f32(v[2], v[3]))) }
        fn largest(self, v: Floats) -> f32 {
            vmaxvq_f32(self.larger(self.larger(v[0], v[1]), self.larger(v[2], v[3])))
        }
        fn largest_abs(self, a: Floats, b: Floats) -> f32 {
            // Without the sign, floats order like their bits, and NaN comes last.
            let each: [uint32x4_t; 4] = each!(I => vmaxq_u32(self.magnitude(a[I]), self.magnitude(b[I])));
            f32::from_bits(vmaxvq_u32(vmaxq_u32(vmaxq_u32(each[0], each[1]), vmaxq_u32(each[2], each[3]))))
        }
        fn to_i8(self, v: Floats) -> ([i8; 16], i32) {
            let q: Integers = each!(I => vcvtnq_s32_f32(v[I]));
            let low = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
            let high = vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]));
            let mut out = [0; 16];
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
            (out, vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3]))))
        }
        fn splat_i(self, x: i32) -> Integers { [vdupq_n_s32(x); 4] }
        fn to_f32(self, v: Integers) -> Floats { each!(I => vcvtq_f32_s32(v[I])) }
        fn load_bytes(self, x: &[u8; 64]) -> Bytes { each!(I => vld1q_u8(x.as_ptr().add(I * 16))) }
        fn bits<const SHIFT: u32>(self, v: Bytes, mask: u8) -> Bytes {
            let (mask, shift) = (vdupq_n_u8(mask), vdupq_n_s8(-(SHIFT as i8)));
            each!(I => vandq_u8(vshlq_u8(v[I], shift), mask))
        }
        fn join(self, low: Bytes, high: Bytes) -> Bytes { each!(I => vorrq_u8(low[I], vshlq_n_u8::<4>(high[I]))) }
        fn look_up(self, v: Bytes, table: &[u8; 16]) -> Bytes {
            let table = vld1q_u8(table.as_ptr());
            each!(I => vqtbl1q_u8(table, v[I]))
        }
        fn bytes_to_f32(self, v: Bytes) -> [Floats; 4] {
            let v: [uint32x4_t; 4] = each!(I => vreinterpretq_u32_u8(v[I]));
            [
                each!(I => self.byte(v[I])),
                each!(I => self.byte(vshrq_n_u32::<8>(v[I]))),
                each!(I => self.byte(vshrq_n_u32::<16>(v[I]))),
                each!(I => self.byte(vshrq_n_u32::<24>(v[I]))),
            ]
        }
        fn prefetch(self, address: *const u8) {
            asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
}
