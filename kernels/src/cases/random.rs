//! Seeded random inputs.

use crate::blocks::{TensorType, quantise};

/// A small random number generator (SplitMix64) with the same sequence on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns a random number between −`size` and `size`.
    pub fn float(&mut self, size: f32) -> f32 {
        ((self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * size
    }

    pub fn floats(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.float(size)).collect()
    }

    /// Returns a row that is difficult to sort. It contains equal values, NaN, or infinities, depending on
    /// `i`.
    pub fn awkward(&mut self, i: usize, width: usize) -> Vec<f32> {
        let mut row = self.floats(width, 30.0);
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        match i % 8 {
            0 => row.fill(-1.0),
            1 => row.iter_mut().for_each(|x| *x = (*x / 10.0).round()), // Equal values, zeros of both signs.
            2 => row.iter_mut().step_by(3).for_each(|x| *x = nan),
            3 => row.fill(nan),
            4 => row.fill(-infinity),
            5 => [infinity, nan, infinity].into_iter().for_each(|x| row[self.below(width)] = x),
            6 => row.iter_mut().for_each(|x| *x = if *x < 20.0 { nan } else { -infinity }),
            _ => {} // No or few equal values.
        }
        row
    }

    /// Returns the numbers 0 … `count` − 1 in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<u32> {
        let mut out: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            out.swap(i, self.below(i + 1));
        }
        out
    }

    /// Returns random file blocks. Their quants are arbitrary, and their scales have magnitudes that are
    /// typical of models.
    pub fn blocks(&mut self, tensor_type: TensorType, values: usize) -> Vec<u8> {
        let mut out = vec![0; values / tensor_type.block_values() * tensor_type.block_bytes()];
        if tensor_type.block_values() == 1 {
            quantise(tensor_type, &self.floats(values, 1.0), &mut out).expect("sizes agree");
            return out;
        }
        out.iter_mut().for_each(|byte| *byte = self.next() as u8);
        for block in out.chunks_exact_mut(tensor_type.block_bytes()) {
            tensor_type.scales().iter().for_each(|scale| scale.put(block, self.float(0.02)));
        }
        out
    }
}
