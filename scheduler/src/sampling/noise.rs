//! Draws from whole rows of logits, without filters. The token with the largest sum of scaled logit and noise is drawn: see
//! [`ragtag_kernels::picks::noise`]. The device finds it, so the host does not read the row.

use super::{Sampler, Sampling, SplitMix64, largest};
use ragtag_kernels::picks::noise::Draw;
use serde::{Deserialize, Serialize};

/// Range of the temperatures of such draws. Others count as the nearest of them.
const TEMPERATURES: [f32; 2] = [1e-3, 1e3];

/// Noise of a sequence, or of one of its draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noise {
    /// Seed.
    pub seed: u64,
    /// Bits of the factor of the logits, an f32.
    pub scale: u32,
}

impl Noise {
    /// Returns the noise of a sequence's draw after `tokens` generated tokens.
    pub fn after(self, tokens: u32) -> Self {
        let mut draws = SplitMix64(self.seed);
        draws.skip(tokens);
        Self { seed: draws.next(), ..self }
    }

    /// Returns the parameters of this draw.
    pub fn draw(self) -> Draw {
        Draw { seed: [self.seed as u32, (self.seed >> 32) as u32], scale: f32::from_bits(self.scale) }
    }
}

impl Sampling {
    /// Returns whether the settings leave the distribution as it is, except for the temperature.
    pub(super) fn is_plain(&self) -> bool {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *self;
        temperature > 0.0 && top_k == 0 && top_p == 1.0 && min_p == 0.0 && repetition_penalty == 1.0
    }

    /// Returns the noise with a seed.
    fn noise(&self, seed: u64) -> Noise {
        let [least, most] = TEMPERATURES;
        Noise { seed, scale: (1.0 / self.temperature.clamp(least, most)).to_bits() }
    }
}

impl Sampler {
    /// Returns the noise with which the device draws all tokens of a new sequence. Returns `None` if the settings have
    /// filters or penalties.
    pub fn noise(&self) -> Option<Noise> {
        self.settings.is_plain().then(|| self.settings.noise(self.seed))
    }

    /// Draws a token from a whole row, as the device does. Returns `None` if all logits are NaN or negative infinity.
    pub(super) fn draw_plain(&mut self, logits: &[f32]) -> Option<u32> {
        let draw = self.settings.noise(self.draws.next()).draw();
        draw.of(logits, 0, largest(logits)).map(|(_, token)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_distribution, plain};
    use super::*;

    /// The likely tokens are among values that are no candidates.
    #[test]
    fn draws_of_long_rows_follow_the_softmax() {
        let length = 3093;
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
            Sampler::new(Sampling { temperature, ..plain() }).unwrap().draw_plain(logits)
        };
        assert_eq!(draw(&[f32::NAN, f32::MIN, f32::NAN], 1.0), Some(1));
        assert_eq!(draw(&[f32::MIN, f32::INFINITY], 1e-40), Some(1));
        assert_eq!(draw(&[1.0, 2.0, 1.5], f32::MIN_POSITIVE), Some(1));
        assert_eq!(draw(&[f32::NAN, f32::NEG_INFINITY], 1.0), None);
        assert_eq!(draw(&[], 1.0), None);
    }

    #[test]
    fn a_device_draws_what_the_sampler_draws() {
        let logits: Vec<f32> = (0..5000).map(|id| (id * 37 % 101) as f32 / 10.0).collect();
        for seed in 0..20 {
            let mut sampler = Sampler::new(Sampling { seed: Some(seed), ..plain() }).unwrap();
            let noise = sampler.noise().unwrap();
            for tokens in 0..20 {
                let (_, token) = noise.after(tokens).draw().of(&logits, 0, largest(&logits)).unwrap();
                assert_eq!(sampler.sample(&logits, &[]), Ok(token));
            }
        }
        assert!(Sampler::new(Sampling::default()).unwrap().noise().is_none());
    }
}
