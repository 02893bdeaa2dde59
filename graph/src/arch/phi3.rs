//! Phi-3: Llama whose queries, keys and values are one tensor, and whose gate and up projections are one
//! tensor. Part of a head may rotate, with factors that depend on the context (LongRoPE).

use super::architecture::{Architecture, USUAL};
use super::keys::Setting;
use super::names::{COMMON, FUSED_GATED, NORMS};
use super::transformer::{Attention, FeedForward, Layer};

pub(super) static PHI3: Architecture = Architecture {
    name: "phi3",
    classes: &["Phi3ForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        ("original_max_position_embeddings", Setting::Count(4096)),
    ],
    has_partial_rotation: true,
    read: |keys, h| keys.window(h, 0),
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { is_fused: true, ..plain.attention },
            feed_forward: FeedForward { is_fused: true, ..plain.feed_forward },
            ..plain
        }
    },
    tensors: &[
        COMMON,
        NORMS,
        FUSED_GATED,
        &[("blk.N.attn_qkv.weight", "model.layers.N.self_attn.qkv_proj.weight")],
    ],
    ..USUAL
};
