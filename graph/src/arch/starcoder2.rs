//! StarCoder2: layer norms, a feed-forward network with GELU instead of a gate, biases in most models, and a
//! window in all layers.

use super::architecture::{Architecture, TIED, USUAL, kv_heads};
use super::keys::Setting;
use super::names::{COMMON, NORMS};
use super::transformer::{FeedForward, Function, Layer, NormKind};

pub(super) static STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    classes: &["Starcoder2ForCausalLM"],
    defaults: &[("norm_epsilon", Setting::Number(1e-5)), TIED, kv_heads(2)],
    epsilon: "norm_epsilon",
    activation: ("hidden_act", &["gelu_pytorch_tanh"]),
    read: |keys, h| {
        if keys.config().is_some() {
            let has_bias = keys.flag("", "use_bias")?.unwrap_or(true);
            h.extras.feed_forward_bias = has_bias;
            (h.extras.qkv_bias, h.extras.output_bias) = (has_bias, has_bias);
        }
        keys.window(h, 0)
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let function = Function::GeluTanh;
        let feed_forward = FeedForward { function, has_gate: false, ..plain.feed_forward };
        Layer { feed_forward, norm_kind: NormKind::Layer, ..plain }
    },
    tensors: &[
        COMMON,
        NORMS,
        &[
            ("output_norm.bias", "model.norm.bias"),
            ("blk.N.attn_norm.bias", "model.layers.N.input_layernorm.bias"),
            ("blk.N.ffn_norm.bias", "model.layers.N.post_attention_layernorm.bias"),
            ("blk.N.ffn_up.weight", "model.layers.N.mlp.c_fc.weight"),
            ("blk.N.ffn_up.bias", "model.layers.N.mlp.c_fc.bias"),
            ("blk.N.ffn_down.weight", "model.layers.N.mlp.c_proj.weight"),
            ("blk.N.ffn_down.bias", "model.layers.N.mlp.c_proj.bias"),
        ],
    ],
    ..USUAL
};
