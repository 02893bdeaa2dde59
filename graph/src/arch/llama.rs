//! Llama: RMS norms, grouped-query attention with rotary embedding, SiLU-gated feed-forward.
//!
//! GGUF files hold the query and key projections permuted so that the rotation pairs neighbouring dimensions;
//! checkpoints hold them as they were trained, for halves.

use super::{Architecture, transformer};
use crate::op::RopePairing;

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    gguf_pairing: RopePairing::Interleaved,
    build: |h, b| transformer::build(h, b, &transformer::Options { sub_norms: false }),
};
