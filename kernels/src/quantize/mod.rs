//! Quantize: converts f32 to int8 or f16 activations.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | x: f32 `[rows, width]` |
//! | 2 | out: int8 or [f16 activations](crate::half_rows), written |
//!
//! The constants are the row capacity, the index of the parameter word that holds the row count, and the
//! width. A launch has one group per row.
//!
//! # Int8 activations
//!
//! An int8 row consists of blocks of 32 values, each with a scale. The width of a row is a multiple of 32. A
//! row contains:
//!
//! | offset | |
//! | --- | --- |
//! | 0 | quants: i8 `[width]`, −127 … 127, padded to 64 bytes (padding is not written) |
//! | [`scales_offset`] | scales: f32 `[width / 32]`, largest absolute value / 127; value = scale · quant |
//! | [`sums_offset`] | sums of 16 quants each: i32 `[width / 16]` |
//!
//! The distance between rows is [`row_bytes`], a multiple of 64. With the sums, a product can use unsigned
//! weights and subtract their offset once per block. If a block contains a NaN or an infinity, its scale is
//! NaN, and its quants have no meaning. The scale is never infinite, because products could then contain
//! infinities of either sign.

use crate::abi::{HEADER_BYTES, abi_for, array, words};
use crate::cases::{Build, Case, Content, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::Layout;
use crate::rows::{RowKernel, part_grid};
use crate::wgsl::programs::plain;
use crate::wgsl::{HALF_ROWS, INT8_ROWS};
use ragtag_hal::{Access, EntryAbi};

/// Number of values that share a scale.
pub const BLOCK: usize = 32;

/// Returns the offset of the scales within a row of `width` values, in bytes.
pub const fn scales_offset(width: usize) -> usize {
    width.next_multiple_of(64)
}

/// Returns the offset of the sums within a row of `width` values, in bytes.
pub const fn sums_offset(width: usize) -> usize {
    scales_offset(width) + width / BLOCK * 4
}

/// Returns the distance in bytes between consecutive rows of `width` values.
pub const fn row_bytes(width: usize) -> usize {
    (sums_offset(width) + width / BLOCK * 8).next_multiple_of(64)
}

/// Returns the number of bytes in `rows` rows, or `IMPOSSIBLE` if `width` is not a multiple of [`BLOCK`].
pub(crate) fn rows_extent(rows: u32, width: u32) -> u64 {
    if !width.is_multiple_of(BLOCK as u32) {
        return crate::abi::IMPOSSIBLE;
    }
    u64::from(rows).saturating_mul(row_bytes(width as usize) as u64)
}

fn extents(activations: Activations, constants: &[u32], out: &mut [u64]) {
    let [rows, _, width] = array(constants);
    out.copy_from_slice(&[HEADER_BYTES, words(&[rows, width]), activations.rows_extent(rows, width)]);
}

/// Quantizes a row of whole blocks to int8 activations. This is the reference implementation.
pub(crate) fn reference(row: &[f32]) -> Vec<u8> {
    let mut out = vec![0; row_bytes(row.len())];
    for (b, block) in row.chunks_exact(BLOCK).enumerate() {
        let largest = block.iter().fold(0.0_f64, |m, x| m.max(f64::from(x.abs())));
        let is_finite = block.iter().all(|x| x.is_finite());
        let scale = if is_finite { (largest / 127.0) as f32 } else { f32::NAN };
        out[scales_offset(row.len()) + b * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        let mut sums = [0_i32; 2];
        for (i, x) in block.iter().enumerate() {
            let quant = if scale == 0.0 { 0.0 } else { (f64::from(*x) / f64::from(scale)).round() };
            out[b * BLOCK + i] = quant as i8 as u8;
            sums[i / 16] += i32::from(quant as i8);
        }
        for (i, sum) in sums.into_iter().enumerate() {
            out[sums_offset(row.len()) + b * 8 + i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    out
}

/// Decodes a row of int8 activations to its values.
///
/// # Errors
/// Returns a message that identifies the first sum that does not match its quants.
pub(crate) fn values(row: &[u8], width: usize) -> Result<Vec<f64>, String> {
    let word = |at: usize| [row[at], row[at + 1], row[at + 2], row[at + 3]];
    for (i, quants) in row[..width].chunks_exact(16).enumerate() {
        let (sum, stored) = (
            quants.iter().map(|q| i32::from(*q as i8)).sum::<i32>(),
            i32::from_le_bytes(word(sums_offset(width) + i * 4)),
        );
        if sum != stored {
            return Err(format!("sum {i} is {stored} and should be {sum}"));
        }
    }
    let scale = |i: usize| f64::from(f32::from_le_bytes(word(scales_offset(width) + i / BLOCK * 4)));
    Ok(row[..width].iter().enumerate().map(|(i, q)| scale(i) * f64::from(*q as i8)).collect())
}

const WGSL: &str = include_str!("quantize.wgsl");

pub(crate) struct Quantize(pub Activations);

impl Spec for Quantize {
    fn exists(&self) -> bool {
        self.0 != Activations::F32
    }

    fn accuracy(&self) -> Accuracy {
        Accuracy::of_rows(self.0, 1e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi_for!(Activations, self.0, "quantize", &[Access::Read, Access::Read, Access::Write], 3, extents)
    }

    fn row_kernel(&self) -> Option<RowKernel> {
        let (function, wgsl) = match self.0 {
            Activations::F32 => return None,
            Activations::Int8 => ("quantize", plain!("quantize", [INT8_ROWS, WGSL])),
            Activations::F16 => ("quantize_f16", plain!("quantize", [HALF_ROWS, WGSL])),
        };
        Some(RowKernel {
            function: Some(function),
            ..RowKernel::new(part_grid, include_str!("quantize.cl"), wgsl)
        })
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let mut out = Vec::new();
        for (shape, width) in ROW_SHAPES.into_iter().zip([32, 96, 256, 768, 64, 160]) {
            out.push(case(random, self.0, shape, width));
        }
        if self.0 == Activations::Int8 {
            out.push(not_finite());
        }
        out
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let (shape, width) = (RowShape::random(random, 40), 32 * (1 + random.below(30)));
        case(random, self.0, shape, width)
    }
}

/// Builds a case in which one block contains an infinity and another contains a NaN. It checks only the
/// scales.
fn not_finite() -> Case {
    const WIDTH: usize = 2 * BLOCK;
    let mut x = [1.0; WIDTH];
    (x[3], x[BLOCK + 5]) = (f32::INFINITY, f32::NAN);
    let expected = scales_alone(&[Some(f64::NAN); 2]);
    let case = Build::new(Kernel::Quantize(Activations::Int8), "not finite".into(), &[1, 0, WIDTH]);
    let case = case.words(&[1; 4]).floats(&x).floats(&vec![7.0; expected.len()]);
    case.expect(2, Content::SomeSame(expected)).done()
}

/// Returns the expected words of a row of int8 activations, for a case that checks only the scales. All other
/// words are `None`.
pub(crate) fn scales_alone(scales: &[Option<f64>]) -> Vec<Option<f64>> {
    let width = scales.len() * BLOCK;
    let mut row = vec![None; row_bytes(width) / 4];
    row[scales_offset(width) / 4..][..scales.len()].copy_from_slice(scales);
    row
}

fn case(random: &mut Random, activations: Activations, shape: RowShape, width: usize) -> Case {
    let mut x = random.floats(shape.capacity * width, 3.0);
    x[..BLOCK].fill(if shape.rows == 2 { 0.0 } else { -3.0 }); // All quants are 0 or −127.
    let expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let case = Build::new(
        Kernel::Quantize(activations),
        shape.label(width),
        &[shape.capacity, shape.count_word as usize, width],
    );
    let case = case.words(&shape.header()).floats(&x);
    case.expect_rows(2, activations, &expected, shape, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_and_the_reference_is_within_half_a_step() {
        assert_eq!((scales_offset(96), sums_offset(96), row_bytes(96)), (128, 140, 192));
        let row = Random::new(1).floats(96, 2.0);
        let bytes = reference(&row);
        assert_eq!(bytes.len(), row_bytes(96));
        for (x, value) in row.iter().zip(values(&bytes, 96).unwrap()) {
            assert!((f64::from(*x) - value).abs() <= 2.0 / 127.0 * 0.501);
        }
    }
}
