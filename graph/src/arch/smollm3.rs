//! SmolLM3: Llama in which every fourth layer has no RoPE.

use super::architecture::{Architecture, BIASES, EPSILON, TIED, USUAL, kv_heads, rope_base};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::Keys;
use super::rope::RopePairing;
use crate::error::ModelError;

/// Distance between layers without RoPE, unless the file gives one.
const PERIOD: u32 = 4;

pub(super) static SMOLLM3: Architecture = Architecture {
    name: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    defaults: &[EPSILON, TIED, kv_heads(4), rope_base(2e6)],
    biases: BIASES,
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        unrotated_layers(keys, h)?;
        super::qwen2::window(keys, h)?;
        if keys.config().is_some_and(|config| config.find("layer_types").is_none()) {
            let windowed = h.extras.window.map(|_| h.extras.unrotated_layers.clone());
            h.extras.windowed_layers = windowed.unwrap_or(LayerSet::None);
        }
        Ok(())
    },
    ..USUAL
};

/// Reads which layers have no RoPE.
pub(super) fn unrotated_layers(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    let period = keys.count("", "no_rope_layer_interval")?.unwrap_or(PERIOD);
    h.extras.unrotated_layers = LayerSet::Every(period);
    keys.mark("no_rope_layers");
    // The list has 1 for layers with RoPE and 0 for the others. An empty list stands for none.
    let list = keys.config().map(|c| c.floats("no_rope_layers")).transpose()?.flatten();
    let Some(list) = list.filter(|list| !list.is_empty()) else { return Ok(()) };
    if list.len() != h.layers as usize {
        let why = format!("{} layers instead of {}", list.len(), h.layers);
        return Err(ModelError::Hyperparameter { key: keys.label("", "no_rope_layers"), why });
    }
    h.extras.unrotated_layers = LayerSet::Listed(list.iter().map(|rotates| *rotates == 0.0).collect());
    Ok(())
}
