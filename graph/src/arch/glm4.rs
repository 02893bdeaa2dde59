//! GLM-4 (0414): norms before and after each half of a layer, biases for queries, keys and values, half of
//! each head rotating in neighbouring pairs, and gate and up projections in one tensor.

use super::names::{COMMON, FUSED_GATED, QKV_BIASES};
use super::transformer::{Attention, FeedForward, Layer, Norms};
use super::{Architecture, RopePairing, USUAL};

pub(super) static GLM4: Architecture = Architecture {
    name: "glm4",
    classes: &["Glm4ForCausalLM"],
    has_partial_rotation: true,
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        if keys.config().is_some() {
            h.extras.qkv_bias = keys.flag("attention_bias")?.unwrap_or(false);
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { qkv_bias: h.extras.qkv_bias, ..plain.attention },
            feed_forward: FeedForward { is_fused: true, ..plain.feed_forward },
            norms: Norms::Both,
            ..plain
        }
    },
    tensors: &[
        COMMON,
        FUSED_GATED,
        QKV_BIASES,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_self_attn_layernorm.weight"),
            ("blk.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
            ("blk.N.post_ffw_norm.weight", "model.layers.N.post_mlp_layernorm.weight"),
        ],
    ],
    ..USUAL
};
