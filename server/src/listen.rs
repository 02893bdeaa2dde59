//! Connections: TLS, limits of their number and of their time, and the end of the server.

use crate::http::Server;
use crate::signals::Signals;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Answer to a connection beyond the limits.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";
/// Time after a failed `accept`, for example because the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the head of a request in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// Numbers of connections per address.
type Addresses = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Accepts connections until a signal. Returns when all connections have ended, after the time for that, or after a
/// second signal.
pub(crate) async fn serve(
    server: Arc<Server>,
    router: Router,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    mut signals: Signals,
) {
    let (stopping, stopped) = watch::channel(());
    let (addresses, mut connections) = (Addresses::default(), JoinSet::new());
    // A flood of connections gives one line in the log.
    let mut was_full = false;
    loop {
        let accepted = tokio::select! {
            () = signals.next() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(cause) => {
                tracing::warn!(%cause, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let options = &server.options;
        let place = Place::take(&addresses, peer.ip(), options.connections_per_address);
        let Some(place) = place.filter(|_| connections.len() < options.connections) else {
            if !was_full {
                tracing::warn!(peer = %peer.ip(), "too many connections");
            }
            was_full = true;
            let _ = stream.try_write(FULL);
            continue;
        };
        was_full = false;
        let (server, router, tls, stopped) =
            (Arc::clone(&server), router.clone(), tls.clone(), stopped.clone());
        connections.spawn(async move {
            let _place = place;
            server.metrics.connected();
            connection(&server, router, stream, tls, stopped).await;
            server.metrics.disconnected();
        });
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "stopping");
    server.is_stopping.store(true, Ordering::Relaxed);
    let _ = stopping.send(());
    let drained = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = drained => {}
        () = sleep(server.options.drain) => tracing::warn!("some answers did not end in time"),
        () = signals.next() => tracing::warn!("cancelling all answers"),
    }
}

/// Serves a connection until it ends.
async fn connection(
    server: &Server,
    router: Router,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    stopped: watch::Receiver<()>,
) {
    let _ = stream.set_nodelay(true);
    let patience = server.options.patience;
    let stream = Patient { stream, patience, stalled: None };
    let Some(tls) = tls else { return exchange(stream, router, patience, stopped).await };
    match timeout(patience, tls.accept(stream)).await {
        Ok(Ok(stream)) => exchange(stream, router, patience, stopped).await,
        Ok(Err(cause)) => tracing::debug!(%cause, "no TLS"),
        Err(_) => tracing::debug!("no TLS in time"),
    }
}

/// Serves the requests of a connection. After `stopped`, it ends with its current request.
async fn exchange<S>(stream: S, router: Router, patience: Duration, mut stopped: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(HEAD_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(cause) = ended {
        tracing::debug!(%cause, "connection");
    }
}

/// Place of a connection among those of its address.
struct Place {
    addresses: Addresses,
    address: IpAddr,
}

impl Place {
    fn take(addresses: &Addresses, address: IpAddr, most: usize) -> Option<Self> {
        let mut counts = addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        (*count < most).then(|| {
            *count += 1;
            Self { addresses: Arc::clone(addresses), address }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// A connection that ends if its client does not read.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// End of the patience while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// Passes on the result of a write, or the end of the patience.
    fn patiently<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patiently(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.patiently(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn a_client_that_does_not_read_is_dropped() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = Patient { stream, patience: Duration::from_millis(100), stalled: None };
            loop {
                let written = poll_fn(|context| Pin::new(&mut stream).poll_write(context, &[0; 1 << 16]));
                if let Err(error) = written.await {
                    return error;
                }
            }
        });
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
