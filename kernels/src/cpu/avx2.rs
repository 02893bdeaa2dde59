//! AVX2 with FMA and F16C. Two registers together hold 16 lanes.

use super::HostKernel;
use super::isa::Isa;
use ragtag_hal::{Feature, HostCall, HostFn};
use std::arch::x86_64::*;
use std::ops::Range;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<K: HostKernel>(call: &HostCall<'_>, groups: Range<u32>) {
    // SAFETY: the features are enabled here; the caller guarantees the other requirements of `run`.
    unsafe { K::run(Avx2(()), call, groups) }
}

macro_rules! operations {
    ($(fn $name:ident$(<const $shift:ident: u32>)?($self:ident$(, $argument:ident: $type:ty)*) $(-> $result:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name$(<const $shift: u32>)?($self$(, $argument: $type)*) $(-> $result)? {
            #[allow(unused_unsafe)] // Some only call others.
            // SAFETY: `self` proves the features; memory is reached through references to arrays of the size accessed.
            unsafe { $body }
        }
    )*};
}

/// Lanes 0 … 7 in the first register, and lanes 8 … 15 in the second.
type Floats = [__m256; 2];
type Bytes = [__m256i; 2];

impl Avx2 {
    operations! {
        fn pairs(self, bits: u32, weights: Bytes, x: i32) -> Bytes {
            let x = _mm256_set1_epi32(x);
            if bits == 8 {
                return [self.signed_pairs(weights[0], x), self.signed_pairs(weights[1], x)];
            }
            [_mm256_maddubs_epi16(weights[0], x), _mm256_maddubs_epi16(weights[1], x)]
        }
        fn signed_pairs(self, weights: __m256i, x: __m256i) -> __m256i {
            // |w| · (x with the sign of w). |−128| is 128 as an unsigned byte, and x never contains −128. Sums of
            // two products of at most 128 · 127 fit into 16 bits.
            let weights = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
        }
        fn add_words(self, a: Bytes, b: Bytes) -> Bytes { [_mm256_add_epi16(a[0], b[0]), _mm256_add_epi16(a[1], b[1])] }
        fn add_pairs(self, sum: Bytes, pairs: Bytes) -> Bytes {
            let one = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(pairs[0], one)),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(pairs[1], one)),
            ]
        }
        fn extend(self, x: __m128i) -> __m256 { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)) }
        fn extend_unsigned(self, x: __m128i) -> __m256 { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)) }
        fn wide_bf16(self, x: __m128i) -> __m256 { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))) }
        fn keep_half(self, v: __m256, count: usize, other: __m256) -> __m256 {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), lanes);
            _mm256_blendv_ps(other, v, _mm256_castsi256_ps(mask))
        }
        fn byte(self, v: __m256i) -> __m256 { _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(255))) }
        fn power(self, n: __m256) -> __m256 {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
        fn magnitude(self, v: __m256) -> __m256i {
            _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff))
        }
    }
}

impl Isa for Avx2 {
    const NAME: &'static str = "avx2";
    const FEATURES: &'static [Feature] = &[Feature::Avx2];
    const WIDE_OFFSET: i32 = 0;
    const LARGE_TILES: bool = false;
    type F = Floats;
    type I = Bytes;
    type B = Bytes;

    fn function<K: HostKernel>() -> HostFn {
        enter::<K>
    }

    operations! {
        fn splat(self, x: f32) -> Floats { [_mm256_set1_ps(x); 2] }
        fn load(self, x: &[f32; 16]) -> Floats { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
        fn store(self, v: Floats, out: &mut [f32; 16]) {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        }
        fn load_f32(self, x: &[u8; 64]) -> Floats {
            [_mm256_loadu_ps(x.as_ptr().cast()), _mm256_loadu_ps(x.as_ptr().add(32).cast())]
        }
        fn load_f16(self, x: &[u8; 32]) -> Floats {
            let p = x.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
        fn load_bf16(self, x: &[u8; 32]) -> Floats {
            let p = x.as_ptr().cast::<__m128i>();
            [self.wide_bf16(_mm_loadu_si128(p)), self.wide_bf16(_mm_loadu_si128(p.add(1)))]
        }
        fn to_f16(self, v: Floats) -> [u16; 16] {
            let mut out = [0_u16; 16];
            let p = out.as_mut_ptr().cast::<__m128i>();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
            out
        }
        fn load_u8(self, x: &[u8; 16]) -> Floats {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            [self.extend_unsigned(x), self.extend_unsigned(_mm_srli_si128::<8>(x))]
        }
        fn load_i8(self, x: &[u8; 16]) -> Floats {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            [self.extend(x), self.extend(_mm_srli_si128::<8>(x))]
        }
        fn add(self, a: Floats, b: Floats) -> Floats { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(self, a: Floats, b: Floats) -> Floats { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(self, a: Floats, b: Floats) -> Floats { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(self, a: Floats, b: Floats) -> Floats { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn max(self, a: Floats, b: Floats) -> Floats { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(self, a: Floats, b: Floats) -> Floats { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn round(self, v: Floats) -> Floats {
            [
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v[0]),
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v[1]),
            ]
        }
        fn scale2(self, v: Floats, n: Floats) -> Floats { self.mul(v, [self.power(n[0]), self.power(n[1])]) }
        fn keep(self, v: Floats, count: usize, other: Floats) -> Floats {
            [self.keep_half(v[0], count, other[0]), self.keep_half(v[1], count.saturating_sub(8), other[1])]
        }
        fn sum(self, v: Floats) -> f32 {
            let half = _mm256_add_ps(v[0], v[1]);
            let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
        fn largest(self, v: Floats) -> f32 {
            let half = _mm256_max_ps(v[0], v[1]);
            let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
        fn largest_abs(self, a: Floats, b: Floats) -> f32 {
            // Without the sign, floats order like their bits, and NaN comes last.
            let a = _mm256_max_epi32(self.magnitude(a[0]), self.magnitude(a[1]));
            let b = _mm256_max_epi32(self.magnitude(b[0]), self.magnitude(b[1]));
            let half = _mm256_max_epi32(a, b);
            let quarter = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let pair = _mm_max_epi32(quarter, _mm_unpackhi_epi64(quarter, quarter));
            f32::from_bits(_mm_cvtsi128_si32(_mm_max_epi32(pair, _mm_srli_epi64::<32>(pair))) as u32)
        }
        fn to_i8(self, v: Floats) -> ([i8; 16], i32) {
            let q = [_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])];
            // Packing works within register halves; the permutation restores the order of the quarters.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(q[0], q[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let mut out = [0; 16];
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
            let half = _mm256_add_epi32(q[0], q[1]);
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let pair = _mm_add_epi32(quarter, _mm_unpackhi_epi64(quarter, quarter));
            (out, _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_srli_epi64::<32>(pair))))
        }
        fn splat_i(self, x: i32) -> Bytes { [_mm256_set1_epi32(x); 2] }
        fn to_f32(self, v: Bytes) -> Floats { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
        fn load_bytes(self, x: &[u8; 64]) -> Bytes {
            let p = x.as_ptr().cast::<__m256i>();
            [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))]
        }
        fn join(self, low: Bytes, high: Bytes) -> Bytes {
            [
                _mm256_or_si256(low[0], _mm256_slli_epi16::<4>(high[0])),
                _mm256_or_si256(low[1], _mm256_slli_epi16::<4>(high[1])),
            ]
        }
        fn look_up(self, v: Bytes, table: &[u8; 16]) -> Bytes {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, v[0]), _mm256_shuffle_epi8(table, v[1])]
        }
        fn bytes_to_f32(self, v: Bytes) -> [Floats; 4] {
            let [a, b] = v;
            [
                [self.byte(a), self.byte(b)],
                [self.byte(_mm256_srli_epi32::<8>(a)), self.byte(_mm256_srli_epi32::<8>(b))],
                [self.byte(_mm256_srli_epi32::<16>(a)), self.byte(_mm256_srli_epi32::<16>(b))],
                [self.byte(_mm256_srli_epi32::<24>(a)), self.byte(_mm256_srli_epi32::<24>(b))],
            ]
        }
        fn prefetch(self, address: *const u8) { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn bits<const SHIFT: u32>(self, v: Bytes, mask: u8) -> Bytes {
        let count = SHIFT as i32;
        // SAFETY: `self` proves the features.
        unsafe {
            let (mask, count) = (_mm256_set1_epi8(mask as i8), _mm_cvtsi32_si128(count));
            [
                _mm256_and_si256(_mm256_srl_epi16(v[0], count), mask),
                _mm256_and_si256(_mm256_srl_epi16(v[1], count), mask),
            ]
        }
    }

    #[inline(always)]
    fn dot<const N: usize>(self, bits: u32, weights: &[Bytes; N], x: &[i32; N], mut sum: Bytes) -> Bytes {
        // The number of vectors whose products add up to less than 2¹⁵ per lane of 16 bits.
        let run = if bits == 8 { 1 } else { i16::MAX as usize / (2 * 127 * ((1 << bits) - 1)) };
        for first in (0..N).step_by(run) {
            let mut pairs = self.pairs(bits, weights[first], x[first]);
            for i in first + 1..N.min(first + run) {
                let more = self.pairs(bits, weights[i], x[i]);
                pairs = self.add_words(pairs, more);
            }
            sum = self.add_pairs(sum, pairs);
        }
        sum
    }
}
