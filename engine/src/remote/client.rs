//! The coordinator's side: asks workers for their devices, probes the links to them, and makes them load stages.

use super::key::WorkerKey;
use super::protocol::{
    Answer, Describe, Load, MAX_ECHO_BYTES, MAX_STREAMS, ModelId, Neighbour, Offer, Request, SILENCE,
    Version, keep_alive,
};
use super::tls::{Tls, TlsStream};
use crate::calibrate::CalibrationOptions;
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::hosts::{Connect, DirectEdge, RemoteDevice, Run};
use crate::model::Model;
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, HostFacts, LinkFacts, WeightSharing};
use ragtag_scheduler::remote::{RemoteHost, read_frame, write_frame};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Sizes of the probe's transfers in bytes, and their numbers.
const PROBES: [(usize, usize); 3] = [(4 << 10, 24), (64 << 10, 12), (1 << 20, 6)];

/// Number of cores for each stream of an edge.
const CORES_PER_STREAM: u32 = 4;

/// Text before the key of a worker that takes plain connections.
const PLAIN: &str = "plain-";

/// Address and key of a worker, in the form `HOST:PORT#KEY`, or `HOST:PORT#plain-KEY` if connections for activations are not
/// encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    address: String,
    pub(super) key: WorkerKey,
    pub(super) plain: bool,
}

impl FromStr for WorkerAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("expected HOST:PORT#KEY, as `ragtag worker` prints it, not {text:?}");
        let (address, key) = text.split_once('#').ok_or_else(wrong)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        let (plain, key) = key.strip_prefix(PLAIN).map_or((false, key), |key| (true, key));
        Ok(Self { address: address.into(), key: key.parse()?, plain })
    }
}

impl WorkerAddress {
    /// Returns the address and the key of a worker that listens at `HOST:PORT`.
    pub fn new(address: impl Into<String>, key: WorkerKey) -> Self {
        Self { address: address.into(), key, plain: false }
    }

    /// Makes connections for activations plain, if the worker takes them. An attacker on the network can then read and change
    /// activations and cache blocks.
    #[must_use]
    pub fn plain(self, plain: bool) -> Self {
        Self { plain, ..self }
    }

    /// Returns `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn failed(&self, cause: impl std::fmt::Display) -> Error {
        Error::Worker { address: self.address.clone(), cause: cause.to_string() }
    }

    /// Connects to the worker and compares versions.
    pub(super) fn connect(&self, own: &Version) -> Result<TlsStream> {
        self.connect_as(own, false)
    }

    /// Connects to the worker for activations.
    pub(super) fn connect_for_activations(&self) -> Result<TlsStream> {
        self.connect_as(&Version::own(), self.plain)
    }

    fn connect_as(&self, own: &Version, plain: bool) -> Result<TlsStream> {
        let tls = Tls::new(&self.key, plain).map_err(|cause| self.failed(cause))?;
        let stream =
            self.socket().and_then(|socket| tls.connect(socket)).map_err(|cause| self.failed(cause))?;
        self.greet(stream, own).map_err(|cause| self.failed(cause))
    }

    fn greet(&self, mut stream: TlsStream, own: &Version) -> io::Result<TlsStream> {
        stream.set_silence(Some(SILENCE))?;
        write_frame(&mut stream, own, &[])?;
        let hint = |cause: io::Error| match cause.kind() {
            // The worker refuses the key after this end has accepted the worker's.
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                io::Error::other(format!("{cause} (is the key that of the worker?)"))
            }
            _ => cause,
        };
        let (version, _): (Version, _) = read_frame(&mut stream, 0).map_err(hint)?;
        if version != *own {
            return Err(io::Error::other(format!(
                "it runs {version}, but this is {own}; use the same version"
            )));
        }
        Ok(stream)
    }

    fn socket(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the host has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(socket) => return Ok(socket),
                Err(cause) => last = cause,
            }
        }
        Err(last)
    }
}

/// A worker, as the coordinator sees it.
struct Worker {
    name: String,
    address: WorkerAddress,
    model: ModelId,
    /// All workers, this one among them.
    all: Arc<[WorkerAddress]>,
    /// Secret from which the coordinator derives the keys of edges between workers.
    secret: WorkerKey,
}

impl Devices {
    /// Adds the devices of workers, with the labels `worker1/cpu:0` and so on. Plans then use them, and engines run stages
    /// on them. With `calibration`, the workers calibrate their devices for `model`. This host probes the links to them.
    ///
    /// # Errors
    /// Returns [`Error::Worker`] if a worker cannot be reached, has another key, version or model, or fails.
    pub fn with_workers(
        mut self,
        model: &Model,
        workers: &[WorkerAddress],
        calibration: Option<&CalibrationOptions>,
    ) -> Result<Self> {
        let id = ModelId::of(model)?;
        let (all, secret) = (Arc::<[WorkerAddress]>::from(workers), WorkerKey::generate()?);
        let mut earlier: Vec<(Worker, LinkFacts)> = Vec::new();
        let mut fewest_cores = cores();
        for (index, address) in workers.iter().enumerate() {
            let (address, model, all, secret) =
                (address.clone(), id.clone(), Arc::clone(&all), secret.clone());
            let worker = Worker { name: name(index), address, model, all, secret };
            let (Offer { devices, memory_bytes, cores }, link) = worker.describe(calibration)?;
            fewest_cores = fewest_cores.min(cores);
            let mut links = Vec::new();
            for (at, (other, to_other)) in earlier.iter().enumerate() {
                let direct = worker.measure(other)?;
                self.hosts.direct.extend(direct.is_some().then_some((index, at)));
                links.push(direct.unwrap_or_else(|| through(&link, to_other)));
            }
            self.hosts.memory.push(HostFacts {
                name: worker.name.clone(),
                memory_bytes,
                in_host_memory: Vec::new(),
            });
            self.join(&worker.name, devices, &link, &links);
            earlier.push((worker, link));
        }
        self.hosts.streams = streams_of(fewest_cores);
        self.hosts.hosts =
            earlier.into_iter().map(|(worker, _)| Arc::new(worker) as Arc<dyn Connect>).collect();
        Ok(self)
    }

    /// Returns the names of each two workers that cannot reach one another. Activations between them pass through the
    /// coordinator.
    pub fn relayed_workers(&self) -> Vec<[String; 2]> {
        let count = self.hosts.hosts.len();
        let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (second, first)));
        let relayed = pairs.filter(|pair| !self.hosts.direct.contains(pair));
        relayed.map(|(second, first)| [name(first), name(second)]).collect()
    }

    /// Returns the labels of the devices of workers.
    pub fn labels_of_workers(&self) -> Vec<String> {
        self.hosts.devices.iter().map(|device| device.adapter.label()).collect()
    }

    /// Adds the devices of a worker, and their links to all others. `links` has the links to earlier workers.
    fn join(
        &mut self,
        name: &str,
        devices: Vec<(Adapter, DeviceFacts)>,
        link: &LinkFacts,
        links: &[LinkFacts],
    ) {
        let host = links.len();
        for (mut adapter, facts) in devices {
            adapter.backend = format!("{name}/{}", adapter.backend);
            let label = adapter.label();
            let own = self.labels().into_iter().map(|other| (other, link.clone()));
            let others = self.hosts.devices.iter().filter(|other| other.host != host);
            let others = others.map(|other| (other.adapter.label(), links[other.host].clone()));
            for (other, facts) in own.chain(others).collect::<Vec<_>>() {
                self.hosts.links.push((label.clone(), other.clone(), facts.clone()));
                self.hosts.links.push((other, label.clone(), facts));
            }
            if facts.in_host_memory {
                self.hosts.memory[host].in_host_memory.push(label.clone());
            }
            // The memory of another host is no memory of this one.
            let facts =
                DeviceFacts { label, in_host_memory: false, weight_sharing: WeightSharing::None, ..facts };
            self.hosts.devices.push(RemoteDevice { adapter, facts: Some(facts), host });
        }
    }
}

/// Returns the number of cores of this host.
pub(super) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().try_into().unwrap_or(u32::MAX))
}

/// Returns the number of streams of an edge between hosts with at least `cores` cores. A stream keeps a core of both hosts
/// busy while it sends. Devices need most of the others.
fn streams_of(cores: u32) -> u32 {
    (cores / CORES_PER_STREAM).clamp(1, MAX_STREAMS)
}

/// Returns the name of a worker.
fn name(index: usize) -> String {
    format!("worker{}", index + 1)
}

/// Returns the link between two workers whose activations pass through the coordinator.
fn through(a: &LinkFacts, b: &LinkFacts) -> LinkFacts {
    let mut both = a.clone();
    both.latency_us.value += b.latency_us.value;
    let (a, b) = (a.bandwidth_bytes_per_s.value, b.bandwidth_bytes_per_s.value);
    both.bandwidth_bytes_per_s.value = a * b / (a + b);
    both.over_network()
}

impl Worker {
    /// Asks for what the worker offers, and probes the link.
    fn describe(&self, calibration: Option<&CalibrationOptions>) -> Result<(Offer, LinkFacts)> {
        let usual = CalibrationOptions::default();
        let options = calibration.unwrap_or(&usual);
        let request = Request::Describe(Box::new(Describe {
            model: self.model.clone(),
            calibrate: calibration.is_some(),
            activations: options.activations,
            kv: options.kv,
            sequences: options.sequences,
            max_load: options.max_load,
        }));
        let mut stream = self.address.connect(&Version::own())?;
        let offer = match self.ask(&mut stream, &request)? {
            Answer::Devices(offer) => *offer,
            other => return Err(self.address.failed(format!("an unexpected answer: {other:?}"))),
        };
        stream.close();
        let mut stream = self.address.connect_for_activations()?;
        let link = probe(&mut stream).map_err(|cause| self.address.failed(cause))?;
        stream.close();
        Ok((offer, link))
    }

    /// Makes the worker measure the link to another one. Returns `None` if it cannot reach that worker.
    fn measure(&self, other: &Self) -> Result<Option<LinkFacts>> {
        let key = WorkerKey::generate()?;
        let mut admitting = other.address.connect(&Version::own())?;
        other.ask(&mut admitting, &Request::Admit(key.clone())).and_then(|answer| other.accepted(&answer))?;
        let mut stream = self.address.connect(&Version::own())?;
        let plain = self.address.plain && other.address.plain;
        let peer = WorkerAddress::new(other.address.address(), key).plain(plain);
        let answer = self.ask(&mut stream, &Request::Measure(peer))?;
        admitting.close();
        stream.close();
        match answer {
            Answer::Link(facts) => Ok(Some(facts)),
            Answer::Unreachable(cause) => {
                tracing::warn!(%cause, "{} cannot reach {}; the coordinator relays", self.name, other.name);
                Ok(None)
            }
            other => Err(self.address.failed(format!("an unexpected answer: {other:?}"))),
        }
    }

    fn accepted(&self, answer: &Answer) -> Result<()> {
        match answer {
            Answer::Accepted => Ok(()),
            other => Err(self.address.failed(format!("an unexpected answer: {other:?}"))),
        }
    }

    /// Returns a direct edge of a run, as the worker needs it.
    fn neighbour(&self, number: u64, edge: &DirectEdge) -> Neighbour {
        let &DirectEdge { edge, other, connects } = edge;
        let address = connects.then(|| self.all[other].address.clone());
        Neighbour {
            name: name(other),
            edge,
            key: self.secret.derived(&format!("run {number} edge {edge}")),
            address,
            plain: self.address.plain && self.all[other].plain,
        }
    }

    /// Sends a request, and waits for the answer.
    fn ask(&self, stream: &mut TlsStream, request: &Request) -> Result<Answer> {
        let failed = |cause: io::Error| self.address.failed(cause);
        write_frame(stream, request, &[]).map_err(failed)?;
        loop {
            match read_frame(stream, 0).map_err(failed)?.0 {
                Answer::Ping => {}
                Answer::Refused(why) => return Err(self.address.failed(why)),
                answer => return Ok(answer),
            }
        }
    }

    /// Returns the plan with the labels and the host memory of the worker. Devices of this host get the name
    /// `coordinator`.
    fn plan(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        let others = std::mem::take(&mut plan.other_hosts);
        let memory = others.into_iter().find(|host| host.name == self.name);
        plan.host_memory_bytes = memory.map(|host| host.memory_bytes).unwrap_or_default();
        let own = format!("{}/", self.name);
        for stage in &mut plan.stages {
            stage.device = translated(&stage.device, &own);
        }
        plan
    }
}

/// Returns a label as the worker sees it whose labels begin with `own` here.
fn translated(label: &str, own: &str) -> String {
    match label.strip_prefix(own) {
        Some(label) => label.to_owned(),
        None if label.contains('/') => label.to_owned(),
        None => format!("coordinator/{label}"),
    }
}

impl Connect for Worker {
    fn connect(&self, run: &Run<'_>) -> Result<RemoteHost> {
        let own = format!("{}/", self.name);
        let others = run.adapters.iter().filter(|adapter| !adapter.backend.starts_with(&own)).cloned();
        let adapters = others.map(|mut adapter| {
            if !adapter.backend.contains('/') {
                adapter.backend = format!("coordinator/{}", adapter.backend);
            }
            adapter
        });
        let session = WorkerKey::generate()?.to_string();
        let load = Load {
            session: session.clone(),
            model: self.model.clone(),
            plan: self.plan(run.plan).to_json(),
            adapters: adapters.collect(),
            neighbours: run.direct.iter().map(|edge| self.neighbour(run.number, edge)).collect(),
            streams: run.streams,
            all_logits: run.options.all_logits,
            verify_transfers: run.options.verify_transfers,
            stall_timeout: run.options.stall_timeout,
            compute_timeout: run.options.compute_timeout,
            no_self_test: run.options.no_self_test,
        };
        let accepted = |answer: Answer| self.accepted(&answer);
        let mut control = self.address.connect(&Version::own())?;
        self.ask(&mut control, &Request::Load(Box::new(load))).and_then(accepted)?;
        let mut edges = Vec::new();
        for edge in run.edges_of_streams() {
            let mut stream = self.address.connect_for_activations()?;
            let request = Request::Edge { session: session.clone(), edge };
            self.ask(&mut stream, &request).and_then(accepted)?;
            keep_alive(&stream);
            edges.push((edge, stream.into_stream()));
        }
        keep_alive(&control);
        let (name, control) = (self.name.clone(), Some(control.into_stream()));
        Ok(RemoteHost { name, is_coordinator: false, control, edges })
    }
}

/// Measures transfers to the worker and back, and compares their bytes.
pub(super) fn probe(stream: &mut TlsStream) -> io::Result<LinkFacts> {
    let mut samples = Vec::new();
    for (bytes, count) in PROBES {
        let mut best = Duration::MAX;
        for round in 0..count {
            let sent: Vec<u8> = (0..bytes).map(|at| (at * 31 + round * 7 + at / 251) as u8).collect();
            let start = Instant::now();
            write_frame(stream, &Request::Echo, &sent)?;
            let returned = loop {
                match read_frame(stream, MAX_ECHO_BYTES)? {
                    (Answer::Ping, _) => {}
                    (Answer::Echo, returned) => break returned,
                    (other, _) => return Err(io::Error::other(format!("an unexpected answer: {other:?}"))),
                }
            };
            best = best.min(start.elapsed());
            if returned != sent {
                return Err(io::Error::other("the link returns wrong bytes"));
            }
        }
        samples.push((bytes as u64, best.as_secs_f64() * 1e6 / 2.0));
    }
    Ok(LinkFacts::fitted(Route::HOST_STAGED.into(), &samples).over_network())
}
