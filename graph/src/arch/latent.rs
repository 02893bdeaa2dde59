//! Hyperparameters of multi-head latent attention: all heads of a layer share one key, a *latent* of low rank beside a few
//! dimensions that rotate. The value of a position is the latent of its key.
//!
//! The graph multiplies queries by the matrix from which other programs compute the keys of each head, and the results
//! of attention by the matrix for values. So the KV cache holds one head.

use super::hyperparameters::{Hyperparameters, LARGEST, in_range};
use super::keys::Keys;
use super::names::Names;
use super::rope::Yarn;
use crate::checkpoint::Fields;
use crate::error::ModelError;
use serde::Serialize;

/// Multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latent {
    /// Number of values from which the queries are computed, if these have a latent of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_rank: Option<u32>,
    /// Number of values of the latent.
    pub rank: u32,
    /// Dimensions of a query head that do not rotate.
    pub plain: u32,
    /// Dimensions of a query head that rotate, and of the part of the key that rotates.
    pub rotating: u32,
    /// Dimensions of a head's value.
    pub value: u32,
    /// Growth of the queries with their position, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// Choice of the positions to which a token attends. Ragtag does not use it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Indexer {
    /// Number of positions that the indexer chooses. In shorter contexts, it chooses all.
    pub positions: u32,
    /// Maximum sequence length that the model was trained for, in tokens.
    pub context: u32,
}

/// Factor of queries at position p: 1 + β · ln(1 + ⌊p / period⌋). In models without a latent, p + 1 stands for p.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The factor β.
    pub beta: f32,
    /// Number of positions with the same factor.
    pub period: u32,
}

/// Names of tensors.
pub(super) const NAMES: &[Names] = &[
    ("blk.N.attn_q_a.weight", "model.layers.N.self_attn.q_a_proj.weight"),
    ("blk.N.attn_q_a_norm.weight", "model.layers.N.self_attn.q_a_layernorm.weight"),
    ("blk.N.attn_q_b.weight", "model.layers.N.self_attn.q_b_proj.weight"),
    ("blk.N.attn_kv_a_mqa.weight", "model.layers.N.self_attn.kv_a_proj_with_mqa.weight"),
    ("blk.N.attn_kv_a_norm.weight", "model.layers.N.self_attn.kv_a_layernorm.weight"),
    ("blk.N.attn_kv_b.weight", "model.layers.N.self_attn.kv_b_proj.weight"),
];

/// Reads the sizes, and changes heads, RoPE and the scale of scores accordingly.
pub(super) fn read(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let required = |gguf: &str, field: &str| {
        let missing = || bad(keys, gguf, field, "is missing".into());
        keys.count(gguf, field)?.ok_or_else(missing)
    };
    let rank = required("attention.kv_lora_rank", "kv_lora_rank")?;
    let query_rank = keys.whole("attention.q_lora_rank", "q_lora_rank")?.filter(|rank| *rank > 0);
    let (plain, rotating, value) = match keys.config() {
        Some(_) => {
            let size = |field| required("", field);
            (size("qk_nope_head_dim")?, size("qk_rope_head_dim")?, size("v_head_dim")?)
        }
        None => {
            // Older files have the sizes of heads under the usual keys.
            let length = |key: &str, older: &str| match keys.count(key, "")? {
                Some(length) => Ok(length),
                None => required(older, ""),
            };
            let key = length("attention.key_length_mla", "attention.key_length")?;
            let value = length("attention.value_length_mla", "attention.value_length")?;
            let rotating = h.rope.dimensions;
            let why = || format!("{rotating} of {key} dimensions cannot rotate");
            let plain = key.checked_sub(rotating).filter(|plain| *plain > 0);
            let plain = plain.ok_or_else(|| bad(keys, "rope.dimension_count", "", why()));
            (plain?, rotating, value)
        }
    };
    let most = rank.max(value).max(plain + rotating);
    if u64::from(h.heads + 2) * u64::from(most) > u64::from(LARGEST) {
        return Err(bad(
            keys,
            "attention.kv_lora_rank",
            "kv_lora_rank",
            format!("{} heads of {most}", h.heads),
        ));
    }
    h.extras.score_scale = Some(magnitude(keys, h)?.powi(2) / ((plain + rotating) as f32).sqrt());
    (h.kv_heads, h.head_dimensions, h.rope.dimensions) = (1, rotating + rank, rotating);
    let growth = growth(keys, h)?;
    h.extras.latent = Some(Latent { query_rank, rank, plain, rotating, value, growth });
    Ok(())
}

fn bad(keys: &Keys<'_>, gguf: &str, config: &str, why: String) -> ModelError {
    ModelError::Hyperparameter { key: keys.label(gguf, config), why }
}

/// Returns the object of `config.json` with the RoPE settings.
fn rope_settings(config: &Fields) -> Result<Option<Fields>, ModelError> {
    let older = config.object("rope_scaling")?;
    Ok(if older.is_some() { older } else { config.object("rope_parameters")? })
}

/// Returns the factor of queries and keys that belongs to YaRN. RoPE itself multiplies only the rotating dimensions.
fn magnitude(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<f32, ModelError> {
    let weight = match keys.config() {
        Some(config) => match rope_settings(config)? {
            Some(settings) => settings.find_float("mscale_all_dim")?,
            None => None,
        },
        // Converters write a tenth of the weight, and no weight of the rotating dimensions alone. In released models,
        // both are equal, so that RoPE has no factor of its own.
        None => keys.float("rope.scaling.yarn_log_multiplier", "")?.map(|tenth| tenth * 10.0),
    };
    let (Some(weight), Some(yarn)) = (weight, h.rope.yarn) else { return Ok(1.0) };
    if keys.config().is_none() {
        h.rope.magnitude = 1.0;
    }
    Ok(1.0 + weight * (Yarn::magnitude(yarn.factor) - 1.0))
}

fn growth(keys: &Keys<'_>, h: &Hyperparameters) -> Result<Option<Growth>, ModelError> {
    let (beta, period) = match keys.config() {
        Some(config) => match rope_settings(config)? {
            Some(settings) => (settings.find_float("llama_4_scaling_beta")?, None),
            None => (None, None),
        },
        None => {
            let period = keys.whole("attention.temperature_length", "")?.filter(|period| *period > 0);
            (keys.float("attention.temperature_scale", "")?, period)
        }
    };
    let Some(beta) = beta else { return Ok(None) };
    let period = period.or(h.rope.yarn.map(|yarn| yarn.original_context)).unwrap_or(h.context);
    let period = in_range("attention.temperature_length", period.into())?;
    Ok(Some(Growth { beta, period }))
}
