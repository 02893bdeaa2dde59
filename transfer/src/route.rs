//! How bytes cross from one device to another.

use serde::{Deserialize, Serialize};

/// How an activation crosses an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Route {
    /// Both stages are on one device: nothing moves.
    SameDevice,
    /// The source writes into the destination's memory. Named for later: nothing chooses it yet.
    Peer,
    /// The destination has imported the source's memory. Named for later: nothing chooses it yet.
    Import,
    /// Through a bounded ring of pinned host memory that both devices reach.
    HostStaged {
        /// Bytes of one chunk.
        chunk_bytes: u64,
        /// Chunks in the ring.
        depth: u32,
    },
}

impl Route {
    /// The host-staged route with the usual ring: chunks large enough that a copy's fixed cost does not show, and enough
    /// of them that one leaves the source while another enters the destination and a third waits on either side.
    pub const HOST_STAGED: Route = Route::HostStaged { chunk_bytes: 256 << 10, depth: 4 };

    /// Bytes of pinned host memory that the route takes.
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
    fn a_ring_takes_a_mebibyte_of_host_memory() {
        assert_eq!(Route::HOST_STAGED.staging_bytes(), 1 << 20);
        assert_eq!(Route::SameDevice.staging_bytes(), 0);
    }
}
