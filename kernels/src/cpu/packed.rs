//! Rows of int8 and f16 activations, which kernels write 32 columns at a time.

use super::isa::Isa;
use super::row::Row;
use crate::kernel::Activations;
use crate::quantize::{BLOCK, scales_offset, sums_offset};

/// Type of packed activations.
pub(crate) trait Packed: 'static {
    /// This type.
    const TYPE: Activations;

    /// Writes a row. `bytes` has its contents and padding, and `values` returns the 32 values of a block as two
    /// vectors.
    fn pack<S: Isa>(s: S, bytes: &mut [u8], width: usize, values: impl Fn(usize) -> (S::F, S::F));

    /// Writes this row of a binding.
    #[inline(always)]
    fn write<S: Isa>(
        s: S,
        row: Row<'_>,
        binding: usize,
        width: usize,
        values: impl Fn(usize) -> (S::F, S::F),
    ) {
        Self::pack(s, row.write_as(binding, Self::TYPE.row_bytes(width)), width, values);
    }
}

/// int8 in blocks of 32 values that share a scale.
pub(crate) struct Int8;

impl Packed for Int8 {
    const TYPE: Activations = Activations::Int8;

    #[inline(always)]
    fn pack<S: Isa>(s: S, bytes: &mut [u8], width: usize, values: impl Fn(usize) -> (S::F, S::F)) {
        let (quants, rest) = bytes.split_at_mut(scales_offset(width));
        let (scales, sums) = rest.split_at_mut(sums_offset(width) - scales_offset(width));
        let scales = scales.as_chunks_mut::<4>().0.iter_mut();
        let blocks =
            quants.as_chunks_mut::<BLOCK>().0.iter_mut().zip(scales).zip(sums.as_chunks_mut::<8>().0);
        for (b, ((quants, scale), sums)) in blocks.enumerate().take(width / BLOCK) {
            let (first, last) = values(b);
            let largest = s.largest_abs(first, last);
            let inverse = s.splat(if largest == 0.0 { 0.0 } else { 127.0 / largest });
            for (i, half) in [first, last].into_iter().enumerate() {
                let (values, sum) = s.to_i8(s.mul(half, inverse));
                let quants = quants[i * 16..][..16].iter_mut().zip(values);
                quants.for_each(|(quant, value)| *quant = value.cast_unsigned());
                sums[i * 4..][..4].copy_from_slice(&sum.to_ne_bytes());
            }
            *scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN }.to_ne_bytes();
        }
    }
}

/// f16 in padded rows.
pub(crate) struct Half;

impl Packed for Half {
    const TYPE: Activations = Activations::F16;

    #[inline(always)]
    fn pack<S: Isa>(s: S, bytes: &mut [u8], width: usize, values: impl Fn(usize) -> (S::F, S::F)) {
        let (columns, padding) = bytes.split_at_mut(width * 2);
        for (b, out) in columns.as_chunks_mut::<{ BLOCK * 2 }>().0.iter_mut().enumerate() {
            let (first, last) = values(b);
            for (out, lanes) in out.as_chunks_mut::<32>().0.iter_mut().zip([first, last]) {
                let out = out.as_chunks_mut::<2>().0.iter_mut().zip(rounded(s, lanes));
                out.for_each(|(out, value)| *out = value.to_ne_bytes());
            }
        }
        padding.fill(0);
    }
}

/// Rounds each lane to f16. Values beyond the range of f16 saturate, and NaN is preserved.
#[inline(always)]
pub(super) fn rounded<S: Isa>(s: S, v: S::F) -> [u16; 16] {
    let largest = half::f16::MAX.to_f32();
    s.to_f16(s.max(s.splat(-largest), s.min(s.splat(largest), v)))
}
