//! Qwen2: Llama with biases for queries, keys and values. RoPE pairs the two halves of a head, both in GGUF
//! files and in checkpoints.

use super::names::COMMON;
use super::transformer::{Attention, Layer};
use super::{Architecture, RopePairing};

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    gguf_pairing: RopePairing::Halves,
    layer: |h, _| {
        let plain = Layer::plain(h);
        Layer { attention: Attention { qkv_bias: true, ..plain.attention }, ..plain }
    },
    tensors: &[
        COMMON,
        &[
            ("blk.N.attn_q.bias", "model.layers.N.self_attn.q_proj.bias"),
            ("blk.N.attn_k.bias", "model.layers.N.self_attn.k_proj.bias"),
            ("blk.N.attn_v.bias", "model.layers.N.self_attn.v_proj.bias"),
        ],
    ],
};
