//! Gemma 3 (text): Gemma 2 with norms of query and key heads instead of caps, a window in five of six layers,
//! and another RoPE base in these layers.

use super::architecture::{
    ATTENTION_BIAS, Architecture, EPSILON, TIED, USUAL, kv_heads, rope_base, sliding_window,
};
use super::gemma2::{GELU, HEAD, NORMS, SCALAR, layer, read};
use super::keys::Setting;
use super::names::{COMMON, GATED, HEAD_NORMS};
use super::rope::Rope;
use super::transformer::{Attention, Layer, QkNorm};

/// RoPE base of windowed layers in files without one.
const WINDOWED_BASE: f32 = 10_000.0;
const LOCAL_BASE: (&str, Setting) = ("rope_local_base_freq", Setting::Number(10_000.0));

pub(super) static GEMMA3: Architecture = Architecture {
    name: "gemma3",
    classes: &["Gemma3ForCausalLM"],
    multimodal_classes: &["Gemma3ForConditionalGeneration"],
    defaults: &[
        EPSILON,
        TIED,
        ("num_attention_heads", Setting::Count(8)),
        kv_heads(4),
        HEAD,
        SCALAR,
        sliding_window(4096),
        rope_base(1e6),
        LOCAL_BASE,
        ("max_position_embeddings", Setting::Count(131_072)),
        ("vocab_size", Setting::Count(262_208)),
    ],
    biases: ATTENTION_BIAS,
    activation: GELU,
    read: |keys, h| {
        read(keys, h, 62)?;
        // `transformers` has this field in the class, but the model does not use it.
        keys.mark("attn_logit_softcapping");
        h.extras.logit_cap = keys.float("final_logit_softcapping", "final_logit_softcapping")?;
        keys.window(h, keys.count("", "sliding_window_pattern")?.unwrap_or(6))?;
        let base = keys.float("rope.freq_base_swa", "rope_local_base_freq")?;
        if h.extras.windowed_rope.is_none() {
            let (dimensions, pairing) = (h.rope.dimensions, h.rope.pairing);
            let base = base.unwrap_or(WINDOWED_BASE);
            h.extras.windowed_rope = Some(Rope { dimensions, pairing, base, ..Rope::plain() });
        }
        Ok(())
    },
    layer: |h, index| {
        let gemma = layer(h, index);
        Layer { attention: Attention { qk_norm: Some(QkNorm::Heads), ..gemma.attention }, ..gemma }
    },
    tensors: &[COMMON, GATED, NORMS, HEAD_NORMS],
    ..USUAL
};
