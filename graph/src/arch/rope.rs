//! Rotary position embedding: its values, and the frequencies that follow.

use serde::Serialize;
use std::f64::consts::TAU;
use std::fmt;

/// Pairing of the dimensions that a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopePairing {
    /// Dimensions 2i and 2i + 1.
    Interleaved,
    /// Dimensions i and i + half.
    Halves,
}

/// Rotary position embedding of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Values per head that rotate.
    pub dimensions: u32,
    /// Pairs of values that rotate together. Follows from how the file orders the query and key projections.
    pub pairing: RopePairing,
    /// Base of the frequencies.
    pub base: f32,
    /// Divisor of positions (linear scaling).
    pub scale: f32,
    /// Frequency-dependent scaling as in Llama 3.1.
    pub llama3: Option<Llama3Scaling>,
    /// Whether `rope_freqs.weight` divides the frequencies.
    pub has_factors: bool,
}

/// Rotary scaling of type `llama3`: divides low frequencies, keeps high ones and blends those between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Llama3Scaling {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// A frequency with fewer turns than this within the original context is low.
    pub low_frequency_factor: f32,
    /// A frequency with more turns than this within the original context is high. Greater than
    /// `low_frequency_factor`.
    pub high_frequency_factor: f32,
    /// Longest sequence before scaling, in tokens.
    pub original_context: u32,
}

impl Llama3Scaling {
    /// Returns the scaled frequency, in radians per position.
    fn apply(&self, frequency: f64) -> f64 {
        let turns = f64::from(self.original_context) * frequency / TAU;
        let (low, high) = (f64::from(self.low_frequency_factor), f64::from(self.high_frequency_factor));
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / f64::from(self.factor))
    }
}

impl Rope {
    /// Returns the frequencies in radians per position, one per rotating pair. `factors` divide them.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let frequency = |pair: u32| {
            let exponent = -2.0 * f64::from(pair) / f64::from(self.dimensions);
            let factor = factors.map_or(1.0, |f| f64::from(f[pair as usize]));
            let frequency = f64::from(self.base).powf(exponent) / f64::from(self.scale) / factor;
            self.llama3.map_or(frequency, |scaling| scaling.apply(frequency)) as f32
        };
        (0..self.dimensions / 2).map(frequency).collect()
    }
}

/// Names all values that the frequencies depend on.
impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "base {}, {} dimensions", self.base, self.dimensions)?;
        if self.scale != 1.0 {
            write!(f, ", positions divided by {}", self.scale)?;
        }
        if let Some(llama3) = self.llama3 {
            let Llama3Scaling { factor, low_frequency_factor: low, high_frequency_factor: high, .. } = llama3;
            let context = llama3.original_context;
            write!(f, ", Llama 3 scaling by {factor} from context {context}, factors {low} to {high}")?;
        }
        f.write_str(if self.has_factors { ", factors of the file" } else { "" })
    }
}
