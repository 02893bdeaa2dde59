//! StarCoder2: layer norms, a feed-forward network with GELU instead of a gate, biases everywhere, and a
//! window in all layers.

use super::names::{COMMON, NORMS, QKV_BIASES};
use super::transformer::{Attention, FeedForward, Function, Layer, NormKind};
use super::{Architecture, USUAL};

pub(super) static STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    classes: &["Starcoder2ForCausalLM"],
    epsilon: "norm_epsilon",
    activation: ("hidden_act", &["gelu_pytorch_tanh"]),
    read: |keys, h| {
        if keys.flag("use_bias")? == Some(false) {
            let what = format!("{} = false", keys.label("", "use_bias"));
            return Err(crate::ModelError::Unsupported { what });
        }
        keys.window(h, 0)
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let attention = Attention { qkv_bias: true, output_bias: true, ..plain.attention };
        let function = Function::GeluTanh;
        let feed_forward = FeedForward { function, has_gate: false, bias: true, ..plain.feed_forward };
        Layer { attention, feed_forward, norm_kind: NormKind::Layer, ..plain }
    },
    tensors: &[
        COMMON,
        NORMS,
        QKV_BIASES,
        &[
            ("output_norm.bias", "model.norm.bias"),
            ("blk.N.attn_norm.bias", "model.layers.N.input_layernorm.bias"),
            ("blk.N.ffn_norm.bias", "model.layers.N.post_attention_layernorm.bias"),
            ("blk.N.attn_output.bias", "model.layers.N.self_attn.o_proj.bias"),
            ("blk.N.ffn_up.weight", "model.layers.N.mlp.c_fc.weight"),
            ("blk.N.ffn_up.bias", "model.layers.N.mlp.c_fc.bias"),
            ("blk.N.ffn_down.weight", "model.layers.N.mlp.c_proj.weight"),
            ("blk.N.ffn_down.bias", "model.layers.N.mlp.c_proj.bias"),
        ],
    ],
    ..USUAL
};
