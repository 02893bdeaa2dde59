//! gpt-oss: experts with biases and a limited gate, attention with sinks, and a window in every second layer.

use super::architecture::{
    ATTENTION_BIAS, Architecture, ExpertOrder, USUAL, kv_heads, rope_base, sliding_window,
};
use super::experts::{self, Experts};
use super::keys::{Keys, Setting};
use super::names::COMMON;
use super::rope::{Rope, Yarn};
use super::transformer::{Attention, Layer};
use crate::error::ModelError;
use ragtag_kernels::experts::gate::Rule;
use ragtag_kernels::experts::route::Choice;

pub(super) static GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    classes: &["GptOssForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(8),
        sliding_window(128),
        rope_base(150_000.0),
        ("attention_bias", Setting::Flag(true)),
        ("head_dim", Setting::Count(64)),
        ("num_local_experts", Setting::Count(128)),
        ("num_experts_per_tok", Setting::Count(4)),
    ],
    biases: ATTENTION_BIAS,
    expert_order: ExpertOrder::ColumnsInTurn,
    read: |keys, h| {
        keys.window(h, 2)?;
        yarn(keys, &mut h.rope);
        let found = experts::read(keys, h, Choice::softmax(1, true))?;
        let rule = Some(rule(keys)?);
        h.extras.experts = Some(Experts { rule, has_biases: true, ..found });
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let attention = Attention { has_sinks: true, ..plain.attention };
        Layer { attention, ffn_norm: "post_attention_norm", ..plain }
    },
    tensors: &[
        COMMON,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
            ("blk.N.attn_sinks.weight", "model.layers.N.self_attn.sinks"),
            ("blk.N.ffn_gate_inp.weight", "model.layers.N.mlp.router.weight"),
            ("blk.N.ffn_gate_inp.bias", "model.layers.N.mlp.router.bias"),
            ("blk.N.ffn_gate_up_exps.weight", "model.layers.N.mlp.experts.gate_up_proj"),
            ("blk.N.ffn_gate_up_exps.bias", "model.layers.N.mlp.experts.gate_up_proj_bias"),
            ("blk.N.ffn_down_exps.weight", "model.layers.N.mlp.experts.down_proj"),
            ("blk.N.ffn_down_exps.bias", "model.layers.N.mlp.experts.down_proj_bias"),
        ],
    ],
    ..USUAL
};

/// Returns the gated function. GGUF files have no keys for it.
fn rule(keys: &Keys<'_>) -> Result<Rule, ModelError> {
    Ok(Rule {
        alpha: keys.float("", "swiglu_alpha")?.unwrap_or(1.702),
        limit: keys.float("", "swiglu_limit")?.unwrap_or(7.0),
        offset: 1.0,
    })
}

/// Completes the scaling of RoPE. GGUF files do not say that its bounds are not rounded. A configuration without RoPE settings
/// stands for the usual ones.
fn yarn(keys: &Keys<'_>, rope: &mut Rope) {
    let settings = ["rope_parameters", "rope_scaling"];
    match keys.config() {
        Some(config) if settings.iter().any(|key| config.find(key).is_some()) => return,
        Some(_) => (rope.yarn, rope.magnitude) = (Some(Yarn::usual(32.0, 4096)), Yarn::magnitude(32.0)),
        None => {}
    }
    if let Some(yarn) = &mut rope.yarn {
        yarn.truncate = false;
    }
}
