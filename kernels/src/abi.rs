//! Sizes of bindings, in saturating arithmetic: constants that overflow ask for more bytes than any binding has.

use crate::params::HEADER_WORDS;

/// A size that no binding has.
pub(crate) const IMPOSSIBLE: u64 = u64::MAX;

/// Bytes of a parameter block's header.
pub(crate) const HEADER_BYTES: u64 = HEADER_WORDS as u64 * 4;

/// The product of `factors`.
pub(crate) fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

/// Bytes of an array of 32-bit values.
pub(crate) fn words(dimensions: &[u32]) -> u64 {
    product(dimensions).saturating_mul(4)
}

/// Bytes of rows of `width` 32-bit values that lie `stride` values apart; impossible if rows overlap.
pub(crate) fn strided(rows: u32, stride: u32, width: u32) -> u64 {
    match rows.checked_sub(1) {
        _ if stride < width => IMPOSSIBLE,
        None => 0,
        Some(before) => words(&[before, stride]).saturating_add(words(&[width])),
    }
}

/// Bytes of a whole parameter block.
pub(crate) fn params(rows: u32, sequences: u32, table_blocks: u32, logit_rows: u32) -> u64 {
    let lists = words(&[rows, 3]).saturating_add(words(&[logit_rows]));
    HEADER_BYTES.saturating_add(lists).saturating_add(words(&[sequences, table_blocks]))
}
