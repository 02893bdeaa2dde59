//! Draws from the softmax of a row without computing it: the largest of the keys (value − largest) · scale + noise, with
//! independent Gumbel noise for each id, is distributed like exp(value · scale). (Gumbel, "Statistical theory of extreme
//! values", 1954.)
//!
//! The noise follows from a seed and the id, so every device and the host draw the same id, unless two keys are as close
//! as rounding errors.

/// A draw from one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The two words of the seed.
    pub seed: [u32; 2],
    /// Factor of the values, the reciprocal of the temperature. Nothing is drawn if it is 0.
    pub scale: f32,
}

impl Draw {
    /// Number of words of a draw in the parameter block.
    pub const WORDS: usize = 3;

    /// Returns the words of the parameter block.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.seed[0], self.seed[1], self.scale.to_bits()]
    }

    /// Returns the draw that these words of a parameter block describe.
    #[inline(always)]
    pub fn of_words(words: &[u32; Self::WORDS]) -> Self {
        Self { seed: [words[0], words[1]], scale: f32::from_bits(words[2]) }
    }

    /// Returns (value − largest) · scale. Infinity counts as the largest finite number. Halves keep the difference finite.
    #[inline(always)]
    pub(crate) fn scaled(&self, value: f32, largest: f32) -> f32 {
        (0.5 * value.min(f32::MAX) - 0.5 * largest) * (2.0 * self.scale)
    }

    /// Returns the id with the largest key and its key, for values whose first id is `first`. `largest` is the largest
    /// finite value or, with an infinity, the largest finite number. Returns `None` if nothing is drawn, or if all values
    /// are NaN or −∞.
    #[inline(always)]
    pub fn of(&self, values: &[f32], first: u32, largest: f32) -> Option<(f32, u32)> {
        if self.scale <= 0.0 || self.scale.is_nan() {
            return None;
        }
        let mut best: Option<(f32, u32)> = None;
        for (start, values) in (first..).step_by(LANES).zip(values.chunks(LANES)) {
            let mut row = [f32::NAN; LANES];
            row[..values.len()].copy_from_slice(values);
            let (mut words, mut bounds) = ([0; LANES], [0.0; LANES]);
            for lane in 0..LANES {
                let word = self.word(start + lane as u32);
                words[lane] = word;
                // The minimum of NaN and a number is the number.
                bounds[lane] = if row[lane].is_nan() {
                    f32::NEG_INFINITY
                } else {
                    self.scaled(row[lane], largest) + bound(word)
                };
            }
            let least = best.map_or(f32::NEG_INFINITY, |(key, _)| key);
            let reaching = bounds.iter().fold(false, |any, bound| any | (*bound > least));
            if !reaching {
                continue;
            }
            for (lane, value) in values.iter().enumerate().filter(|(_, value)| **value > f32::NEG_INFINITY) {
                let key = self.scaled(*value, largest) + gumbel(words[lane]);
                if key > f32::NEG_INFINITY && best.is_none_or(|(best, _)| key > best) {
                    best = Some((key, start + lane as u32));
                }
            }
        }
        best
    }

    /// Returns the id with the largest key and its key in double precision, and by how much the next key is smaller.
    pub(super) fn exact(&self, values: &[f32], first: u32) -> Option<(f64, u32, f64)> {
        let finite = |value: f32| f64::from(value.min(f32::MAX));
        let largest = values.iter().filter(|value| !value.is_nan()).map(|value| finite(*value));
        let largest = largest.fold(f64::NEG_INFINITY, f64::max);
        let (mut best, mut next) = (None, f64::NEG_INFINITY);
        let candidates = values.iter().zip(first..).filter(|(value, _)| **value > f32::NEG_INFINITY);
        for (value, id) in candidates.filter(|_| self.scale > 0.0) {
            let unit = (f64::from(self.word(id)) + 0.5) / (1u64 << 32) as f64;
            let key = (finite(*value) - largest) * f64::from(self.scale) - (-(-unit).ln_1p()).ln();
            if best.is_none_or(|(best, _)| key > best) {
                next = best.replace((key, id)).map_or(next, |(key, _)| key);
            } else {
                next = next.max(key);
            }
        }
        best.map(|(key, id)| (key, id, key - next))
    }

    /// Returns the uniform word of an id.
    #[inline(always)]
    fn word(&self, id: u32) -> u32 {
        mixed(mixed(id.wrapping_mul(0x9e37_79b9).wrapping_add(self.seed[0])) ^ self.seed[1])
    }
}

/// Number of values whose noise is bounded together. Few values reach the best key so far, and only they need logarithms.
const LANES: usize = 16;

/// Returns a word that depends on all bits of another one: the last step of MurmurHash3 (Appleby, public domain).
#[inline(always)]
fn mixed(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

/// Returns an upper bound of the noise of a word, from its number of leading zeros.
#[inline(always)]
fn bound(word: u32) -> f32 {
    let exponent = ((word >> 1 | 1) as i32 as f32).to_bits() >> 23;
    (34 + 127 - exponent as i32) as f32 * std::f32::consts::LN_2
}

/// Returns Gumbel noise from a uniform word.
#[inline(always)]
fn gumbel(word: u32) -> f32 {
    const UNIT: f32 = 1.0 / (1u64 << 32) as f32;
    let (low, high) = ((word as f32 + 0.5) * UNIT, (!word as f32 + 0.5) * UNIT);
    // Near 1, −ln is as exact as near 0.
    let series = low * (1.0 + low * (0.5 + low * (1.0 / 3.0 + low * 0.25)));
    -(if low < 1.0 / 64.0 { series } else { -high.ln() }).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_exact_and_bounded() {
        let ends =
            [0, 1, 2, 3, 255, 1 << 26, u32::MAX / 64, u32::MAX / 64 + 1, 1 << 31, u32::MAX - 1, u32::MAX];
        for word in ends.into_iter().chain((0..10_000).map(|i| mixed(i) >> (i % 31))) {
            let noise = gumbel(word);
            let exact = -(-(-(f64::from(word) + 0.5) / (1u64 << 32) as f64).ln_1p()).ln();
            assert!((f64::from(noise) - exact).abs() < 4e-6, "{word}: {noise}, {exact}");
            assert!(bound(word) > noise, "{word}: {noise}, {}", bound(word));
        }
    }

    #[test]
    fn the_largest_key_is_drawn() {
        for seed in 0..200 {
            let draw = Draw { seed: [mixed(seed), seed], scale: [0.5, 1.0, 3.0][seed as usize % 3] };
            let values: Vec<f32> = (0..300).map(|id| (mixed(id ^ seed << 9) % 1000) as f32 / 100.0).collect();
            let (key, id) = draw.of(&values, 7, values.iter().copied().fold(0.0, f32::max)).unwrap();
            let (expected, best, margin) = draw.exact(&values, 7).unwrap();
            assert!((f64::from(key) - expected).abs() < 1e-5, "{seed}: {key}, {expected}");
            assert!(id == best || margin < 1e-5, "{seed}: {id}, {best}");
        }
    }

    #[test]
    fn only_candidates_are_drawn() {
        let draw = Draw { seed: [1, 2], scale: 1.0 };
        let id = |draw: Draw, values: &[f32], largest| draw.of(values, 5, largest).map(|(_, id)| id);
        assert_eq!(id(draw, &[f32::NAN, f32::NEG_INFINITY], f32::NEG_INFINITY), None);
        assert_eq!(id(draw, &[], f32::NEG_INFINITY), None);
        assert_eq!(id(Draw { scale: 0.0, ..draw }, &[1.0], 1.0), None);
        assert_eq!(id(draw, &[f32::NAN, f32::MIN, f32::NAN], f32::MIN), Some(6));
        assert_eq!(id(draw, &[f32::MIN, f32::INFINITY, f32::MIN], f32::MAX), Some(6));
        assert_eq!(Draw::of_words(&draw.words()), draw);
    }
}
