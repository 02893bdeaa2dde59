//! f16 activations, which products on matrix units and in f16 arithmetic read.
//!
//! A row holds f16 values, padded with zeros to a multiple of [`PITCH_VALUES`] values. Rows therefore consist
//! of whole cache lines, and are [`row_bytes`] apart. A tile that extends beyond the last column reads zeros,
//! which do not change the sums. The width of a row is a multiple of 32. Values are rounded to nearest, ties
//! to even. Values beyond the range of f16 saturate, and NaN is preserved.

use half::f16;

pub use crate::layout::PITCH_VALUES;

/// Returns the distance in bytes between consecutive rows of `width` values.
pub const fn row_bytes(width: usize) -> usize {
    width.next_multiple_of(PITCH_VALUES) * 2
}

/// Returns the number of bytes in `rows` rows, or `IMPOSSIBLE` if `width` is not a multiple of 32.
pub(crate) fn rows_extent(rows: u32, width: u32) -> u64 {
    if !width.is_multiple_of(32) || width > u32::MAX - PITCH_VALUES as u32 {
        return crate::abi::IMPOSSIBLE;
    }
    u64::from(rows).saturating_mul(row_bytes(width as usize) as u64)
}

/// Clamps `value` to the range of f16. NaN is preserved.
pub(crate) fn in_range(value: f64) -> f64 {
    let largest = f16::MAX.to_f64();
    value.clamp(-largest, largest)
}

/// Rounds `value` to f16 as kernels must. This is the reference implementation.
pub(crate) fn rounded(value: f64) -> f16 {
    f16::from_f64(in_range(value))
}

/// Converts a row to f16 activations in the stored format. This is the reference implementation.
pub(crate) fn reference(row: &[f32]) -> Vec<u8> {
    let mut out: Vec<u8> = row.iter().flat_map(|x| rounded(f64::from(*x)).to_le_bytes()).collect();
    out.resize(row_bytes(row.len()), 0);
    out
}

/// Decodes a row of f16 activations to its values.
///
/// # Errors
/// Returns an error if the padding is not zero.
pub(crate) fn values(row: &[u8], width: usize) -> Result<Vec<f64>, String> {
    let (values, padding) = row.split_at(width * 2);
    if padding.iter().any(|byte| *byte != 0) {
        return Err("the padding is not zero".into());
    }
    Ok(values.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_and_values_saturate() {
        assert_eq!((row_bytes(32), row_bytes(64), row_bytes(96)), (128, 128, 256));
        let mut row = vec![0.1_f32; 96];
        row[..4].copy_from_slice(&[1e9, -f32::INFINITY, f32::NAN, 65_519.0]);
        let bytes = reference(&row);
        assert_eq!(bytes.len(), row_bytes(96));
        let values = values(&bytes, 96).unwrap();
        assert_eq!(&values[..2], &[65504.0, -65504.0]);
        assert!(values[2].is_nan() && values[3] == 65504.0);
        assert!((values[4] - 0.1).abs() < 3e-5);
        assert!(super::values(&[&bytes[..255], &[1]].concat(), 96).is_err());
        assert_eq!(rows_extent(3, 96), 3 * 256);
        assert!(rows_extent(1, 33) > 1 << 62 && rows_extent(1, u32::MAX - 31) > 1 << 62);
    }
}
