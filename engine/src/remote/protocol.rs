//! Messages between a coordinator and a worker before a run. In the run, the messages are those of
//! [`ragtag_scheduler::remote`].

use super::client::WorkerAddress;
use super::key::WorkerKey;
use super::tls::TlsStream;
use crate::error::Result;
use crate::model::Model;
use ragtag_hal::Adapter;
use ragtag_kernels::{Activations, KvType};
use ragtag_planner::{DeviceFacts, LinkFacts};
use ragtag_scheduler::remote::{EdgeMessage, FromHost, ToHost, read_frame, write_frame};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Version of the protocol. It changes with every message of this crate and of the scheduler, and with the format of
/// plans.
pub(super) const PROTOCOL: u32 = 3;

/// Interval at which each end of a stream shows that it lives.
const PING: Duration = Duration::from_millis(if cfg!(test) { 250 } else { 1000 });
/// Time without a message after which the other end counts as lost.
pub(super) const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 10 });
/// Maximum size of a payload before a run, in bytes.
pub(super) const MAX_ECHO_BYTES: usize = 4 << 20;
/// Maximum number of streams of an edge.
pub(super) const MAX_STREAMS: u32 = 4;

/// Program and protocol of a peer. The first message in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) ragtag: String,
    pub(super) protocol: u32,
}

impl Version {
    pub(super) fn own() -> Self {
        Self { ragtag: env!("CARGO_PKG_VERSION").into(), protocol: PROTOCOL }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ragtag {} with protocol {}", self.ragtag, self.protocol)
    }
}

/// Messages of a coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Describe the devices for a model.
    Describe(Box<Describe>),
    /// Send the payload back.
    Echo,
    /// Load stages. The connection is then the control stream of the run.
    Load(Box<Load>),
    /// Accept connections with this key that measure the link, as long as this connection is open.
    Admit(WorkerKey),
    /// Measure the link to another worker.
    Measure(WorkerAddress),
    /// The connection is the stream of an edge.
    Edge {
        /// The run.
        session: String,
        /// Index of the edge.
        edge: usize,
    },
}

/// Devices and memory that a worker offers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The devices, with their descriptions.
    pub devices: Vec<(Adapter, DeviceFacts)>,
    /// Host memory for stages, in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Number of the host's cores.
    pub cores: u32,
}

/// Messages of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Nothing. Shows that the worker lives.
    Ping,
    /// The devices.
    Devices(Box<Offer>),
    /// The payload of the request.
    Echo,
    /// The link to another worker.
    Link(LinkFacts),
    /// The worker cannot reach another one.
    Unreachable(String),
    /// The worker loads the stages, or takes the stream.
    Accepted,
    /// The worker cannot do what it was asked for.
    Refused(String),
}

/// Identity of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ModelId {
    /// Path on the coordinator. `None` for the bundled model.
    pub(super) path: Option<String>,
    /// Name of the file or directory.
    pub(super) name: String,
    /// Digest of the files' headers and sizes.
    pub(super) fingerprint: String,
    /// Digest of the hyperparameters, which the following options change.
    pub(super) hyperparameters: String,
    /// RoPE scaling that replaces the model's own, as `--rope-scaling` has it.
    pub(super) rope_scaling: Option<String>,
    /// Whether the model runs for embeddings.
    pub(super) embeddings: bool,
}

impl ModelId {
    pub(super) fn of(model: &Model) -> Result<Self> {
        let hyperparameters = blake3::hash(format!("{:?}", model.hyperparameters()).as_bytes());
        Ok(Self {
            path: path_of(model),
            name: model.name().into(),
            fingerprint: model.fingerprint()?,
            hyperparameters: hyperparameters.to_hex().to_string(),
            rope_scaling: model.rope_scaling().map(|scaling| scaling.to_string()),
            embeddings: model.is_for_embeddings(),
        })
    }

    /// Returns whether two files are the same model.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.fingerprint, &self.hyperparameters) == (&other.fingerprint, &other.hyperparameters)
    }
}

/// Returns the path of a model's file or directory. `None` for the bundled model.
fn path_of(model: &Model) -> Option<String> {
    let first = Path::new(model.files().next()?.name());
    let is_checkpoint = first.extension().is_some_and(|extension| extension == "safetensors");
    let path = if is_checkpoint { first.parent()? } else { first };
    let path = std::path::absolute(path).ok().filter(|path| path.exists())?;
    Some(path.to_string_lossy().into_owned())
}

/// Request for a description of the devices.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Describe {
    pub(super) model: ModelId,
    /// Whether to time the devices, except those with cached results.
    pub(super) calibrate: bool,
    pub(super) activations: Activations,
    pub(super) kv: KvType,
    pub(super) sequences: u32,
    pub(super) max_load: f64,
}

/// Request to load stages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Load {
    pub(super) session: String,
    pub(super) model: ModelId,
    /// The plan, as JSON. Labels of devices of the worker are its own.
    pub(super) plan: String,
    /// Adapters of the stages of other hosts.
    pub(super) adapters: Vec<Adapter>,
    /// Edges to other workers that do not pass through the coordinator.
    pub(super) neighbours: Vec<Neighbour>,
    /// Number of streams of each edge.
    pub(super) streams: u32,
    pub(super) all_logits: bool,
    pub(super) verify_transfers: bool,
    pub(super) stall_timeout: Option<Duration>,
    pub(super) compute_timeout: Option<Duration>,
    pub(super) no_self_test: bool,
}

/// An edge to another worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Neighbour {
    /// Name of the other worker.
    pub(super) name: String,
    /// Index of the edge.
    pub(super) edge: usize,
    /// Key of the edge's streams.
    pub(super) key: WorkerKey,
    /// Address of the other worker, if this one connects.
    pub(super) address: Option<String>,
    /// Whether both workers take plain connections.
    pub(super) plain: bool,
}

/// Reads frames with messages of a kind, and writes them again. The kind is the first letter of `version`, `request`,
/// `answer`, `to` (the host in a run), `from` (that host) or `edge`. For fuzz targets.
///
/// # Errors
/// The error of the first frame that is invalid, and an error for another kind.
pub fn rewritten_frames(kind: u8, bytes: &[u8]) -> io::Result<Vec<u8>> {
    match kind {
        b'v' => rewritten::<Version>(bytes),
        b'r' => rewritten::<Request>(bytes),
        b'a' => rewritten::<Answer>(bytes),
        b't' => rewritten::<ToHost>(bytes),
        b'f' => rewritten::<FromHost>(bytes),
        b'e' => rewritten::<EdgeMessage>(bytes),
        _ => Err(io::Error::other("no kind of message")),
    }
}

fn rewritten<T: Serialize + DeserializeOwned>(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut written = Vec::new();
    while !bytes.is_empty() {
        let (message, payload): (T, _) = read_frame(&mut bytes, MAX_ECHO_BYTES)?;
        write_frame(&mut written, &message, &payload)?;
    }
    Ok(written)
}

/// Sends a ping at intervals until the connection ends.
pub(super) fn keep_alive(stream: &TlsStream) {
    let mut stream = stream.clone();
    let ping = move || {
        while write_frame(&mut stream, &Answer::Ping, &[]).is_ok() {
            std::thread::sleep(PING);
        }
    };
    // Without a thread, the other end counts this one as lost.
    let _ = std::thread::Builder::new().name("ragtag ping".into()).spawn(ping);
}
