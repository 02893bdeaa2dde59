//! Command R: attention and the feed-forward network read the same norm, and their results are added
//! together. The norms are layer norms without biases, logits have a factor, and RoPE pairs neighbouring
//! dimensions. Command R+ also normalises each query head and each key head.

use super::architecture::{ATTENTION_BIAS, Architecture, TIED, USUAL, rope_base};
use super::keys::Setting;
use super::names::{COMMON, GATED, HEAD_NORMS};
use super::rope::RopePairing;
use super::transformer::{Attention, Layer, NormKind, QkNorm};

pub(super) static COMMAND_R: Architecture = Architecture {
    name: "command-r",
    classes: &["CohereForCausalLM"],
    defaults: &[
        ("layer_norm_eps", Setting::Number(1e-5)),
        TIED,
        rope_base(5e5),
        ("logit_scale", Setting::Number(0.0625)),
    ],
    biases: ATTENTION_BIAS,
    epsilon: "layer_norm_eps",
    gguf_pairing: RopePairing::Interleaved,
    checkpoint_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        h.extras.logit_scale = keys.float("logit_scale", "logit_scale")?.unwrap_or(1.0);
        if keys.config().is_some() {
            h.extras.qk_norm = keys.flag("", "use_qk_norm")?.unwrap_or(false);
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let qk_norm = h.extras.qk_norm.then_some(QkNorm::Centred);
        let attention = Attention { qk_norm, ..plain.attention };
        Layer { attention, is_parallel: true, norm_kind: NormKind::Unbiased, ..plain }
    },
    tensors: &[
        COMMON,
        GATED,
        HEAD_NORMS,
        &[("blk.N.attn_norm.weight", "model.layers.N.input_layernorm.weight")],
    ],
    ..USUAL
};
