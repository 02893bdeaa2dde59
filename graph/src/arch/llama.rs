//! Llama: RMS norms, grouped-query attention with interleaved rotary embedding, SiLU-gated feed-forward.
//!
//! GGUF files hold the query and key projections permuted so that the rotation pairs neighbouring dimensions.

use super::{Architecture, transformer};
use crate::op::RopePairing;

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    build: |h, b| {
        transformer::build(
            h,
            b,
            &transformer::Options { pairing: RopePairing::Interleaved, sub_norms: false },
        )
    },
};
