//! LFM2: most layers are short convolutions between two gates. In LFM2 MoE, all but the first layers have experts.

use super::architecture::{Architecture, TIED, USUAL, kv_heads, rope_base};
use super::experts;
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{EMBEDDING, HEAD, Names};
use super::recurrent::{self, Recurrent};
use super::transformer::{Attention, Layer, QkNorm};
use crate::error::ModelError;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

const SHARED: &[Names] = &[
    (EMBEDDING, "model.embed_tokens.weight"),
    (OUTPUT_NORM_WEIGHT, "model.embedding_norm.weight"),
    (HEAD, "lm_head.weight"),
    ("blk.N.attn_norm.weight", "model.layers.N.operator_norm.weight"),
    ("blk.N.ffn_norm.weight", "model.layers.N.ffn_norm.weight"),
    ("blk.N.attn_q.weight", "model.layers.N.self_attn.q_proj.weight"),
    ("blk.N.attn_k.weight", "model.layers.N.self_attn.k_proj.weight"),
    ("blk.N.attn_v.weight", "model.layers.N.self_attn.v_proj.weight"),
    ("blk.N.attn_output.weight", "model.layers.N.self_attn.out_proj.weight"),
    ("blk.N.attn_q_norm.weight", "model.layers.N.self_attn.q_layernorm.weight"),
    ("blk.N.attn_k_norm.weight", "model.layers.N.self_attn.k_layernorm.weight"),
    ("blk.N.shortconv.in_proj.weight", "model.layers.N.conv.in_proj.weight"),
    ("blk.N.shortconv.conv.weight", "model.layers.N.conv.conv.weight"),
    ("blk.N.shortconv.out_proj.weight", "model.layers.N.conv.out_proj.weight"),
    ("blk.N.ffn_gate.weight", "model.layers.N.feed_forward.w1.weight"),
    ("blk.N.ffn_up.weight", "model.layers.N.feed_forward.w3.weight"),
    ("blk.N.ffn_down.weight", "model.layers.N.feed_forward.w2.weight"),
];

/// The norm before the projection to logits has a name of its own, also in GGUF files.
const OUTPUT_NORM: &str = "token_embd_norm";
const OUTPUT_NORM_WEIGHT: &str = "token_embd_norm.weight";

/// Defaults of both classes. A model without experts does not read their number.
const DEFAULTS: &[(&str, Setting)] = &[
    ("norm_eps", Setting::Number(1e-5)),
    TIED,
    rope_base(1e6),
    ("conv_L_cache", Setting::Count(3)),
    kv_heads(8),
    ("num_experts", Setting::Count(32)),
    ("num_experts_per_tok", Setting::Count(4)),
    ("moe_intermediate_size", Setting::Count(1792)),
    ("num_dense_layers", Setting::Count(2)),
];

pub(super) static LFM2: Architecture = Architecture {
    name: "lfm2",
    classes: &["Lfm2ForCausalLM"],
    multimodal_classes: &["Lfm2VlForConditionalGeneration"],
    defaults: DEFAULTS,
    epsilon: "norm_eps",
    activation: ("hidden_act", &[]),
    read: |keys, h| {
        read(keys, h)?;
        adjust(keys, h)
    },
    layer,
    tensors: &[SHARED],
    ..USUAL
};

pub(super) static LFM2_MOE: Architecture = Architecture {
    name: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    defaults: DEFAULTS,
    epsilon: "norm_eps",
    activation: ("hidden_act", &[]),
    read: |keys, h| {
        read(keys, h)?;
        let is_biased = match keys.config() {
            Some(_) => keys.flag("", "use_expert_bias")?.unwrap_or(true),
            None => h.extras.router_bias,
        };
        let usual = Choice { is_biased, epsilon: 1e-6, ..experts::sigmoid() };
        h.extras.experts = Some(experts::read(keys, h, usual)?);
        experts::dense_first(keys, h, "num_dense_layers")
    },
    layer,
    tensors: &[
        SHARED,
        &[
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.feed_forward.gate.weight"),
            ("blk.N.exp_probs_b.bias", "model.layers.N.feed_forward.expert_bias"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.feed_forward.experts.gate_up_proj"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.feed_forward.experts.down_proj"),
            ("blk.N.ffn_gate.M.weight", "model.layers.N.feed_forward.experts.M.w1.weight"),
            ("blk.N.ffn_up.M.weight", "model.layers.N.feed_forward.experts.M.w3.weight"),
            ("blk.N.ffn_down.M.weight", "model.layers.N.feed_forward.experts.M.w2.weight"),
        ],
    ],
    ..USUAL
};

fn read(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    if let Some(config) = keys.config() {
        config.refuse("conv_bias", &[json!(false)])?;
    }
    h.extras.output_norm = OUTPUT_NORM;
    h.extras.recurrent =
        Some(Recurrent::ShortConv { taps: recurrent::taps(keys, "shortconv.l_cache", "conv_L_cache", 3)? });
    // Older files list the layers with attention. Without a list, all layers have attention.
    let attending = keys.layers_at("full_attn_idxs", h.layers)?.unwrap_or(LayerSet::All);
    recurrent::layers(keys, h, attending.others())
}

/// Computes the size of the feed-forward network from the fields of `config.json`.
fn adjust(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let Some(config) = keys.config() else { return Ok(()) };
    let size = config.find_count("block_ff_dim")?.unwrap_or(h.feed_forward);
    h.feed_forward = size;
    if config.flag("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(());
    }
    let factor = config.find_float("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = u64::from(config.find_count("block_multiple_of")?.unwrap_or(256));
    let size = (f64::from(factor) * f64::from(2 * u64::from(size) as u32 / 3)) as u64;
    let size = i128::from(size.div_ceil(multiple) * multiple);
    h.feed_forward = super::hyperparameters::in_range(&config.in_file("block_ffn_dim_multiplier"), size)?;
    Ok(())
}

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    Layer { attention: Attention { qk_norm: Some(QkNorm::Heads), ..plain.attention }, ..plain }
}
