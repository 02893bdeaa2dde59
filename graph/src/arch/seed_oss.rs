//! Seed-OSS: Llama with biases for queries, keys and values. GGUF files call the norm before the feed-forward network
//! `post_attention_norm`.

use super::architecture::{Architecture, BIASES, EPSILON, USUAL, kv_heads};
use super::keys::Setting;
use super::names::{COMMON, GATED};
use super::transformer::Layer;

pub(super) static SEED_OSS: Architecture = Architecture {
    name: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    defaults: &[
        EPSILON,
        kv_heads(8),
        ("head_dim", Setting::Count(128)),
        ("attention_bias", Setting::Flag(true)),
    ],
    biases: BIASES,
    read: |keys, h| {
        if keys.config().is_some() {
            h.extras.output_bias = keys.flag("", "attention_out_bias")?.unwrap_or(false);
        }
        Ok(())
    },
    layer: |h, index| Layer { ffn_norm: "post_attention_norm", ..Layer::plain(h, index) },
    tensors: &[
        COMMON,
        GATED,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight"),
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
        ],
    ],
    ..USUAL
};
