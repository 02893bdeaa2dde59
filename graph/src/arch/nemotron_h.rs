//! Nemotron-H and Nemotron 3: each layer is Mamba 2, attention without RoPE, a feed-forward network, or a mixture of experts
//! beside a network that all tokens use. The networks have no gates. Larger models have experts with rows of another length.
//!
//! The step Δ of Mamba 2 has no limits here, as in llama.cpp and in the training code. `transformers` clamps it at
//! `time_step_min` in whole passes, but not in single steps.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, kv_heads};
use super::experts::{self, Experts};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{EMBEDDING, HEAD, Names};
use super::recurrent::{self, MambaFields};
use super::transformer::{FeedForward, Function, Layer};
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

const NAMES: &[Names] = &[
    (EMBEDDING, "backbone.embeddings.weight"),
    ("output_norm.weight", "backbone.norm_f.weight"),
    (HEAD, "lm_head.weight"),
    ("blk.N.attn_norm.weight", "backbone.layers.N.norm.weight"),
    ("blk.N.ssm_in.weight", "backbone.layers.N.mixer.in_proj.weight"),
    ("blk.N.ssm_conv1d.weight", "backbone.layers.N.mixer.conv1d.weight"),
    ("blk.N.ssm_conv1d.bias", "backbone.layers.N.mixer.conv1d.bias"),
    ("blk.N.ssm_dt.bias", "backbone.layers.N.mixer.dt_bias"),
    ("blk.N.ssm_a_log", "backbone.layers.N.mixer.A_log"),
    ("blk.N.ssm_d", "backbone.layers.N.mixer.D"),
    ("blk.N.ssm_norm.weight", "backbone.layers.N.mixer.norm.weight"),
    ("blk.N.ssm_out.weight", "backbone.layers.N.mixer.out_proj.weight"),
    ("blk.N.attn_q.weight", "backbone.layers.N.mixer.q_proj.weight"),
    ("blk.N.attn_k.weight", "backbone.layers.N.mixer.k_proj.weight"),
    ("blk.N.attn_v.weight", "backbone.layers.N.mixer.v_proj.weight"),
    ("blk.N.attn_output.weight", "backbone.layers.N.mixer.o_proj.weight"),
    ("blk.N.attn_q.bias", "backbone.layers.N.mixer.q_proj.bias"),
    ("blk.N.attn_k.bias", "backbone.layers.N.mixer.k_proj.bias"),
    ("blk.N.attn_v.bias", "backbone.layers.N.mixer.v_proj.bias"),
    ("blk.N.attn_output.bias", "backbone.layers.N.mixer.o_proj.bias"),
    ("blk.N.ffn_up.weight", "backbone.layers.N.mixer.up_proj.weight"),
    ("blk.N.ffn_down.weight", "backbone.layers.N.mixer.down_proj.weight"),
    ("blk.N.ffn_gate_inp.weight", "backbone.layers.N.mixer.gate.weight"),
    ("blk.N.exp_probs_b.bias", "backbone.layers.N.mixer.gate.e_score_correction_bias"),
    ("blk.N.ffn_up.M.weight", "backbone.layers.N.mixer.experts.M.up_proj.weight"),
    ("blk.N.ffn_down.M.weight", "backbone.layers.N.mixer.experts.M.down_proj.weight"),
    ("blk.N.ffn_up_exps.weight", "backbone.layers.N.mixer.experts.up_proj"),
    ("blk.N.ffn_down_exps.weight", "backbone.layers.N.mixer.experts.down_proj"),
    ("blk.N.ffn_up_shexp.weight", "backbone.layers.N.mixer.shared_experts.up_proj.weight"),
    ("blk.N.ffn_down_shexp.weight", "backbone.layers.N.mixer.shared_experts.down_proj.weight"),
    ("blk.N.ffn_latent_down.weight", "backbone.layers.N.mixer.fc1_latent_proj.weight"),
    ("blk.N.ffn_latent_up.weight", "backbone.layers.N.mixer.fc2_latent_proj.weight"),
];

/// Fields of `config.json` with the sizes of the Mamba layers.
const MAMBA: MambaFields = MambaFields {
    taps: "conv_kernel",
    heads: "mamba_num_heads",
    groups: "n_groups",
    state: "ssm_state_size",
    bias: "use_conv_bias",
};

/// Directories of models with and without experts have the same class.
pub(super) static NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    classes: &["NemotronHForCausalLM"],
    defaults: &[
        ("layer_norm_epsilon", Setting::Number(1e-5)),
        ("head_dim", Setting::Count(128)),
        kv_heads(8),
        ("mamba_num_heads", Setting::Count(128)),
        ("mamba_head_dim", Setting::Count(64)),
        ("n_groups", Setting::Count(8)),
        ("ssm_state_size", Setting::Count(128)),
        ("n_routed_experts", Setting::Count(8)),
        ("num_experts_per_tok", Setting::Count(2)),
        ("moe_intermediate_size", Setting::Count(7688)),
        ("moe_shared_expert_intermediate_size", Setting::Count(7688)),
    ],
    biases: ATTENTION_BIAS,
    has_partial_rotation: true,
    epsilon: "layer_norm_epsilon",
    activation: ("mlp_hidden_act", &["relu2"]),
    read,
    layer,
    tensors: &[NAMES],
    ..USUAL
};

pub(super) static NEMOTRON_H_MOE: Architecture =
    Architecture { name: "nemotron_h_moe", classes: &[], ..NEMOTRON_H };

/// Kind of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Network,
    Experts,
}

fn read(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    if let Some(config) = keys.config() {
        config.refuse("mamba_hidden_act", &[json!("silu")])?;
        config.refuse("mamba_proj_bias", &[json!(false)])?;
        config.refuse("attention_head_dim", &[json!(h.head_dimensions)])?;
        config.refuse("time_step_limit", &[json!([0.0, "Infinity"]), json!([0, "Infinity"])])?;
    }
    h.extras.unrotated_layers = LayerSet::All;
    h.rope.dimensions = h.head_dimensions;
    let kinds = kinds(keys, h)?;
    // Layers that predict further tokens are the last ones.
    experts::skip_predictors(keys, h)?;
    let is = |kind: Kind| LayerSet::Listed(kinds.iter().map(|found| *found == kind).collect());
    let inner = |heads| Ok(recurrent::count(keys, "", "mamba_head_dim", 64)?.saturating_mul(heads));
    h.extras.recurrent_layers = is(Kind::Mamba);
    h.extras.recurrent = Some(recurrent::mamba(keys, &MAMBA, inner)?);
    let is_network = |kind: &Kind| matches!(kind, Kind::Network | Kind::Experts);
    h.extras.feed_forward_layers = LayerSet::Listed(kinds.iter().map(is_network).collect());
    if kinds.contains(&Kind::Experts) {
        h.extras.expert_layers = is(Kind::Experts);
        let usual = Choice { epsilon: 1e-20, ..experts::sigmoid() };
        let found = experts::read(keys, h, usual)?;
        let shared =
            keys.count("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size")?;
        keys.whole("expert_shared_count", "n_shared_experts")?;
        let latent = keys.count("moe_latent_size", "moe_latent_size")?;
        h.extras.experts = Some(Experts { shared, latent, lacks_gates: true, ..found });
    }
    Ok(())
}

/// Returns the kind of each layer. A list of kinds takes precedence over the letters of older files. GGUF files have the
/// number of KV heads and the size of the network of each layer, which are 0 in layers without them.
fn kinds(keys: &Keys<'_>, h: &Hyperparameters) -> Result<Vec<Kind>, ModelError> {
    let lists = ["attention.head_count_kv", "feed_forward_length"];
    let mut key = keys.label(lists[0], "layers_block_type");
    let kinds: Vec<Kind> = if let Some(config) = keys.config() {
        let unknown = |kind: &str| {
            let what = format!("layers of type {kind:?} ({})", config.in_file("layers_block_type"));
            ModelError::Unsupported { what }
        };
        let kind = |kind: &str| match kind {
            "M" | "mamba" | "linear_attention" => Ok(Kind::Mamba),
            "*" | "attention" | "full_attention" => Ok(Kind::Attention),
            "-" | "mlp" => Ok(Kind::Network),
            "E" | "moe" => Ok(Kind::Experts),
            other => Err(unknown(other)),
        };
        match (config.texts("layers_block_type")?, config.text("hybrid_override_pattern")?) {
            (Some(kinds), _) => kinds.into_iter().map(kind).collect::<Result<_, _>>()?,
            (None, Some(letters)) => {
                key = config.in_file("hybrid_override_pattern");
                letters.chars().map(|letter| kind(&letter.to_string())).collect::<Result<_, _>>()?
            }
            (None, None) => return Err(config.missing("layers_block_type").into()),
        }
    } else {
        let network =
            if keys.whole("expert_count", "")?.unwrap_or(0) > 0 { Kind::Experts } else { Kind::Network };
        let [kv_heads, sizes] = lists.map(|list| keys.per_layer(list).unwrap_or_default());
        let kind = |(kv_heads, size): (u32, u32)| match (kv_heads, size) {
            (0, 0) => Kind::Mamba,
            (_, 0) => Kind::Attention,
            _ => network,
        };
        kv_heads.into_iter().zip(sizes).map(kind).collect()
    };
    if kinds.len() == h.layers as usize {
        return Ok(kinds);
    }
    let why = format!("{} layers instead of {}", kinds.len(), h.layers);
    Err(ModelError::Hyperparameter { key, why })
}

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    let is_network = h.extras.feed_forward_layers.contains(index);
    Layer {
        feed_forward: FeedForward { function: Function::SquaredRelu, has_gate: false, ..plain.feed_forward },
        halves: [!is_network, is_network],
        ffn_norm: "attn_norm",
        ..plain
    }
}
