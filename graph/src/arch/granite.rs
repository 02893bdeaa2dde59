//! Granite: Llama with factors of the embedding, of what each layer adds, of attention scores and of logits.
//! GGUF files may switch RoPE off.

use super::architecture::{Architecture, BIASES, EPSILON, USUAL};
use super::extras::LayerSet;
use super::hyperparameters::Hyperparameters;
use super::keys::{Keys, Setting};
use super::rope::RopePairing;
use crate::error::ModelError;

pub(super) static GRANITE: Architecture = Architecture {
    name: "granite",
    classes: &["GraniteForCausalLM"],
    defaults: &[EPSILON, ("attention_multiplier", Setting::Number(1.0))],
    biases: BIASES,
    gguf_pairing: RopePairing::Interleaved,
    read: factors,
    ..USUAL
};

/// Reads the factors, and whether RoPE is off.
pub(super) fn factors(keys: &Keys<'_>, h: &mut Hyperparameters) -> Result<(), ModelError> {
    h.extras.embedding_scale = keys.float("embedding_scale", "embedding_multiplier")?.unwrap_or(1.0);
    h.extras.residual_scale = keys.float("residual_scale", "residual_multiplier")?.unwrap_or(1.0);
    h.extras.score_scale = keys.float("attention.scale", "attention_multiplier")?;
    h.extras.logit_scale = 1.0 / keys.float("logit_scale", "logits_scaling")?.unwrap_or(1.0);
    if keys.flag("rope.scaling.finetuned", "")? == Some(false) {
        h.extras.unrotated_layers = LayerSet::All;
    }
    Ok(())
}
