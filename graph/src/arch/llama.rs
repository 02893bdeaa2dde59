//! Llama: RMS norms, grouped-query attention with RoPE, and a SiLU-gated FFN.
//!
//! GGUF files permute the query and key projections so that RoPE pairs neighbouring dimensions. Checkpoints
//! keep the trained order, in which RoPE pairs the two halves of a head. GGUF files of Mistral models name
//! this architecture, and may have a window. Those of Mixtral models also name it, and have experts.

use super::architecture::{Architecture, BIASES, USUAL};
use super::experts;
use super::rope::RopePairing;
use ragtag_kernels::experts::route::Choice;

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    biases: BIASES,
    gguf_pairing: RopePairing::Interleaved,
    read: |keys, h| {
        if keys.config().is_some() {
            return Ok(());
        }
        keys.window(h, 0)?;
        if keys.whole("expert_count", "")?.is_some_and(|count| count > 0) {
            h.extras.experts = Some(experts::read(keys, h, Choice::softmax(1, true))?);
        }
        Ok(())
    },
    ..USUAL
};
