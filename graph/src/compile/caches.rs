//! The KV caches of a stage's layers. Layers with a window use the blocks of rings, if rings are shorter.

use crate::graph::OperatorGraph;
use crate::kv_ring::KvRing;
use crate::lowering::Lowering;
use crate::ops::{Cache, CacheUse, Heads};
use crate::program::StageBuffer;
use ragtag_kernels::KvType;
use ragtag_kernels::params::BLOCK_TOKENS;
use std::collections::BTreeMap;
use std::ops::Range;

/// Layers whose KV caches a stage holds, and the number of cache blocks of each.
pub(super) struct Caches {
    kv: KvType,
    blocks: u32,
    pub(super) ring: Option<KvRing>,
    /// The window of each layer of the model that has one.
    windows: BTreeMap<u32, u32>,
    /// Layers of the stage, in order, and the heads of each.
    layers: Vec<(u32, Heads)>,
}

impl Caches {
    /// Finds the layers in a graph without fused operators.
    pub(super) fn new(graph: &OperatorGraph, segments: &Range<usize>, lowering: &Lowering) -> Self {
        let used = |node| graph.node(node).operator.lower().cache();
        let windowed = |of: CacheUse| Some((of.layer, of.window?));
        let nodes = graph.ordered().into_iter();
        let windows: BTreeMap<_, _> = nodes.filter_map(used).filter_map(windowed).collect();
        // All layers with a window share one ring, which holds the largest window.
        let ring = lowering.kv_ring(windows.values().copied().max());
        let used = graph.within(segments).into_iter().filter_map(used);
        let mut layers: Vec<_> = used.map(|of| (of.layer, of.heads)).collect();
        layers.dedup();
        Self { kv: lowering.kv, blocks: lowering.cache_blocks(), ring, windows, layers }
    }

    /// Returns the ring of a layer, or `None` if the layer keeps all positions.
    pub(super) fn ring_of(&self, layer: u32) -> Option<KvRing> {
        self.ring.filter(|_| self.windows.contains_key(&layer))
    }

    /// Returns the number of cache blocks of a layer.
    fn blocks(&self, layer: u32) -> u32 {
        self.ring_of(layer).map_or(self.blocks, |ring| ring.total)
    }

    /// Returns the size in bytes of each key and value buffer of the stage, and whether its blocks are those of
    /// rings.
    pub(super) fn buffers(&self) -> impl Iterator<Item = (u64, bool)> {
        let of_layer = |(layer, heads): &(u32, Heads)| {
            let is_ring = self.ring_of(*layer).is_some();
            self.bytes(*layer, heads).map(|bytes| (bytes, is_ring))
        };
        self.layers.iter().flat_map(of_layer)
    }

    /// Returns the KV cache of a layer of the stage.
    pub(super) fn of(&self, layer: u32) -> Cache {
        let position = self.layers.iter().position(|(known, _)| *known == layer);
        let position = position.unwrap_or_else(|| panic!("layer {layer} is not among {:?}", self.layers));
        let [keys, values] = self.bytes(layer, &self.layers[position].1);
        Cache {
            kv: self.kv,
            blocks: self.blocks(layer),
            keys: (StageBuffer::Kv(2 * position), 0, keys),
            values: (StageBuffer::Kv(2 * position + 1), 0, values),
            model_has_rings: self.ring.is_some(),
        }
    }

    /// Returns the sizes in bytes of the key buffer and of the value buffer of a layer.
    fn bytes(&self, layer: u32, heads: &Heads) -> [u64; 2] {
        let positions = u64::from(self.blocks(layer)) * BLOCK_TOKENS as u64;
        [self.kv.keys(), self.kv.values()].map(|of| positions * of.bytes(u64::from(heads.kv_width())))
    }
}
