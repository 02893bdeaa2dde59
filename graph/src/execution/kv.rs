//! Use of the KV cache: when sequences take their blocks, and which blocks the cache keeps for later sequences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a sequence takes its cache blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reserve {
    /// As its length grows. If no block is left, the youngest sequence is preempted and computed again later.
    #[default]
    Grow,
    /// All of them before it starts, for its longest possible length. No sequence is ever preempted, so the
    /// results of a request do not depend on the other requests.
    Full,
}

/// Order in which cached blocks are overwritten when no block is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The block whose last use is the longest ago.
    #[default]
    Lru,
    /// The block that was computed first.
    Fifo,
    /// The block that was used least often, and among equals the one whose last use is the longest ago.
    Lfu,
}

impl Eviction {
    /// Returns the name that plans and flags use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Lfu => "lfu",
        }
    }
}

/// Use of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvUse {
    /// When a sequence takes its blocks.
    #[serde(default)]
    pub reserve: Reserve,
    /// Whether the cache keeps the blocks of earlier sequences, and which it gives up first. `None` if it keeps
    /// none.
    #[serde(default)]
    pub prefixes: Option<Eviction>,
}
