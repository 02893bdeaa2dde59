//! Rotary position embedding.

use super::HostKernel;
use super::isa::Isa;
use super::launch::{Lists, row_mut};
use crate::kernel::Kernel;
use crate::{add, rope};
use ragtag_hal::{EntryAbi, HostCall};
use std::ops::Range;

/// Turns pairs of values by position · frequency.
pub(crate) struct Rope;

/// sin and cos by their series around the nearest multiple of π/2, to 1e-11 for angles below 1e8: plain f64 arithmetic,
/// which the compiler vectorises, and without the calls that a library's functions would be.
#[inline(always)]
fn sin_cos(angle: f64) -> (f32, f32) {
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0; // adding 1.5 · 2^52 rounds to the nearest integer
    let shifted = angle * std::f64::consts::FRAC_2_PI + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    // π/2 in two parts, the first of 33 bits, so that n times it is exact.
    let x = (angle - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    let z = x * x;
    let mut sin = -1.0 / 39_916_800.0;
    for c in [1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0] {
        sin = sin * z + c;
    }
    let sin = sin * x;
    let mut cos = 1.0 / 479_001_600.0;
    for c in [-1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0] {
        cos = cos * z + c;
    }
    let quarter = shifted.to_bits();
    let (s, c) = if quarter & 1 == 0 { (sin, cos) } else { (cos, -sin) };
    if quarter & 2 == 0 { (s as f32, c as f32) } else { (-s as f32, -c as f32) }
}

impl HostKernel for Rope {
    const KERNEL: Kernel = Kernel::Rope;

    fn abi() -> &'static EntryAbi {
        &rope::ABI
    }
    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(_: S, call: &HostCall<'_>, groups: Range<u32>) {
        let &[rows, heads, head_dim, rope_dims, pairing] = call.constants else { return };
        let (head_dim, rope_dims) = (head_dim as usize, rope_dims as usize);
        // SAFETY: nobody writes these; any bits are values of these types.
        let (params, frequencies) = unsafe { (call.read::<u32>(0), call.read::<f32>(1)) };
        let lists = Lists::new(params, [rows, 0, 0, 0]);
        if head_dim == 0 || groups.start as usize >= lists.rows() {
            return;
        }
        let frequencies = &frequencies[..rope_dims / 2];
        let (mut sines, mut cosines) = (vec![0.0; frequencies.len()], vec![0.0; frequencies.len()]);
        for row in (groups.start as usize..groups.end as usize).take_while(|row| *row < lists.rows()) {
            let position = lists.position(row) as f64;
            for (frequency, (sin, cos)) in frequencies.iter().zip(sines.iter_mut().zip(&mut cosines)) {
                (*sin, *cos) = sin_cos(position * f64::from(*frequency));
            }
            // SAFETY: each group writes its own row.
            let x = unsafe { row_mut(call, 2, row, heads as usize * head_dim) };
            for head in x.chunks_exact_mut(head_dim) {
                let turns = sines.iter().zip(&cosines);
                if pairing == rope::INTERLEAVED {
                    for ([a, b], (sin, cos)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                    }
                } else {
                    let (first, last) = head[..rope_dims].split_at_mut(rope_dims / 2);
                    for ((a, b), (sin, cos)) in first.iter_mut().zip(last).zip(turns) {
                        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_cosines_are_those_of_the_library() {
        for i in 0..200_000 {
            let angle = f64::from(i) * 0.713 * if i % 2 == 0 { 1.0 } else { 1e-3 };
            let ((s, c), (sin, cos)) = (sin_cos(angle), angle.sin_cos());
            assert!((f64::from(s) - sin).abs() < 6e-8 && (f64::from(c) - cos).abs() < 6e-8, "{angle}");
        }
    }
}
