//! Reads the hyperparameters from GGUF metadata. For a safetensors checkpoint, the `checkpoint` module reads them
//! from `config.json` instead.

use super::architecture::Architecture;
use super::extras::Extras;
use super::hyperparameters::{Hyperparameters, in_range, positive};
use super::keys::{Keys, per_layer};
use super::names::{EMBEDDING, LONG_FACTORS, ROPE_FACTORS};
use super::rope::{Rope, RopeFactors, Yarn};
use crate::error::ModelError;
use crate::gguf::Metadata;
use crate::weights::Weights;

#[cfg(test)]
mod tests;

impl Hyperparameters {
    /// Reads and validates the hyperparameters.
    ///
    /// # Errors
    /// Returns [`ModelError::Format`] for missing keys and wrong types, [`ModelError::Hyperparameter`] for
    /// invalid values, and [`ModelError::Unsupported`] for unsupported features.
    pub(crate) fn read(
        kind: &Architecture,
        metadata: &Metadata,
        weights: &Weights,
    ) -> Result<Self, ModelError> {
        // The prefix of the keys.
        let architecture: &str = metadata.get("general.architecture")?;
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
        let layers = count("block_count")?;
        let (kv_heads, layer_kv_heads) = of_layers(metadata, &key("attention.head_count_kv"), layers)?;
        let (feed_forward, layer_feed_forward) = of_layers(metadata, &key("feed_forward_length"), layers)?;
        let head_dimensions = optional("attention.key_length", (width / heads).max(1))?;
        let mut epsilon_key = key("attention.layer_norm_rms_epsilon");
        let of_layer_norms = key("attention.layer_norm_epsilon");
        if metadata.find::<f32>(&epsilon_key)?.is_none() && metadata.find::<f32>(&of_layer_norms)?.is_some() {
            epsilon_key = of_layer_norms;
        }
        let context = count("context_length")?;
        let rope = Rope {
            dimensions: optional("rope.dimension_count", head_dimensions)?,
            pairing: kind.gguf_pairing,
            base: float("rope.freq_base", 10000.0)?,
            ..Rope::plain()
        };
        let has = |part: &str| weights.tensor(&format!("blk.0.{part}")).is_some();
        let mut found = Self {
            name: metadata.find::<&str>("general.name")?.map(str::to_string),
            layers,
            context,
            feed_forward: match (feed_forward, metadata.find::<u32>(&key("expert_feed_forward_length"))?) {
                (Some(hidden), _) => hidden,
                (None, Some(_)) => count("expert_feed_forward_length")?,
                (None, None) => count("feed_forward_length")?,
            },
            rope: scaled(rope, metadata, architecture, &float, context, weights)?,
            epsilon: positive(&epsilon_key, metadata.get(&epsilon_key)?)?,
            vocabulary: vocabulary(weights)?,
            architecture: kind.name.to_owned(),
            width,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_dimensions,
            extras: Extras {
                layer_kv_heads,
                layer_feed_forward,
                qkv_bias: has("attn_q.bias") || has("attn_qkv.bias"),
                fused_qkv: has("attn_qkv.weight"),
                output_bias: has("attn_output.bias"),
                feed_forward_bias: has("ffn_down.bias"),
                qk_norm: has("attn_q_norm.weight"),
                router_bias: weights.tensors().iter().any(|tensor| tensor.name.ends_with("exp_probs_b.bias")),
                ..Extras::default()
            },
        };
        let keys = Keys::of_gguf(metadata, architecture);
        if kind.multimodal_names.contains(&architecture) {
            ["rope.dimension_sections", "n_deepstack_layers"]
                .into_iter()
                .for_each(|part| keys.mark(&key(part)));
        }
        (kind.read)(&keys, &mut found)?;
        keys.check_all_read()?;
        found.check_shape(
            ["attention.head_count_kv", "rope.dimension_count", "attention.key_length"].map(key),
        )?;
        found.check_features(metadata, architecture)?;
        Ok(found)
    }

    /// Rejects metadata that requires unsupported features, because ignoring these features would give wrong
    /// results.
    fn check_features(&self, metadata: &Metadata, architecture: &str) -> Result<(), ModelError> {
        let [value, causal, experts] = ["attention.value_length", "attention.causal", "expert_count"]
            .map(|key| format!("{architecture}.{key}"));
        let is_other = |length| length != self.head_dimensions && self.extras.latent.is_none();
        let what = if metadata.find::<u32>(&value)?.is_some_and(is_other) {
            format!("{value} other than the key length")
        } else if metadata.find::<bool>(&causal)? == Some(false) {
            format!("attention to later tokens ({causal})")
        } else if self.extras.experts.is_none()
            && metadata.find::<u32>(&experts)?.is_some_and(|count| count > 0)
        {
            format!("a mixture of experts ({experts})")
        } else {
            return Ok(());
        };
        Err(ModelError::Unsupported { what })
    }
}

/// Returns the count under a key. Its value may be a list with a count for each layer, where 0 stands for layers that need
/// none. The count is then that of the last layer, and the list follows if the counts differ.
fn of_layers(metadata: &Metadata, key: &str, layers: u32) -> Result<(Option<u32>, Vec<u32>), ModelError> {
    let Some(counts) = per_layer(metadata, key) else {
        let count = metadata.find::<u32>(key)?.map(|count| in_range(key, count.into())).transpose()?;
        return Ok((count, Vec::new()));
    };
    if counts.len() != layers as usize {
        let why = format!("{} layers instead of {layers}", counts.len());
        return Err(ModelError::Hyperparameter { key: key.into(), why });
    }
    let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(1);
    let count = |count: &u32| in_range(key, if *count == 0 { last } else { *count }.into());
    let counts = counts.iter().map(count).collect::<Result<Vec<_>, _>>()?;
    let differ = counts.iter().any(|count| *count != last);
    Ok((Some(last), if differ { counts } else { Vec::new() }))
}

/// Returns `rope` with the scaling that the metadata describes. Rejects unknown types of scaling.
fn scaled(
    rope: Rope,
    metadata: &Metadata,
    architecture: &str,
    float: &dyn Fn(&str, f32) -> Result<f32, ModelError>,
    context: u32,
    weights: &Weights,
) -> Result<Rope, ModelError> {
    let key = format!("{architecture}.rope.scaling.type");
    let original = format!("{architecture}.rope.scaling.original_context_length");
    let original_context = metadata.find::<u32>(&original)?.map(|value| in_range(&original, value.into()));
    let original_context = original_context.transpose()?.unwrap_or(context);
    let factors = if weights.tensor(ROPE_FACTORS).is_some() {
        RopeFactors::File
    } else if weights.tensor(LONG_FACTORS).is_some() {
        RopeFactors::ByContext { original_context }
    } else {
        RopeFactors::None
    };
    let rope = Rope { factors, magnitude: float("rope.scaling.attn_factor", 1.0)?, ..rope };
    match metadata.find::<&str>(&key)?.unwrap_or("linear") {
        "none" => Ok(rope),
        // Some converters write the type without the factors.
        "longrope" if matches!(rope.factors, RopeFactors::None) => {
            Err(ModelError::MissingTensor { name: LONG_FACTORS.into() })
        }
        "longrope" => Ok(rope),
        "linear" => {
            let old = float("rope.scale_linear", 1.0)?;
            Ok(Rope { scale: float("rope.scaling.factor", old)?, ..rope })
        }
        "yarn" => {
            let factor = float("rope.scaling.factor", 1.0)?;
            let yarn = Yarn {
                factor,
                original_context,
                beta_fast: float("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: float("rope.scaling.yarn_beta_slow", 1.0)?,
                truncate: true,
            };
            // Converters write `attention_factor` of `config.json`, which replaces the usual magnitude.
            let usual = rope.magnitude * Yarn::magnitude(factor);
            let magnitude = float("rope.scaling.yarn_attn_factor", usual)?;
            let extrapolation = float("rope.scaling.yarn_ext_factor", 1.0)?;
            if extrapolation != 1.0 {
                let what = format!("{architecture}.rope.scaling.yarn_ext_factor = {extrapolation}");
                return Err(ModelError::Unsupported { what });
            }
            Ok(Rope { yarn: Some(yarn), magnitude, ..rope })
        }
        other => Err(ModelError::Unsupported { what: format!("rotary scaling of type {other:?} ({key})") }),
    }
}

fn vocabulary(weights: &Weights) -> Result<u32, ModelError> {
    in_range("rows of token_embd.weight", weights.required(EMBEDDING)?.rows().into())
}
