//! Llama: RMS norms, grouped-query attention with RoPE, and a SiLU-gated FFN.
//!
//! GGUF files permute the query and key projections so that RoPE pairs neighbouring dimensions. Checkpoints
//! keep the trained order, in which RoPE pairs the two halves of a head.

use super::{Architecture, transformer};
use crate::op::RopePairing;

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    gguf_pairing: RopePairing::Interleaved,
    build: |h, b| transformer::build(h, b, &transformer::Options { sub_norms: false }),
};
