//! BitNet b1.58: ternary weights, extra norms before the attention output and FFN down projections, and RoPE
//! that pairs the two halves of a head.

use super::{Architecture, transformer};
use crate::op::RopePairing;

pub(super) static BITNET: Architecture = Architecture {
    name: "bitnet",
    classes: &[],
    gguf_pairing: RopePairing::Halves,
    build: |h, b| transformer::build(h, b, &transformer::Options { sub_norms: true }),
};
