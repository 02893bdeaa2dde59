//! Qwen2 MoE: Qwen2 with experts, and a gated network that all tokens use.

use super::architecture::{Architecture, EPSILON, USUAL, kv_heads, sliding_window};
use super::keys::Setting;
use super::names::{COMMON, EXPERTS, NORMS};
use super::transformer::{Attention, Layer};
use super::{experts, qwen2};
use ragtag_kernels::experts::route::Choice;

pub(super) static QWEN2_MOE: Architecture = Architecture {
    name: "qwen2moe",
    classes: &["Qwen2MoeForCausalLM"],
    defaults: &[
        EPSILON,
        kv_heads(16),
        sliding_window(4096),
        ("num_experts_per_tok", Setting::Count(4)),
        ("moe_intermediate_size", Setting::Count(1408)),
        ("shared_expert_intermediate_size", Setting::Count(5632)),
    ],
    read: |keys, h| {
        qwen2::window(keys, h)?;
        experts::check_all_layers(keys)?;
        let usual = Choice::softmax(1, false);
        let shared = keys.count("expert_shared_feed_forward_length", "shared_expert_intermediate_size")?;
        let shared = Some(shared.unwrap_or(h.feed_forward));
        h.extras.experts =
            Some(super::Experts { shared, shared_gate: true, ..experts::read(keys, h, usual)? });
        if keys.config().is_some() {
            h.extras.qkv_bias = keys.flag("", "qkv_bias")?.unwrap_or(true);
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qkv_bias: h.extras.qkv_bias, ..plain.attention }, ..plain }
    },
    tensors: &[
        COMMON,
        NORMS,
        EXPERTS,
        &[
            ("blk.N.ffn_gate_inp_shexp.weight", "model.layers.N.mlp.shared_expert_gate.weight"),
            ("blk.N.ffn_gate_shexp.weight", "model.layers.N.mlp.shared_expert.gate_proj.weight"),
            ("blk.N.ffn_up_shexp.weight", "model.layers.N.mlp.shared_expert.up_proj.weight"),
            ("blk.N.ffn_down_shexp.weight", "model.layers.N.mlp.shared_expert.down_proj.weight"),
        ],
    ],
    ..USUAL
};
