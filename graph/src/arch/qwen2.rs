//! Qwen2: Llama with biases for queries, keys and values. RoPE pairs the two halves of a head, both in GGUF
//! files and in checkpoints. The last layers may attend to a window of positions.

use super::architecture::{Architecture, EPSILON, USUAL, kv_heads, sliding_window};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::Keys;
use super::transformer::{Attention, Layer};
use crate::error::ModelError;

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    multimodal_names: &["qwen2vl"],
    classes: &["Qwen2ForCausalLM"],
    multimodal_classes: &["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
    defaults: &[EPSILON, kv_heads(32), sliding_window(4096)],
    read: window,
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer { attention: Attention { qkv_bias: true, ..plain.attention }, ..plain }
    },
    ..USUAL
};

/// Reads the window. In checkpoints, layers from `max_window_layers` on attend to it, if the list of layers
/// does not say otherwise, and `use_sliding_window` must allow it.
pub(super) fn window(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let is_on = keys.flag("", "use_sliding_window")?.unwrap_or(false);
    if keys.config().is_some() && !is_on {
        // The size may then be 0.
        ["sliding_window", "layer_types"].into_iter().for_each(|key| keys.mark(key));
        return Ok(());
    }
    keys.window(h, 0)?;
    let Some(config) = keys.config() else { return Ok(()) };
    if config.find("layer_types").is_none() {
        let full = config.find_whole("max_window_layers")?.unwrap_or(28);
        h.extras.windowed_layers = h.extras.window.map_or(LayerSet::None, |_| LayerSet::From(full));
    }
    Ok(())
}
