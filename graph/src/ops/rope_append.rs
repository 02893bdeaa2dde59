//! RoPE and KV append.

use super::kv::{CacheUse, Heads};
use super::lower::{Argument, Call, Cost, Lower, Site, Work};
use super::weight::Weight;
use crate::arch::rope::{Rope, RopePairing};
use crate::program::StageBuffer;
use ragtag_kernels::{CacheType, Kernel};

/// Rotates the input's queries in place, and usually appends the rotated keys and the values to the KV cache of a layer.
/// The input holds queries, keys and values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeAppend {
    /// Layer that owns the cache.
    pub layer: u32,
    /// Heads of the input.
    pub heads: Heads,
    /// Parameters of the rotation.
    pub rope: Rope,
    /// Whether the operator appends. Otherwise another layer owns the keys and values, and the input's have no meaning.
    pub appends: bool,
}

impl Lower for RopeAppend {
    fn overwrites(&self) -> Option<u8> {
        Some(0)
    }

    fn weights(&self) -> Vec<Weight> {
        if self.rope.depends_on_length() { vec![] } else { vec![Weight::Frequencies(self.rope)] }
    }

    fn cache(&self) -> Option<CacheUse> {
        Some(CacheUse { layer: self.layer, heads: self.heads, window: None })
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let kv_width = if self.appends { self.heads.kv_width() } else { 0 };
        let bytes = |of: CacheType| of.bytes(u64::from(kv_width));
        let values = bytes(work.kv.values());
        Cost {
            flops: work.rows * 3 * u64::from(self.heads.query_width() + self.heads.kv_width()),
            kv_bytes_per_position: bytes(work.kv.keys()) + values,
            value_bytes_per_position: values,
            ..Cost::default()
        }
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let cache = site.cache();
        let (frequencies, tables) = match self.rope.depends_on_length() {
            true => (self.sequence_frequencies(site), site.capacities.sequences),
            false => (site.weight(0), 1),
        };
        let mut of_cache = site.cache_constants(&self.heads);
        if !self.appends {
            // The kernel appends nothing to blocks that do not exist.
            of_cache[7] = 0;
        }
        vec![Call {
            kernel: Kernel::RopeAppend(cache.kv),
            arguments: vec![site.params, site.output.argument, frequencies, cache.keys, cache.values],
            constants: [&of_cache[..], &self.constants(), &[tables]].concat(),
        }]
    }
}

impl RopeAppend {
    /// Returns the number of rotating dimensions per head, 1 if RoPE pairs halves and 0 otherwise, and the
    /// magnitude.
    pub(super) fn constants(&self) -> [u32; 3] {
        let pairs_halves = self.rope.pairing == RopePairing::Halves;
        [self.rope.dimensions, u32::from(pairs_halves), self.rope.magnitude.to_bits()]
    }

    /// Returns the RoPE frequencies of each sequence, which follow the parameter blocks.
    fn sequence_frequencies(&self, site: &Site) -> Argument {
        let (p, has_rings) = (site.capacities, site.cache().model_has_rings);
        let bytes = p.frequencies_bytes(self.rope.dimensions / 2);
        (StageBuffer::Params, p.frequencies_offset(has_rings), bytes)
    }
}
