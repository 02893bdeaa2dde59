//! Hyperparameters of a model, read from GGUF metadata and validated. For a safetensors checkpoint, the
//! `checkpoint` module reads them from `config.json` instead.

use super::names::{EMBEDDING, ROPE_FACTORS};
use super::{Architecture, Rope};
use crate::gguf::Metadata;
use crate::model::ModelError;
use crate::weights::Weights;
use serde::Serialize;

#[cfg(test)]
mod tests;

/// Upper limit on every count. It ensures that the products of counts that this module computes fit into 64
/// bits.
const LARGEST: u32 = 1 << 24;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hyperparameters {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Number of transformer blocks.
    pub layers: u32,
    /// Maximum sequence length that the model was trained for, in tokens.
    pub context: u32,
    /// Elements per residual row (hidden size).
    pub width: u32,
    /// Intermediate size of the feed-forward network.
    pub feed_forward: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key heads, which is also the number of value heads.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dimensions: u32,
    /// Parameters of the rotary position embedding.
    pub rope: Rope,
    /// Constant that RMS norms add to the mean square.
    pub epsilon: f32,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
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
            rope: Rope {
                dimensions: optional("rope.dimension_count", head_dimensions)?,
                pairing: Architecture::find(&architecture)?.gguf_pairing,
                base: float("rope.freq_base", 10000.0)?,
                scale: rope_scale(metadata, &architecture, &float)?,
                llama3: None,
                has_factors: weights.tensor(ROPE_FACTORS).is_some(),
            },
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

    /// Checks that the hyperparameters are consistent. The argument gives the file's keys for the KV head
    /// count, the number of rotating dimensions and the head size, which error messages name.
    pub(crate) fn check_shape(&self, [kv_heads, rotating, head]: [String; 3]) -> Result<(), ModelError> {
        let bad = |key, why| Err(ModelError::Hyperparameter { key, why });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!("{} heads cannot share {} key-value heads", self.heads, self.kv_heads);
            return bad(kv_heads, why);
        }
        if self.rope.dimensions > self.head_dimensions || !self.rope.dimensions.is_multiple_of(2) {
            let why =
                format!("{} of {} dimensions cannot rotate", self.rope.dimensions, self.head_dimensions);
            return bad(rotating, why);
        }
        if u64::from(self.heads) * u64::from(self.head_dimensions) > u64::from(LARGEST) {
            return bad(head, format!("{} heads of {}", self.heads, self.head_dimensions));
        }
        Ok(())
    }

    /// Rejects metadata that requires unsupported features, because ignoring these features would give wrong
    /// results.
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
}

/// Converts `value` to a count. Fails unless `value` is between 1 and [`LARGEST`].
pub(crate) fn in_range(key: &str, value: i128) -> Result<u32, ModelError> {
    match u32::try_from(value) {
        Ok(count @ 1..=LARGEST) => Ok(count),
        _ => Err(ModelError::Hyperparameter {
            key: key.into(),
            why: format!("{value} is not in 1 … {LARGEST}"),
        }),
    }
}

/// Returns `value`. Fails unless it is finite and positive.
pub(crate) fn positive(key: &str, value: f32) -> Result<f32, ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(ModelError::Hyperparameter { key: key.into(), why: format!("{value} is not finite and positive") })
}

/// Returns the divisor for positions: the factor of linear RoPE scaling, or 1 without scaling. Rejects other
/// types of scaling.
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
    let table =
        weights.tensor(EMBEDDING).ok_or_else(|| ModelError::MissingTensor { name: EMBEDDING.into() })?;
    let rows = u32::try_from(table.shape.get(1).copied().unwrap_or(0)).unwrap_or(0);
    in_range("rows of token_embd.weight", rows.into())
}
