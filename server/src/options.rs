//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

/// Options of a server. The limits bound what clients can make it hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on. 0 picks a free one.
    pub port: u16,
    /// Keys that open all routes but `/health`. Without keys, all clients are served.
    pub keys: Vec<String>,
    /// Whether to listen on other addresses than loopback without keys.
    pub is_open: bool,
    /// Certificate chain and private key in PEM format. Without them, connections are not encrypted.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Maximum size of a request in bytes.
    pub body_bytes: usize,
    /// Maximum size of all requests that are being read, in bytes.
    pub bodies_bytes: usize,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of connections of a client's address.
    pub connections_per_address: usize,
    /// Time for a request to arrive, for the head of a request on an idle connection, and for a client to read.
    pub patience: Duration,
    /// Time from the start of an answer to its end.
    pub deadline: Duration,
    /// Time for answers to end after a signal to stop.
    pub drain: Duration,
}

impl Default for Options {
    /// Returns options for loopback and port 8080.
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: Vec::new(),
            is_open: false,
            tls: None,
            body_bytes: 16 << 20,
            bodies_bytes: 256 << 20,
            connections: 4096,
            connections_per_address: 512,
            patience: Duration::from_secs(60),
            deadline: Duration::from_secs(3600),
            drain: Duration::from_secs(30),
        }
    }
}
