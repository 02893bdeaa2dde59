//! Mistral: Llama whose layers all attend to a window of positions. GGUF files of these models name the
//! architecture `llama`.

use super::architecture::{Architecture, EPSILON, USUAL, kv_heads, sliding_window};
use super::rope::RopePairing;
use serde_json::json;

pub(super) static MISTRAL: Architecture = Architecture {
    name: "mistral",
    classes: &["MistralForCausalLM"],
    multimodal_classes: &["Mistral3ForConditionalGeneration"],
    defaults: &[EPSILON, kv_heads(8), sliding_window(4096)],
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        if let Some(config) = keys.config() {
            // The same class wraps other text models.
            config.refuse("model_type", &[json!("mistral")])?;
        }
        keys.window(h, 0)
    },
    ..USUAL
};
