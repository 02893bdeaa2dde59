//! Apertus: Llama with norms of query and key heads, and a feed-forward network without a gate, whose function has learned
//! numbers. A GGUF file has these numbers in its metadata, and a checkpoint in tensors.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, rope_base};
use super::keys::Setting;
use super::names::{COMMON, HEAD_NORMS};
use super::transformer::{Attention, FeedForward, Layer, QkNorm};

/// Keys of the numbers in GGUF files.
const NUMBERS: [&str; 4] = ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"];

pub(super) static APERTUS: Architecture = Architecture {
    name: "apertus",
    classes: &["ApertusForCausalLM"],
    defaults: &[("rms_norm_eps", Setting::Number(1e-5)), rope_base(12e6)],
    biases: ATTENTION_BIAS,
    activation: ("hidden_act", &["xielu"]),
    read: |keys, h| {
        if keys.config().is_some() {
            return Ok(());
        }
        let mut lists = Vec::new();
        for key in NUMBERS {
            lists.push(keys.numbers_of_layers(key, h.layers)?);
        }
        let of_layer = |layer: usize| std::array::from_fn(|at| lists[at][layer]);
        h.extras.xielu = (0..h.layers as usize).map(of_layer).collect();
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let feed_forward = FeedForward { has_gate: false, is_xielu: true, ..plain.feed_forward };
        Layer {
            attention: Attention { qk_norm: Some(QkNorm::Heads), ..plain.attention },
            feed_forward,
            ..plain
        }
    },
    tensors: &[
        COMMON,
        HEAD_NORMS,
        &[
            ("blk.N.attn_norm.weight", "model.layers.N.attention_layernorm.weight"),
            ("blk.N.ffn_norm.weight", "model.layers.N.feedforward_layernorm.weight"),
            ("blk.N.ffn_up.weight", "model.layers.N.mlp.up_proj.weight"),
            ("blk.N.ffn_down.weight", "model.layers.N.mlp.down_proj.weight"),
            ("blk.N.xielu.alpha_p", "model.layers.N.mlp.act_fn.alpha_p"),
            ("blk.N.xielu.alpha_n", "model.layers.N.mlp.act_fn.alpha_n"),
            ("blk.N.xielu.beta", "model.layers.N.mlp.act_fn.beta"),
            ("blk.N.xielu.eps", "model.layers.N.mlp.act_fn.eps"),
        ],
    ],
    ..USUAL
};
