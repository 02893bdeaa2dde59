//! The proxies of other hosts, for the wiring of a pipeline.

use crate::actor::{Edge, StageReport};
use crate::capacity::Lanes;
use crate::error::{Error, Result};
use crate::mailbox::{Mailbox, Notice, mailbox};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunAddress};
use crate::remote::{
    EdgeProxy, EdgeReceiver, EdgeSender, HostProxy, Peer, Relay, Remote, Results, Ring, Stream,
};
use crate::runtime::attached::Logits;
use crate::runtime::passages::Reach;
use crate::runtime::spec::{Layout, PipelineOptions, PipelineSpec};
use ragtag_hal::{DeviceId, QueueKind, Timeline, TimelineId};
use ragtag_transfer::{Route, Routes};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// First of the ids that stand for the devices of stages on other hosts. No host has as many devices.
const FIRST_ID: u16 = 1 << 14;

/// Streams for edges, each with the index of the edge.
type EdgeStreams = Vec<(usize, Stream)>;

/// The hosts of a pipeline besides this one.
pub(super) struct Hosts {
    /// Reach of each stage on another host. Each stage has timelines of its own.
    pub(super) reach: Vec<Reach>,
    /// Index of the host of each of these stages.
    hosts: Vec<usize>,
    /// Stage of the pipeline of each of them.
    stages: Vec<u32>,
    mailboxes: Vec<Mailbox<DeviceMessage, DeviceUrgent>>,
    run: RunAddress,
    credits: u32,
    slots: u32,
    verified: bool,
}

impl Hosts {
    pub(super) fn new(pipeline: &PipelineSpec, options: &PipelineOptions, run: &RunAddress) -> Self {
        let remote = &pipeline.remote;
        let lanes = Lanes { waking: options.credits as usize, quiet: 0 };
        let (addresses, mailboxes): (Vec<DeviceAddress>, _) =
            remote.hosts.iter().map(|_| mailbox(lanes)).unzip();
        let reach = remote.stages.iter().zip(FIRST_ID..).map(|(stage, id)| Reach {
            label: stage.label.clone(),
            address: addresses[stage.host].clone(),
            timelines: QueueKind::ALL.map(|queue| Timeline::new(TimelineId { device: DeviceId(id), queue })),
        });
        let mut stages = vec![0; remote.stages.len()];
        for (index, spec) in (0..).zip(&pipeline.stages) {
            if let Some(at) = pipeline.remote_stage(spec) {
                stages[at] = index;
            }
        }
        Self {
            reach: reach.collect(),
            hosts: remote.stages.iter().map(|stage| stage.host).collect(),
            stages,
            mailboxes,
            run: run.clone(),
            credits: options.credits,
            slots: options.slots,
            verified: options.verify_transfers,
        }
    }

    /// Returns the proxies of the hosts. `reports` has the report of each stage of the pipeline, and `last` is the index
    /// of the last stage among those on other hosts.
    pub(super) fn proxies(
        self,
        mut remote: Remote,
        layout: &Layout,
        logits: &Logits,
        (reports, last): (&[Arc<Mutex<StageReport>>], Option<usize>),
    ) -> Proxies {
        let mut proxies =
            Proxies { addresses: Vec::new(), hosts: Vec::new(), edges: Vec::new(), ..Proxies::of(&self) };
        for ((index, host), mailbox) in
            std::mem::take(&mut remote.hosts).into_iter().enumerate().zip(self.mailboxes)
        {
            let of_host = || (0..self.hosts.len()).filter(|at| self.hosts[*at] == index);
            let streams = host.control.iter().chain(host.edges.iter().map(|(_, stream)| stream));
            let peer = Arc::new(Peer {
                name: host.name,
                is_coordinator: host.is_coordinator,
                label: of_host().next().map(|at| self.reach[at].label.clone()).unwrap_or_default(),
                stages: of_host().map(|at| self.stages[at]).collect(),
                timelines: of_host().flat_map(|at| self.reach[at].timelines.clone()).collect(),
                run: self.run.clone(),
                closes: streams.map(|stream| Arc::clone(&stream.close)).collect(),
                has_ended: AtomicBool::new(false),
            });
            if let Some(control) = host.control {
                let results = last.filter(|last| self.hosts[*last] == index).map(|last| Results {
                    region: Arc::clone(&logits.region),
                    places: layout.results,
                    credits: self.credits,
                    mirror: Arc::clone(&self.reach[last].timelines[QueueKind::Download.index()]),
                    next: 0,
                });
                let (peer, reports) = (Arc::clone(&peer), reports.to_vec());
                proxies.hosts.push(HostProxy { peer, control, mailbox, reports, results });
            }
            proxies.peers.push((peer, host.edges));
        }
        proxies
    }
}

/// Proxies that have not been started.
pub(super) struct Proxies {
    /// Addresses of the mailboxes of edges.
    pub(super) addresses: Vec<DeviceAddress>,
    pub(super) hosts: Vec<HostProxy>,
    pub(super) edges: Vec<EdgeProxy>,
    pub(super) relays: Vec<Relay>,
    /// The hosts, with the streams of their edges that have no proxy yet.
    peers: Vec<(Arc<Peer>, EdgeStreams)>,
    /// Index of the host, and timelines, of each stage on another host.
    stages: Vec<(usize, [Arc<Timeline>; 3])>,
    credits: u32,
    slots: u32,
    verified: bool,
}

impl Proxies {
    fn of(hosts: &Hosts) -> Self {
        let stages = hosts.hosts.iter().zip(&hosts.reach);
        Self {
            addresses: Vec::new(),
            hosts: Vec::new(),
            edges: Vec::new(),
            relays: Vec::new(),
            peers: Vec::new(),
            stages: stages.map(|(host, reach)| (*host, reach.timelines.clone())).collect(),
            credits: hosts.credits,
            slots: hosts.slots,
            verified: hosts.verified,
        }
    }

    fn streams(&mut self, edge: usize, host: usize) -> Vec<Stream> {
        let streams = self.peers[host].1.extract_if(.., |(index, _)| *index == edge);
        streams.map(|(_, stream)| stream).collect()
    }

    /// Adds the proxy of the stage `far` at an edge. `local` is the stage of this host as its neighbour sees it, and
    /// whether it sends. Returns the address of the proxy.
    pub(super) fn edge(
        &mut self,
        index: usize,
        far: usize,
        (local, sends): (Edge, bool),
        layout: &Layout,
    ) -> Result<DeviceAddress> {
        let (chunk_bytes, depth) = single_ring(&local.routes)?;
        let (host, timelines) = self.stages[far].clone();
        let streams = self.streams(index, host);
        if streams.is_empty() {
            return Err(Error::spec(format!("no stream for edge {index}")));
        }
        let routes = (Some(&local.routes), Some(&local.routes));
        let lanes = Lanes::of_device(self.credits, self.slots, self.verified, [routes]);
        let (address, mailbox) = mailbox(lanes);
        let ring = Ring { memory: Arc::clone(&local.ring), chunk_bytes, depth };
        let queue = if sends { QueueKind::Upload } else { QueueKind::Download };
        let sender = EdgeSender {
            mailbox,
            ring: ring.clone(),
            timelines: local.timelines.clone(),
            notice: if sends { Notice::default() } else { local.notice.clone() },
            turn: Mutex::default(),
        };
        let mirror = Arc::clone(&timelines[queue.index()]);
        let receiver = EdgeReceiver {
            to: Some(local),
            sends,
            ring,
            mirror,
            run: layout.run.clone(),
            most_waiting: lanes.waking + lanes.quiet,
            arrivals: Mutex::default(),
        };
        let peer = Arc::clone(&self.peers[host].0);
        self.edges.push(EdgeProxy { peer, streams, sender, receiver });
        self.addresses.push(address.clone());
        Ok(address)
    }

    /// Adds a relay for an edge between stages on two other hosts, unless the hosts exchange it themselves.
    pub(super) fn relay(&mut self, index: usize, from: usize, to: usize) {
        let hosts = [from, to].map(|stage| self.stages[stage].0);
        if hosts[0] == hosts[1] {
            return;
        }
        let [from, to] = hosts.map(|host| self.streams(index, host));
        for streams in from.into_iter().zip(to) {
            let peers = hosts.map(|host| Arc::clone(&self.peers[host].0));
            self.relays.push(Relay { peers, streams: streams.into() });
        }
    }
}

/// Returns the chunk size and the depth of the only ring of an edge between two hosts.
fn single_ring(routes: &Routes) -> Result<(u64, u32)> {
    match routes.iter().collect::<Vec<_>>()[..] {
        [Route::HostStaged { chunk_bytes, depth }] => Ok((chunk_bytes, depth)),
        _ => Err(Error::spec(format!("an edge between two hosts has the routes {routes:?}, not one ring"))),
    }
}
