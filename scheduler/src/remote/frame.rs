//! Frames: the length of a message and of its payload (32 bits each, little-endian), the message as JSON, the payload.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};

/// Maximum size of the message of a frame, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Sends a frame with one call of `write`.
///
/// # Errors
/// The errors of the writer, and an error for a message that is too large.
pub fn write_frame(writer: &mut dyn Write, message: &impl Serialize, payload: &[u8]) -> io::Result<()> {
    let mut frame = vec![0; 8];
    serde_json::to_writer(&mut frame, message)?;
    let lengths = (u32::try_from(frame.len() - 8), u32::try_from(payload.len()));
    let (Ok(message), Ok(bytes)) = lengths else { return Err(invalid("a frame is too large")) };
    if message as usize > MAX_MESSAGE_BYTES {
        return Err(invalid("a message is too large"));
    }
    frame[..4].copy_from_slice(&message.to_le_bytes());
    frame[4..8].copy_from_slice(&bytes.to_le_bytes());
    frame.extend_from_slice(payload);
    writer.write_all(&frame)?;
    writer.flush()
}

/// Receives a frame with a payload of at most `max_payload` bytes. Allocates no more than what has arrived.
///
/// # Errors
/// The errors of the reader, and an error of the kind `InvalidData` for a frame beyond a limit or a message that is not
/// a `T`.
pub fn read_frame<T: DeserializeOwned>(
    reader: &mut dyn Read,
    max_payload: usize,
) -> io::Result<(T, Vec<u8>)> {
    let mut lengths = [0; 8];
    reader.read_exact(&mut lengths)?;
    let length = |at: usize| {
        let bytes = [lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]];
        u32::from_le_bytes(bytes) as usize
    };
    let (message, payload) = (length(0), length(4));
    if message > MAX_MESSAGE_BYTES || payload > max_payload {
        let what = format!(
            "a frame with a message of {message} bytes and a payload of {payload} bytes exceeds the limits \
             ({MAX_MESSAGE_BYTES} and {max_payload} bytes)"
        );
        return Err(invalid(&what));
    }
    let message = exactly(reader, message)?;
    let message = serde_json::from_slice(&message)
        .map_err(|cause| invalid(&format!("a frame with an unknown message: {cause}")))?;
    Ok((message, exactly(reader, payload)?))
}

fn exactly(reader: &mut dyn Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    reader.take(bytes as u64).read_to_end(&mut read)?;
    if read.len() < bytes { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

/// Returns the error for data that the protocol does not allow.
pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
