//! Ragtag's HTTP server: the APIs of OpenAI and Anthropic over the pipelines of one or more models.
//!
//! The APIs (`openai.rs`, `responses.rs`, `anthropic.rs`) turn requests into jobs, and parts of answers into events.
//! `tools.rs` and `answer.rs` split the text of an answer into these parts. `constraint.rs` turns formats and demanded calls
//! into grammars, and `logs.rs` writes log probabilities. `embeddings.rs` writes embeddings. All of this is pure: no sockets, no clock.
//! `models.rs` loads and unloads models. `running.rs` drives the token streams of a job, `http.rs` and `guard.rs` have the routes, and `listen.rs` the
//! connections. `admin.rs` changes devices, and `page.rs` serves the page, which shows the figures of `monitor.rs`. `load` measures servers.

#![forbid(unsafe_code)]

mod admin;
mod answer;
mod anthropic;
mod constraint;
mod embeddings;
mod exchange;
mod guard;
mod http;
mod job;
mod listen;
mod load;
mod logs;
mod metrics;
mod models;
mod monitor;
mod openai;
mod options;
mod page;
mod refusal;
mod responses;
mod running;
mod served;
mod signals;
mod tools;

#[doc(hidden)]
pub use exchange::{Exchange, exchange};
pub use load::{Distribution, Load, LoadError, LoadReport, load};
pub use models::{Failure, Models, Offer, Start};
pub use options::Options;
pub use served::{Receipt, Served};

use http::Server;
use signals::Signals;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An error that keeps a server from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The runtime cannot start.
    #[error("cannot start the async runtime: {0}")]
    Runtime(io::Error),
    /// The address cannot be used.
    #[error("cannot listen on {host}:{port}: {cause}")]
    Listen {
        /// Name or address of the host.
        host: String,
        /// The port.
        port: u16,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The address is not loopback, and there are no keys.
    #[error("{address} is reachable from other machines, but there is no API key")]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// Two models have the same name.
    #[error("two models are called {name}")]
    Names {
        /// The name.
        name: String,
    },
    /// A certificate or key that cannot be used.
    #[error("{}: {cause}", path.display())]
    Tls {
        /// Path of the file.
        path: PathBuf,
        /// Reason why it cannot be used.
        cause: String,
    },
}

/// Serves models until a signal (Ctrl-C, SIGTERM) stops the server. Calls `listening` with the URL when clients can
/// connect. After the signal, answers that have begun may end. A second signal cancels them.
///
/// # Errors
/// Returns an error if the server cannot start.
pub fn serve(models: Models, options: Options, listening: impl FnOnce(&str)) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(async {
        let tls = options.tls.as_ref().map(|(chain, key)| acceptor(chain, key)).transpose()?;
        let (host, port) = (options.host.clone(), options.port);
        let failed = |cause| Error::Listen { host: host.clone(), port, cause };
        let listener = TcpListener::bind((host.as_str(), port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_local = address.ip().is_loopback();
        if !is_local && options.keys.is_empty() && !options.is_open {
            return Err(Error::Open { address });
        }
        // Registers the signals before a client can send one.
        let signals = Signals::new().map_err(Error::Runtime)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Arc::new(Server::new(models, options, is_local));
        tokio::spawn(monitor::watch(Arc::clone(&server)));
        listening(&format!("{scheme}://{address}"));
        listen::serve(Arc::clone(&server), http::router(server), listener, tls, signals).await;
        Ok(())
    })
}

fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let failed = |path: &Path, cause: String| Error::Tls { path: path.into(), cause };
    let certificates = CertificateDer::pem_file_iter(chain).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|cause| failed(chain, cause.to_string()))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| failed(key, cause.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config =
        config.with_safe_default_protocol_versions().map_err(|cause| failed(chain, cause.to_string()))?;
    let config = config.with_no_client_auth().with_single_cert(certificates, secret);
    let config = config.map_err(|cause| failed(chain, cause.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
