//! Llama: RMS norms, grouped-query attention with RoPE, and a SiLU-gated FFN.
//!
//! GGUF files permute the query and key projections so that RoPE pairs neighbouring dimensions. Checkpoints
//! keep the trained order, in which RoPE pairs the two halves of a head.

use super::names::COMMON;
use super::transformer::Layer;
use super::{Architecture, RopePairing};

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    gguf_pairing: RopePairing::Interleaved,
    layer: |h, _| Layer::plain(h),
    tensors: &[COMMON],
};
