//! Connections of a load to its server, and requests on them.

use super::events::{Answer, Reader, message};
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, Uri, header, uri::Scheme};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_stream::StreamExt;

/// Maximum size of an answer that is not streamed, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// An error of a load's request, or one that keeps a load from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The runtime cannot start.
    #[error("cannot start the async runtime: {0}")]
    Runtime(io::Error),
    /// The URL cannot be used.
    #[error("{url:?}: {cause} (expected a URL such as http://127.0.0.1:8080)")]
    Url {
        /// The URL.
        url: String,
        /// Reason why it cannot be used.
        cause: String,
    },
    /// The certificates to trust cannot be read.
    #[error("{}: {cause}", path.display())]
    Certificates {
        /// Path of the file.
        path: PathBuf,
        /// Reason why it cannot be used.
        cause: String,
    },
    /// The server cannot be reached, or the connection failed.
    #[error("{address}: {cause}")]
    Connection {
        /// Host and port of the server.
        address: String,
        /// The error of the connection.
        cause: String,
    },
    /// The server refused the request.
    #[error("status {status}: {message}")]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Message of the answer.
        message: String,
    },
    /// The answer cannot be understood.
    #[error("{0}")]
    Answer(String),
    /// The server did not answer in time.
    #[error("the server does not answer")]
    Slow,
}

trait Connection: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Connection for T {}

/// A server, and idle connections to it.
pub(super) struct Target {
    /// Host and port.
    address: String,
    host: String,
    /// Value of the header `host`.
    authority: String,
    /// Path before `/v1`.
    prefix: String,
    key: Option<String>,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<SendRequest<Body>>>,
}

impl Target {
    pub(super) fn new(url: &str, key: Option<&str>, certificates: Option<&Path>) -> Result<Self, Error> {
        let failed = |cause: &str| Error::Url { url: url.into(), cause: cause.into() };
        let parsed: Uri = url.parse().map_err(|_| failed("invalid URL"))?;
        let authority = parsed.authority().ok_or_else(|| failed("no host"))?;
        let (port, tls) = match parsed.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => (80, None),
            Some(scheme) if *scheme == Scheme::HTTPS => {
                let path = certificates
                    .ok_or_else(|| failed("https needs a file with the certificates to trust"))?;
                (443, Some(connector(path)?))
            }
            _ => return Err(failed("the scheme is neither http nor https")),
        };
        let path = parsed.path().trim_end_matches('/');
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(port);
        Ok(Self {
            address: if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") },
            host,
            authority: authority.as_str().rsplit('@').next().unwrap_or_default().to_owned(),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            key: key.map(str::to_owned),
            tls,
            idle: Mutex::default(),
        })
    }

    fn failed(&self, cause: impl std::fmt::Display) -> Error {
        Error::Connection { address: self.address.clone(), cause: cause.to_string() }
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Error> {
        let stream = TcpStream::connect(&self.address).await.map_err(|cause| self.failed(cause))?;
        let _ = stream.set_nodelay(true);
        let stream: Box<dyn Connection + Unpin> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|cause| self.failed(cause))?;
                Box::new(tls.connect(name, stream).await.map_err(|cause| self.failed(cause))?)
            }
        };
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|cause| self.failed(cause))?;
        // Ends with the connection. Requests on it then fail.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Returns a connection that is ready for a request: an idle one, if the server has not closed it.
    async fn ready(&self) -> Result<SendRequest<Body>, Error> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(mut sender) = idle() {
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        self.connect().await
    }

    /// Sends a request. Returns the answer and its connection, which is idle after the end of the answer.
    async fn send(
        &self,
        method: &str,
        path: &str,
        body: String,
    ) -> Result<(Response<Incoming>, SendRequest<Body>), Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.prefix));
        request =
            request.header(header::HOST, &self.authority).header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Body::from(body)).map_err(|cause| self.failed(cause))?;
        let mut sender = self.ready().await?;
        let response = sender.send_request(request).await.map_err(|cause| self.failed(cause))?;
        Ok((response, sender))
    }

    fn keep(&self, sender: SendRequest<Body>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    /// Reads a whole answer, and fails if it is a refusal.
    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, Error> {
        let status = response.status();
        let read = axum::body::to_bytes(Body::new(response.into_body()), MAX_ANSWER_BYTES);
        let bytes = read.await.map_err(|cause| self.failed(cause))?;
        if status.is_success() {
            return Ok(bytes);
        }
        let error = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
        let message = match error.get("error") {
            Some(error) => message(error),
            None => String::from_utf8_lossy(&bytes).chars().take(200).collect(),
        };
        Err(Error::Refused { status: status.as_u16(), message })
    }

    async fn json(&self, method: &str, path: &str, body: String) -> Result<Value, Error> {
        let (response, sender) = self.send(method, path, body).await?;
        let bytes = self.whole(response).await?;
        self.keep(sender);
        serde_json::from_slice(&bytes).map_err(|cause| Error::Answer(format!("{path}: {cause}")))
    }

    /// Returns the name of the first model that the server lists.
    pub(super) async fn first_model(&self) -> Result<String, Error> {
        let models = self.json("GET", "/v1/models", String::new()).await?;
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.ok_or_else(|| Error::Answer("the server lists no model".into()))
    }

    /// Returns the number of words in a token, if the server has `/tokenize`.
    pub(super) async fn words_per_token(&self, (text, words): &(String, usize), model: &str) -> Option<f64> {
        // The servers of llama.cpp and of vLLM have different names for the text.
        for name in ["content", "prompt"] {
            let body = json!({ "model": model, name: text }).to_string();
            let Ok(tokens) = self.json("POST", "/tokenize", body).await else { continue };
            let tokens = tokens["tokens"].as_array().filter(|tokens| !tokens.is_empty())?;
            return Some(*words as f64 / tokens.len() as f64);
        }
        None
    }

    /// Sends a request and reads its stream.
    pub(super) async fn stream(&self, path: &str, body: String) -> Result<Answer, Error> {
        let began = Instant::now();
        let (response, sender) = self.send("POST", path, body).await?;
        if !response.status().is_success() {
            let refused = self.whole(response).await.map(|_| ());
            self.keep(sender);
            refused?;
            return Err(Error::Answer("no stream of events".into()));
        }
        let mut reader = Reader::default();
        let mut parts = Body::new(response.into_body()).into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|cause| self.failed(cause))?;
            reader.read(&part, began.elapsed()).map_err(Error::Answer)?;
        }
        self.keep(sender);
        reader.finish(began.elapsed()).map_err(Error::Answer)
    }
}

fn connector(path: &Path) -> Result<TlsConnector, Error> {
    let failed = |cause: String| Error::Certificates { path: path.into(), cause };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut roots = RootCertStore::empty();
    for certificate in certificates.map_err(|cause| failed(cause.to_string()))? {
        roots.add(certificate).map_err(|cause| failed(cause.to_string()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|cause| failed(cause.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_address_and_prefix() {
        let parts = |url: &str| {
            let target = Target::new(url, None, None).unwrap();
            (target.address, target.authority, target.prefix)
        };
        let of =
            |address: &str, authority: &str, prefix: &str| (address.into(), authority.into(), prefix.into());
        assert_eq!(parts("http://127.0.0.1:8080"), of("127.0.0.1:8080", "127.0.0.1:8080", ""));
        assert_eq!(parts("http://host/v1/"), of("host:80", "host", ""));
        assert_eq!(parts("http://[::1]:9/api/v1"), of("[::1]:9", "[::1]:9", "/api"));
        for url in ["", "127.0.0.1:8080", "ftp://host", "https://host", "http://"] {
            assert!(Target::new(url, None, None).is_err(), "{url:?}");
        }
    }
}
