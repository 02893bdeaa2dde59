//! Frames: the length of a message and of its payload (32 bits each, little-endian), the message as JSON, the payload.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Deref;

/// Maximum size of the message of a frame, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Number of bytes for which a reader makes room at once.
const STEP_BYTES: usize = 1 << 20;

/// Number of bytes at the end of a payload that are copied.
const END_BYTES: usize = 4 << 10;

/// The lengths and the message of a frame. The next frame takes their memory.
#[derive(Default)]
pub(super) struct Head(Vec<u8>);

impl Head {
    /// Returns an error if the message is too large.
    pub(super) fn fill(&mut self, message: &impl Serialize, payload_bytes: usize) -> io::Result<()> {
        let head = &mut self.0;
        head.clear();
        head.extend_from_slice(&[0; 8]);
        serde_json::to_writer(&mut *head, message)?;
        let lengths = (u32::try_from(head.len() - 8), u32::try_from(payload_bytes));
        let (Ok(message), Ok(bytes)) = lengths else { return Err(invalid("a frame is too large")) };
        if message as usize > MAX_MESSAGE_BYTES {
            return Err(invalid("a message is too large"));
        }
        head[..4].copy_from_slice(&message.to_le_bytes());
        head[4..8].copy_from_slice(&bytes.to_le_bytes());
        Ok(())
    }

    /// Sends the frame with a payload that others may overwrite when the other end has all of it. Therefore, gives up `payload`
    /// before the last bytes leave. Payloads of less than `copied_from` bytes are copied whole, and of others only the end.
    pub(super) fn send_released(
        &mut self,
        writer: &mut dyn Write,
        payload: impl Deref<Target = [u8]>,
        copied_from: usize,
    ) -> io::Result<()> {
        let uncopied = if payload.len() < copied_from { 0 } else { payload.len().saturating_sub(END_BYTES) };
        if uncopied > 0 {
            write_parts(writer, &[IoSlice::new(&self.0), IoSlice::new(&payload[..uncopied])])?;
            self.0.clear();
        }
        self.0.extend_from_slice(&payload[uncopied..]);
        drop(payload);
        writer.write_all(&self.0)?;
        writer.flush()
    }

    /// Sends the frame. The payload has the size that [`Head::fill`] wrote.
    pub(super) fn send(&self, writer: &mut dyn Write, payload: &[u8]) -> io::Result<()> {
        write_parts(writer, &[IoSlice::new(&self.0), IoSlice::new(payload)])?;
        writer.flush()
    }
}

/// Writes all bytes of some parts, with one call of `write_vectored` if the writer takes all together.
///
/// # Errors
/// The errors of the writer.
pub fn write_parts(writer: &mut dyn Write, parts: &[IoSlice<'_>]) -> io::Result<()> {
    let mut written = match writer.write_vectored(parts) {
        Err(cause) if cause.kind() == ErrorKind::Interrupted => 0,
        written => written?,
    };
    for part in parts {
        let skipped = written.min(part.len());
        writer.write_all(&part[skipped..])?;
        written -= skipped;
    }
    Ok(())
}

/// Sends a frame with one call of `write_vectored`, if the writer takes all bytes together.
///
/// # Errors
/// The errors of the writer, and an error for a message that is too large.
pub fn write_frame(writer: &mut dyn Write, message: &impl Serialize, payload: &[u8]) -> io::Result<()> {
    let mut head = Head::default();
    head.fill(message, payload.len())?;
    head.send(writer, payload)
}

/// Receives a frame with a payload of at most `max_payload` bytes. Allocates at most 1 MiB more than
/// what has arrived.
///
/// # Errors
/// The errors of the reader, and an error of the kind `InvalidData` for a frame beyond a limit or a message that is not
/// a `T`.
pub fn read_frame<T: DeserializeOwned>(
    reader: &mut dyn Read,
    max_payload: usize,
) -> io::Result<(T, Vec<u8>)> {
    let mut payload = Vec::new();
    read_frame_into(reader, max_payload, &mut payload).map(|message| (message, payload))
}

/// Receives a frame like [`read_frame`]. Its payload replaces the content of `payload`.
///
/// # Errors
/// Those of [`read_frame`].
pub fn read_frame_into<T: DeserializeOwned>(
    reader: &mut dyn Read,
    max_payload: usize,
    payload: &mut Vec<u8>,
) -> io::Result<T> {
    let mut lengths = [0; 8];
    reader.read_exact(&mut lengths)?;
    let length = |at: usize| {
        let bytes = [lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]];
        u32::from_le_bytes(bytes) as usize
    };
    let (message, bytes) = (length(0), length(4));
    if message > MAX_MESSAGE_BYTES || bytes > max_payload {
        let what = format!(
            "a frame with a message of {message} bytes and a payload of {bytes} bytes exceeds the limits \
             ({MAX_MESSAGE_BYTES} and {max_payload} bytes)"
        );
        return Err(invalid(&what));
    }
    let mut text = Vec::new();
    exactly(reader, message, &mut text)?;
    exactly(reader, bytes, payload)?;
    serde_json::from_slice(&text)
        .map_err(|cause| invalid(&format!("a frame with an unknown message: {cause}")))
}

/// Reads bytes in place of those in `read`.
fn exactly(reader: &mut dyn Read, bytes: usize, read: &mut Vec<u8>) -> io::Result<()> {
    let first = bytes.min(STEP_BYTES);
    if read.len() < first {
        // The system provides zeros faster than a loop.
        *read = vec![0; first];
    }
    read.truncate(bytes);
    let mut done = 0;
    while done < bytes {
        if read.len() == done {
            read.resize(bytes.min(done + STEP_BYTES), 0);
        }
        reader.read_exact(&mut read[done..])?;
        done = read.len();
    }
    Ok(())
}

/// Maximum length of an error, in characters. It may quote data of the other end.
const ERROR_CHARACTERS: usize = 500;

/// Returns the error for data that the protocol does not allow.
pub(super) fn invalid(what: &str) -> io::Error {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let what: String = what.chars().take(ERROR_CHARACTERS).map(plain).collect();
    io::Error::new(ErrorKind::InvalidData, what)
}
