//! Streams between two workers. For each of them, the coordinator gives both workers a key that is good for nothing else.
//! One of them connects, and the other one accepts.

use super::client::WorkerAddress;
use super::key::WorkerKey;
use super::protocol::{Answer, Neighbour, keep_alive};
use super::tls::{Tls, TlsStream};
use super::worker::EDGES;
use crate::error::{Error, Result};
use crate::hosts::{Connect, Run};
use ragtag_scheduler::remote::{RemoteHost, read_frame};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Purpose of the key of another worker.
#[derive(Clone)]
pub(super) enum Guest {
    /// Measure the link.
    Measures,
    /// Bring the stream of an edge to its run.
    Edge(usize, Sender<(usize, TlsStream)>),
}

/// Other workers that may connect, by the name of their key.
#[derive(Clone, Default)]
pub(super) struct Guests {
    admitted: Arc<Mutex<HashMap<String, (Tls, Guest)>>>,
    /// Whether this worker takes plain connections.
    plain: bool,
}

impl Guests {
    pub(super) fn new(plain: bool) -> Self {
        Self { plain, ..Self::default() }
    }

    pub(super) fn find(&self, name: &str) -> Option<(Tls, Guest)> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Admits the worker with a key, until the result is dropped.
    pub(super) fn admit(&self, key: &WorkerKey, guest: Guest) -> io::Result<Admitted> {
        let (tls, name) = (Tls::new(key, self.plain)?, key.name());
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), (tls, guest));
        Ok(Admitted(self.clone(), name))
    }
}

/// A worker that may connect.
pub(super) struct Admitted(Guests, String);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.admitted.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// Other workers with streams to this one.
pub(super) struct Neighbours {
    pub(super) hosts: Vec<Arc<NeighbourHost>>,
    _admitted: Vec<Admitted>,
}

/// Another worker with streams to this one.
pub(super) struct NeighbourHost {
    name: String,
    edges: Vec<(usize, Source)>,
}

/// Source of the streams of an edge.
enum Source {
    /// This worker connects.
    Connects(WorkerAddress),
    /// The other worker connects.
    Accepts(Mutex<Receiver<(usize, TlsStream)>>),
}

impl Neighbours {
    /// Admits the workers that connect to this one.
    pub(super) fn new(guests: &Guests, edges: &[Neighbour]) -> io::Result<Self> {
        let (mut hosts, mut admitted) = (Vec::<NeighbourHost>::new(), Vec::new());
        for Neighbour { name, edge, key, address, plain } in edges {
            let source = match address {
                Some(address) => Source::Connects(WorkerAddress::new(address, key.clone()).plain(*plain)),
                None => {
                    let (sender, receiver) = channel();
                    admitted.push(guests.admit(key, Guest::Edge(*edge, sender))?);
                    Source::Accepts(Mutex::new(receiver))
                }
            };
            match hosts.iter_mut().find(|host| host.name == *name) {
                Some(host) => host.edges.push((*edge, source)),
                None => hosts.push(NeighbourHost { name: name.clone(), edges: vec![(*edge, source)] }),
            }
        }
        Ok(Self { hosts: hosts.into_iter().map(Arc::new).collect(), _admitted: admitted })
    }

    /// Returns the index of the worker with a device.
    pub(super) fn position(&self, label: &str) -> Option<usize> {
        let (name, _) = label.split_once('/')?;
        self.hosts.iter().position(|host| host.name == name)
    }
}

impl Connect for NeighbourHost {
    fn connect(&self, run: &Run<'_>) -> Result<RemoteHost> {
        let mut edges = Vec::new();
        for edge in run.edges_of_streams() {
            let source = self.edges.iter().find(|(own, _)| *own == edge).map(|(_, source)| source);
            let missing = || Error::Usage(format!("no key for edge {edge} to {}", self.name));
            edges.push((edge, source.ok_or_else(missing)?.stream(&self.name)?.into_stream()));
        }
        Ok(RemoteHost { name: self.name.clone(), is_coordinator: false, control: None, edges })
    }
}

impl Source {
    fn stream(&self, name: &str) -> Result<TlsStream> {
        match self {
            Self::Connects(address) => {
                let mut stream = address.connect_for_activations()?;
                match read_frame(&mut stream, 0).map_err(|cause| address.failed(cause))?.0 {
                    Answer::Accepted => {}
                    other => return Err(address.failed(format!("an unexpected answer: {other:?}"))),
                }
                keep_alive(&stream);
                Ok(stream)
            }
            Self::Accepts(receiver) => {
                let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
                let missing = |_| Error::Usage(format!("{name} has not connected"));
                receiver.recv_timeout(EDGES).map(|(_, stream)| stream).map_err(missing)
            }
        }
    }
}
