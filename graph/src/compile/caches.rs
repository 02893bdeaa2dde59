//! The KV caches of a stage's layers. Layers with a window use the blocks of rings, if rings are shorter.

use crate::kv_ring::KvRing;
use crate::lowering::Lowering;
use crate::op::{Heads, Node, Operator, OperatorGraph};
use ragtag_kernels::KvType;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of cache blocks of every layer.
pub(super) struct Caches {
    kv: KvType,
    blocks: u32,
    pub(super) ring: Option<KvRing>,
    /// The window of each layer that has one.
    windows: BTreeMap<u32, u32>,
}

impl Caches {
    pub(super) fn new(graph: &OperatorGraph, lowering: &Lowering) -> Self {
        let windowed = |node: &Node| match node.operator {
            Operator::Attention { layer, scores, .. } => Some((layer, scores.window?)),
            _ => None,
        };
        let nodes = graph.ordered().into_iter();
        let windows: BTreeMap<_, _> = nodes.filter_map(|n| windowed(graph.node(n))).collect();
        // All layers with a window share one ring, which holds the largest window.
        let ring = lowering.kv_ring(windows.values().copied().max());
        Self { kv: lowering.kv, blocks: lowering.cache_blocks(), ring, windows }
    }

    /// Returns the ring of a layer, or `None` if the layer keeps all positions.
    pub(super) fn ring_of(&self, layer: u32) -> Option<KvRing> {
        self.ring.filter(|_| self.windows.contains_key(&layer))
    }

    /// Returns the number of cache blocks of a layer.
    pub(super) fn blocks(&self, layer: u32) -> u32 {
        self.ring_of(layer).map_or(self.blocks, |ring| ring.total)
    }

    /// Returns the sizes in bytes of the key buffer and of the value buffer of a layer.
    pub(super) fn bytes(&self, layer: u32, heads: &Heads) -> [u64; 2] {
        let positions = u64::from(self.blocks(layer)) * BLOCK_TOKENS as u64;
        [self.kv.keys(), self.kv.values()].map(|of| positions * of.bytes(u64::from(heads.kv_width())))
    }
}

/// Returns the layers whose KV caches the segments hold, in order, and the head counts of each layer.
pub(super) fn kv_layers(graph: &OperatorGraph, segments: &Range<usize>) -> Vec<(u32, Heads)> {
    let layer = |node: &Node| match node.operator {
        _ if !segments.contains(&node.segment) => None,
        Operator::RopeAppend { layer, heads, .. }
        | Operator::AttentionPartial { layer, heads, appends: Some(_), .. } => Some((layer, heads)),
        _ => None,
    };
    graph.ordered().into_iter().filter_map(|n| layer(graph.node(n))).collect()
}
