//! The KV caches and states of a stage's layers. Layers with a window use the blocks of rings, if rings are shorter.

use crate::graph::OperatorGraph;
use crate::kv_ring::KvRing;
use crate::lowering::Lowering;
use crate::ops::{Cache, CacheUse, Heads, State, StateUse};
use crate::program::StageBuffer;
use petgraph::stable_graph::NodeIndex;
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
    /// Layers of the stage, in order, and what each keeps.
    layers: Vec<(u32, Kept)>,
}

/// Content of a layer's two buffers for each sequence.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// Keys and values of these heads.
    Positions(Heads),
    /// States with these numbers of values.
    States([u32; 2]),
}

/// Returns the numbers of values of each layer's states. No buffer is empty.
fn state_values(used: impl Iterator<Item = StateUse>) -> BTreeMap<u32, [u32; 2]> {
    let mut values: BTreeMap<u32, [u32; 2]> = BTreeMap::new();
    for StateUse { layer, part, values: count } in used {
        values.entry(layer).or_insert([1; 2])[part] = count;
    }
    values
}

/// Returns the bytes of the states of a sequence in `nodes`.
pub(crate) fn state_bytes(graph: &OperatorGraph, nodes: &[NodeIndex]) -> [u64; 2] {
    let values = state_values(nodes.iter().filter_map(|node| graph.node(*node).operator.lower().state()));
    values.into_values().fold([0; 2], |sum, parts| [0, 1].map(|part| sum[part] + 4 * u64::from(parts[part])))
}

impl Caches {
    /// Finds the layers in a graph without fused operators.
    pub(super) fn new(graph: &OperatorGraph, segments: &Range<usize>, lowering: &Lowering) -> Self {
        let used = |node| graph.node(node).operator.lower().cache();
        let windowed = |of: CacheUse| Some((of.layer, of.window?));
        let nodes = graph.ordered().into_iter();
        let windows: BTreeMap<_, _> = nodes.filter_map(used).filter_map(windowed).collect();
        // All layers with a window share one ring, which holds the largest window. A model with states has no windows
        // (`Hyperparameters::check_shape`).
        let bytes: u64 = state_bytes(graph, &graph.ordered()).iter().sum();
        let ring = match KvRing::of_states(bytes, lowering.sequences) {
            None => lowering.kv_ring(windows.values().copied().max()),
            states => states,
        };
        let nodes = graph.within(segments);
        let states = state_values(nodes.iter().filter_map(|node| graph.node(*node).operator.lower().state()));
        let used = nodes.into_iter().filter_map(used).map(|of| (of.layer, Kept::Positions(of.heads)));
        let states = states.into_iter().map(|(layer, values)| (layer, Kept::States(values)));
        let mut layers: Vec<_> = used.chain(states).collect();
        layers.sort_by_key(|(layer, _)| *layer);
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
        let of_layer = |(layer, kept): &(u32, Kept)| {
            let is_ring = self.ring_of(*layer).is_some() || matches!(kept, Kept::States(_));
            self.bytes(*layer, *kept).map(|bytes| (bytes, is_ring))
        };
        self.layers.iter().flat_map(of_layer)
    }

    /// Returns the index of a layer's first buffer, and the sizes of its buffers in bytes.
    fn place(&self, layer: u32) -> (usize, [u64; 2]) {
        let position = self.layers.iter().position(|(known, _)| *known == layer);
        let position = position.unwrap_or_else(|| panic!("the stage does not have layer {layer}"));
        (2 * position, self.bytes(layer, self.layers[position].1))
    }

    /// Returns the KV cache of a layer of the stage.
    pub(super) fn of(&self, layer: u32) -> Cache {
        let (first, [keys, values]) = self.place(layer);
        Cache {
            kv: self.kv,
            blocks: self.blocks(layer),
            keys: (StageBuffer::Kv(first), 0, keys),
            values: (StageBuffer::Kv(first + 1), 0, values),
            model_has_rings: self.ring.is_some(),
        }
    }

    /// Returns a part of the state of a layer of the stage.
    pub(super) fn state(&self, of: StateUse) -> State {
        let (first, bytes) = self.place(of.layer);
        let argument = (StageBuffer::Kv(first + of.part), 0, bytes[of.part]);
        State { argument, slots: self.slots() }
    }

    /// Returns the number of slots of states.
    fn slots(&self) -> u32 {
        self.ring.map_or(0, |ring| ring.total)
    }

    /// Returns the sizes in bytes of the two buffers of a layer.
    fn bytes(&self, layer: u32, kept: Kept) -> [u64; 2] {
        let heads = match kept {
            Kept::Positions(heads) => heads,
            Kept::States(values) => return values.map(|of| 4 * u64::from(of) * u64::from(self.slots())),
        };
        let positions = u64::from(self.blocks(layer)) * BLOCK_TOKENS as u64;
        [self.kv.keys(), self.kv.values()].map(|of| positions * of.bytes(u64::from(heads.kv_width())))
    }
}
