//! Elements of the general operators (f32, f16 and bf16), stored in 32-bit words and addressed by strides.
//!
//! Kernels receive the element type as a number: 0 for f32, 1 for f16, 2 for bf16. A word holds two 16-bit
//! elements, the first in its low half. If the number of 16-bit elements is odd, the rest of the last word is
//! zero.

use crate::abi::{IMPOSSIBLE, product};
use crate::composer::Compose;
use crate::kernel::{ElementType, Kernel};
use half::{bf16, f16};

/// Maximum number of dimensions of a strided traversal. Tensors with fewer dimensions are padded with leading
/// dimensions of size 1.
pub const RANK: usize = 6;

/// Number of work items per group. Each work item writes one word.
pub(crate) const ITEMS: u32 = 256;

/// Returns a grid of one group per [`ITEMS`] words.
pub(crate) fn grid(words: u32) -> [u32; 3] {
    [words.div_ceil(ITEMS), 1, 1]
}

/// Sources of a general operator for GPUs. The function has the name of the ABI.
pub(crate) struct Operator {
    pub grid: fn(constants: &[u32]) -> [u32; 3],
    /// Part of the program that the operators share in the languages of the C family.
    pub c: &'static str,
    /// Composes the program in WGSL.
    pub wgsl: Compose,
}

/// Returns all operators, in the order of their kernels.
pub(crate) fn operators() -> impl Iterator<Item = (Kernel, Operator)> {
    Kernel::all().into_iter().filter_map(|kernel| Some((kernel, kernel.spec().operator()?)))
}

/// Returns the number that identifies `element` in the constants of kernels.
pub fn number(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 0,
        ElementType::F16 => 1,
        ElementType::BF16 => 2,
    }
}

/// Returns the number of elements per word for the type with number `number`, or `None` if the number is
/// invalid.
pub(crate) fn in_a_word(number: u32) -> Option<u32> {
    match number {
        0 => Some(1),
        1 | 2 => Some(2),
        _ => None,
    }
}

/// Returns the number of bytes in `count` elements, or [`IMPOSSIBLE`] if `count` is 2^32 or more.
pub(crate) fn bytes(number: u32, count: u64) -> u64 {
    match in_a_word(number) {
        Some(in_a_word) if count <= u64::from(u32::MAX) => count.div_ceil(u64::from(in_a_word)) * 4,
        _ => IMPOSSIBLE,
    }
}

/// Returns the number of elements from the first to the last element of a strided traversal, inclusive.
pub(crate) fn span(sizes: &[u32], strides: &[u32]) -> u64 {
    if sizes.contains(&0) {
        return 0;
    }
    let steps = sizes.iter().zip(strides).map(|(size, stride)| product(&[size - 1, *stride]));
    steps.fold(1, u64::saturating_add)
}

/// Returns the index of the element that a strided traversal reads at step `i`. `i` must be below the product
/// of the sizes.
#[inline(always)]
pub(crate) fn place(mut i: usize, sizes: &[u32], strides: &[u32]) -> usize {
    // Fast path: most traversals have one dimension, and many steps of other traversals stay within the last
    // dimension.
    if let ([.., size], [.., stride]) = (sizes, strides)
        && i < *size as usize
    {
        return i * *stride as usize;
    }
    let mut at = 0;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        at += i % *size as usize * *stride as usize;
        i /= *size as usize;
    }
    at
}

/// Returns the bits of element `i` of `words`.
#[inline(always)]
pub(crate) fn element(words: &[u32], number: u32, i: usize) -> u32 {
    if number == 0 { words[i] } else { words[i / 2] >> (i % 2 * 16) & 0xffff }
}

/// Converts the bits of an element from type `from` to type `to`, rounded to nearest, ties to even. Values
/// beyond the range of the new type become infinite, and NaN is preserved. If both types are equal, returns
/// the same bits.
#[inline(always)]
pub(crate) fn convert(from: u32, to: u32, bits: u32) -> u32 {
    if from == to {
        return bits;
    }
    let value = match from {
        0 => f32::from_bits(bits),
        1 => f16::from_bits(bits as u16).to_f32(),
        _ => bf16::from_bits(bits as u16).to_f32(),
    };
    match to {
        0 => value.to_bits(),
        1 => f16::from_f32(value).to_bits().into(),
        _ => bf16::from_f32(value).to_bits().into(),
    }
}

/// Packs the bits of elements into words.
pub(crate) fn pack(number: u32, bits: &[u32]) -> Vec<u32> {
    match in_a_word(number) {
        Some(2) => bits.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 16).collect(),
        _ => bits.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: u32 = 0;
    const F16: u32 = 1;
    const BF16: u32 = 2;

    #[test]
    fn conversions_round_to_even_and_preserve_special_values() {
        for (value, half, brain) in [
            (1.0_f32, 0x3c00, 0x3f80),
            (-0.0, 0x8000, 0x8000),
            (65519.996, 0x7bff, 0x4780),
            (65520.0, 0x7c00, 0x4780),
            (f32::MAX, 0x7c00, 0x7f80),
            (f32::NEG_INFINITY, 0xfc00, 0xff80),
            (2.0_f32.powi(-25), 0, 0x3300),
            (3.0 * 2.0_f32.powi(-25), 2, 0x33c0),
            (1.0 + 2.0_f32.powi(-11), 0x3c00, 0x3f80),
            (1.0 + 3.0 * 2.0_f32.powi(-8), 0x3c0c, 0x3f82),
        ] {
            assert_eq!(convert(F32, F16, value.to_bits()), half, "{value:e}");
            assert_eq!(convert(F32, BF16, value.to_bits()), brain, "{value:e}");
        }
        for to in [F16, BF16] {
            let nan = convert(F32, to, 0x7f80_0001);
            assert!(f32::from_bits(convert(to, F32, nan)).is_nan());
        }
        assert_eq!(convert(F16, F32, 1), 2.0_f32.powi(-24).to_bits());
        assert_eq!(convert(F32, F32, 0x7f80_0001), 0x7f80_0001);
    }

    #[test]
    fn sizes_are_whole_words() {
        assert_eq!([bytes(F32, 3), bytes(F16, 3), bytes(BF16, 0), bytes(3, 3)], [12, 8, 0, IMPOSSIBLE]);
        assert_eq!(span(&[2, 3], &[0, 5]), 11);
        assert_eq!(span(&[2, 0], &[7, 5]), 0);
        assert_eq!([0, 1, 3, 5].map(|i| place(i, &[2, 3], &[1, 2])), [0, 2, 1, 5]);
    }
}
