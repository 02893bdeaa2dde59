//! The worker's side: offers the devices of this host, and runs stages of plans.

use super::client::{WorkerAddress, cores, probe};
use super::key::WorkerKey;
use super::neighbour::{Guest, Guests, Neighbours};
use super::protocol::{
    Answer, Describe, Load, MAX_ECHO_BYTES, MAX_STREAMS, ModelId, Offer, Request, SILENCE, Version,
    keep_alive,
};
use super::tls::{Tls, TlsStream};
use crate::calibrate::{Calibration, CalibrationOptions};
use crate::devices::Devices;
use crate::engine::EngineOptions;
use crate::error::{Error, Result};
use crate::hosts::{Connect, Hosts, RemoteDevice, Run};
use crate::model::Model;
use crate::prepared::Prepared;
use ragtag_graph::RopeScaling;
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::remote::{FromHost, RemoteHost, read_frame, write_frame};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of connections at the same time.
const CONNECTIONS: usize = 128;
/// Time in which the streams of a run's edges must arrive.
pub(super) const EDGES: Duration = Duration::from_secs(30);
/// Pause after a failed `accept`, for example because the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Address to listen at.
    pub listen: SocketAddr,
    /// The key that coordinators must have.
    pub key: WorkerKey,
    /// A model, or a folder of models. Without it, the worker opens the path that the coordinator has.
    pub model: Option<PathBuf>,
    /// Whether to accept connections for activations that are not encrypted after the handshake.
    pub plain: bool,
}

/// A worker that listens. It offers its devices to coordinators that have its key.
pub struct WorkerServer {
    listener: TcpListener,
    tls: Tls,
    shared: Arc<Shared>,
}

/// State that all connections share.
struct Shared {
    devices: Devices,
    model: Option<PathBuf>,
    /// Models that were opened.
    models: Mutex<Vec<(ModelId, Model)>>,
    /// Runs that wait for the streams of their edges.
    sessions: Mutex<HashMap<String, Sender<(usize, TlsStream)>>>,
    /// Other workers that may connect.
    guests: Guests,
    connections: AtomicUsize,
}

impl WorkerServer {
    /// Listens with the selected devices.
    ///
    /// # Errors
    /// Returns [`Error::Worker`] if the address cannot be used.
    pub fn new(devices: Devices, settings: WorkerSettings) -> Result<Self> {
        let WorkerSettings { listen, key, model, plain } = settings;
        let failed =
            |cause: io::Error| Error::Worker { address: listen.to_string(), cause: cause.to_string() };
        let tls = Tls::new(&key, plain).map_err(failed)?;
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let (models, sessions, connections) = Default::default();
        let guests = Guests::new(plain);
        let shared = Arc::new(Shared { devices, model, models, sessions, guests, connections });
        Ok(Self { listener, tls, shared })
    }

    /// Returns the address at which the worker listens.
    ///
    /// # Errors
    /// The error of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves coordinators, each connection on a thread of its own. Never returns.
    pub fn serve(&self) -> ! {
        loop {
            let accepted = self.listener.accept();
            let place = Place::take(&self.shared);
            match (accepted, place) {
                (Ok((socket, peer)), Some(place)) => {
                    let tls = self.tls.clone();
                    let body = move || place.serve(&tls, socket, peer);
                    if let Err(cause) = std::thread::Builder::new().name("ragtag worker".into()).spawn(body) {
                        tracing::warn!(%cause, "no thread for a connection");
                    }
                }
                (Ok((_, peer)), None) => tracing::warn!(%peer, "too many connections"),
                (Err(cause), _) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// One of the worker's connections.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let before = shared.connections.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(shared));
        (before < CONNECTIONS).then_some(place)
    }

    fn serve(self, tls: &Tls, socket: TcpStream, peer: SocketAddr) {
        let choose = |name: &str| match self.0.guests.find(name) {
            Some((tls, guest)) => (tls, Some(guest)),
            None => (tls.clone(), None),
        };
        let served = Tls::accept(socket, choose).and_then(|(stream, guest)| {
            let served = self.0.greet(stream.clone(), guest);
            // The streams of edges belong to their runs.
            if !matches!(served, Ok(true)) {
                stream.close();
            }
            served
        });
        if let Err(cause) = served {
            tracing::info!(%peer, %cause, "a connection has ended");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Compares versions, and serves the requests of a coordinator or of another worker. Returns whether the stream belongs
    /// to a run now.
    fn greet(&self, mut stream: TlsStream, guest: Option<Guest>) -> io::Result<bool> {
        stream.set_silence(Some(SILENCE))?;
        let (version, _): (Version, _) = read_frame(&mut stream, 0)?;
        write_frame(&mut stream, &Version::own(), &[])?;
        if version != Version::own() {
            return Err(io::Error::other(format!(
                "the coordinator runs {version}, this is {}",
                Version::own()
            )));
        }
        let is_guest = match guest {
            Some(Guest::Edge(edge, sender)) => return pass(stream, edge, &sender),
            Some(Guest::Measures) => true,
            None => false,
        };
        let mut admitted = Vec::new();
        loop {
            let (request, payload) = match read_frame(&mut stream, MAX_ECHO_BYTES) {
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                request => request?,
            };
            match request {
                request if is_guest && !matches!(request, Request::Echo) => {
                    let error = Error::Usage("this key is for the measurement of the link alone".into());
                    return write_frame(&mut stream, &refused(error), &[]).map(|()| false);
                }
                request if stream.is_plain() && !matches!(request, Request::Echo | Request::Edge { .. }) => {
                    let error = Error::Usage("a plain connection is for activations alone".into());
                    return write_frame(&mut stream, &refused(error), &[]).map(|()| false);
                }
                Request::Admit(key) => {
                    admitted.push(self.guests.admit(&key, Guest::Measures)?);
                    keep_alive(&stream);
                    write_frame(&mut stream, &Answer::Accepted, &[])?;
                }
                Request::Measure(peer) => {
                    keep_alive(&stream);
                    write_frame(&mut stream, &measured(&peer), &[])?;
                }
                Request::Echo => write_frame(&mut stream, &Answer::Echo, &payload)?,
                Request::Describe(describe) => {
                    keep_alive(&stream);
                    let answer = self.describe(&describe).unwrap_or_else(refused);
                    write_frame(&mut stream, &answer, &[])?;
                }
                Request::Edge { session, edge } => return self.edge(stream, &session, edge),
                Request::Load(load) => return self.load(stream, &load).map(|()| false),
            }
        }
    }

    /// Returns the devices with their speeds for a model, and the host memory.
    fn describe(&self, describe: &Describe) -> Result<Answer> {
        let model = self.model(&describe.model)?;
        let process_bytes = self.devices.process_bytes(&model);
        let facts = self.devices.facts_beside(process_bytes);
        let options = CalibrationOptions {
            activations: describe.activations,
            kv: describe.kv,
            sequences: describe.sequences.clamp(1, 4096),
            max_load: describe.max_load,
            ..CalibrationOptions::default()
        };
        let calibrated = if describe.calibrate {
            Calibration::run(&model, &self.devices, &options, &|_, _| ())
        } else {
            Calibration::kept(&model, &self.devices, &options)
        };
        let facts = match &calibrated {
            Ok(calibration) => {
                let facts = calibration.apply(facts);
                facts.into_iter().filter(|facts| !calibration.closed.contains(&facts.label)).collect()
            }
            Err(cause) => {
                tracing::warn!(%cause, "calibration failed, offering assumed speeds");
                facts
            }
        };
        let adapter = |label: &str| self.devices.selected().iter().find(|adapter| adapter.label() == label);
        let devices = facts.into_iter().filter_map(|facts| Some((adapter(&facts.label)?.clone(), facts)));
        let memory_bytes = self.devices.host_memory_bytes(process_bytes);
        Ok(Answer::Devices(Box::new(Offer { devices: devices.collect(), memory_bytes, cores: cores() })))
    }

    /// Opens the model that a coordinator has: the worker's own, one of its folder, the bundled one, or that at the
    /// coordinator's path.
    fn model(&self, id: &ModelId) -> Result<Model> {
        let mut models = lock(&self.models);
        if let Some((_, model)) = models.iter().find(|(other, _)| other.is_same(id)) {
            return Ok(model.clone());
        }
        let model = match (&self.model, &id.path) {
            (_, None) => Model::bundled()?,
            (Some(own), Some(_)) => {
                let name = Path::new(&id.name).file_name().unwrap_or_default();
                let inside = own.join(name);
                Model::open(if inside.exists() { &inside } else { own })?
            }
            (None, Some(path)) => Model::open(path)?,
        };
        let scaling = id.rope_scaling.as_deref().map(str::parse::<RopeScaling>).transpose();
        let scaling = scaling.map_err(|cause| Error::Usage(cause.to_string()))?;
        let model = scaling.map_or(Ok(model.clone()), |scaling| model.with_rope_scaling(scaling))?;
        let model = if id.embeddings { model.for_embeddings()? } else { model };
        let own = ModelId::of(&model)?;
        if !own.is_same(id) {
            let what = "differs from that of the coordinator (--model names another one)";
            return Err(Error::Usage(format!("the model {} {what}", model.name())));
        }
        models.push((own, model.clone()));
        Ok(model)
    }

    /// Passes the stream of an edge to its run.
    fn edge(&self, mut stream: TlsStream, session: &str, edge: usize) -> io::Result<bool> {
        let Some(sender) = lock(&self.sessions).get(session).cloned() else {
            let error = Error::Usage("the run does not exist".into());
            return write_frame(&mut stream, &refused(error), &[]).map(|()| false);
        };
        pass(stream, edge, &sender)
    }

    /// Loads stages of a plan, and runs them until the coordinator ends the run.
    fn load(&self, mut stream: TlsStream, load: &Load) -> io::Result<()> {
        let (model, plan) = match self.checked(load) {
            Ok(checked) => checked,
            Err(error) => return write_frame(&mut stream, &refused(error), &[]),
        };
        let neighbours = match Neighbours::new(&self.guests, &load.neighbours) {
            Ok(neighbours) => neighbours,
            Err(cause) => return write_frame(&mut stream, &Answer::Refused(cause.to_string()), &[]),
        };
        let (sender, edges) = channel();
        lock(&self.sessions).insert(load.session.clone(), sender);
        write_frame(&mut stream, &Answer::Accepted, &[])?;
        keep_alive(&stream);
        let ran = self.run(&stream, load, (&model, &plan), (edges, neighbours));
        lock(&self.sessions).remove(&load.session);
        if let Err(error) = &ran {
            let error = match error {
                Error::Run(error) => error.clone(),
                other => ragtag_scheduler::Error::Spec { what: other.to_string() },
            };
            let _ = write_frame(&mut stream, &FromHost::Failed(error), &[]);
        }
        stream.close();
        ran.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Returns the model and the valid plan of a request.
    fn checked(&self, load: &Load) -> Result<(Model, Plan)> {
        let model = self.model(&load.model)?;
        if !(1..=MAX_STREAMS).contains(&load.streams) {
            return Err(Error::Usage(format!("{} streams for each edge", load.streams)));
        }
        let wrong = |cause| Error::Usage(format!("the plan is invalid: {cause}"));
        let plan = Plan::from_json(&load.plan).map_err(wrong)?;
        let labels: Vec<_> = load.adapters.iter().map(Adapter::label).chain(self.devices.labels()).collect();
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        plan.validate(&model.as_planned(plan.model.granularity)?, &labels).map_err(wrong)?;
        Ok((model, plan))
    }

    fn run(
        &self,
        stream: &TlsStream,
        load: &Load,
        (model, plan): (&Model, &Plan),
        (edges, neighbours): (Receiver<(usize, TlsStream)>, Neighbours),
    ) -> Result<()> {
        let coordinator = Coordinator { control: stream.clone(), edges: Mutex::new(edges) };
        // The coordinator comes first. It stands for the workers without a stream to this one, too.
        let device = |adapter: &Adapter| {
            let host = neighbours.position(&adapter.label()).map_or(0, |at| at + 1);
            RemoteDevice { adapter: adapter.clone(), facts: None, host }
        };
        let devices = load.adapters.iter().map(device).collect();
        let mut hosts = vec![Arc::new(coordinator) as Arc<dyn Connect>];
        hosts.extend(neighbours.hosts.iter().map(|host| Arc::clone(host) as Arc<dyn Connect>));
        let hosts = Hosts { devices, hosts, is_worker: true, streams: load.streams, ..Hosts::default() };
        let devices = self.devices.clone().beside(hosts);
        let options = EngineOptions {
            all_logits: load.all_logits,
            verify_transfers: load.verify_transfers,
            stall_timeout: Some(load.stall_timeout.unwrap_or_default()),
            compute_timeout: load.compute_timeout,
            no_self_test: load.no_self_test,
            ..EngineOptions::default()
        };
        let Prepared { spec, run, claim, .. } = Prepared::new(model, &devices, plan, &options.into())?;
        tracing::info!(plan = %plan.split(), "running stages for a coordinator");
        // The claim counts the memory of the stages as taken until they have ended.
        let served = ragtag_scheduler::remote::serve(spec, &run);
        drop(claim);
        Ok(served?)
    }
}

/// Passes the stream of an edge to its run.
fn pass(mut stream: TlsStream, edge: usize, sender: &Sender<(usize, TlsStream)>) -> io::Result<bool> {
    write_frame(&mut stream, &Answer::Accepted, &[])?;
    keep_alive(&stream);
    Ok(sender.send((edge, stream)).is_ok())
}

/// Measures the link to another worker.
fn measured(peer: &WorkerAddress) -> Answer {
    let measured = peer.connect_for_activations().and_then(|mut stream| {
        let link = probe(&mut stream).map_err(|cause| peer.failed(cause));
        stream.close();
        link
    });
    measured.map_or_else(|cause| Answer::Unreachable(cause.to_string()), Answer::Link)
}

fn refused(error: Error) -> Answer {
    Answer::Refused(error.to_string())
}

/// The coordinator, as the worker sees it.
struct Coordinator {
    control: TlsStream,
    edges: Mutex<Receiver<(usize, TlsStream)>>,
}

impl Connect for Coordinator {
    fn connect(&self, run: &Run<'_>) -> Result<RemoteHost> {
        let (receiver, mut edges) = (lock(&self.edges), Vec::new());
        while edges.len() < run.edges_of_streams().count() {
            let (edge, stream) = receiver.recv_timeout(EDGES).map_err(|_| {
                Error::Usage("the coordinator has not opened the streams of its edges".into())
            })?;
            edges.push((edge, stream.into_stream()));
        }
        let control = Some(self.control.clone().into_stream());
        Ok(RemoteHost { name: "coordinator".into(), is_coordinator: true, control, edges })
    }
}
