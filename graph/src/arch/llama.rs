//! Llama: RMS norms, grouped-query attention with rotary embedding, SiLU-gated FFN.
//!
//! GGUF files permute the query and key projections so that the rotation pairs neighbouring dimensions.
//! Checkpoints keep the trained order, which pairs halves.

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
