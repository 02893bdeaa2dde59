//! BitNet b1.58: ternary weights, extra norms before the attention output projection and the FFN down
//! projection, and RoPE that pairs the two halves of a head.

use super::transformer::{Attention, FeedForward, Layer};
use super::{Architecture, USUAL};

pub(super) static BITNET: Architecture = Architecture {
    name: "bitnet",
    layer: |h, index| {
        let plain = Layer::plain(h, index);
        Layer {
            attention: Attention { sub_norm: true, ..plain.attention },
            feed_forward: FeedForward { sub_norm: true, ..plain.feed_forward },
            ..plain
        }
    },
    tensors: &[],
    ..USUAL
};
