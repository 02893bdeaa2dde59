//! Mistral: Llama whose layers all attend to a window of positions. GGUF files of these models name the
//! architecture `llama`.

use super::{Architecture, RopePairing, USUAL};

pub(super) static MISTRAL: Architecture = Architecture {
    name: "mistral",
    classes: &["MistralForCausalLM"],
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| keys.window(h, 0),
    ..USUAL
};
