//! Qwen3: Llama with a norm for each query head and each key head. RoPE pairs the two halves of a head, both
//! in GGUF files and in checkpoints. The last layers may attend to a window of positions.

use super::architecture::{ATTENTION_BIAS, Architecture, EPSILON, USUAL, kv_heads, sliding_window};
use super::keys::Setting;
use super::names::{COMMON, GATED, HEAD_NORMS, NORMS};
use super::qwen2;
use super::transformer::{Attention, Layer, QkNorm};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    multimodal_names: &["qwen3vl"],
    classes: &["Qwen3ForCausalLM"],
    multimodal_classes: &["Qwen3VLForConditionalGeneration"],
    defaults: &[EPSILON, kv_heads(32), sliding_window(4096), ("head_dim", Setting::Count(128))],
    biases: ATTENTION_BIAS,
    read: qwen2::window,
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qk_norm: Some(QkNorm::Heads), ..plain.attention }, ..plain }
    },
    tensors: &[COMMON, NORMS, GATED, HEAD_NORMS],
    ..USUAL
};
