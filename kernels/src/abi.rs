//! Sizes of bindings. The arithmetic saturates: if constants overflow, they require a size that no binding
//! has.

use crate::element_type::ElementType;
use crate::params::HEADER_WORDS;

/// A size that no binding has. If an extent has this size, validation rejects the launch.
pub(crate) const IMPOSSIBLE: u64 = u64::MAX;

/// Returns the constants of a launch.
///
/// # Panics
/// Panics if their number differs from that of the kernel's ABI, which validation compares first. A kernel that
/// returned early instead would leave its output unwritten.
#[inline(always)]
pub(crate) fn array<const N: usize>(constants: &[u32]) -> [u32; N] {
    assert!(constants.len() == N, "a launch has {} constants, but its kernel takes {N}", constants.len());
    std::array::from_fn(|i| constants[i])
}

/// Returns the capacities of the parameter block, which come first in the constants of some kernels, and the
/// other constants.
///
/// # Panics
/// Panics like [`array`].
#[inline(always)]
pub(crate) fn split_capacities<const N: usize>(constants: &[u32]) -> ([u32; 4], [u32; N]) {
    let (capacities, others) = constants.split_at(constants.len().min(4));
    (array(capacities), array(others))
}

/// Number of bytes in the header of a parameter block.
pub(crate) const HEADER_BYTES: u64 = HEADER_WORDS as u64 * 4;

/// Returns the product of `factors`, saturated.
pub(crate) fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

/// Returns the number of bytes in an array of 32-bit values with these `dimensions`.
pub(crate) fn words(dimensions: &[u32]) -> u64 {
    product(dimensions).saturating_mul(4)
}

/// Returns the number of bytes from the first to the last of `rows` rows of `width` 32-bit values. `stride`
/// is in values. Returns [`IMPOSSIBLE`] if rows overlap.
pub(crate) fn strided(rows: u32, stride: u32, width: u32) -> u64 {
    match rows.checked_sub(1) {
        _ if stride < width => IMPOSSIBLE,
        None => 0,
        Some(before) => words(&[before, stride]).saturating_add(words(&[width])),
    }
}

/// Returns the number of values from the first value of the first row to the last value of the last row,
/// inclusive. Each row has `width` contiguous values. `dimensions` lists the count and stride of each
/// dimension along which rows repeat.
pub(crate) fn reach(width: u32, dimensions: &[(u32, u32)]) -> u64 {
    if width == 0 || dimensions.iter().any(|(count, _)| *count == 0) {
        return 0;
    }
    let further =
        |reach: u64, (count, stride): &(u32, u32)| reach.saturating_add(product(&[count - 1, *stride]));
    dimensions.iter().fold(u64::from(width), further)
}

/// Like [`reach`], but for rows that a kernel writes: returns [`IMPOSSIBLE`] if rows may overlap.
pub(crate) fn reach_apart<const N: usize>(width: u32, mut dimensions: [(u32, u32); N]) -> u64 {
    dimensions.sort_by_key(|(_, stride)| *stride);
    let overlaps = |i: usize| {
        let (count, stride) = dimensions[i];
        count > 1 && u64::from(stride) < reach(width, &dimensions[..i])
    };
    if (0..N).any(overlaps) { IMPOSSIBLE } else { reach(width, &dimensions) }
}

/// Returns the number of bytes in `count` values of type `element`, rounded up to whole words.
pub(crate) fn values(element: ElementType, count: u64) -> u64 {
    count.saturating_mul(element.bytes()).checked_next_multiple_of(4).unwrap_or(IMPOSSIBLE)
}

/// Returns the number of bytes in a parameter block with these capacities.
pub(crate) fn params(rows: u32, sequences: u32, table_blocks: u32, logit_rows: u32) -> u64 {
    let lists = words(&[rows, 4]).saturating_add(words(&[logit_rows]));
    HEADER_BYTES.saturating_add(lists).saturating_add(words(&[sequences, table_blocks]))
}

/// Returns the binary interface of a kernel for a value of `KvType`, `ElementType` or `Activations`. `$extents`
/// computes the extents from this value and the constants.
macro_rules! abi_for {
    (KvType, $($rest:tt)+) => {
        $crate::abi::abi_for!(
            @KvType { F32 "_f32", F16 "_f16", Q8_0 "_q8_0", Q8_0Q4_0 "_q8_0_q4_0", Q4_0 "_q4_0" }, $($rest)+
        )
    };
    (ElementType, $($rest:tt)+) => {
        $crate::abi::abi_for!(@ElementType { F32 "_F32", F16 "_F16", BF16 "_BF16" }, $($rest)+)
    };
    (Activations, $($rest:tt)+) => {
        $crate::abi::abi_for!(@Activations { F32 "_f32", Int8 "_int8", F16 "_f16" }, $($rest)+)
    };
    (
        @$type:ident { $($variant:ident $suffix:literal),+ },
        $value:expr, $name:literal, $bindings:expr, $constants:literal, $extents:path
    ) => {
        match $value {
            $($type::$variant => {
                static ABI: EntryAbi = EntryAbi {
                    name: concat!($name, $suffix),
                    bindings: $bindings,
                    constants: $constants,
                    extents: |constants, out| $extents($type::$variant, constants, out),
                };
                &ABI
            })+
        }
    };
}
pub(crate) use abi_for;
