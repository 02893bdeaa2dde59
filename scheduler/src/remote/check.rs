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
use std::sync::Arc;

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
    let mut receiver = EdgeReceiver {
        to: Some(stage),
        sends,
        ring: Ring { memory, chunk_bytes: PLACE_BYTES, depth: PLACES },
        mirror: Timeline::new(timeline),
        next: 0,
        run: small(),
    };
    let mut count = 0;
    while !bytes.is_empty() {
        let (message, payload) = read_frame(&mut bytes, PLACE_BYTES as usize)?;
        if let EdgeMessage::Event(event) = message {
            receiver.deliver(event, &payload)?;
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
