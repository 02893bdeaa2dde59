//! OLMoE: Llama with experts, and with one norm each for all queries and all keys of a row.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, kv_heads};
use super::experts;
use super::keys::Setting;
use super::names::{COMMON, EXPERTS, HEAD_NORMS, NORMS};
use super::transformer::{Attention, Layer, QkNorm};
use ragtag_kernels::experts::route::Choice;

pub(super) static OLMOE: Architecture = Architecture {
    name: "olmoe",
    classes: &["OlmoeForCausalLM"],
    defaults: &[
        ("rms_norm_eps", Setting::Number(1e-5)),
        kv_heads(16),
        ("num_experts_per_tok", Setting::Count(8)),
    ],
    biases: ATTENTION_BIAS,
    read: |keys, h| {
        if let Some(config) = keys.config() {
            config.refuse("clip_qkv", &[])?;
        }
        h.extras.experts = Some(experts::read(keys, h, Choice::softmax(1, false))?);
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qk_norm: Some(QkNorm::Whole), ..plain.attention }, ..plain }
    },
    tensors: &[COMMON, NORMS, EXPERTS, HEAD_NORMS],
    ..USUAL
};
