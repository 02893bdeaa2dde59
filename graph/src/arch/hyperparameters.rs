//! Hyperparameters of a model, read from GGUF metadata and validated before use. `checkpoint` reads the
//! hyperparameters of a checkpoint from its `config.json`.

use super::Architecture;
use crate::gguf::Metadata;
use crate::model::ModelError;
use crate::op::RopePairing;
use crate::weights::Weights;
use serde::Serialize;
use std::f64::consts::TAU;

#[cfg(test)]
mod tests;

/// Upper limit of every count, so that no product of counts in this file exceeds 64 bits.
const LARGEST: u32 = 1 << 24;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hyperparameters {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Transformer blocks.
    pub layers: u32,
    /// Longest sequence that the model was trained for, in tokens.
    pub context: u32,
    /// Values per row between blocks.
    pub width: u32,
    /// Hidden values of the FFN.
    pub feed_forward: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dimensions: u32,
    /// Values per head that RoPE rotates.
    pub rope_dimensions: u32,
    /// Pairing of the values that RoPE rotates. It depends on the order of the query and key projections in
    /// the file.
    pub rope_pairing: RopePairing,
    /// Base of the RoPE frequencies.
    pub rope_base: f32,
    /// Divisor of positions (linear scaling).
    pub rope_scale: f32,
    /// Frequency-dependent RoPE scaling of Llama 3.1.
    pub rope_llama3: Option<Llama3Scaling>,
    /// Whether `rope_freqs.weight` divides the frequencies.
    pub has_rope_factors: bool,
    /// Constant that RMS norms add to the mean square.
    pub epsilon: f32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
}

/// RoPE scaling of type `llama3`. It divides low frequencies by a factor, keeps high frequencies, and
/// interpolates between the two ranges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Llama3Scaling {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// Upper limit of the low frequencies, in turns within the original context.
    pub low_frequency_factor: f32,
    /// Lower limit of the high frequencies, in turns within the original context. Greater than
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

impl Hyperparameters {
    /// Reads and validates the hyperparameters.
    ///
    /// # Errors
    /// Returns [`ModelError::Format`] for missing keys and wrong types, [`ModelError::Hyperparameter`] for
    /// invalid values, and [`ModelError::Unsupported`] for unsupported features.
    pub fn read(metadata: &Metadata, weights: &Weights) -> Result<Self, ModelError> {
        let architecture = metadata.get::<&str>("general.architecture")?.to_string();
        let key = |part: &str| format!("{architecture}.{part}");
        let count = |part: &str| -> Result<u32, ModelError> {
            in_range(&key(part), metadata.get::<u32>(&key(part))?.into())
        };
        let optional = |part: &str, default: u32| -> Result<u32, ModelError> {
            metadata.find::<u32>(&key(part))?.map_or(Ok(default), |v| in_range(&key(part), v.into()))
        };
        let float = |part: &str, default: f32| -> Result<f32, ModelError> {
            metadata.find(&key(part))?.map_or(Ok(default), |value| positive(&key(part), value))
        };
        let (width, heads) = (count("embedding_length")?, count("attention.head_count")?);
        let kv_heads = optional("attention.head_count_kv", heads)?;
        let head_dimensions = optional("attention.key_length", (width / heads).max(1))?;
        let epsilon_key = key("attention.layer_norm_rms_epsilon");
        let found = Self {
            name: metadata.find::<&str>("general.name")?.map(str::to_string),
            layers: count("block_count")?,
            context: count("context_length")?,
            feed_forward: count("feed_forward_length")?,
            rope_dimensions: optional("rope.dimension_count", head_dimensions)?,
            rope_pairing: Architecture::find(&architecture)?.gguf_pairing,
            rope_base: float("rope.freq_base", 10000.0)?,
            rope_scale: rope_scale(metadata, &architecture, &float)?,
            rope_llama3: None,
            has_rope_factors: weights.tensor("rope_freqs.weight").is_some(),
            epsilon: positive(&epsilon_key, metadata.get(&epsilon_key)?)?,
            vocabulary: vocabulary(weights)?,
            architecture: architecture.clone(),
            width,
            heads,
            kv_heads,
            head_dimensions,
        };
        found.check_shape(
            ["attention.head_count_kv", "rope.dimension_count", "attention.key_length"].map(key),
        )?;
        found.check_features(metadata)?;
        Ok(found)
    }

    /// Checks that the values are consistent. The parameter holds the keys of three counts in the file, for
    /// error messages.
    pub(crate) fn check_shape(&self, [kv_heads, rotating, head]: [String; 3]) -> Result<(), ModelError> {
        let bad = |key, why| Err(ModelError::Hyperparameter { key, why });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!("{} heads cannot share {} key-value heads", self.heads, self.kv_heads);
            return bad(kv_heads, why);
        }
        if self.rope_dimensions > self.head_dimensions || !self.rope_dimensions.is_multiple_of(2) {
            let why =
                format!("{} of {} dimensions cannot rotate", self.rope_dimensions, self.head_dimensions);
            return bad(rotating, why);
        }
        if u64::from(self.heads) * u64::from(self.head_dimensions) > u64::from(LARGEST) {
            return bad(head, format!("{} heads of {}", self.heads, self.head_dimensions));
        }
        Ok(())
    }

    /// Rejects metadata that asks for unsupported features, so that no such key is silently ignored.
    fn check_features(&self, metadata: &Metadata) -> Result<(), ModelError> {
        let value_key = format!("{}.attention.value_length", self.architecture);
        if metadata.find::<u32>(&value_key)?.is_some_and(|length| length != self.head_dimensions) {
            return Err(ModelError::Unsupported { what: format!("{value_key} other than the key length") });
        }
        let expert_key = format!("{}.expert_count", self.architecture);
        if metadata.find::<u32>(&expert_key)?.is_some_and(|experts| experts > 0) {
            return Err(ModelError::Unsupported { what: format!("a mixture of experts ({expert_key})") });
        }
        Ok(())
    }

    /// Returns the RoPE frequencies in radians per position, one per rotating pair. If `factors` is given,
    /// each frequency is divided by its factor.
    pub fn inverse_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let pairs = self.rope_dimensions / 2;
        let frequency = |pair: u32| {
            let exponent = -2.0 * f64::from(pair) / f64::from(self.rope_dimensions);
            let factor = factors.map_or(1.0, |f| f64::from(f[pair as usize]));
            let frequency = f64::from(self.rope_base).powf(exponent) / f64::from(self.rope_scale) / factor;
            self.rope_llama3.map_or(frequency, |scaling| scaling.apply(frequency)) as f32
        };
        (0..pairs).map(frequency).collect()
    }
}

/// Converts a value to a count. Fails unless the value is from 1 to [`LARGEST`].
pub(crate) fn in_range(key: &str, value: i128) -> Result<u32, ModelError> {
    match u32::try_from(value) {
        Ok(count @ 1..=LARGEST) => Ok(count),
        _ => Err(ModelError::Hyperparameter {
            key: key.into(),
            why: format!("{value} is not in 1 … {LARGEST}"),
        }),
    }
}

/// Returns the value. Fails unless it is finite and positive.
pub(crate) fn positive(key: &str, value: f32) -> Result<f32, ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(ModelError::Hyperparameter { key: key.into(), why: format!("{value} is not finite and positive") })
}

/// Returns the divisor of positions: 1 without scaling, or the factor of linear scaling. Rejects other types
/// of scaling.
fn rope_scale(
    metadata: &Metadata,
    architecture: &str,
    float: &dyn Fn(&str, f32) -> Result<f32, ModelError>,
) -> Result<f32, ModelError> {
    let key = format!("{architecture}.rope.scaling.type");
    match metadata.find::<&str>(&key)?.unwrap_or("linear") {
        "none" => Ok(1.0),
        "linear" => float("rope.scaling.factor", 1.0),
        other => Err(ModelError::Unsupported { what: format!("rotary scaling of type {other:?} ({key})") }),
    }
}

fn vocabulary(weights: &Weights) -> Result<u32, ModelError> {
    let name = "token_embd.weight";
    let table = weights.tensor(name).ok_or_else(|| ModelError::MissingTensor { name: name.into() })?;
    let rows = u32::try_from(table.shape.get(1).copied().unwrap_or(0)).unwrap_or(0);
    in_range("rows of token_embd.weight", rows.into())
}
