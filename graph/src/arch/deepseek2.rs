//! DeepSeek V2 and V3, and models of their form (Kimi K2, GLM-4.7-Flash): latent attention, and experts beside a network
//! that all tokens use. The first layers have no experts. GGUF files of all of them name the architecture `deepseek2`.
//!
//! In V3.2, an indexer chooses the positions to which a token attends. In contexts of up to as many positions as it chooses, it
//! chooses all. Ragtag runs these contexts alone, and does not use the indexer.
//!
//! The router of V2 is a softmax, and a group of experts counts as much as its best one. V3 and later have a sigmoid with
//! biases, and a group counts as much as its best two.

use super::architecture::{Architecture, EPSILON, USUAL};
use super::experts::{self, Experts};
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::latent::{self, Indexer};
use super::names::{COMMON, EXPERTS, GATED, NORMS, Names, PREDICTORS, SHARED_EXPERTS};
use super::rope::RopePairing;
use crate::error::{ModelError, Quoted};
use ragtag_kernels::experts::route::{Choice, Groups};
use serde_json::json;

/// Properties that all have.
pub(super) const LATENT: Architecture = Architecture {
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    has_partial_rotation: true,
    tensors: &[COMMON, NORMS, GATED, EXPERTS, SHARED_EXPERTS, PREDICTORS, latent::NAMES, ROUTER_BIAS],
    ..USUAL
};

const ROUTER_BIAS: &[Names] =
    &[("blk.N.exp_probs_b.bias", "model.layers.N.mlp.gate.e_score_correction_bias")];

/// Names of the tensors of an indexer.
pub(super) const INDEXER: &[Names] = &[
    ("blk.N.indexer.attn_q_b.weight", "model.layers.N.self_attn.indexer.wq_b.weight"),
    ("blk.N.indexer.attn_k.weight", "model.layers.N.self_attn.indexer.wk.weight"),
    ("blk.N.indexer.k_norm.weight", "model.layers.N.self_attn.indexer.k_norm.weight"),
    ("blk.N.indexer.k_norm.bias", "model.layers.N.self_attn.indexer.k_norm.bias"),
    ("blk.N.indexer.proj.weight", "model.layers.N.self_attn.indexer.weights_proj.weight"),
];

/// Positions that an indexer chooses, unless the file says so.
const CHOSEN: u32 = 2048;

pub(super) static DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    classes: &["DeepseekV2ForCausalLM"],
    defaults: &[EPSILON, ("n_routed_experts", Setting::Count(64)), ("n_shared_experts", Setting::Count(2))],
    read: |keys, h| {
        let Some(config) = keys.config() else { return read_gguf(keys, h) };
        // The reference implementation does not divide by the sum.
        config.refuse("norm_topk_prob", &[json!(false)])?;
        config.refuse("scoring_func", &[json!("softmax")])?;
        config.refuse("topk_method", &[json!("greedy"), json!("group_limited_greedy")])?;
        let is_greedy = config.text("topk_method")?.is_none_or(|method| method == "greedy");
        read(keys, h, Choice::softmax(1, false))?;
        if let Some(experts) = h.extras.experts.as_mut().filter(|_| is_greedy) {
            experts.choice.groups = Groups { count: 1, kept: 1, best: 1 };
        }
        Ok(())
    },
    ..LATENT
};

/// Defaults of V3 and V3.2.
const DEFAULTS: &[(&str, Setting)] = &[
    EPSILON,
    ("n_routed_experts", Setting::Count(256)),
    ("n_shared_experts", Setting::Count(1)),
    ("num_experts_per_tok", Setting::Count(8)),
    ("moe_intermediate_size", Setting::Count(2048)),
    ("first_k_dense_replace", Setting::Count(3)),
    ("routed_scaling_factor", Setting::Number(2.5)),
    ("n_group", Setting::Count(8)),
    ("topk_group", Setting::Count(4)),
];

pub(super) static DEEPSEEK3: Architecture = Architecture {
    name: "deepseek3",
    classes: &["DeepseekV3ForCausalLM"],
    defaults: DEFAULTS,
    read: |keys, h| read_sigmoid(keys, h),
    ..LATENT
};

pub(super) static DEEPSEEK32: Architecture = Architecture {
    name: "deepseek32",
    classes: &["DeepseekV32ForCausalLM"],
    defaults: DEFAULTS,
    read: |keys, h| {
        read_sigmoid(keys, h)?;
        experts::sparse_layers(keys, h)?;
        indexer(keys, h)
    },
    tensors: &[
        COMMON,
        NORMS,
        GATED,
        EXPERTS,
        SHARED_EXPERTS,
        PREDICTORS,
        latent::NAMES,
        ROUTER_BIAS,
        INDEXER,
    ],
    ..LATENT
};

pub(super) static GLM4_MOE_LITE: Architecture = Architecture {
    name: "glm4moelite",
    classes: &["Glm4MoeLiteForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        ("n_routed_experts", Setting::Count(64)),
        ("n_shared_experts", Setting::Count(1)),
        ("num_experts_per_tok", Setting::Count(4)),
        ("moe_intermediate_size", Setting::Count(1536)),
        ("first_k_dense_replace", Setting::Count(1)),
        ("routed_scaling_factor", Setting::Number(1.8)),
    ],
    read: |keys, h| {
        read_sigmoid(keys, h)?;
        experts::sparse_layers(keys, h)
    },
    ..LATENT
};

/// Reads the hyperparameters of GGUF files, whose tensors tell the kind of the router.
fn read_gguf(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let usual = if h.extras.router_bias { sigmoid() } else { Choice::softmax(1, false) };
    read(keys, h, Choice { is_normalised: false, ..usual })
}

fn read_sigmoid(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    if let Some(config) = keys.config() {
        config.refuse("scoring_func", &[json!("sigmoid")])?;
        config.refuse("topk_method", &[json!("noaux_tc")])?;
    }
    read(keys, h, sigmoid())
}

/// Limits the context to the positions that the indexer chooses.
fn indexer(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    const KINDS: &str = "layer_types";
    let positions = keys.count("attention.indexer.top_k", "index_topk")?.unwrap_or(CHOSEN);
    for size in ["head_count", "key_length"] {
        keys.count(&format!("attention.indexer.{size}"), "")?;
    }
    keys.mark(KINDS);
    let kinds = keys.config().map(|config| config.texts(KINDS)).transpose()?.flatten();
    if let Some(other) = kinds.iter().flatten().find(|kind| **kind != "indexed_attention") {
        let what = format!("{} of type {:?}", keys.label("", KINDS), Quoted(other).to_string());
        return Err(ModelError::Unsupported { what });
    }
    h.extras.indexer = Some(Indexer { positions, context: h.context });
    h.context = h.context.min(positions);
    Ok(())
}

pub(super) fn sigmoid() -> Choice {
    Choice { epsilon: 1e-20, ..experts::sigmoid() }
}

/// Reads all hyperparameters beyond the usual ones. `usual` is the rule of the router.
pub(super) fn read(keys: &Keys<'_>, h: &mut Hyperparameters, usual: Choice) -> Result<(), ModelError> {
    if let Some(config) = keys.config() {
        config.refuse("moe_layer_freq", &[json!(1)])?;
        if config.flag("rope_interleave")? == Some(false) {
            h.rope.pairing = RopePairing::Halves;
        }
    }
    latent::read(keys, h)?;
    experts::skip_predictors(keys, h)?;
    let found = experts::read(keys, h, usual)?;
    let shared = experts::shared(keys, &found, "n_shared_experts")?;
    h.extras.experts = Some(Experts { shared, ..found });
    experts::dense_first(keys, h, "first_k_dense_replace")
}
