//! Draws from the softmax of a whole row of logits, without filters. The row has a hundred thousand logits or more, and
//! every token reads all of them. So this draw keeps only the sum of the weights of each block, and computes weights in
//! f32, with loops that the compiler can vectorise. Weights below 2⁻¹²⁵ of the largest one count as zero.

use super::{Sampling, Scratch, SplitMix64, largest};

/// Number of logits per block.
const BLOCK: usize = 1024;
/// Number of independent sums of a block.
const LANES: usize = 16;

impl Sampling {
    /// Returns whether the settings leave the distribution as it is, except for the temperature.
    pub(super) fn is_plain(&self) -> bool {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *self;
        temperature > 0.0 && top_k == 0 && top_p == 1.0 && min_p == 0.0 && repetition_penalty == 1.0
    }
}

impl Scratch {
    /// Draws a token from the softmax of `logits`. Returns `None` if all logits are NaN or negative infinity.
    pub(super) fn draw_plain(
        &mut self,
        logits: &[f32],
        temperature: f32,
        draws: &mut SplitMix64,
    ) -> Option<u32> {
        let best = logits.chunks(BLOCK).map(largest).fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return None;
        }
        let scale = (std::f32::consts::LOG2_E / temperature).min(f32::MAX);
        self.weights.clear();
        self.weights.extend(logits.chunks(BLOCK).map(|block| sum(block, best, scale)));
        let mut left = draws.unit() * self.weights.iter().sum::<f64>();
        // Rounding may leave a remainder after the last weight. Then the draw takes the last token with a weight.
        let last = self.weights.iter().rposition(|sum| *sum > 0.0)?;
        for (at, (block, sum)) in logits.chunks(BLOCK).zip(&self.weights).enumerate() {
            if left < *sum || at == last {
                let token = at * BLOCK + find(block, best, scale, left)?;
                return u32::try_from(token).ok();
            }
            left -= sum;
        }
        None
    }
}

/// Returns the position in a block at which the sum of weights exceeds `left`, or the last position with a weight.
fn find(block: &[f32], best: f32, scale: f32, mut left: f64) -> Option<usize> {
    let mut last = None;
    for (at, logit) in block.iter().enumerate() {
        let weight = f64::from(weight(*logit, best, scale));
        if weight > 0.0 {
            last = Some(at);
            if left < weight {
                return last;
            }
        }
        left -= weight;
    }
    last
}

/// Returns the sum of the weights of a block.
fn sum(block: &[f32], best: f32, scale: f32) -> f64 {
    let (lanes, rest) = block.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for lane in lanes {
        for (sum, logit) in sums.iter_mut().zip(lane) {
            *sum += weight(*logit, best, scale);
        }
    }
    let rest = rest.iter().map(|logit| f64::from(weight(*logit, best, scale)));
    sums.into_iter().map(f64::from).sum::<f64>() + rest.sum::<f64>()
}

/// Computes 2 to the power of (logit − best) · scale, with a relative error of about 1e-7 besides that of the exponent, for
/// a logit of at most `best`. The result is 0 for NaN and for exponents below −125.
#[inline(always)]
fn weight(logit: f32, best: f32, scale: f32) -> f32 {
    // Adding this number rounds to an integer, and leaves the integer in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    // The Taylor series of 2 to the power of a number between −½ and ½.
    const SERIES: [f32; 6] = [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];
    let finite = if logit > f32::MAX { f32::MAX } else { logit };
    let x = (finite - best) * scale;
    let rounded = x + ROUNDING;
    let r = x - (rounded - ROUNDING);
    let mut p = 1.540_353e-4;
    for c in SERIES {
        p = p * r + c;
    }
    let scaled = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23));
    if x >= -125.0 { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_distribution, plain};
    use super::*;

    /// Rows of several blocks, whose likely tokens are at the ends of blocks and of lanes, among values that are no
    /// candidates.
    #[test]
    fn draws_of_several_blocks_follow_the_softmax() {
        let length = 3 * BLOCK + 21;
        let ids = [0, 15, 16, 1023, 1024, 1500, 2047, 2048, 3071, 3072, 3087, 3088, length - 1];
        let mut logits: Vec<f32> = (0..length).map(|id| [f32::NAN, f32::NEG_INFINITY][id % 2]).collect();
        for (at, id) in ids.iter().enumerate() {
            logits[*id] = (at * 5 % 7) as f32 / 2.0 - 40.0;
        }
        for temperature in [0.6, 1.0, 4.0] {
            let weight =
                |logit: &f32| if logit.is_nan() { 0.0 } else { (f64::from(*logit) / temperature).exp() };
            let expected: Vec<f64> = logits.iter().map(weight).collect();
            let settings = Sampling { temperature: temperature as f32, ..plain() };
            assert!(settings.is_plain());
            assert_distribution(settings, &logits, &[], &expected);
        }
    }

    #[test]
    fn extreme_rows_have_a_token() {
        let draw = |logits: &[f32], temperature| {
            Scratch::default().draw_plain(logits, temperature, &mut SplitMix64(5))
        };
        assert_eq!(draw(&[f32::NAN, f32::MIN, f32::NAN], 1.0), Some(1));
        assert_eq!(draw(&[f32::MIN, f32::INFINITY], 1e-40), Some(1));
        assert_eq!(draw(&[1.0, 2.0, 1.5], f32::MIN_POSITIVE), Some(1));
        assert_eq!(draw(&[f32::NAN, f32::NEG_INFINITY], 1.0), None);
        assert_eq!(draw(&[], 1.0), None);
    }

    #[test]
    fn weights_match_the_exponential() {
        let scale = std::f32::consts::LOG2_E;
        for step in 0..100_000 {
            let logit = -86.0 * step as f32 / 1e5;
            let expected = f64::from(logit * scale).exp2();
            assert!((f64::from(weight(logit, 0.0, scale)) / expected - 1.0).abs() < 4e-7, "{logit}");
        }
        assert_eq!(weight(-90.0, 0.0, scale), 0.0);
        assert_eq!(weight(f32::NAN, 0.0, scale), 0.0);
    }
}
