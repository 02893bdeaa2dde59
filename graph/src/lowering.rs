//! Settings for compiling programs: types, and limits of sequences and micro-batches.

use crate::kv_ring::KvRing;
use crate::wire_type::WireType;
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::{Activations, KvType};

/// Settings for compiling programs and computing the memory that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// Activation type in products with quantized weights.
    pub activations: Activations,
    /// Type of keys and values in the KV cache.
    pub kv: KvType,
    /// Maximum length of a sequence, in positions.
    pub context: u32,
    /// Maximum number of concurrent sequences.
    pub sequences: u32,
    /// Number of blocks of the KV cache. If `None`, as many as all sequences need at the full context.
    pub kv_blocks: Option<u32>,
    /// Maximum number of rows in a micro-batch.
    pub chunk: u32,
    /// Maximum number of rows that need logits in a micro-batch.
    pub logit_rows: u32,
    /// Wire type of the activations that pass between stages.
    pub wire_type: WireType,
}

impl Lowering {
    /// Returns the number of cache blocks that one sequence needs at the full context.
    pub fn table_blocks(&self) -> u32 {
        self.context.div_ceil(BLOCK_TOKENS as u32)
    }

    /// Returns the number of cache blocks in layers that keep all positions.
    pub fn cache_blocks(&self) -> u32 {
        self.kv_blocks.unwrap_or_else(|| self.table_blocks().saturating_mul(self.sequences))
    }

    /// Returns the KV ring of layers with a window of `window` positions. Returns `None` if a ring would be as
    /// long as the context.
    pub fn kv_ring(&self, window: Option<u32>) -> Option<KvRing> {
        KvRing::new(window, self.context, self.chunk, self.sequences)
    }
}
