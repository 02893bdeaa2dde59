//! AVX-512 with VNNI. One register holds 16 lanes.

use super::HostKernel;
use super::isa::Isa;
use ragtag_hal::{Feature, HostCall, HostFn};
use std::arch::x86_64::*;
use std::ops::Range;

/// Proof that the processor has AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn enter<K: HostKernel>(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: the features are enabled here; the caller guarantees the other requirements of `run`.
    unsafe { K::run(Avx512(()), call, groups) }
}

macro_rules! operations {
    ($(fn $name:ident$(<const $shift:ident: u32>)?($self:ident$(, $argument:ident: $type:ty)*) $(-> $result:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name$(<const $shift: u32>)?($self$(, $argument: $type)*) $(-> $result)? {
            // SAFETY: `self` proves the features; memory is reached through references to arrays of the size accessed.
            unsafe { $body }
        }
    )*};
}

impl Isa for Avx512 {
    const NAME: &'static str = "avx512-vnni";
    const FEATURES: &'static [Feature] = &[Feature::Avx512Vnni];
    const WIDE_OFFSET: i32 = 128;
    const LARGE_TILES: bool = true;
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    fn function<K: HostKernel>() -> HostFn {
        enter::<K>
    }

    operations! {
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(self, x: &[f32; 16]) -> __m512 { _mm512_loadu_ps(x.as_ptr()) }
        fn store(self, v: __m512, out: &mut [f32; 16]) { _mm512_storeu_ps(out.as_mut_ptr(), v) }
        fn load_f32(self, x: &[u8; 64]) -> __m512 { _mm512_loadu_ps(x.as_ptr().cast()) }
        fn load_f16(self, x: &[u8; 32]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn load_bf16(self, x: &[u8; 32]) -> __m512 {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
        fn to_f16(self, v: __m512) -> [u16; 16] {
            let mut out = [0; 16];
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            out
        }
        fn load_u8(self, x: &[u8; 16]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
        }
        fn load_i8(self, x: &[u8; 16]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
        }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn round(self, v: __m512) -> __m512 { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
        fn scale2(self, v: __m512, n: __m512) -> __m512 { _mm512_scalef_ps(v, n) }
        fn keep(self, v: __m512, count: usize, other: __m512) -> __m512 {
            _mm512_mask_blend_ps(((1u32 << count.min(16)) - 1) as u16, other, v)
        }
        fn sum(self, v: __m512) -> f32 { _mm512_reduce_add_ps(v) }
        fn largest(self, v: __m512) -> f32 { _mm512_reduce_max_ps(v) }
        fn largest_abs(self, a: __m512, b: __m512) -> f32 {
            // Without the sign, floats order like their bits, and NaN comes last.
            let (a, b) = (_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
            f32::from_bits(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)) as u32)
        }
        fn to_i8(self, v: __m512) -> ([i8; 16], i32) {
            let q = _mm512_cvtps_epi32(v);
            let mut out = [0; 16];
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(q));
            (out, _mm512_reduce_add_epi32(q))
        }
        fn splat_i(self, x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn to_f32(self, v: __m512i) -> __m512 { _mm512_cvtepi32_ps(v) }
        fn load_bytes(self, x: &[u8; 64]) -> __m512i { _mm512_loadu_si512(x.as_ptr().cast()) }
        fn bits<const SHIFT: u32>(self, v: __m512i, mask: u8) -> __m512i {
            _mm512_and_si512(_mm512_srli_epi16::<SHIFT>(v), _mm512_set1_epi8(mask as i8))
        }
        fn join(self, low: __m512i, high: __m512i) -> __m512i { _mm512_or_si512(low, _mm512_slli_epi16::<4>(high)) }
        fn look_up(self, v: __m512i, table: &[u8; 16]) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v)
        }
        fn bytes_to_f32(self, v: __m512i) -> [__m512; 4] {
            let low = _mm512_set1_epi32(255);
            [
                _mm512_cvtepi32_ps(_mm512_and_si512(v, low)),
                _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(v), low)),
                _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<16>(v), low)),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(v)),
            ]
        }
        fn prefetch(self, address: *const u8) { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn dot<const N: usize>(self, _: u32, weights: &[__m512i; N], x: &[i32; N], mut sum: __m512i) -> __m512i {
        for i in 0..N {
            // SAFETY: `self` proves the features.
            sum = unsafe { _mm512_dpbusd_epi32(sum, weights[i], _mm512_set1_epi32(x[i])) };
        }
        sum
    }
}
