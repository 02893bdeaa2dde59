//! OLMo 2: norms after each half of a layer instead of before it, and one norm each for all queries and all
//! keys of a row.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL};
use super::keys::Setting;
use super::names::{COMMON, GATED, HEAD_NORMS};
use super::transformer::{Attention, Layer, Norms, QkNorm};

pub(super) static OLMO2: Architecture = Architecture {
    name: "olmo2",
    classes: &["Olmo2ForCausalLM"],
    defaults: &[("rms_norm_eps", Setting::Number(1e-5))],
    biases: ATTENTION_BIAS,
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { qk_norm: Some(QkNorm::Whole), ..plain.attention },
            norms: Norms::After,
            ..plain
        }
    },
    tensors: &[
        COMMON,
        GATED,
        HEAD_NORMS,
        &[
            ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
            ("blk.N.post_ffw_norm.weight", "model.layers.N.post_feedforward_layernorm.weight"),
        ],
    ],
    ..USUAL
};
