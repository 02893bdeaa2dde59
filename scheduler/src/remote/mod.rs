//! Stages on other hosts. Each host runs the actors of its own stages. The messages between two stages are the same
//! as within one process. A proxy at each end of an edge carries them and the bytes of the ring's places.
//!
//! | file | subject |
//! | --- | --- |
//! | `frame.rs` | frames on a stream of bytes |
//! | `peer.rs` | another host: its loss, and the end of its streams |
//! | `edge.rs` | an edge to another host |
//! | `check.rs` | the end of an edge without a stage, for fuzz targets |
//! | `limits.rs` | checks of micro-batches from another host |
//! | `host.rs` | another host, as the coordinator sees it |
//! | `relay.rs` | an edge between two other hosts, through the coordinator |
//! | `worker.rs` | the stages of this host, for a coordinator on another one |

mod check;
mod edge;
mod frame;
mod host;
mod limits;
mod peer;
mod relay;
mod worker;

pub use check::receive_edge;
pub use frame::{MAX_MESSAGE_BYTES, read_frame, read_frame_into, write_frame, write_parts};
pub use worker::serve;

pub(crate) use edge::{EdgeProxy, EdgeReceiver, EdgeSender, Ring};
pub(crate) use host::{HostProxy, Results};
pub(crate) use peer::Peer;
pub(crate) use relay::Relay;

use crate::actor::StageReport;
use crate::core::{MicroBatch, MicroBatchId, ResultRows, StageEvent};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::sync::Arc;

/// Closes a stream, so that blocked reads and writes on it end.
pub type Close = Arc<dyn Fn() + Send + Sync>;

/// A stream of bytes to and from another host, which carries frames.
pub struct Stream {
    /// Receives.
    pub reader: Box<dyn Read + Send>,
    /// Sends. It must take all bytes of one call of `write_vectored` together.
    pub writer: Box<dyn Write + Send>,
    /// Closes both directions.
    pub close: Close,
}

/// Stages of a pipeline that run on other hosts.
#[derive(Default)]
pub struct Remote {
    /// The stages. The stage at index `i` has the device `i` after those of this host.
    pub stages: Vec<RemoteStage>,
    /// The hosts.
    pub hosts: Vec<RemoteHost>,
}

impl Drop for Remote {
    /// Closes the streams that no pipeline has taken.
    fn drop(&mut self) {
        for host in &self.hosts {
            let streams = host.control.iter().chain(host.edges.iter().map(|(_, stream)| stream));
            streams.for_each(|stream| (stream.close)());
        }
    }
}

/// A stage on another host.
pub struct RemoteStage {
    /// Label of its device.
    pub label: String,
    /// Index of its host.
    pub host: usize,
}

/// Another host with stages of the pipeline.
pub struct RemoteHost {
    /// Name of the host.
    pub name: String,
    /// Whether the host is the coordinator, whose streams end with the run.
    pub is_coordinator: bool,
    /// Stream for the run. On the host itself, [`serve`] uses it.
    pub control: Option<Stream>,
    /// Streams for the edges between this host and that one, each with the index of the edge. An edge may have several.
    /// The coordinator also has some for each edge between that host and a third one that they do not exchange
    /// themselves.
    pub edges: Vec<(usize, Stream)>,
}

/// Messages of the coordinator to a host that runs stages.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// Nothing. Shows that the coordinator lives.
    Ping,
    /// A micro-batch for the first stage.
    HandOff(Arc<MicroBatch>),
}

/// Messages on the stream of an edge.
#[derive(Debug, Serialize, Deserialize)]
pub enum EdgeMessage {
    /// Nothing. Shows that the other end lives.
    Ping,
    /// An event of the stage. The bytes of a piece follow as payload.
    Event {
        /// Number of the event among those of its end. The receiver handles events in this order, because those on
        /// different streams of the edge may overtake each other.
        number: u64,
        /// The event.
        event: StageEvent,
    },
}

/// Messages of a host that runs stages to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromHost {
    /// Nothing. Shows that the host lives.
    Ping,
    /// Bytes of weights of a stage have been submitted to its device.
    Loading {
        /// Index of the stage in the pipeline.
        stage: u32,
        /// Number of bytes.
        bytes: u64,
    },
    /// All stages are loaded.
    Ready,
    /// The host has failed.
    Failed(Error),
    /// Results of a micro-batch. They follow as payload: the whole rows, then the best logits of the others.
    Returned {
        /// The micro-batch.
        micro_batch: MicroBatchId,
        /// Places of the results.
        rows: ResultRows,
    },
    /// Counts and times of a stage.
    Report {
        /// Index of the stage in the pipeline.
        stage: u32,
        /// The report.
        report: Box<StageReport>,
    },
}
