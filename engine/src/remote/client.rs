//! The coordinator's side: asks workers for their devices, probes the links to them, and makes them load stages.

use super::key::WorkerKey;
use super::protocol::{
    Answer, Describe, Load, MAX_ECHO_BYTES, ModelId, Request, SILENCE, Version, keep_alive,
};
use super::tls::{Tls, TlsStream};
use crate::calibrate::CalibrationOptions;
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::hosts::{Connect, RemoteDevice, Run};
use crate::model::Model;
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, LinkFacts, WeightSharing};
use ragtag_scheduler::remote::{RemoteHost, read_frame, write_frame};
use ragtag_transfer::Route;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Sizes of the probe's transfers in bytes, and their numbers.
const PROBES: [(usize, usize); 3] = [(4 << 10, 24), (64 << 10, 12), (1 << 20, 6)];

/// Address and key of a worker, in the form `HOST:PORT#KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddress {
    address: String,
    key: WorkerKey,
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
        Ok(Self { address: address.into(), key: key.parse()? })
    }
}

impl WorkerAddress {
    /// Returns the address and the key of a worker that listens at `HOST:PORT`.
    pub fn new(address: impl Into<String>, key: WorkerKey) -> Self {
        Self { address: address.into(), key }
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
        let tls = Tls::new(&self.key).map_err(|cause| self.failed(cause))?;
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
        if model.is_for_embeddings() {
            return Err(Error::Usage("workers cannot run models for embeddings yet".into()));
        }
        let id = ModelId::of(model)?;
        let mut links: Vec<LinkFacts> = Vec::new();
        for (index, address) in workers.iter().enumerate() {
            let (name, address, model) = (format!("worker{}", index + 1), address.clone(), id.clone());
            let worker = Worker { name, address, model };
            let (devices, link) = worker.describe(calibration)?;
            self.join(&worker.name, devices, &link, &links);
            links.push(link);
            self.hosts.hosts.push(Arc::new(worker));
        }
        Ok(self)
    }

    /// Returns the labels of the devices of workers.
    pub fn labels_of_workers(&self) -> Vec<String> {
        self.hosts.devices.iter().map(|device| device.adapter.label()).collect()
    }

    /// Adds the devices of a worker, and their links to all others. `earlier` has the links to earlier workers.
    fn join(
        &mut self,
        name: &str,
        devices: Vec<(Adapter, DeviceFacts)>,
        link: &LinkFacts,
        earlier: &[LinkFacts],
    ) {
        let host = self.hosts.hosts.len();
        for (mut adapter, facts) in devices {
            adapter.backend = format!("{name}/{}", adapter.backend);
            let label = adapter.label();
            let own = self.labels().into_iter().map(|other| (other, link.clone()));
            let others = self.hosts.devices.iter().filter(|other| other.host != host);
            let others = others.map(|other| (other.adapter.label(), through(link, &earlier[other.host])));
            let links: Vec<_> = own.chain(others).collect();
            for (other, facts) in links {
                self.hosts.links.push((label.clone(), other.clone(), facts.clone()));
                self.hosts.links.push((other, label.clone(), facts));
            }
            // The memory of another host is no memory of this one.
            let facts =
                DeviceFacts { label, in_host_memory: false, weight_sharing: WeightSharing::None, ..facts };
            self.hosts.devices.push(RemoteDevice { adapter, facts: Some(facts), host });
        }
    }
}

/// Returns the link between two workers, whose activations pass through the coordinator.
fn through(a: &LinkFacts, b: &LinkFacts) -> LinkFacts {
    let mut both = a.clone();
    both.latency_us.value += b.latency_us.value;
    let (a, b) = (a.bandwidth_bytes_per_s.value, b.bandwidth_bytes_per_s.value);
    both.bandwidth_bytes_per_s.value = a * b / (a + b);
    both
}

impl Worker {
    /// Asks for the devices, and probes the link.
    fn describe(
        &self,
        calibration: Option<&CalibrationOptions>,
    ) -> Result<(Vec<(Adapter, DeviceFacts)>, LinkFacts)> {
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
        let described = match self.ask(&mut stream, &request)? {
            Answer::Devices(devices) => devices,
            other => return Err(self.address.failed(format!("an unexpected answer: {other:?}"))),
        };
        let link = probe(&mut stream).map_err(|cause| self.address.failed(cause))?;
        stream.close();
        Ok((described, link))
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

    /// Returns the plan with the labels of the worker. Devices of this host get the name `coordinator`.
    fn plan(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
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
            all_logits: run.options.all_logits,
            verify_transfers: run.options.verify_transfers,
            stall_timeout: run.options.stall_timeout,
            compute_timeout: run.options.compute_timeout,
            no_self_test: run.options.no_self_test,
        };
        let accepted = |answer: Answer| match answer {
            Answer::Accepted => Ok(()),
            other => Err(self.address.failed(format!("an unexpected answer: {other:?}"))),
        };
        let mut control = self.address.connect(&Version::own())?;
        self.ask(&mut control, &Request::Load(Box::new(load))).and_then(accepted)?;
        let mut edges = Vec::new();
        for &edge in &run.edges {
            let mut stream = self.address.connect(&Version::own())?;
            let request = Request::Edge { session: session.clone(), edge };
            self.ask(&mut stream, &request).and_then(accepted)?;
            stream.set_silence(None).map_err(|cause| self.address.failed(cause))?;
            edges.push((edge, stream.into_stream()));
        }
        keep_alive(&control);
        Ok(RemoteHost { name: self.name.clone(), control: Some(control.into_stream()), edges })
    }
}

/// Measures transfers to the worker and back, and compares their bytes.
fn probe(stream: &mut TlsStream) -> io::Result<LinkFacts> {
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
    Ok(LinkFacts::fitted(Route::HOST_STAGED.into(), &samples))
}
