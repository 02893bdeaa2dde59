//! Qwen3 MoE: Qwen3 with experts. GGUF files do not say that the weights of the chosen experts are divided by their sum.

use super::architecture::{
    ATTENTION_BIAS, Architecture, EPSILON, ExpertOrder, USUAL, kv_heads, sliding_window,
};
use super::keys::Setting;
use super::names::{COMMON, EXPERTS, HEAD_NORMS, NORMS};
use super::transformer::{Attention, Layer, QkNorm};
use super::{experts, qwen2};
use crate::checkpoint::Fields;
use ragtag_kernels::experts::route::Choice;
use serde_json::json;

pub(super) static QWEN3_MOE: Architecture = Architecture {
    name: "qwen3moe",
    multimodal_names: &["qwen3vlmoe"],
    classes: &["Qwen3MoeForCausalLM"],
    multimodal_classes: &["Qwen3VLMoeForConditionalGeneration"],
    multimodal_expert_order: ExpertOrder::Columns,
    defaults: &[
        EPSILON,
        kv_heads(4),
        sliding_window(4096),
        ("num_experts_per_tok", Setting::Count(8)),
        ("moe_intermediate_size", Setting::Count(768)),
    ],
    biases: ATTENTION_BIAS,
    read: |keys, h| {
        qwen2::window(keys, h)?;
        experts::check_all_layers(keys)?;
        // The class with vision has no field for it.
        let is_text_part = |config: &Fields| config.find("model_type") == Some(&json!("qwen3_vl_moe_text"));
        let usual = Choice::softmax(1, keys.config().is_none_or(is_text_part));
        h.extras.experts = Some(experts::read(keys, h, usual)?);
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qk_norm: Some(QkNorm::Heads), ..plain.attention }, ..plain }
    },
    tensors: &[COMMON, NORMS, EXPERTS, HEAD_NORMS],
    ..USUAL
};
