//! Rotary position embedding (RoPE): its parameters, and the rotation frequencies computed from them.

use serde::Serialize;
use std::f64::consts::TAU;
use std::fmt;

/// Pairing of the dimensions that RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopePairing {
    /// Pair i consists of dimensions 2i and 2i + 1.
    Interleaved,
    /// Pair i consists of dimensions i and i + half, where half is the number of pairs.
    Halves,
}

/// Parameters of rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Number of dimensions per head that RoPE rotates.
    pub dimensions: u32,
    /// Pairing of the dimensions that rotate together. It depends on the order of the query and key
    /// projections in the file.
    pub pairing: RopePairing,
    /// Base from which the rotation frequencies are computed.
    pub base: f32,
    /// Divisor for positions, used for linear scaling. It is infinite in a layer without rotation.
    pub scale: f32,
    /// Parameters of frequency-dependent scaling as in Llama 3.1, if the model uses it.
    pub llama3: Option<Llama3Scaling>,
    /// Parameters of YaRN, if the model uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yarn: Option<Yarn>,
    /// Parameters of dynamic scaling, if the model uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicScaling>,
    /// Factors that divide the frequencies.
    pub factors: RopeFactors,
    /// Number by which sines and cosines are multiplied.
    pub magnitude: f32,
}

/// Factors that divide the frequencies of RoPE, one per rotating pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeFactors {
    /// No factors.
    None,
    /// The tensor `rope_freqs.weight`.
    File,
    /// Infinite factors of all pairs after the first ones, which alone rotate.
    Proportional {
        /// Number of these pairs.
        pairs: u32,
    },
    /// Two lists of factors as in LongRoPE: one for sequences of up to `original_context` tokens, and one for
    /// longer sequences.
    ByContext {
        /// Maximum sequence length before scaling, in tokens.
        original_context: u32,
    },
}

/// RoPE scaling of type `yarn`. It divides low frequencies by a factor, keeps high frequencies, and blends
/// both rules for frequencies between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Yarn {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// Maximum sequence length before scaling, in tokens.
    pub original_context: u32,
    /// A frequency counts as high if it completes more turns than this within the original context.
    pub beta_fast: f32,
    /// A frequency counts as low if it completes fewer turns than this within the original context.
    pub beta_slow: f32,
    /// Whether the bounds between low and high frequencies are rounded to whole pairs.
    pub truncate: bool,
}

impl Yarn {
    /// Returns the scaling with the usual bounds between low and high frequencies.
    pub(crate) fn usual(factor: f32, original_context: u32) -> Self {
        Yarn { factor, original_context, beta_fast: 32.0, beta_slow: 1.0, truncate: true }
    }

    /// Returns the magnitude that belongs to the factor unless the model has its own.
    pub(crate) fn magnitude(factor: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }

    /// Returns the scaled value of the frequency of pair number `pair`.
    fn apply(&self, frequency: f64, pair: u32, rope: &Rope) -> f64 {
        let dimensions = f64::from(rope.dimensions);
        // Pair whose frequency completes this number of turns within the original context.
        let pair_of = |turns: f32| {
            let ratio = f64::from(self.original_context) / (f64::from(turns) * TAU);
            dimensions * ratio.ln() / (2.0 * f64::from(rope.base).ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dimensions - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        let scaled = ((f64::from(pair) - low) / width).clamp(0.0, 1.0);
        frequency * (1.0 - scaled + scaled / f64::from(self.factor))
    }
}

/// RoPE scaling of type `llama3`. It divides low frequencies, keeps high frequencies, and blends both rules
/// for frequencies between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Llama3Scaling {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// A frequency counts as low if it completes fewer turns than this within the original context.
    pub low_frequency_factor: f32,
    /// A frequency counts as high if it completes more turns than this within the original context. Must not be
    /// less than `low_frequency_factor`. If both are equal, no frequency is between them.
    pub high_frequency_factor: f32,
    /// Maximum sequence length before scaling, in tokens.
    pub original_context: u32,
}

impl Llama3Scaling {
    /// Returns the scaled value of `frequency`, in radians per position.
    fn apply(&self, frequency: f64) -> f64 {
        let turns = f64::from(self.original_context) * frequency / TAU;
        let (low, high) = (f64::from(self.low_frequency_factor), f64::from(self.high_frequency_factor));
        let kept = if turns >= high { 1.0 } else { ((turns - low) / (high - low)).clamp(0.0, 1.0) };
        frequency * (kept + (1.0 - kept) / f64::from(self.factor))
    }
}

/// RoPE scaling of type `dynamic`. Sequences longer than the original context get a larger base.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DynamicScaling {
    /// Factor from which the base follows.
    pub factor: f32,
    /// Maximum sequence length before scaling, in tokens.
    pub original_context: u32,
}

impl DynamicScaling {
    /// Returns the base for a sequence of `length` tokens.
    fn base(&self, rope: &Rope, length: u32) -> f32 {
        if length <= self.original_context || rope.dimensions <= 2 {
            return rope.base;
        }
        let (factor, dimensions) = (f64::from(self.factor), f64::from(rope.dimensions));
        let growth = factor * f64::from(length) / f64::from(self.original_context) - (factor - 1.0);
        (f64::from(rope.base) * growth.powf(dimensions / (dimensions - 2.0))) as f32
    }
}

impl Rope {
    /// Returns the number of frequencies that depend on the length of a sequence: all or none.
    pub fn sequence_frequencies(&self) -> u32 {
        let depend = self.dynamic.is_some() || matches!(self.factors, RopeFactors::ByContext { .. });
        if depend { self.dimensions / 2 } else { 0 }
    }

    /// Returns whether frequencies depend on the length of a sequence.
    pub(crate) fn depends_on_length(&self) -> bool {
        self.sequence_frequencies() > 0
    }

    /// Returns the parameters for a sequence of `length` tokens, without dynamic scaling.
    pub(crate) fn at_length(&self, length: u32) -> Self {
        let base = self.dynamic.map_or(self.base, |dynamic| dynamic.base(self, length));
        Rope { base, dynamic: None, ..*self }
    }

    /// Returns parameters without scaling and with the most common base, for no dimensions.
    pub(crate) fn plain() -> Self {
        Self {
            dimensions: 0,
            pairing: RopePairing::Halves,
            base: 10_000.0,
            scale: 1.0,
            llama3: None,
            yarn: None,
            dynamic: None,
            factors: RopeFactors::None,
            magnitude: 1.0,
        }
    }

    /// Returns one frequency per rotating pair, in radians per position. If `factors` is given, divides each
    /// frequency by its factor.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let frequency = |pair: u32| {
            let exponent = -2.0 * f64::from(pair) / f64::from(self.dimensions);
            let factor = match self.factors {
                RopeFactors::Proportional { pairs } if pair >= pairs => f64::INFINITY,
                _ => factors.map_or(1.0, |f| f64::from(f[pair as usize])),
            };
            let frequency = f64::from(self.base).powf(exponent) / f64::from(self.scale) / factor;
            let frequency = self.llama3.map_or(frequency, |scaling| scaling.apply(frequency));
            self.yarn.map_or(frequency, |scaling| scaling.apply(frequency, pair, self)) as f32
        };
        (0..self.dimensions / 2).map(frequency).collect()
    }
}

/// Lists all parameters that the frequencies depend on.
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
        if let Some(Yarn { factor, original_context, beta_fast, beta_slow, truncate }) = self.yarn {
            write!(
                f,
                ", YaRN by {factor} from context {original_context}, {beta_slow} to {beta_fast} turns"
            )?;
            f.write_str(if truncate { "" } else { ", not rounded" })?;
        }
        if let Some(DynamicScaling { factor, original_context }) = self.dynamic {
            write!(f, ", dynamic scaling by {factor} from context {original_context}")?;
        }
        match self.factors {
            RopeFactors::None => Ok(()),
            RopeFactors::File => f.write_str(", factors of the file"),
            RopeFactors::Proportional { pairs } => write!(f, ", {pairs} rotating pairs"),
            RopeFactors::ByContext { original_context } => {
                write!(f, ", factors for sequences up to {original_context} tokens and beyond")
            }
        }
    }
}
