//! RoPE and KV append.

use super::HostKernel;
use super::isa::Isa;
use super::kv::{Stored, pair, part_bytes};
use super::launch::Lists;
use crate::abi::split_capacities;
use crate::kernel::Kernel;
use crate::params::BLOCK_TOKENS;
use crate::rope_append;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// Computes the sine and cosine of an angle by series around the nearest multiple of π/2. The error is 1e-11
/// for angles below 1e8. The function uses only plain f64 arithmetic, because library calls would keep the
/// compiler from vectorizing it.
#[inline(always)]
fn sin_cos(angle: f64) -> (f32, f32) {
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0; // Adding 1.5 · 2^52 rounds to the nearest integer.
    let shifted = angle * std::f64::consts::FRAC_2_PI + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    // Subtracts n · π/2 in two parts. The first part has 33 bits, so its product with n is exact.
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

/// Sines and cosines of the rotation angles at one position, times the magnitude.
struct Turns {
    sines: Vec<f32>,
    cosines: Vec<f32>,
}

impl Turns {
    fn new(pairs: usize) -> Self {
        Self { sines: vec![0.0; pairs], cosines: vec![0.0; pairs] }
    }

    #[inline(always)]
    fn set(&mut self, frequencies: &[f32], position: usize, magnitude: f32) {
        let places = self.sines.iter_mut().zip(&mut self.cosines);
        for (frequency, (sin, cos)) in frequencies.iter().zip(places) {
            (*sin, *cos) = sin_cos(position as f64 * f64::from(*frequency));
            (*sin, *cos) = (*sin * magnitude, *cos * magnitude);
        }
    }

    /// Rotates the values of one head.
    #[inline(always)]
    fn turn(&self, head: &mut [f32], pairing: u32) {
        let turns = self.sines.iter().zip(&self.cosines);
        if pairing == rope_append::INTERLEAVED {
            for ([a, b], (sin, cos)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        } else {
            let (first, last) = head[..self.sines.len() * 2].split_at_mut(self.sines.len());
            for ((a, b), (sin, cos)) in first.iter_mut().zip(last).zip(turns) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}

/// Rotates queries and keys, and appends keys and values.
pub(crate) struct RopeAppend<K, V>(PhantomData<(K, V)>);

impl<K: Stored, V: Stored> HostKernel for RopeAppend<K, V> {
    const KERNEL: Kernel = Kernel::RopeAppend(pair(K::TYPE, V::TYPE));

    fn grid(constants: &[u32]) -> [u32; 3] {
        rope_append::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let (capacities, [heads, kv_heads, head_dim, cache_blocks, rope_dims, pairing, _, tables]) =
            split_capacities(call.constants);
        let [heads, kv_heads, head_dim] = [heads, kv_heads, head_dim].map(|count| count as usize);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for these types.
        let (params, frequencies) = unsafe { (call.read::<u32>(0), call.read::<f32>(2)) };
        let lists = Lists::new(params, capacities);
        if head_dim == 0 {
            return;
        }
        let pairs = rope_dims as usize / 2;
        let mut turns = Turns::new(pairs);
        let (group, width) = (heads / kv_heads.max(1), (heads + 2 * kv_heads) * head_dim);
        let mut key = vec![0.0; head_dim];
        for head in groups.start as usize..groups.end as usize {
            for row in 0..lists.rows() {
                let part = |first_head: usize, count: usize| {
                    let at = row * width + first_head * head_dim;
                    // SAFETY: each group takes its own heads' queries, keys and values of every row.
                    unsafe { call.write::<f32>(1, at..at + count * head_dim) }
                };
                let position = lists.position(row);
                let table = lists.sequence(row).min(tables as usize - 1);
                turns.set(&frequencies[table * pairs..][..pairs], position, call.float(10));
                for q in part(head * group, group).chunks_exact_mut(head_dim) {
                    turns.turn(q, pairing);
                }
                let block = lists.table(row).and_then(|table| table.get(position / BLOCK_TOKENS));
                let Some(block) = block.filter(|block| **block < cache_blocks) else { continue };
                let part_of_block = *block as usize * kv_heads + head;
                let cut = |bytes: usize| part_of_block * bytes..(part_of_block + 1) * bytes;
                let (keys, values) = (cut(part_bytes::<K>(head_dim)), cut(part_bytes::<V>(head_dim)));
                // SAFETY: each group writes its own head of every block.
                let (keys, values) = unsafe { (call.write::<u8>(3, keys), call.write::<u8>(4, values)) };
                let slot = position % BLOCK_TOKENS;
                key.copy_from_slice(part(heads + head, 1));
                turns.turn(&mut key, pairing);
                K::put_key(s, &key, keys, slot);
                V::put_value(s, part(heads + kv_heads + head, 1), values, slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_cosines_match_the_library() {
        for i in 0..200_000 {
            let angle = f64::from(i) * 0.713 * if i % 2 == 0 { 1.0 } else { 1e-3 };
            let ((s, c), (sin, cos)) = (sin_cos(angle), angle.sin_cos());
            assert!((f64::from(s) - sin).abs() < 6e-8 && (f64::from(c) - cos).abs() < 6e-8, "{angle}");
        }
    }
}
