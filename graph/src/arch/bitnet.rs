//! BitNet. Both architectures have ternary weights, extra norms before the attention output projection and
//! the FFN down projection, and RoPE that pairs the two halves of a head.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, kv_heads, rope_base};
use super::hyperparameters::Hyperparameters;
use super::keys::Setting;
use super::names::{COMMON, GATED, NORMS};
use super::transformer::{Attention, FeedForward, Layer};
use ragtag_kernels::silu_mul::Gate as Function;

pub(super) static BITNET: Architecture =
    Architecture { name: "bitnet", layer: |h, index| layer(h, index, Function::Silu), tensors: &[], ..USUAL };

/// The form of BitNet b1.58 2B-4T, whose gate is a squared ReLU.
pub(super) static BITNET_B158: Architecture = Architecture {
    name: "bitnet-b1.58",
    classes: &["BitNetForCausalLM"],
    defaults: &[("rms_norm_eps", Setting::Number(1e-5)), kv_heads(5), rope_base(5e5)],
    biases: ATTENTION_BIAS,
    activation: ("hidden_act", &["relu2"]),
    layer: |h, index| layer(h, index, Function::SquaredRelu),
    tensors: &[
        COMMON,
        NORMS,
        GATED,
        &[
            ("blk.N.attn_sub_norm.weight", "model.layers.N.self_attn.attn_sub_norm.weight"),
            ("blk.N.ffn_sub_norm.weight", "model.layers.N.mlp.ffn_sub_norm.weight"),
        ],
    ],
    ..USUAL
};

fn layer(h: &Hyperparameters, index: u32, function: Function) -> Layer {
    let plain = Layer::plain(h, index);
    Layer {
        attention: Attention { sub_norm: true, ..plain.attention },
        feed_forward: FeedForward { sub_norm: true, function, ..plain.feed_forward },
        ..plain
    }
}
