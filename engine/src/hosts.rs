//! Devices of other hosts. Plans use them like devices of this host, and a stage on one of them runs on its host.

use crate::error::{Error, Result};
use crate::prepared::Options;
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, HostFacts, LinkFacts};
use ragtag_scheduler::remote::{Remote, RemoteHost, RemoteStage};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Devices of other hosts, and how to reach them.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    pub(crate) devices: Vec<RemoteDevice>,
    pub(crate) hosts: Vec<Arc<dyn Connect>>,
    /// Memory of the hosts. Absent on a worker, which makes no plan.
    pub(crate) memory: Vec<HostFacts>,
    /// Whether the only host is the coordinator of this worker. Then each run uses it.
    pub(crate) is_worker: bool,
    /// Links to and between these devices: source, destination, description.
    pub(crate) links: Vec<(String, String, LinkFacts)>,
    /// Pairs of hosts that exchange activations themselves: the one that connects, and the one that accepts.
    pub(crate) direct: Vec<(usize, usize)>,
    /// Number of streams of each edge between two hosts.
    pub(crate) streams: u32,
}

/// A device of another host. Its label begins with the name of the host and a slash.
#[derive(Clone)]
pub(crate) struct RemoteDevice {
    pub(crate) adapter: Adapter,
    /// Description for the planner. Absent on a worker, which makes no plan.
    pub(crate) facts: Option<DeviceFacts>,
    /// Index of the host.
    pub(crate) host: usize,
}

/// A run that another host takes part in.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) options: &'a Options,
    /// The adapters of all stages of other hosts and of this host.
    pub(crate) adapters: Vec<Adapter>,
    /// Number of the run. No other run of this process has it.
    pub(crate) number: u64,
    /// Edges of that host whose bytes this host sends or passes on.
    pub(crate) edges: Vec<usize>,
    /// Edges between that host and a third one that they exchange themselves.
    pub(crate) direct: Vec<DirectEdge>,
    /// Number of streams of each edge.
    pub(crate) streams: u32,
}

impl Run<'_> {
    /// Returns the edge of each stream that this host sends or passes on.
    pub(crate) fn edges_of_streams(&self) -> impl Iterator<Item = usize> {
        self.edges.iter().flat_map(|edge| std::iter::repeat_n(*edge, self.streams as usize))
    }
}

/// An edge between two other hosts.
pub(crate) struct DirectEdge {
    /// Index of the edge.
    pub(crate) edge: usize,
    /// Index of the third host.
    pub(crate) other: usize,
    /// Whether the host connects to the third one. Otherwise, it accepts the connection of the third one.
    pub(crate) connects: bool,
}

/// Number of the next run.
static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

/// Connects to another host.
pub(crate) trait Connect: Send + Sync {
    /// Makes the host load its stages of a plan, and returns the streams to it.
    fn connect(&self, run: &Run<'_>) -> Result<RemoteHost>;
}

impl Hosts {
    fn device(&self, label: &str) -> Option<&RemoteDevice> {
        self.devices.iter().find(|device| device.adapter.label() == label)
    }

    /// Returns the adapter of a device of another host.
    pub(crate) fn adapter(&self, label: &str) -> Option<&Adapter> {
        self.device(label).map(|device| &device.adapter)
    }

    /// Returns the descriptions of the devices.
    pub(crate) fn facts(&self) -> impl Iterator<Item = DeviceFacts> {
        self.devices.iter().filter_map(|device| device.facts.clone())
    }

    /// Returns each two devices of different hosts whose activations pass through this host.
    pub(crate) fn relayed(&self) -> Vec<[String; 2]> {
        let pairs = self.devices.iter().flat_map(|from| self.devices.iter().map(move |to| (from, to)));
        let relayed =
            pairs.filter(|(from, to)| from.host != to.host && self.connects(from.host, to.host).is_none());
        relayed.map(|(from, to)| [from.adapter.label(), to.adapter.label()]).collect()
    }

    /// Connects to the hosts of a plan's stages. `adapters` has the adapter of each stage, and `own` is the number of
    /// devices of this host. Returns the stages of other hosts, and their device indices by stage.
    pub(crate) fn connect(
        &self,
        plan: &Plan,
        options: &Options,
        (adapters, own): (&[Adapter], usize),
    ) -> Result<(Remote, Vec<Option<usize>>)> {
        let host = |label: &String| self.device(label).map(|device| device.host);
        let of_stages: Vec<Option<usize>> = plan.stages.iter().map(|stage| host(&stage.device)).collect();
        if of_stages.iter().all(Option::is_none) && !self.is_worker {
            return Ok((Remote::default(), of_stages));
        }
        if plan.all_stages().any(|stage| !stage.streamed.is_empty()) || plan.prefill_stage.is_some() {
            let what = "a plan over several hosts cannot stream weights or have a prefill stage";
            return Err(Error::Usage(what.into()));
        }
        let (mut remote, mut devices) = (Remote::default(), Vec::new());
        let mut used: Vec<usize> = if self.is_worker { vec![0] } else { Vec::new() };
        used.extend(of_stages.iter().flatten());
        // A host connects to those before it, which must expect it by then.
        used.sort_unstable();
        used.dedup();
        for (stage, host) in plan.stages.iter().zip(&of_stages) {
            let at = host.and_then(|host| used.binary_search(&host).ok());
            devices.push(at.map(|_| own + remote.stages.len()));
            remote.stages.extend(at.map(|host| RemoteStage { label: stage.device.clone(), host }));
        }
        let number = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        for host in used {
            let (edges, direct) = self.edges_of(host, &of_stages);
            let run = Run {
                plan,
                options,
                adapters: adapters.to_vec(),
                number,
                edges,
                direct,
                streams: self.streams,
            };
            let first = of_stages.iter().position(|of| *of == Some(host)).unwrap_or_default();
            let lost = |error| lost(&plan.stages[first].device, error);
            remote.hosts.push(self.hosts[host].connect(&run).map_err(lost)?);
        }
        Ok((remote, devices))
    }

    /// Returns the edges of a host's stages: those whose bytes this host sends or passes on, and those that the host
    /// exchanges with a third one.
    fn edges_of(&self, host: usize, of_stages: &[Option<usize>]) -> (Vec<usize>, Vec<DirectEdge>) {
        let (mut edges, mut direct) = (Vec::new(), Vec::new());
        for (edge, ends) in of_stages.windows(2).enumerate() {
            let other = match ends.iter().map(|end| *end == Some(host)).collect::<Vec<_>>()[..] {
                [true, false] => ends[1],
                [false, true] => ends[0],
                _ => continue,
            };
            let connects = |other| self.connects(host, other).map(|connects| (other, connects));
            match (other, other.and_then(connects)) {
                (Some(_), _) if self.is_worker => {}
                (_, Some((other, connects))) => direct.push(DirectEdge { edge, other, connects }),
                (_, None) => edges.push(edge),
            }
        }
        (edges, direct)
    }

    /// Returns whether a host connects to another one. Returns `None` if they do not exchange activations themselves.
    fn connects(&self, host: usize, other: usize) -> Option<bool> {
        let is_pair = |pair: &&(usize, usize)| [(host, other), (other, host)].contains(pair);
        self.direct.iter().find(is_pair).map(|(from, _)| *from == host)
    }
}

/// Returns the error of a device whose host cannot be used. A plan may do without the device.
fn lost(device: &str, error: Error) -> Error {
    match error {
        Error::Worker { .. } => {
            let cause = ragtag_hal::Error::Lost { cause: error.to_string() };
            Error::Device { device: device.into(), cause }
        }
        other => other,
    }
}
