//! Hyperparameters of recurrent layers, which keep a state of fixed size instead of keys and values.

use super::extras::LayerSet;
use super::hyperparameters::{Hyperparameters, LARGEST};
use super::keys::Keys;
use super::names::Names;
use crate::error::ModelError;
use crate::ops::ScanHeads;
use ragtag_kernels::recurrent::conv::MAX_TAPS;
use ragtag_kernels::recurrent::scan::MAX_KEY_DIMENSION;
use serde::Serialize;
use std::ops::RangeInclusive;

/// Kind of the recurrent layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Recurrent {
    /// A causal convolution between two gates.
    ShortConv {
        /// Number of taps of the convolution.
        taps: u32,
    },
    /// A gated delta net behind a causal convolution.
    DeltaNet {
        /// Number of taps of the convolution.
        taps: u32,
        /// Heads.
        #[serde(flatten)]
        heads: ScanHeads,
        /// Whether heads that are as far apart as there are key heads share a key head. Otherwise, consecutive ones do.
        #[serde(skip)]
        is_tiled: bool,
    },
    /// A gated delta net with a decay for each dimension of the key. Queries, keys and values have convolutions of their
    /// own, and the gates have projections of low rank.
    KimiDeltaNet {
        /// Number of taps of the convolutions.
        taps: u32,
        /// Heads.
        #[serde(flatten)]
        heads: ScanHeads,
    },
    /// Mamba 2.
    Mamba {
        /// Number of taps of the convolution.
        taps: u32,
        /// Heads.
        #[serde(flatten)]
        heads: ScanHeads,
        /// Whether the convolution has biases.
        #[serde(skip)]
        has_biases: bool,
    },
}

/// Names of the tensors of gated delta nets.
pub(super) const DELTA_NET: &[Names] = &[
    ("blk.N.attn_qkv.weight", "model.layers.N.linear_attn.in_proj_qkv.weight"),
    ("blk.N.attn_gate.weight", "model.layers.N.linear_attn.in_proj_z.weight"),
    ("blk.N.ssm_beta.weight", "model.layers.N.linear_attn.in_proj_b.weight"),
    ("blk.N.ssm_alpha.weight", "model.layers.N.linear_attn.in_proj_a.weight"),
    ("blk.N.ssm_conv1d.weight", "model.layers.N.linear_attn.conv1d.weight"),
    ("blk.N.ssm_dt.bias", "model.layers.N.linear_attn.dt_bias"),
    ("blk.N.ssm_a_log", "model.layers.N.linear_attn.A_log"),
    ("blk.N.ssm_norm.weight", "model.layers.N.linear_attn.norm.weight"),
    ("blk.N.ssm_out.weight", "model.layers.N.linear_attn.out_proj.weight"),
];

/// Names of the tensors of Kimi's delta nets.
pub(super) const KIMI_DELTA_NET: &[Names] = &[
    ("blk.N.ssm_conv1d_q.weight", "model.layers.N.self_attn.q_conv1d.weight"),
    ("blk.N.ssm_conv1d_k.weight", "model.layers.N.self_attn.k_conv1d.weight"),
    ("blk.N.ssm_conv1d_v.weight", "model.layers.N.self_attn.v_conv1d.weight"),
    ("blk.N.ssm_f_a.weight", "model.layers.N.self_attn.f_a_proj.weight"),
    ("blk.N.ssm_f_b.weight", "model.layers.N.self_attn.f_b_proj.weight"),
    ("blk.N.ssm_beta.weight", "model.layers.N.self_attn.b_proj.weight"),
    ("blk.N.ssm_a_log", "model.layers.N.self_attn.A_log"),
    ("blk.N.ssm_dt.bias", "model.layers.N.self_attn.dt_bias"),
    ("blk.N.ssm_g_a.weight", "model.layers.N.self_attn.g_a_proj.weight"),
    ("blk.N.ssm_g_b.weight", "model.layers.N.self_attn.g_b_proj.weight"),
    ("blk.N.ssm_norm.weight", "model.layers.N.self_attn.o_norm.weight"),
];

/// Names of the tensors of Mamba 2.
pub(super) const MAMBA: &[Names] = &[
    ("blk.N.ssm_in.weight", "model.layers.N.mamba.in_proj.weight"),
    ("blk.N.ssm_conv1d.weight", "model.layers.N.mamba.conv1d.weight"),
    ("blk.N.ssm_conv1d.bias", "model.layers.N.mamba.conv1d.bias"),
    ("blk.N.ssm_dt.bias", "model.layers.N.mamba.dt_bias"),
    ("blk.N.ssm_a_log", "model.layers.N.mamba.A_log"),
    ("blk.N.ssm_d", "model.layers.N.mamba.D"),
    ("blk.N.ssm_norm.weight", "model.layers.N.mamba.norm.weight"),
    ("blk.N.ssm_out.weight", "model.layers.N.mamba.out_proj.weight"),
];

/// Reads which layers are recurrent. `usual` stands for files that do not say it.
pub(super) fn layers(keys: &Keys<'_>, h: &mut Hyperparameters, usual: LayerSet) -> Result<(), ModelError> {
    h.extras.recurrent_layers = usual;
    let mut listed = None;
    if let Some(config) = keys.config() {
        keys.mark("layer_types");
        if let Some(types) = config.texts("layer_types")? {
            let is_recurrent = |kind: &str| match kind {
                "linear_attention" | "conv" | "mamba" => Ok(true),
                "full_attention" | "attention" => Ok(false),
                other => {
                    let what = format!("{} of type {other:?}", config.in_file("layer_types"));
                    Err(ModelError::Unsupported { what })
                }
            };
            listed = Some(types.into_iter().map(is_recurrent).collect::<Result<Vec<_>, _>>()?);
        }
    } else if let Some(counts) = keys.per_layer("attention.head_count_kv") {
        listed = Some(counts.into_iter().map(|count| count == 0).collect());
    }
    let Some(listed) = listed else { return Ok(()) };
    if listed.len() < h.layers as usize {
        let why = format!("{} layers instead of {}", listed.len(), h.layers);
        let key = keys.label("attention.head_count_kv", "layer_types");
        return Err(ModelError::Hyperparameter { key, why });
    }
    h.extras.recurrent_layers = LayerSet::Listed(listed);
    Ok(())
}

/// Returns the count that the file has under one of these keys, or `usual`.
pub(super) fn count(keys: &Keys<'_>, gguf: &str, config: &str, usual: u32) -> Result<u32, ModelError> {
    Ok(keys.count(gguf, config)?.unwrap_or(usual))
}

/// Supported numbers of taps of a convolution.
pub(super) const TAPS: RangeInclusive<u32> = 2..=MAX_TAPS;

/// Reads the taps of a convolution.
pub(super) fn taps(keys: &Keys<'_>, gguf: &str, config: &str, usual: u32) -> Result<u32, ModelError> {
    let taps = count(keys, gguf, config, usual)?;
    if TAPS.contains(&taps) {
        return Ok(taps);
    }
    let why = format!("{taps} is not in 2 … {MAX_TAPS}");
    Err(ModelError::Hyperparameter { key: keys.label(gguf, config), why })
}

/// Returns `heads` if they are consistent and supported. The names are those of their number in both formats.
pub(super) fn checked(
    keys: &Keys<'_>,
    heads: ScanHeads,
    gguf: &str,
    config: &str,
) -> Result<ScanHeads, ModelError> {
    let ScanHeads { count, keys: groups, key_dimension, value_dimension } = heads;
    let size = u64::from(count) * u64::from(value_dimension) * u64::from(key_dimension);
    let projected = 2 * u64::from(groups) * u64::from(key_dimension)
        + 2 * u64::from(count) * (u64::from(value_dimension) + 1);
    let why = if groups == 0 || !count.is_multiple_of(groups) {
        format!("{count} heads cannot share {groups} key heads")
    } else if size.max(projected) > u64::from(LARGEST) {
        format!("{count} heads of {key_dimension} × {value_dimension}")
    } else if key_dimension > MAX_KEY_DIMENSION {
        let what = format!(
            "recurrent layers with keys of {key_dimension} values (the limit is {MAX_KEY_DIMENSION})"
        );
        return Err(ModelError::Unsupported { what });
    } else {
        return Ok(heads);
    };
    Err(ModelError::Hyperparameter { key: keys.label(gguf, config), why })
}

/// Fields of `config.json` with the sizes of Mamba 2.
pub(super) struct MambaFields {
    pub(super) taps: &'static str,
    pub(super) heads: &'static str,
    pub(super) groups: &'static str,
    pub(super) state: &'static str,
    pub(super) bias: &'static str,
}

/// Reads the sizes of Mamba 2. `inner` is the number of values of all heads, if the file does not have it.
pub(super) fn mamba(
    keys: &Keys<'_>,
    fields: &MambaFields,
    inner: impl Fn(u32) -> Result<u32, ModelError>,
) -> Result<Recurrent, ModelError> {
    let taps = taps(keys, "ssm.conv_kernel", fields.taps, 4)?;
    let heads = count(keys, "ssm.time_step_rank", fields.heads, 1)?;
    let groups = count(keys, "ssm.group_count", fields.groups, 1)?;
    let key_dimension = count(keys, "ssm.state_size", fields.state, 1)?;
    let inner = match keys.count("ssm.inner_size", "")? {
        Some(inner) => inner,
        None => inner(heads)?,
    };
    if !inner.is_multiple_of(heads) {
        let key = keys.label("ssm.time_step_rank", fields.heads);
        let why = format!("{heads} heads do not divide {inner} values");
        return Err(ModelError::Hyperparameter { key, why });
    }
    let heads = ScanHeads { count: heads, keys: groups, key_dimension, value_dimension: inner / heads };
    let heads = checked(keys, heads, "ssm.group_count", fields.groups)?;
    let has_biases = keys.flag("", fields.bias)?.unwrap_or(true);
    Ok(Recurrent::Mamba { taps, heads, has_biases })
}

/// Reads the heads of a gated delta net. GGUF files have value heads in turn of their key heads if `is_tiled` is set.
pub(super) fn delta_net(keys: &Keys<'_>, is_tiled: bool) -> Result<Recurrent, ModelError> {
    let taps = taps(keys, "ssm.conv_kernel", "linear_conv_kernel_dim", 4)?;
    let key_dimension = count(keys, "ssm.state_size", "linear_key_head_dim", 128)?;
    let groups = count(keys, "ssm.group_count", "linear_num_key_heads", 16)?;
    let heads = count(keys, "ssm.time_step_rank", "linear_num_value_heads", 32)?;
    let inner = keys.count("ssm.inner_size", "")?;
    let value_dimension = match inner {
        Some(inner) if inner.is_multiple_of(heads) => inner / heads,
        Some(inner) => {
            let why = format!("{heads} heads do not divide {inner} values");
            return Err(ModelError::Hyperparameter { key: keys.label("ssm.inner_size", ""), why });
        }
        None => count(keys, "", "linear_value_head_dim", 128)?,
    };
    let heads = ScanHeads { count: heads, keys: groups, key_dimension, value_dimension };
    let heads = checked(keys, heads, "ssm.group_count", "linear_num_key_heads")?;
    Ok(Recurrent::DeltaNet { taps, heads, is_tiled: is_tiled && keys.config().is_none() })
}
