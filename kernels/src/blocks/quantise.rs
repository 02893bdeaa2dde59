//! Quantizes values into file blocks. This is the reference implementation for kernels.
//!
//! For types without sub-blocks, the result matches the `gguf` package bit for bit. For types with
//! sub-blocks, the code tries several scales per sub-block, close to the scale that maps the largest value to
//! the largest quant. With each of these scales, it rounds the quants, and then fits a new scale to them by
//! least squares. The fitted scale with the smallest squared error wins. Values must be finite. A scale
//! beyond the range of f16 becomes infinite.

use super::TensorType;
use super::dequantise::SizeError;
use half::f16;

/// Writes `values` to `blocks` as whole file blocks. Blocks of F32, F16 and BF16 hold one value.
///
/// # Errors
/// Returns [`SizeError`] if `blocks` does not hold exactly `values.len()` values.
pub fn quantise(tensor_type: TensorType, values: &[f32], blocks: &mut [u8]) -> Result<(), SizeError> {
    if tensor_type.bytes(values.len() as u64) != Some(blocks.len() as u64) {
        return Err(SizeError { tensor_type, bytes: blocks.len(), values: values.len() });
    }
    let row = tensor_type.row();
    let blocks = blocks.chunks_exact_mut(row.block_bytes);
    for (values, block) in values.chunks_exact(row.block_values).zip(blocks) {
        (row.quantise)(values, block);
    }
    Ok(())
}

/// Returns the value with the largest magnitude. In a tie, returns the first of these values.
pub(crate) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest })
}

/// Returns the smallest and the largest value.
pub(crate) fn range(values: &[f32]) -> [f32; 2] {
    values.iter().fold([values[0]; 2], |[least, most], x| [least.min(*x), most.max(*x)])
}

/// Returns 1 / x, or 0 for 0.
pub(crate) fn inverse_of(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Rounds to the nearest integer, ties away from zero.
pub(crate) fn rounded(x: f32) -> f32 {
    (x.abs() + 0.5).floor().copysign(x)
}

/// Returns the quants of a block as the block stores them, clamped to 0 … `most`. `quant` computes the quant
/// of a value from the value's index and the value itself.
pub(crate) fn quants<const N: usize>(
    values: &[f32],
    most: f32,
    quant: impl Fn(usize, f32) -> f32,
) -> [u8; N] {
    std::array::from_fn(|i| quant(i, values[i]).clamp(0.0, most) as u8)
}

/// Writes `value` as f16 at byte `at` of a block.
pub(crate) fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Packs one field of each of `count` quants into one byte. The quants are `stride` apart. The field has
/// `bits` bits and starts at bit `low` of the quant.
pub(crate) fn pack_bits(
    quants: &[u8],
    first: usize,
    stride: usize,
    (count, low, bits): (usize, usize, usize),
) -> u8 {
    let part = |n: usize| ((quants[first + n * stride] >> low) & ((1 << bits) - 1)) << (n * bits);
    (0..count).fold(0, |byte, n| byte | part(n))
}

/// Packs 32 quants of 4 bits into 16 bytes: values i and i + 16 share byte i.
pub(crate) fn pack_nibbles(quants: &[u8; 32], out: &mut [u8]) {
    out.iter_mut().enumerate().for_each(|(i, byte)| *byte = pack_bits(quants, i, 16, (2, 0, 4)));
}

/// Packs 32 quants of 5 bits into 20 bytes, in the format that [`fives`](super::fives) reads.
pub(crate) fn pack_fives(quants: &[u8; 32], out: &mut [u8]) {
    let (high, low) = out.split_at_mut(4);
    high.iter_mut().enumerate().for_each(|(i, byte)| *byte = pack_bits(quants, i * 8, 1, (8, 4, 1)));
    pack_nibbles(quants, low);
}

/// Returns the best scale for quants from `least` to `most`, where quant zero represents `minimum`. Each of
/// `inverses` is a candidate for 1 / scale. For each candidate, the function rounds the quants and fits a
/// scale to them.
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

/// Scales and minima of `N` sub-blocks in 256 values.
pub(crate) struct WithMinima<const N: usize> {
    /// f16 bits of d, the common factor of the scales in a block.
    d: u16,
    /// f16 bits of dmin, the common factor of the minima in a block.
    m: u16,
    pub scales: [u8; N],
    pub minima: [u8; N],
    /// For each sub-block, the inverse of the quant step, and the value that quant zero represents.
    steps: [(f32, f32); N],
}

impl<const N: usize> WithMinima<N> {
    /// Fits scales and minima to `values`, for quants from 0 to `most`. Stored scales and minima lie between 0
    /// and `codes`.
    pub fn new(values: &[f32], most: f32, codes: f32) -> Self {
        let (mut scales, mut minima) = ([0.0; N], [0.0; N]);
        for (values, (scale, minimum)) in values.chunks_exact(256 / N).zip(scales.iter_mut().zip(&mut minima))
        {
            let least = values.iter().fold(0.0, |least: f32, x| least.min(*x));
            let range = values.iter().fold(least, |most: f32, x| most.max(*x)) - least;
            let inverses = (0..=20).map(|step| (most - 1.0 + 0.1 * step as f32) * inverse_of(range));
            (*scale, *minimum) = (search(values, least, [0.0, most], inverses), -least);
        }
        let [scale, minimum] = [scales, minima].map(|of| of.into_iter().fold(0.0, f32::max));
        let [d, m] = [scale / codes, minimum / codes].map(f16::from_f32);
        let code = |x: f32, largest: f32| (x * (codes * inverse_of(largest)) + 0.5).floor().min(codes);
        let (scales, minima) = (scales.map(|x| code(x, scale)), minima.map(|x| code(x, minimum)));
        let step = |j: usize| (inverse_of(d.to_f32() * scales[j]), -m.to_f32() * minima[j]);
        Self {
            d: d.to_bits(),
            m: m.to_bits(),
            scales: scales.map(|s| s as u8),
            minima: minima.map(|m| m as u8),
            steps: std::array::from_fn(step),
        }
    }

    /// Returns the quant of value `i` of a block, before clamping.
    pub fn quant(&self, i: usize, value: f32) -> f32 {
        let (inverse, minimum) = self.steps[i / (256 / N)];
        ((value - minimum) * inverse + 0.5).floor()
    }

    /// Writes d and dmin.
    pub fn write_factors(&self, out: &mut [u8]) {
        out[..2].copy_from_slice(&self.d.to_le_bytes());
        out[2..4].copy_from_slice(&self.m.to_le_bytes());
    }
}

impl WithMinima<8> {
    /// Writes d and dmin, and then the packed scales and minima in the format that
    /// [`k_scale`](super::k_scale) reads.
    pub fn write(&self, out: &mut [u8]) {
        let (scales, minima) = (&self.scales, &self.minima);
        self.write_factors(out);
        for i in 0..4 {
            out[4 + i] = scales[i] | scales[i + 4] >> 4 << 6;
            out[8 + i] = minima[i] | minima[i + 4] >> 4 << 6;
            out[12 + i] = (scales[i + 4] & 15) | minima[i + 4] << 4;
        }
    }
}

/// Signed scales of sixteen sub-blocks of 16 values.
pub(crate) struct WithScales {
    /// f16 bits of d, the common factor of the scales in a block.
    pub d: u16,
    pub scales: [i8; 16],
    /// For each sub-block, the inverse of the quant step.
    inverses: [f32; 16],
}

impl WithScales {
    /// Fits scales to `values`, for quants in `range`. Stored scales lie between −`most` and `most` − 1. The
    /// first candidate maps the largest value to −`first`.
    pub fn new(values: &[f32], range: [f32; 2], first: f32, most: f32) -> Self {
        let mut scales = [0.0; 16];
        for (values, scale) in values.chunks_exact(16).zip(&mut scales) {
            let inverse = inverse_of(largest(values));
            let inverses = (0..=18).map(|step| (-first - 0.1 * step as f32) * inverse);
            *scale = search(values, 0.0, range, inverses);
        }
        let d = largest(&scales) / -most;
        let stored = f16::from_f32(d);
        let scales = scales.map(|scale| rounded(scale * inverse_of(d)).clamp(-most, most - 1.0));
        let inverses = scales.map(|s| inverse_of(stored.to_f32() * s));
        Self { d: stored.to_bits(), scales: scales.map(|s| s as i8), inverses }
    }

    /// Returns the signed quant of value `i` of a block, before clamping.
    pub fn quant(&self, i: usize, value: f32) -> f32 {
        rounded(value * self.inverses[i / 16])
    }
}

#[cfg(test)]
mod tests {
    use super::super::dequantise;
    use super::*;
    use crate::cases::Random;

    /// Checks that the relative error ‖decoded − values‖ / ‖values‖ for uniformly distributed values is at
    /// most the limit of each type.
    #[test]
    fn quantised_values_survive_a_round_trip() {
        let mut random = Random::new(5);
        for tensor_type in TensorType::ALL {
            let most = match tensor_type {
                TensorType::F32 => 0.0,
                TensorType::F16 => 3e-4,
                TensorType::BF16 => 3e-3,
                TensorType::Q8_0 => 5e-3,
                TensorType::Q6_K | TensorType::F8_E4M3 => 3e-2,
                TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => 4e-2,
                TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q4_K
                | TensorType::IQ4_NL
                | TensorType::IQ4_XS => 8e-2,
                TensorType::Q3_K | TensorType::MXFP4 => 0.2,
                TensorType::Q2_K => 0.35,
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
