//! Qwen3: Llama with a norm for each query head and each key head. RoPE pairs the two halves of a head, both
//! in GGUF files and in checkpoints.

use super::names::COMMON;
use super::transformer::{Attention, Layer};
use super::{Architecture, RopePairing};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    gguf_pairing: RopePairing::Halves,
    layer: |h, _| {
        let plain = Layer::plain(h);
        Layer { attention: Attention { head_norm: true, ..plain.attention }, ..plain }
    },
    tensors: &[
        COMMON,
        &[
            ("blk.N.attn_q_norm.weight", "model.layers.N.self_attn.q_norm.weight"),
            ("blk.N.attn_k_norm.weight", "model.layers.N.self_attn.k_norm.weight"),
        ],
    ],
};
