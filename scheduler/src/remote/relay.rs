//! An edge between two other hosts, whose frames pass through the coordinator.

use super::{Peer, Stream};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Size of the relay's buffer, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Copies all bytes between two hosts. It ends when the streams of one of them end.
pub(crate) struct Relay {
    pub(crate) peers: [Arc<Peer>; 2],
    pub(crate) streams: [Stream; 2],
}

impl Relay {
    pub(crate) fn serve(self) {
        let Self { peers: [a, b], streams: [from, to] } = self;
        let (mut from_reader, mut from_writer) = (from.reader, from.writer);
        let (mut to_reader, mut to_writer) = (to.reader, to.writer);
        std::thread::scope(|scope| {
            scope.spawn(|| copy((from_reader.as_mut(), &a), (to_writer.as_mut(), &b)));
            copy((to_reader.as_mut(), &b), (from_writer.as_mut(), &a));
        });
    }
}

/// Copies bytes until a stream ends. Its host is lost then, unless the run has ended.
fn copy((reader, from): (&mut dyn Read, &Peer), (writer, to): (&mut dyn Write, &Peer)) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = match reader.read(&mut buffer) {
            Ok(0) => return from.lose_later(&ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
            Err(cause) => return from.lose_later(&cause),
        };
        let sent: io::Result<()> = writer.write_all(&buffer[..bytes]).and_then(|()| writer.flush());
        if let Err(cause) = sent {
            return to.lose_later(&cause);
        }
    }
}
