//! OLMo 2 and 3: norms after each half of a layer instead of before it, and one norm each for all queries and all keys of a
//! row. OLMo 3 also has a window in three of four layers, where RoPE is not scaled. Its GGUF files name OLMo 2.

use super::architecture::{ATTENTION_BIAS, Architecture, USUAL, rope_base, sliding_window};
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::names::{COMMON, GATED, HEAD_NORMS, Names};
use super::rope::Rope;
use super::transformer::{Attention, Layer, Norms, QkNorm};
use crate::error::ModelError;

/// Distance between layers that attend to all positions, unless the file says otherwise.
const PERIOD: u32 = 4;
const EPSILON: (&str, Setting) = ("rms_norm_eps", Setting::Number(1e-5));

pub(super) static OLMO2: Architecture = Architecture {
    name: "olmo2",
    classes: &["Olmo2ForCausalLM"],
    defaults: &[EPSILON],
    biases: ATTENTION_BIAS,
    read: |keys, h| if keys.config().is_none() { windows(keys, h) } else { Ok(()) },
    layer,
    tensors: &[COMMON, GATED, HEAD_NORMS, NORMS],
    ..USUAL
};

pub(super) static OLMO3: Architecture = Architecture {
    name: "olmo3",
    classes: &["Olmo3ForCausalLM"],
    defaults: &[EPSILON, sliding_window(4096), rope_base(5e5)],
    read: windows,
    ..OLMO2
};

/// Names of the norms after each half of a layer.
pub(super) const NORMS: &[Names] = &[
    ("blk.N.post_attention_norm.weight", "model.layers.N.post_attention_layernorm.weight"),
    ("blk.N.post_ffw_norm.weight", "model.layers.N.post_feedforward_layernorm.weight"),
];

fn layer(h: &Hyperparameters, index: u32) -> Layer {
    let plain = Layer::plain(h, index);
    Layer {
        attention: Attention { qk_norm: Some(QkNorm::Whole), ..plain.attention },
        norms: Norms::After,
        ..plain
    }
}

/// Reads the window, and the RoPE of layers with it.
fn windows(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    keys.window(h, PERIOD)?;
    let base = keys.float("rope.freq_base_swa", "")?.unwrap_or(h.rope.base);
    if h.extras.window.is_some() && h.extras.windowed_rope.is_none() {
        let (dimensions, pairing) = (h.rope.dimensions, h.rope.pairing);
        h.extras.windowed_rope = Some(Rope { dimensions, pairing, base, ..Rope::plain() });
    }
    Ok(())
}
