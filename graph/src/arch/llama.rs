//! Llama: RMS norms, grouped-query attention with RoPE, and a SiLU-gated FFN.
//!
//! GGUF files permute the query and key projections so that RoPE pairs neighbouring dimensions. Checkpoints
//! keep the trained order, in which RoPE pairs the two halves of a head. GGUF files of Mistral models name
//! this architecture, and may have a window.

use super::architecture::{Architecture, BIASES, USUAL};
use super::rope::RopePairing;

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    biases: BIASES,
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| if keys.config().is_none() { keys.window(h, 0) } else { Ok(()) },
    ..USUAL
};
