//! Routes by which activations travel between two devices.

use serde::{Deserialize, Serialize};

/// Route of activations across an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Route {
    /// Both stages are on the same device. No bytes are copied.
    SameDevice,
    /// The source writes into the destination's memory. Reserved: no code selects this route yet.
    Peer,
    /// The destination has imported the source's memory. Reserved: no code selects this route yet.
    Import,
    /// Copies pass through a bounded ring of pinned host memory that both devices can access.
    HostStaged {
        /// Number of bytes in a chunk.
        chunk_bytes: u64,
        /// Number of chunks in the ring.
        depth: u32,
    },
}

impl Route {
    /// Host-staged route with the default ring. Its chunks are large enough to hide the fixed cost of a copy.
    /// It has four chunks: one leaves the source, another enters the destination, and one waits at each end.
    pub const HOST_STAGED: Route = Route::HostStaged { chunk_bytes: 256 << 10, depth: 4 };

    /// Returns the number of bytes of pinned host memory that the route needs.
    pub fn staging_bytes(&self) -> u64 {
        match *self {
            Route::HostStaged { chunk_bytes, depth } => chunk_bytes.saturating_mul(u64::from(depth)),
            Route::SameDevice | Route::Peer | Route::Import => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_ring_takes_one_mebibyte_of_host_memory() {
        assert_eq!(Route::HOST_STAGED.staging_bytes(), 1 << 20);
        assert_eq!(Route::SameDevice.staging_bytes(), 0);
    }
}
