//! BitNet b1.58: ternary weights, extra norms before the attention output projection and the FFN down
//! projection, and RoPE that pairs the two halves of a head.

use super::transformer::{Attention, FeedForward, Layer};
use super::{Architecture, RopePairing};

pub(super) static BITNET: Architecture = Architecture {
    name: "bitnet",
    classes: &[],
    gguf_pairing: RopePairing::Halves,
    layer: |h, _| {
        let plain = Layer::plain(h);
        Layer {
            attention: Attention { sub_norm: true, ..plain.attention },
            feed_forward: FeedForward { sub_norm: true, ..plain.feed_forward },
            ..plain
        }
    },
    tensors: &[],
};
