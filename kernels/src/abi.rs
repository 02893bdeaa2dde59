//! Sizes of bindings, in saturating arithmetic. Constants that overflow require more bytes than any binding
//! has.

use crate::kernel::ElementType;
use crate::params::HEADER_WORDS;

/// Size that no binding has. An extent of this size makes validation reject the launch.
pub(crate) const IMPOSSIBLE: u64 = u64::MAX;

/// Bytes of a parameter block's header.
pub(crate) const HEADER_BYTES: u64 = HEADER_WORDS as u64 * 4;

/// Returns the product of `factors`.
pub(crate) fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

/// Returns the bytes of an array of 32-bit values.
pub(crate) fn words(dimensions: &[u32]) -> u64 {
    product(dimensions).saturating_mul(4)
}

/// Returns the bytes of `rows` rows of `width` 32-bit values. `stride` is in values. Returns [`IMPOSSIBLE`]
/// if rows overlap.
pub(crate) fn strided(rows: u32, stride: u32, width: u32) -> u64 {
    match rows.checked_sub(1) {
        _ if stride < width => IMPOSSIBLE,
        None => 0,
        Some(before) => words(&[before, stride]).saturating_add(words(&[width])),
    }
}

/// Returns the number of values from the first to the last value of strided rows. A row has `width` values.
/// `dimensions` lists the count and stride of each dimension along which rows repeat.
pub(crate) fn reach(width: u32, dimensions: &[(u32, u32)]) -> u64 {
    if width == 0 || dimensions.iter().any(|(count, _)| *count == 0) {
        return 0;
    }
    let further =
        |reach: u64, (count, stride): &(u32, u32)| reach.saturating_add(product(&[count - 1, *stride]));
    dimensions.iter().fold(u64::from(width), further)
}

/// Like [`reach`], but for rows that a kernel writes: returns [`IMPOSSIBLE`] if any rows may overlap.
pub(crate) fn reach_apart<const N: usize>(width: u32, mut dimensions: [(u32, u32); N]) -> u64 {
    dimensions.sort_by_key(|(_, stride)| *stride);
    let overlaps = |i: usize| {
        let (count, stride) = dimensions[i];
        count > 1 && u64::from(stride) < reach(width, &dimensions[..i])
    };
    if (0..N).any(overlaps) { IMPOSSIBLE } else { reach(width, &dimensions) }
}

/// Returns the bytes of `count` values of a type, rounded up to whole words.
pub(crate) fn values(element: ElementType, count: u64) -> u64 {
    count.saturating_mul(element.bytes()).checked_next_multiple_of(4).unwrap_or(IMPOSSIBLE)
}

/// Returns the bytes of a whole parameter block.
pub(crate) fn params(rows: u32, sequences: u32, table_blocks: u32, logit_rows: u32) -> u64 {
    let lists = words(&[rows, 3]).saturating_add(words(&[logit_rows]));
    HEADER_BYTES.saturating_add(lists).saturating_add(words(&[sequences, table_blocks]))
}
