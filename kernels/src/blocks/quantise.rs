//! Quantizes values into file blocks. This is the reference for kernels.
//!
//! For types without sub-blocks, the result matches the `gguf` package bit for bit. For types with
//! sub-blocks, each sub-block tries several scales, close to the scale that maps its largest value to the
//! largest quant. For each candidate, the code rounds the quants and fits the scale to them by least squares.
//! The scale with the smallest squared error wins. Values must be finite. A scale beyond the range of f16
//! becomes infinite.

use super::TensorType;
use super::dequantise::SizeError;
use half::f16;

/// Writes `values` to `blocks` as whole file blocks. Blocks of F32, F16 and BF16 hold one value.
///
/// # Errors
/// [`SizeError`] if `blocks` does not hold exactly `values.len()` values.
pub fn quantise(tensor_type: TensorType, values: &[f32], blocks: &mut [u8]) -> Result<(), SizeError> {
    if tensor_type.bytes(values.len() as u64) != Some(blocks.len() as u64) {
        return Err(SizeError { tensor_type, bytes: blocks.len(), values: values.len() });
    }
    let blocks = blocks.chunks_exact_mut(tensor_type.block_bytes());
    for (values, block) in values.chunks_exact(tensor_type.block_values()).zip(blocks) {
        match tensor_type {
            TensorType::F32 => block.copy_from_slice(&values[0].to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&f16::from_f32(values[0]).to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(values[0]).to_le_bytes()),
            _ => Block::new(tensor_type, values).write(block),
        }
    }
    Ok(())
}

/// Conversion of values to quants.
#[derive(Clone, Copy, Default)]
struct Steps {
    /// Inverse of the quant step; zero if all quants represent the same value.
    inverse: f32,
    /// Value of quant zero, for types whose quants are not centred.
    minimum: f32,
}

/// A block with its scales.
struct Block<'a> {
    tensor_type: TensorType,
    values: &'a [f32],
    /// Bits of d, and of m or dmin.
    d: u16,
    m: u16,
    /// Conversion to quants of each sub-block, and its scale and minimum as stored.
    steps: [Steps; 16],
    scales: [u8; 16],
    minima: [u8; 16],
}

/// Returns the value with the largest magnitude, or the first of several.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest })
}

fn inverse_of(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Rounds to the nearest integer, ties away from zero.
fn rounded(x: f32) -> f32 {
    (x.abs() + 0.5).floor().copysign(x)
}

/// Returns the best scale for quants from `least` to `most`, where quant zero represents `minimum`.
/// `inverses` yields the inverses of the candidate scales.
fn search(values: &[f32], minimum: f32, [least, most]: [f32; 2], inverses: impl Iterator<Item = f32>) -> f32 {
    let mut best = (f32::INFINITY, 0.0);
    for inverse in inverses {
        let quant = |x: f32| rounded((x - minimum) * inverse).clamp(least, most);
        let (mut products, mut squares) = (0.0, 0.0);
        for x in values {
            let q = quant(*x);
            products += q * (x - minimum);
            squares += q * q;
        }
        let scale = if squares == 0.0 { 0.0 } else { products / squares };
        let error = |x: &f32| (scale * quant(*x) + minimum - x).powi(2);
        let error: f32 = values.iter().map(error).sum();
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

impl<'a> Block<'a> {
    fn new(tensor_type: TensorType, values: &'a [f32]) -> Self {
        let block = Self {
            tensor_type,
            values,
            d: 0,
            m: 0,
            steps: [Steps::default(); 16],
            scales: [0; 16],
            minima: [0; 16],
        };
        match tensor_type {
            TensorType::Q4_K | TensorType::Q5_K => block.with_minima(),
            TensorType::Q6_K => block.with_scales(),
            _ => block.alone(),
        }
    }

    /// Returns the largest quant.
    fn most(&self) -> f32 {
        match self.tensor_type {
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4_K => 15.0,
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => 31.0,
            TensorType::Q6_K => 63.0,
            TensorType::Q8_0 => 255.0,
            _ => 2.0,
        }
    }

    /// Computes one scale and minimum for the whole block.
    fn alone(mut self) -> Self {
        let (mut minimum, mut maximum) = (self.values[0], self.values[0]);
        for x in self.values {
            (minimum, maximum) = (minimum.min(*x), maximum.max(*x));
        }
        let (d, minimum) = match self.tensor_type {
            TensorType::Q4_1 | TensorType::Q5_1 => ((maximum - minimum) / self.most(), minimum),
            TensorType::Q4_0 => (largest(self.values) / -8.0, 0.0),
            TensorType::Q5_0 => (largest(self.values) / -16.0, 0.0),
            TensorType::Q8_0 => (largest(self.values).abs() / 127.0, 0.0),
            _ => (largest(self.values).abs(), 0.0),
        };
        (self.d, self.m) = (half_bits(d), half_bits(minimum));
        self.steps[0] = Steps { inverse: inverse_of(d), minimum };
        self
    }

    /// Computes the 6-bit scales and minima of eight sub-blocks.
    fn with_minima(mut self) -> Self {
        let most = self.most();
        let (mut scales, mut minima) = ([0.0; 8], [0.0; 8]);
        for (values, (scale, minimum)) in self.values.chunks_exact(32).zip(scales.iter_mut().zip(&mut minima))
        {
            let least = values.iter().fold(0.0, |least: f32, x| least.min(*x));
            let range = values.iter().fold(least, |most: f32, x| most.max(*x)) - least;
            let inverses = (0..=20).map(|step| (most - 1.0 + 0.1 * step as f32) * inverse_of(range));
            (*scale, *minimum) = (search(values, least, [0.0, most], inverses), -least);
        }
        let [scale, minimum] = [scales, minima].map(|of| of.into_iter().fold(0.0, f32::max));
        (self.d, self.m) = (half_bits(scale / 63.0), half_bits(minimum / 63.0));
        for j in 0..8 {
            let code = |x: f32, largest: f32| (x * (63.0 * inverse_of(largest)) + 0.5).floor().min(63.0);
            let (s, m) = (code(scales[j], scale), code(minima[j], minimum));
            (self.scales[j], self.minima[j]) = (s as u8, m as u8);
            let inverse = inverse_of(half_value(self.d) * s);
            self.steps[j] = Steps { inverse, minimum: -half_value(self.m) * m };
        }
        self
    }

    /// Computes the 8-bit scales of sixteen sub-blocks.
    fn with_scales(mut self) -> Self {
        let mut scales = [0.0; 16];
        for (values, scale) in self.values.chunks_exact(16).zip(&mut scales) {
            let inverse = inverse_of(largest(values));
            let inverses = (0..=18).map(|step| (-31.1 - 0.1 * step as f32) * inverse);
            *scale = search(values, 0.0, [-32.0, 31.0], inverses);
        }
        let d = largest(&scales) / -128.0;
        self.d = half_bits(d);
        for (j, scale) in scales.into_iter().enumerate() {
            let s = rounded(scale * inverse_of(d)).clamp(-128.0, 127.0);
            self.scales[j] = s as i8 as u8;
            self.steps[j].inverse = inverse_of(half_value(self.d) * s);
        }
        self
    }

    /// Returns the stored quant of value `i`.
    fn quant(&self, i: usize) -> u8 {
        let sub_values = match self.tensor_type {
            TensorType::Q4_K | TensorType::Q5_K => 32,
            TensorType::Q6_K => 16,
            _ => 256,
        };
        let Steps { inverse, minimum } = self.steps[i / sub_values];
        let x = (self.values[i] - minimum) * inverse;
        let quant = match self.tensor_type {
            TensorType::Q4_0 => (x + 8.5).floor(),
            TensorType::Q5_0 => (x + 16.5).floor(),
            TensorType::Q8_0 => rounded(x) + 128.0,
            TensorType::Q6_K => rounded(x) + 32.0,
            TensorType::TQ1_0 | TensorType::TQ2_0 => rounded(x) + 1.0,
            _ => (x + 0.5).floor(),
        };
        quant.clamp(0.0, self.most()) as u8
    }

    /// Packs `count` quants into a byte. The quants are `stride` values apart, and each contributes `bits`
    /// bits from bit `low` on.
    fn bits(&self, first: usize, stride: usize, (count, low, bits): (usize, usize, usize)) -> u8 {
        let part = |n: usize| ((self.quant(first + n * stride) >> low) & ((1 << bits) - 1)) << (n * bits);
        (0..count).fold(0, |byte, n| byte | part(n))
    }

    /// Packs five quants as base-3 digits, times 256/243, rounded up.
    fn digits(&self, first: usize, stride: usize, count: usize) -> u8 {
        let digit = |n: usize| if n < count { u16::from(self.quant(first + n * stride)) } else { 0 };
        ((0..5).fold(0, |number, n| number * 3 + digit(n)) * 256).div_ceil(243) as u8
    }

    /// Returns byte `i` of the twelve that hold eight 6-bit scales and minima.
    fn packed_scale(&self, i: usize) -> u8 {
        let (scales, minima) = (&self.scales, &self.minima);
        match i {
            0..4 => scales[i] | scales[i + 4] >> 4 << 6,
            4..8 => minima[i - 4] | minima[i] >> 4 << 6,
            _ => (scales[i - 4] & 15) | minima[i - 4] << 4,
        }
    }

    /// Returns byte `at` of the block. [`super::dequantise()`] defines the formats.
    fn byte(&self, at: usize) -> u8 {
        let nibbles = |i: usize| self.bits(i, 16, (2, 0, 4));
        let pairs = |i: usize| self.bits(i / 32 * 64 + i % 32, 32, (2, 0, 4));
        let (d, m) = (self.d.to_le_bytes(), self.m.to_le_bytes());
        match (self.tensor_type, at) {
            (TensorType::Q6_K, 0..128) => self.bits(at / 64 * 128 + at % 64, 64, (2, 0, 4)),
            (TensorType::Q6_K, 128..192) => self.bits((at - 128) / 32 * 128 + at % 32, 32, (4, 4, 2)),
            (TensorType::Q6_K, 192..208) => self.scales[at - 192],
            (TensorType::TQ1_0, 0..32) => self.digits(at, 32, 5),
            (TensorType::TQ1_0, 32..48) => self.digits(160 + at - 32, 16, 5),
            (TensorType::TQ1_0, 48..52) => self.digits(240 + at - 48, 4, 4),
            (TensorType::TQ2_0, 0..64) => self.bits(at / 32 * 128 + at % 32, 32, (4, 0, 2)),
            (TensorType::Q6_K | TensorType::TQ1_0 | TensorType::TQ2_0, _) => d[at % 2],
            (_, 0..2) => d[at],
            (TensorType::Q8_0, _) => self.quant(at - 2) ^ 0x80,
            (TensorType::Q4_0, _) => nibbles(at - 2),
            (TensorType::Q5_0, 2..6) => self.bits((at - 2) * 8, 1, (8, 4, 1)),
            (TensorType::Q5_0, _) => nibbles(at - 6),
            (_, 2..4) => m[at - 2],
            (TensorType::Q4_1, _) => nibbles(at - 4),
            (TensorType::Q5_1, 4..8) => self.bits((at - 4) * 8, 1, (8, 4, 1)),
            (TensorType::Q5_1, _) => nibbles(at - 8),
            (_, 4..16) => self.packed_scale(at - 4),
            (TensorType::Q5_K, 16..48) => self.bits(at - 16, 32, (8, 4, 1)),
            (TensorType::Q5_K, _) => pairs(at - 48),
            _ => pairs(at - 16),
        }
    }

    fn write(&self, out: &mut [u8]) {
        out.iter_mut().enumerate().for_each(|(at, byte)| *byte = self.byte(at));
    }
}

fn half_bits(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

fn half_value(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

#[cfg(test)]
mod tests {
    use super::super::dequantise;
    use super::*;
    use crate::cases::Random;

    /// Compares ‖decoded − values‖ / ‖values‖ with the maximum of each type, for uniformly distributed
    /// values.
    #[test]
    fn quantised_values_survive_a_round_trip() {
        let mut random = Random::new(5);
        for tensor_type in TensorType::ALL {
            let most = match tensor_type {
                TensorType::F32 => 0.0,
                TensorType::F16 => 3e-4,
                TensorType::BF16 => 3e-3,
                TensorType::Q8_0 => 5e-3,
                TensorType::Q6_K => 2.5e-2,
                TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => 4e-2,
                TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4_K => 8e-2,
                _ => 0.55,
            };
            let values = random.floats(2048, 3.0);
            let mut blocks = vec![0xff; tensor_type.bytes(2048).unwrap() as usize];
            quantise(tensor_type, &values, &mut blocks).unwrap();
            let mut back = vec![f32::NAN; 2048];
            dequantise(tensor_type, &blocks, &mut back).unwrap();
            let distance = |f: &dyn Fn(usize) -> f32| (0..2048).map(|i| f64::from(f(i)).powi(2)).sum::<f64>();
            let error = (distance(&|i| back[i] - values[i]) / distance(&|i| values[i])).sqrt();
            assert!(error <= most, "{tensor_type}: {error}");
        }
    }

    #[test]
    fn representable_values_survive_a_round_trip_exactly() {
        let mut random = Random::new(6);
        for tensor_type in
            [TensorType::Q8_0, TensorType::Q4_0, TensorType::Q5_0, TensorType::TQ1_0, TensorType::TQ2_0]
        {
            let most = match tensor_type {
                TensorType::Q8_0 => 127,
                TensorType::Q4_0 => 8,
                TensorType::Q5_0 => 16,
                _ => 1,
            };
            let mut values: Vec<f32> =
                (0..512).map(|_| (random.below(2 * most) as f32 - most as f32) * 0.5).collect();
            values.iter_mut().step_by(32).for_each(|x| *x = -(most as f32) * 0.5);
            let mut blocks = vec![0xff; tensor_type.bytes(512).unwrap() as usize];
            quantise(tensor_type, &values, &mut blocks).unwrap();
            let mut back = vec![f32::NAN; 512];
            dequantise(tensor_type, &blocks, &mut back).unwrap();
            assert_eq!(back, values, "{tensor_type}");
        }
    }

    #[test]
    fn zeros_stay_zero_and_sizes_must_agree() {
        for tensor_type in TensorType::ALL {
            let bytes = tensor_type.bytes(256).unwrap() as usize;
            let (mut blocks, mut back) = (vec![0xff; bytes], vec![f32::NAN; 256]);
            quantise(tensor_type, &[0.0; 256], &mut blocks).unwrap();
            dequantise(tensor_type, &blocks, &mut back).unwrap();
            assert_eq!(back, [0.0; 256], "{tensor_type}");
            assert!(quantise(tensor_type, &[0.0; 256], &mut blocks[1..]).is_err());
        }
    }
}
