//! Records after the handshake: the length of the encrypted bytes (32 bits, little-endian), the bytes, and a tag. AES-128-GCM
//! encrypts them with keys that TLS exports, one for each direction. TLS's own records hold 16 KiB and are copied twice at
//! each end. With these, a thread encrypts while another one decrypts, and a piece of activations takes less time. A plain
//! connection has no records: it carries the bytes as they are.

use ragtag_scheduler::remote::write_parts;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::Connection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of bytes of a record before its encryption. Decryption of a piece's first record starts while the sender
/// still encrypts the others.
pub(super) const RECORD_BYTES: usize = 64 << 10;
/// Bytes of the length before a record.
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// Size of the buffer for bytes from the socket.
const BUFFER_BYTES: usize = 4 * RECORD_BYTES;
/// Bytes that a plain connection takes from the socket at once, unless the caller has room for more. A decode hop fits.
const PLAIN_BYTES: usize = 32 << 10;
/// Records that a key encrypts. Half of the 2^38 bytes for which TLS 1.3 allows a key of AES-GCM (RFC 8446, section 5.5).
const RECORDS_PER_KEY: u64 = if cfg!(test) { 50 } else { 1 << 21 };
/// Labels of the exported keys of both directions.
const LABELS: [&[u8]; 2] = [b"EXPORTER-ragtag from client", b"EXPORTER-ragtag from server"];

/// Returns the sending and the receiving end of a connection whose handshake is complete.
pub(super) fn both(connection: Connection, is_plain: bool) -> io::Result<(Sealer, Opener)> {
    let opener = |keys| Opener { keys, buffer: vec![0; BUFFER_BYTES], plain: 0..0, arrived: 0..0 };
    if is_plain {
        return Ok((Sealer { keys: None, record: Vec::new() }, opener(None)));
    }
    let is_client = matches!(connection, Connection::Client(_));
    let connection = Arc::new(connection);
    let keys = |label| Keys::new(Arc::clone(&connection), label);
    let [from_client, from_server] = [keys(LABELS[0])?, keys(LABELS[1])?];
    let (own, other) = if is_client { (from_client, from_server) } else { (from_server, from_client) };
    Ok((Sealer { keys: Some(own), record: Vec::new() }, opener(Some(other))))
}

/// Keys of one direction. Both ends count the records, and take the next key after the same one.
struct Keys {
    connection: Arc<Connection>,
    label: &'static [u8],
    key: LessSafeKey,
    /// Number of the key.
    number: u64,
    /// Number of records with this key.
    records: u64,
}

impl Keys {
    fn new(connection: Arc<Connection>, label: &'static [u8]) -> io::Result<Self> {
        let key = exported(&connection, label, 0)?;
        Ok(Self { connection, label, key, number: 0, records: 0 })
    }

    /// Returns the key and the nonce of the next record.
    fn next(&mut self) -> io::Result<(&LessSafeKey, Nonce)> {
        if self.records == RECORDS_PER_KEY {
            self.number += 1;
            self.key = exported(&self.connection, self.label, self.number)?;
            self.records = 0;
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.records.to_be_bytes());
        self.records += 1;
        Ok((&self.key, Nonce::assume_unique_for_key(nonce)))
    }
}

fn exported(connection: &Connection, label: &[u8], number: u64) -> io::Result<LessSafeKey> {
    let bytes = connection.export_keying_material([0; 16], label, Some(&number.to_be_bytes()));
    let key = UnboundKey::new(&AES_128_GCM, &bytes.map_err(io::Error::other)?);
    Ok(LessSafeKey::new(key.map_err(|_| io::Error::other("AES-GCM refuses a key"))?))
}

/// The sending end of a connection.
pub(super) struct Sealer {
    /// Absent on a plain connection.
    keys: Option<Keys>,
    record: Vec<u8>,
}

impl Sealer {
    /// Sends all bytes of some parts.
    pub(super) fn send(&mut self, mut socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.keys.is_none() {
            return write_parts(&mut socket, parts);
        }
        self.record.clear();
        for mut part in parts.iter().map(|part| &**part) {
            while !part.is_empty() {
                if self.record.is_empty() {
                    self.record.extend_from_slice(&[0; LENGTH_BYTES]);
                }
                let room = LENGTH_BYTES + RECORD_BYTES - self.record.len();
                let (first, rest) = part.split_at(part.len().min(room));
                self.record.extend_from_slice(first);
                part = rest;
                if first.len() == room {
                    self.finish(socket)?;
                }
            }
        }
        if self.record.is_empty() { Ok(()) } else { self.finish(socket) }
    }

    /// Encrypts and sends the record.
    fn finish(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        let Some(keys) = &mut self.keys else { return Ok(()) };
        let length = ((self.record.len() - LENGTH_BYTES) as u32).to_le_bytes();
        self.record[..LENGTH_BYTES].copy_from_slice(&length);
        let (key, nonce) = keys.next()?;
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(length), &mut self.record[LENGTH_BYTES..]);
        self.record.extend_from_slice(tag.map_err(|_| io::Error::other("AES-GCM fails"))?.as_ref());
        socket.write_all(&self.record)?;
        self.record.clear();
        Ok(())
    }
}

/// The receiving end of a connection.
pub(super) struct Opener {
    /// Absent on a plain connection.
    keys: Option<Keys>,
    buffer: Vec<u8>,
    /// Decrypted bytes in the buffer.
    plain: Range<usize>,
    /// Bytes in the buffer that are not decrypted yet.
    arrived: Range<usize>,
}

impl Opener {
    /// Returns decrypted bytes first, and receives others if there are none. Returns 0 at the end of the stream.
    pub(super) fn read(&mut self, mut socket: &TcpStream, out: &mut [u8]) -> io::Result<usize> {
        if self.keys.is_none() && self.plain.is_empty() {
            if out.len() >= PLAIN_BYTES {
                return socket.read(out);
            }
            self.plain = 0..socket.read(&mut self.buffer[..PLAIN_BYTES])?;
            if self.plain.is_empty() {
                return Ok(0);
            }
        }
        while self.plain.is_empty() {
            if !self.open()? && self.receive(socket)? == 0 {
                return if self.arrived.is_empty() { Ok(0) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
        let count = out.len().min(self.plain.len());
        out[..count].copy_from_slice(&self.buffer[self.plain.start..self.plain.start + count]);
        self.plain.start += count;
        Ok(count)
    }

    /// Decrypts a record. Returns `false` if it has not arrived yet.
    fn open(&mut self) -> io::Result<bool> {
        let Some(keys) = &mut self.keys else { return Ok(false) };
        let Some((&length, _)) = self.buffer[self.arrived.clone()].split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(false);
        };
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes == 0 || bytes > RECORD_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "a record with an invalid length"));
        }
        if self.arrived.len() < LENGTH_BYTES + bytes + TAG_BYTES {
            return Ok(false);
        }
        let start = self.arrived.start + LENGTH_BYTES;
        self.arrived.start = start + bytes + TAG_BYTES;
        let (key, nonce) = keys.next()?;
        let opened = key.open_in_place(nonce, Aad::from(length), &mut self.buffer[start..self.arrived.start]);
        opened.map_err(|_| io::Error::new(ErrorKind::InvalidData, "a record with a wrong tag"))?;
        self.plain = start..start + bytes;
        Ok(true)
    }

    /// Receives bytes. Returns 0 at the end of the stream.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        if self.arrived.is_empty() {
            self.arrived = 0..0;
        } else if self.buffer.len() - self.arrived.start < LENGTH_BYTES + RECORD_BYTES + TAG_BYTES {
            self.buffer.copy_within(self.arrived.clone(), 0);
            self.arrived = 0..self.arrived.len();
        }
        let received = socket.read(&mut self.buffer[self.arrived.end..])?;
        self.arrived.end += received;
        Ok(received)
    }
}
