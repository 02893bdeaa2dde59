//! Qwen3: Llama with a norm for each query head and each key head. RoPE pairs the two halves of a head, both
//! in GGUF files and in checkpoints. The last layers may attend to a window of positions.

use super::names::{COMMON, GATED, HEAD_NORMS, NORMS};
use super::transformer::{Attention, Layer, QkNorm};
use super::{Architecture, USUAL, qwen2};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    read: qwen2::window,
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qk_norm: QkNorm::Heads, ..plain.attention }, ..plain }
    },
    tensors: &[COMMON, NORMS, GATED, HEAD_NORMS],
    ..USUAL
};
