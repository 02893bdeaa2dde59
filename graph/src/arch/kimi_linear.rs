//! Kimi Linear: three of four layers are delta nets with a decay for each dimension of the key, and the others have latent
//! attention without RoPE. All layers but the first ones have experts.

use super::architecture::{Architecture, USUAL};
use super::deepseek2;
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::latent;
use super::names::{COMMON, GATED, MIXTRAL_EXPERTS, NORMS, PREDICTORS};
use super::recurrent::{self, KIMI_DELTA_NET, Recurrent};
use crate::checkpoint::Fields;
use crate::error::ModelError;
use crate::ops::ScanHeads;
use serde_json::json;

pub(super) static KIMI_LINEAR: Architecture = Architecture {
    name: "kimi-linear",
    classes: &["KimiLinearForCausalLM"],
    aliases: &[
        ("model_max_length", "max_position_embeddings"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_expert_group", "n_group"),
        ("moe_renormalize", "norm_topk_prob"),
        ("num_shared_experts", "n_shared_experts"),
    ],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        ("num_experts", Setting::Count(256)),
        ("num_experts_per_tok", Setting::Count(8)),
        ("n_shared_experts", Setting::Count(1)),
        ("moe_intermediate_size", Setting::Count(1024)),
        ("routed_scaling_factor", Setting::Number(2.446)),
        ("kv_lora_rank", Setting::Count(512)),
        ("qk_nope_head_dim", Setting::Count(128)),
        ("qk_rope_head_dim", Setting::Count(64)),
        ("v_head_dim", Setting::Count(128)),
    ],
    has_partial_rotation: true,
    read,
    tensors: &[
        COMMON,
        NORMS,
        GATED,
        PREDICTORS,
        MIXTRAL_EXPERTS,
        latent::NAMES,
        KIMI_DELTA_NET,
        &[
            ("blk.N.exp_probs_b.bias", "model.layers.N.block_sparse_moe.gate.e_score_correction_bias"),
            (
                "blk.N.ffn_gate_shexp.weight",
                "model.layers.N.block_sparse_moe.shared_experts.gate_proj.weight",
            ),
            ("blk.N.ffn_up_shexp.weight", "model.layers.N.block_sparse_moe.shared_experts.up_proj.weight"),
            (
                "blk.N.ffn_down_shexp.weight",
                "model.layers.N.block_sparse_moe.shared_experts.down_proj.weight",
            ),
        ],
    ],
    ..USUAL
};

/// Object of `config.json` with the sizes of the delta nets.
const LINEAR: &str = "linear_attn_config";

fn read(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    if let Some(config) = keys.config() {
        config.refuse("mla_use_nope", &[json!(true)])?;
        config.refuse("moe_layer_freq", &[json!(1)])?;
        config.refuse("moe_router_activation_func", &[json!("sigmoid")])?;
    }
    let heads = match keys.config() {
        Some(config) => of_config(config, keys, h)?,
        None => {
            recurrent::layers(keys, h, LayerSet::None)?;
            let dimension = keys.count("kda.head_dim", "")?.unwrap_or(128);
            (recurrent::taps(keys, "ssm.conv_kernel", "", 4)?, h.heads, dimension)
        }
    };
    let (taps, count, dimension) = heads;
    let heads = ScanHeads { count, keys: count, key_dimension: dimension, value_dimension: dimension };
    let heads = recurrent::checked(keys, heads, "kda.head_dim", LINEAR)?;
    latent::read(keys, h)?;
    h.extras.unrotated_layers = LayerSet::All;
    experts::skip_predictors(keys, h)?;
    let found = experts::read(keys, h, deepseek2::sigmoid())?;
    let shared = experts::shared(keys, &found, "n_shared_experts")?;
    h.extras.experts = Some(Experts { shared, ..found });
    h.extras.recurrent = Some(Recurrent::KimiDeltaNet { taps, heads });
    experts::dense_first(keys, h, "first_k_dense_replace")?;
    experts::sparse_layers(keys, h)
}

/// Reads the layers of `config.json`, and the taps, the heads and their size in the delta nets. Published files have these
/// in an object of their own, in which layers are numbered from 1.
fn of_config(
    config: &Fields,
    keys: &Keys<'_>,
    h: &mut Hyperparameters,
) -> Result<(u32, u32, u32), ModelError> {
    let Some(linear) = config.object(LINEAR)? else {
        recurrent::layers(keys, h, LayerSet::None)?;
        let count = |field, usual| recurrent::count(keys, "", field, usual);
        let taps = recurrent::taps(keys, "", "linear_conv_kernel_dim", 4)?;
        return Ok((taps, count("linear_num_heads", 32)?, count("linear_head_dim", 128)?));
    };
    keys.mark("layer_types");
    h.extras.recurrent_layers = LayerSet::Listed(layers_of(&linear, h)?);
    let taps = linear.find_count("short_conv_kernel_size")?.unwrap_or(4);
    if !recurrent::TAPS.contains(&taps) {
        let why = format!("{taps} is not in {:?}", recurrent::TAPS);
        return Err(ModelError::Hyperparameter { key: linear.in_file("short_conv_kernel_size"), why });
    }
    Ok((taps, linear.find_count("num_heads")?.unwrap_or(32), linear.find_count("head_dim")?.unwrap_or(128)))
}

/// Returns which layers are delta nets. Each layer is in one of two lists.
fn layers_of(linear: &Fields, h: &Hyperparameters) -> Result<Vec<bool>, ModelError> {
    let mut kinds = vec![None; h.layers as usize];
    for (field, is_recurrent) in [("kda_layers", true), ("full_attn_layers", false)] {
        let Some(value) = linear.find(field) else { return Err(linear.missing(field).into()) };
        let wrong = || linear.wrong_type(field, "a list of layers, each in one list", value);
        for number in value.as_array().ok_or_else(wrong)? {
            let index = number.as_u64().and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
            let kind: Option<&mut Option<bool>> = index.and_then(|index| kinds.get_mut(index));
            let kind = kind.filter(|kind| kind.is_none()).ok_or_else(wrong)?;
            *kind = Some(is_recurrent);
        }
    }
    let all: Option<Vec<bool>> = kinds.into_iter().collect();
    let why = || format!("some of the {} layers are in no list", h.layers);
    all.ok_or_else(|| ModelError::Hyperparameter { key: linear.in_file("kda_layers"), why: why() })
}
