//! Granularity at which a model is divided into segments, and the kind and name of each segment.
//!
//! The builder numbers segments at half-block granularity. Lowering converts these numbers to the model's
//! granularity.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentKind {
    /// Lookup of one embedding row per token.
    Embedding,
    /// One transformer block.
    Block,
    /// The first half of a block: norm, projections, attention, and residual addition.
    Attention,
    /// The second half of a block: norm, gated projections, and residual addition.
    FeedForward,
    /// Final norm and projection to logits.
    Head,
}

/// Part of a transformer block that forms one segment. Only residual rows pass from one segment to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// A whole block.
    #[default]
    Block,
    /// Half of a block: either its attention or its feed-forward part.
    HalfBlock,
}

impl Granularity {
    /// Returns the number of segments in a model with `blocks` transformer blocks. The embedding and the head
    /// are one segment each.
    pub(crate) fn segment_count(self, blocks: u32) -> usize {
        self.segment_of(2 * blocks as usize + 1) + 1
    }

    /// Converts a segment number at half-block granularity to a segment number at this granularity. At
    /// half-block granularity, the segments are the embedding, the attention and feed-forward half of each
    /// block, and the head.
    pub(crate) fn segment_of(self, half: usize) -> usize {
        match self {
            Granularity::Block => half.div_ceil(2),
            Granularity::HalfBlock => half,
        }
    }

    /// Returns the kind of segment number `segment` in a model with `blocks` transformer blocks.
    pub(crate) fn kind(self, segment: usize, blocks: u32) -> SegmentKind {
        match self {
            _ if segment == 0 => SegmentKind::Embedding,
            _ if segment + 1 == self.segment_count(blocks) => SegmentKind::Head,
            Granularity::Block => SegmentKind::Block,
            Granularity::HalfBlock if segment % 2 == 1 => SegmentKind::Attention,
            Granularity::HalfBlock => SegmentKind::FeedForward,
        }
    }

    /// Returns the name of a segment, such as `embedding`, `block 0`, `block 0 attention`, `block 0 ffn` or
    /// `head`.
    pub(crate) fn name(self, segment: usize, blocks: u32) -> String {
        match self.kind(segment, blocks) {
            SegmentKind::Embedding => "embedding".into(),
            SegmentKind::Block => format!("block {}", segment - 1),
            SegmentKind::Attention => format!("block {} attention", (segment - 1) / 2),
            SegmentKind::FeedForward => format!("block {} ffn", (segment - 1) / 2),
            SegmentKind::Head => "head".into(),
        }
    }
}

/// Formats the granularity as plans spell it: `block` or `half-block`.
impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Granularity::Block => "block",
            Granularity::HalfBlock => "half-block",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_blocks_are_between_the_embedding_and_the_head() {
        let names = |granularity: Granularity| -> Vec<String> {
            (0..granularity.segment_count(2)).map(|s| granularity.name(s, 2)).collect()
        };
        assert_eq!(names(Granularity::Block), ["embedding", "block 0", "block 1", "head"]);
        let halves = ["block 0 attention", "block 0 ffn", "block 1 attention", "block 1 ffn"];
        assert_eq!(names(Granularity::HalfBlock), [&["embedding"][..], &halves, &["head"]].concat());
        assert_eq!([0, 1, 2, 3, 4, 5].map(|half| Granularity::Block.segment_of(half)), [0, 1, 1, 2, 2, 3]);
    }
}
