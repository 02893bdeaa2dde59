//! Hunyuan (dense): Llama with norms of query and key heads after RoPE. A fixed factor of the RoPE base extends the context.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL};
use super::keys::Setting;
use super::names::{COMMON, GATED, NORMS};
use super::transformer::{Attention, Layer, NormWeights, QkNorm};

pub(super) static HUNYUAN_DENSE: Architecture = Architecture {
    name: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM"],
    defaults: &[("rms_norm_eps", Setting::Number(1e-5))],
    biases: ATTENTION_BIAS,
    read: |keys, h| {
        // Checkpoints name this scaling "dynamic", although it does not depend on the length of a sequence.
        let Some(config) = keys.config().filter(|_| h.rope.dynamic.is_some()) else { return Ok(()) };
        for object in ["rope_scaling", "rope_parameters"] {
            let Some(scaling) = config.object(object)? else { continue };
            if let Some(alpha) = scaling.find_float("alpha")? {
                let dimensions = f64::from(h.rope.dimensions.max(4));
                let growth = f64::from(alpha).powf(dimensions / (dimensions - 2.0));
                h.rope.base = (f64::from(h.rope.base) * growth) as f32;
                h.rope.dynamic = None;
                break;
            }
        }
        Ok(())
    },
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        let qk_norm = Some(QkNorm::Heads);
        Layer {
            attention: Attention { qk_norm, norm_weights: NormWeights::After, ..plain.attention },
            ..plain
        }
    },
    tensors: &[
        COMMON,
        NORMS,
        GATED,
        &[
            ("blk.N.attn_q_norm.weight", "model.layers.N.self_attn.query_layernorm.weight"),
            ("blk.N.attn_k_norm.weight", "model.layers.N.self_attn.key_layernorm.weight"),
        ],
    ],
    ..USUAL
};
