//! Encrypted streams of bytes: TLS 1.3 with raw public keys. Both ends have the same key, and accept no other.

use super::key::WorkerKey;
use super::protocol::SILENCE;
use ragtag_scheduler::remote::Stream;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{Accepted, AcceptedAlert, Acceptor, AlwaysResolvesServerRawPublicKeys};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, ServerConfig,
    SignatureScheme,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes that one read takes from the socket at most.
const READ_BYTES: usize = 256 << 10;

/// Configurations of both ends for one key.
#[derive(Clone)]
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Name of the key.
    name: String,
}

impl Tls {
    pub(super) fn new(key: &WorkerKey) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivatePkcs8KeyDer::from(key.private());
        let signer = rustls::crypto::ring::sign::any_eddsa_type(&private).map_err(io::Error::other)?;
        let public = signer.public_key().ok_or_else(|| io::Error::other("a key without a public part"))?;
        let own = CertificateDer::from(public.to_vec());
        let only = Only { own: own.clone(), algorithms: provider.signature_verification_algorithms };
        let only = Arc::new(only);
        let certified = Arc::new(CertifiedKey::new(vec![own], signer));
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::<CryptoProvider>::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<Only>::clone(&only))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
                &certified,
            ))));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_client_cert_verifier(only)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name: key.name() })
    }

    /// Encrypts a connection that this end has made.
    pub(super) fn connect(&self, socket: TcpStream) -> io::Result<TlsStream> {
        let name = ServerName::try_from(self.name.clone()).map_err(io::Error::other)?;
        let client = ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        TlsStream::new(client.into(), socket)
    }

    /// Encrypts a connection that this end has accepted. `choose` returns the configuration for the name of a key, with a
    /// value that `accept` returns.
    pub(super) fn accept<T>(
        mut socket: TcpStream,
        choose: impl FnOnce(&str) -> (Self, T),
    ) -> io::Result<(TlsStream, T)> {
        socket.set_read_timeout(Some(HANDSHAKE))?;
        let hello = hello(&mut socket)?;
        let (tls, chosen) = choose(hello.client_hello().server_name().unwrap_or_default());
        let server = hello.into_connection(tls.server).map_err(|alert| refused(&mut socket, alert))?;
        Ok((TlsStream::new(server.into(), socket)?, chosen))
    }
}

/// Receives the first message of a handshake.
fn hello(socket: &mut TcpStream) -> io::Result<Accepted> {
    let mut acceptor = Acceptor::default();
    loop {
        if acceptor.read_tls(socket)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(accepted) = acceptor.accept().map_err(|alert| refused(socket, alert))? {
            return Ok(accepted);
        }
    }
}

/// Sends an alert, and returns its cause.
fn refused(socket: &mut TcpStream, (cause, mut alert): (rustls::Error, AcceptedAlert)) -> io::Error {
    // The other end may be gone.
    let _ = alert.write_all(socket);
    io::Error::new(ErrorKind::InvalidData, cause)
}

/// Verifier that accepts only one key.
#[derive(Debug)]
struct Only {
    own: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Only {
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if *key == self.own {
            Ok(())
        } else {
            Err(rustls::Error::General("the other end has another key".into()))
        }
    }

    fn signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// Error of signatures of TLS 1.2, which neither end offers.
fn old() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not supported".into())
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Only {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// An encrypted connection. Clones share it: one thread may read while others write.
#[derive(Clone)]
pub(super) struct TlsStream {
    connection: Arc<Mutex<Connection>>,
    socket: Arc<TcpStream>,
    /// Encrypted bytes. Held while they are sent, so that they leave in order.
    sending: Arc<Mutex<Vec<u8>>>,
    /// Bytes from the socket that are not decrypted yet.
    arrived: Arc<Mutex<Arrived>>,
}

/// Bytes from a socket.
struct Arrived {
    bytes: Vec<u8>,
    /// Bytes that are not decrypted yet.
    range: Range<usize>,
}

impl TlsStream {
    fn new(mut connection: Connection, mut socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(HANDSHAKE))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        connection.set_buffer_limit(None);
        socket.set_read_timeout(None)?;
        // The other end always reads soon.
        socket.set_write_timeout(Some(SILENCE))?;
        let connection = Arc::new(Mutex::new(connection));
        let arrived = Arrived { bytes: vec![0; READ_BYTES], range: 0..0 };
        let (sending, arrived) = (Arc::default(), Arc::new(Mutex::new(arrived)));
        Ok(Self { connection, socket: Arc::new(socket), sending, arrived })
    }

    /// Sets the time after which a read fails if nothing arrives.
    pub(super) fn set_silence(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(limit)
    }

    pub(super) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(super) fn into_stream(self) -> Stream {
        let (reader, writer) = (Box::new(self.clone()), Box::new(self.clone()));
        Stream { reader, writer, close: Arc::new(move || self.close()) }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for TlsStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            {
                let mut connection = self.lock();
                match connection.reader().read(out) {
                    Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
                    read => return read,
                }
                // The connection takes a few kilobytes at once, and holds little plaintext.
                if !arrived.range.is_empty() {
                    let taken = connection.read_tls(&mut &arrived.bytes[arrived.range.clone()])?;
                    if taken == 0 {
                        return Ok(0);
                    }
                    arrived.range.start += taken;
                    let processed = connection.process_new_packets();
                    processed.map_err(|cause| io::Error::new(ErrorKind::InvalidData, cause))?;
                    continue;
                }
            }
            // Reads without the lock, so that another thread can write.
            let bytes = (&*self.socket).read(&mut arrived.bytes)?;
            arrived.range = 0..bytes;
            if bytes == 0 {
                self.lock().read_tls(&mut io::empty())?;
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut bytes = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.clear();
        {
            let mut connection = self.lock();
            connection.writer().write_all(data)?;
            while connection.wants_write() {
                connection.write_tls(&mut *bytes)?;
            }
        }
        // Sends without the lock, so that another thread can read.
        (&*self.socket).write_all(&bytes)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
