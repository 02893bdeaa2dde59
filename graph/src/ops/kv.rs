//! Access of operators to the KV cache, and to the states of sequences.

/// Head counts and head size of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of query heads.
    pub queries: u32,
    /// Number of key heads, which is also the number of value heads.
    pub kv: u32,
    /// Values per head.
    pub dimensions: u32,
}

impl Heads {
    /// Returns the number of elements in one row of queries.
    pub(crate) fn query_width(&self) -> u32 {
        self.queries * self.dimensions
    }

    /// Returns the number of elements in one row of keys. A row of values has the same length.
    pub(crate) fn kv_width(&self) -> u32 {
        self.kv * self.dimensions
    }
}

/// KV cache that an operator accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheUse {
    /// Layer that owns the cache.
    pub(crate) layer: u32,
    pub(crate) heads: Heads,
    /// Number of positions that the operator reads. `None` if it reads all, or only appends.
    pub(crate) window: Option<u32>,
}

/// State of fixed size per sequence that an operator reads and replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateUse {
    /// Layer that owns the state.
    pub(crate) layer: u32,
    /// Part of the layer's state: 0 for a convolution, and 1 for a scan.
    pub(crate) part: usize,
    /// Number of f32 values for each sequence.
    pub(crate) values: u32,
}
