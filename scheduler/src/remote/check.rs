//! The end of an edge without a stage, for fuzz targets.

use super::frame::read_frame;
use super::{EdgeMessage, EdgeReceiver, Ring};
use crate::actor::{Edge, Sharing};
use crate::capacity::Lanes;
use crate::core::{Limits, RunShape};
use crate::mailbox::{Notice, mailbox};
use crate::message::{DeviceMessage, DeviceUrgent};
use ragtag_graph::execution::{Chunks, KvUse};
use ragtag_hal::{DeviceId, HostRegion, QueueKind, Timeline, TimelineId};
use ragtag_transfer::{Route, Routes};
use std::io;
use std::sync::{Arc, Mutex};

/// Size of a place of the ring, in bytes.
const PLACE_BYTES: u64 = 16;
/// Number of places.
const PLACES: u32 = 2;

/// Receives the frames of an edge in a small pipeline, whose stage sends or receives activations. Returns the number of frames.
///
/// # Errors
/// The error of the first frame that a run would refuse.
pub fn receive_edge(mut bytes: &[u8], sends: bool) -> io::Result<usize> {
    let region =
        HostRegion::near((PLACE_BYTES * u64::from(PLACES)) as usize, &[]).map_err(io::Error::other)?;
    let memory = Arc::new(region);
    let routes = Routes::from(Route::HostStaged { chunk_bytes: PLACE_BYTES, depth: PLACES });
    let (address, inbox) = mailbox::<DeviceMessage, DeviceUrgent>(Lanes { waking: 2, quiet: 2 });
    let timeline = TimelineId { device: DeviceId(0), queue: QueueKind::Download };
    let stage = Edge {
        ring: Arc::clone(&memory),
        ring_id: None,
        label: "fuzz:0".into(),
        address,
        stage: 0,
        timelines: Vec::new(),
        notice: Notice::default(),
        shared: Sharing::of(&routes).0,
        imported: Vec::new(),
        routes,
    };
    let receiver = EdgeReceiver {
        to: Some(stage),
        sends,
        ring: Ring { memory, chunk_bytes: PLACE_BYTES, depth: PLACES },
        mirror: Timeline::new(timeline),
        run: small(),
        most_waiting: PLACES as usize,
        arrivals: Mutex::default(),
    };
    let mut count = 0;
    while !bytes.is_empty() {
        let (message, payload) = read_frame(&mut bytes, PLACE_BYTES as usize)?;
        if let EdgeMessage::Event { number, event } = message {
            receiver.arrive(number, event, &payload)?;
        }
        while inbox.poll().is_some() {}
        count += 1;
    }
    Ok(count)
}

/// Returns the shape of a small pipeline.
fn small() -> RunShape {
    RunShape {
        stages: 2,
        decode_groups: 2,
        credits: 2,
        context: 64,
        vocabulary: 100,
        has_picks: false,
        chunks: Chunks::fixed(8),
        max_rows: 8,
        max_logit_rows: 4,
        max_sequences: 4,
        kv_blocks: 8,
        kv_use: KvUse::default(),
        limits: Limits::default(),
        kv_ring: None,
        prefill_from: None,
        recompute_at: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::write_frame;
    use super::*;
    use crate::core::StageEvent;
    use ragtag_hal::Point;
    use ragtag_transfer::{Piece, ToReceiver, TransferId};

    /// Returns the frames of pieces with these numbers.
    fn pieces(numbers: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &number in numbers {
            let timeline = TimelineId { device: DeviceId(1), queue: QueueKind::Download };
            let piece = Piece { place: 0, offset: 0, bytes: PLACE_BYTES };
            let ready = Point { timeline, value: 1 };
            let event = ToReceiver::Piece { transfer: TransferId(1), piece, ready };
            let message = EdgeMessage::Event { number, event: StageEvent::FromPrevious(event) };
            write_frame(&mut bytes, &message, &[7; PLACE_BYTES as usize]).unwrap();
        }
        bytes
    }

    #[test]
    fn events_that_overtake_others_wait_and_repeated_ones_are_refused() {
        for (numbers, expected) in [
            (&[2, 0, 1, 4, 3][..], Ok(5)),
            (&[0, 0], Err("event 0 instead of 1")),
            (&[1, 1], Err("two events with the number 1")),
            (&[1, 2, 3, 4], Err("event 4 instead of 0")),
        ] {
            let received = receive_edge(&pieces(numbers), false).map_err(|cause| cause.to_string());
            assert_eq!(
                received.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|cause| *cause),
                "{numbers:?}"
            );
        }
    }
}
