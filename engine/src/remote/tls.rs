//! Encrypted streams of bytes. Both ends prove with TLS 1.3 and raw public keys that they have the same key, and accept no
//! other. After the handshake, `records.rs` encrypts.

use super::key::WorkerKey;
use super::protocol::SILENCE;
use super::records::{Opener, Sealer, both};
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
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Protocol without encryption after the handshake, as both ends name it in the handshake (ALPN).
const PLAIN: &[u8] = b"ragtag-plain";

/// Configurations of both ends for one key.
#[derive(Clone)]
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Name of the key.
    name: String,
}

impl Tls {
    /// If both ends are `plain`, a connection is not encrypted after the handshake.
    pub(super) fn new(key: &WorkerKey, plain: bool) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivatePkcs8KeyDer::from(key.private());
        let signer = rustls::crypto::ring::sign::any_eddsa_type(&private).map_err(io::Error::other)?;
        let public = signer.public_key().ok_or_else(|| io::Error::other("a key without a public part"))?;
        let own = CertificateDer::from(public.to_vec());
        let only = Only { own: own.clone(), algorithms: provider.signature_verification_algorithms };
        let only = Arc::new(only);
        let certified = Arc::new(CertifiedKey::new(vec![own], signer));
        let versions = &[&rustls::version::TLS13];
        let protocols: Vec<Vec<u8>> = plain.then(|| PLAIN.to_vec()).into_iter().collect();
        let mut client = ClientConfig::builder_with_provider(Arc::<CryptoProvider>::clone(&provider))
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
        client.alpn_protocols.clone_from(&protocols);
        server.alpn_protocols = protocols;
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

/// An encrypted or plain connection. Clones share it: one thread may read while others write.
#[derive(Clone)]
pub(super) struct TlsStream {
    socket: Arc<TcpStream>,
    is_plain: bool,
    sending: Arc<Mutex<Sealer>>,
    receiving: Arc<Mutex<Opener>>,
}

impl TlsStream {
    fn new(mut connection: Connection, socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(HANDSHAKE))?;
        let mut handshake = Handshake { socket: &socket, record: Vec::new(), given: 0 };
        while connection.is_handshaking() {
            connection.complete_io(&mut handshake)?;
        }
        socket.set_read_timeout(None)?;
        // The other end always reads soon.
        socket.set_write_timeout(Some(SILENCE))?;
        let is_plain = connection.alpn_protocol() == Some(PLAIN);
        let (sealer, opener) = both(connection, is_plain)?;
        let (sending, receiving) = (Arc::new(Mutex::new(sealer)), Arc::new(Mutex::new(opener)));
        Ok(Self { socket: Arc::new(socket), is_plain, sending, receiving })
    }

    /// Sets the time after which a read fails if nothing arrives.
    pub(super) fn set_silence(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(limit)
    }

    /// Returns whether the connection is not encrypted.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub(super) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(super) fn into_stream(self) -> Stream {
        let (reader, writer) = (Box::new(self.clone()), Box::new(self.clone()));
        Stream { reader, writer, close: Arc::new(move || self.close()) }
    }
}

impl Read for TlsStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner).read(&self.socket, out)
    }
}

impl Write for TlsStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).send(&self.socket, parts)?;
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket during a handshake. It takes no byte after the record that ends the handshake.
struct Handshake<'a> {
    socket: &'a TcpStream,
    record: Vec<u8>,
    /// Bytes of the record that the reader has.
    given: usize,
}

impl Read for Handshake<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.record.len() {
            // Type, version and length of a record of TLS.
            let mut header = [0; 5];
            self.socket.read_exact(&mut header)?;
            self.record.clear();
            self.record.extend_from_slice(&header);
            let length = u16::from_be_bytes([header[3], header[4]]);
            self.record.resize(header.len() + usize::from(length), 0);
            self.socket.read_exact(&mut self.record[header.len()..])?;
            self.given = 0;
        }
        let count = out.len().min(self.record.len() - self.given);
        out[..count].copy_from_slice(&self.record[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

impl Write for Handshake<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.socket.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_scheduler::remote::write_parts;
    use std::net::TcpListener;

    /// Returns both ends of a connection.
    fn pair(plain: [bool; 2]) -> [TlsStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let key = WorkerKey::generate().unwrap();
        let [own, other] = plain.map(|plain| Tls::new(&key, plain).unwrap());
        let accepting = std::thread::spawn(move || Tls::accept(far, |_| (other, ())).unwrap().0);
        let near = own.connect(near).unwrap();
        [near, accepting.join().unwrap()]
    }

    #[test]
    fn bytes_arrive_in_order_in_both_directions() {
        let sizes = [1, 20, 5000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 300_000];
        for plain in [[false, false], [true, true], [true, false], [false, true]] {
            let [mut near, mut far] = pair(plain);
            assert_eq!([near.is_plain(), far.is_plain()], [plain == [true, true]; 2]);
            let text = |round: usize, size: usize| -> Vec<u8> {
                (0..size).map(|at| (at * 7 + round) as u8).collect()
            };
            // Enough for several keys.
            let rounds = 0..40;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (round, size) in rounds.clone().flat_map(|round| sizes.map(|size| (round, size))) {
                        let mut read = vec![0; size];
                        far.read_exact(&mut read).unwrap();
                        assert!(read == text(round, size), "{size} bytes");
                        far.write_all(&read).unwrap();
                    }
                });
                for (round, size) in rounds.clone().flat_map(|round| sizes.map(|size| (round, size))) {
                    let sent = text(round, size);
                    let (first, second) = sent.split_at(size / 3);
                    write_parts(&mut near, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
                    let mut read = vec![0; size];
                    near.read_exact(&mut read).unwrap();
                    assert!(read == sent, "{size} bytes back");
                }
            });
        }
    }

    #[test]
    fn records_of_another_key_and_parts_of_records_are_errors() {
        let foreign = |length: u32| [&length.to_le_bytes()[..], &[7; 40]].concat();
        for (bytes, kind) in [
            (foreign(24), ErrorKind::InvalidData),
            (foreign(0), ErrorKind::InvalidData),
            (foreign(u32::MAX), ErrorKind::InvalidData),
            (foreign(25), ErrorKind::UnexpectedEof),
            (vec![1], ErrorKind::UnexpectedEof),
        ] {
            let [near, mut far] = pair([false, false]);
            (&*near.socket).write_all(&bytes).unwrap();
            near.close();
            assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), kind, "{bytes:?}");
        }
        let [near, mut far] = pair([false, false]);
        near.close();
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
    }
}
