//! GLM-4 (0414): norms before and after each half of a layer, biases for queries, keys and values, half of
//! each head rotating in neighbouring pairs, and gate and up projections in one tensor.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, kv_heads};
use super::keys::Setting;
use super::names::{COMMON, FUSED_GATED};
use super::rope::RopePairing;
use super::transformer::{Attention, FeedForward, Layer, Norms};

pub(super) static GLM4: Architecture = Architecture {
    name: "glm4",
    classes: &["Glm4ForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1.5625e-7)),
        kv_heads(2),
        ("head_dim", Setting::Count(128)),
        ("attention_bias", Setting::Flag(true)),
        ("partial_rotary_factor", Setting::Number(0.5)),
    ],
    biases: ATTENTION_BIAS,
    has_partial_rotation: true,
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        // Converters reorder the queries and keys of multimodal models, whose pairs belong to sections.
        let sections = keys.wholes("rope.dimension_sections")?;
        if sections.iter().take_while(|pairs| **pairs > 0).count() > 1 {
            h.rope.pairing = RopePairing::Halves;
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { output_bias: false, ..plain.attention },
            feed_forward: FeedForward { is_fused: true, ..plain.feed_forward },
            norms: Norms::Both,
            ..plain
        }
    },
    tensors: &[
        COMMON,
        FUSED_GATED,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_self_attn_layernorm.weight"),
            ("blk.N.ffn_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
            ("blk.N.post_ffw_norm.weight", "model.layers.N.post_mlp_layernorm.weight"),
        ],
    ],
    ..USUAL
};
