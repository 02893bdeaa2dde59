//! The wiring of a pipeline: the mailboxes of the devices, the edges between neighbouring stages, the ends of the
//! paths, and the inputs of the actors.
//!
//! All stages are in one list. The stages that decode form one path, and the prefill stage is a path of its own.

use crate::actor::{ActorSpec, ActorStage, Edge, Sharing, StageReport, StageSpec};
use crate::capacity::{Lanes, routes_of};
use crate::copies::{Copies, FileReads, WatchedDevice};
use crate::error::{Error, Result};
use crate::mailbox::{Mailbox, Notice, mailbox};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunAddress};
use crate::remote::Remote;
use crate::runtime::attached::{Logits, PathEnds};
use crate::runtime::passages::{Passages, Reach};
use crate::runtime::proxies::{Hosts, Proxies};
use crate::runtime::shared_weights::shared_pages;
use crate::runtime::spec::{Layout, PipelineOptions, PipelineSpec};
use crate::trace::{Ends, TraceSink};
use crate::transfers::Transfers;
use crate::watch::{Watch, WatchedStage};
use ragtag_hal::{Device, DeviceId, HostRegion, QueueKind, Timeline, TimelineId};
use ragtag_transfer::Routes;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Queues of the previous stage's device whose points a stage waits for.
const FROM_PREVIOUS: &[QueueKind] = &[QueueKind::Compute, QueueKind::Download];
/// Queues of the next stage's device whose points a stage waits for.
const FROM_NEXT: &[QueueKind] = &[QueueKind::Upload];

type DeviceMailbox = Mailbox<DeviceMessage, DeviceUrgent>;

/// Actors that have not been started, with the data that the coordinator needs to communicate with them.
pub(super) struct Wired {
    pub(super) actors: Vec<ActorSpec>,
    /// Addresses of the devices' mailboxes.
    pub(super) addresses: Vec<DeviceAddress>,
    pub(super) reports: Vec<Arc<Mutex<StageReport>>>,
    /// Device id and device label of each stage.
    pub(super) devices: Vec<(DeviceId, String)>,
    /// Ends of each path.
    pub(super) ends: Vec<PathEnds>,
    /// Transfer records of the edges, followed by that of the token return.
    pub(super) crossings: Vec<Transfers>,
    pub(super) watch: Watch,
    /// Proxies of other hosts.
    pub(super) proxies: Proxies,
}

/// Connects the stages of a pipeline and the coordinator.
pub(super) fn connect(
    pipeline: PipelineSpec,
    options: &PipelineOptions,
    layout: &Layout,
    run: &RunAddress,
    logits: &Logits,
    sink: &TraceSink,
) -> Result<Wired> {
    let passages = Passages::new(&pipeline, layout)?;
    let shared_weights = shared_pages(&pipeline);
    let hosts = Hosts::new(&pipeline, options, run);
    let (wiring, mailboxes) = Wiring::new(&pipeline, options, &passages, &hosts);
    let PipelineSpec { devices, stages, prefill, remote, .. } = pipeline;
    let all = stages.iter().chain(&prefill);
    let (ends, watch) = (wiring.ends(&devices), wiring.watch(&devices, all));
    let named = wiring.places.iter().map(|place| (wiring.id(place), wiring.label(place))).collect();
    let actors = devices.into_iter().zip(mailboxes).enumerate();
    let decode_rows = layout.run.max_sequences.div_ceil(options.decode_groups.max(1));
    let actor = |(index, owned)| wiring.actor(index, owned, decode_rows, run, sink);
    let mut actors: Vec<_> = actors.map(actor).collect();
    let (edges, proxies) = wiring.edges(hosts, remote, layout, logits)?;
    let stages = stages.into_iter().chain(prefill).zip(shared_weights).zip(edges);
    for (index, ((spec, shared_weights), [previous, next])) in stages.enumerate() {
        let place = &wiring.places[index];
        let (is_last, is_prefill) = (index + 1 == place.path.end, place.is_prefill());
        let before = index.checked_sub(1).filter(|_| index > place.path.start);
        let Some(actor) = actors.get_mut(place.device) else { continue };
        actor.stages.push(ActorStage {
            stage: index as u32,
            spec,
            reads: place.reads.clone(),
            shared_weights,
            previous,
            next,
            logits: is_last.then(|| (Arc::clone(&logits.region), layout.results)),
            ends: Ends {
                incoming: before.map(|before| wiring.places[before].leaving.clone()),
                outgoing: Some(place.leaving.clone()),
            },
            passages: passages.of_stage(index, is_prefill, &wiring.reach),
            is_prefill,
            report: Arc::clone(&place.report),
        });
    }
    let reports = wiring.places.iter().map(|place| Arc::clone(&place.report)).collect();
    let decoding = wiring.places.iter().filter(|place| !place.is_prefill());
    let crossings = decoding.map(|place| place.leaving.clone()).collect();
    let addresses = wiring.reach.into_iter().map(|reach| reach.address);
    let addresses = addresses.chain(proxies.addresses.iter().cloned()).collect();
    Ok(Wired { actors, addresses, reports, devices: named, ends, crossings, watch, proxies })
}

/// A stage's place in the pipeline.
struct Place {
    /// Index of the device.
    device: usize,
    /// Index among the stages of the device.
    local: usize,
    /// Stages of the path.
    path: Range<usize>,
    /// Reads from the model's file, if there are any.
    reads: Option<FileReads>,
    /// Transfers that leave the stage.
    leaving: Transfers,
    report: Arc<Mutex<StageReport>>,
}

impl Place {
    fn is_prefill(&self) -> bool {
        self.path.start > 0
    }
}

/// Returns the place of each stage. The prefill stage is the last, because it uses the memory of the other
/// stages of its device.
fn places(pipeline: &PipelineSpec) -> Vec<Place> {
    let count = pipeline.stages.len();
    let mut stages_of = vec![0; pipeline.devices.len() + pipeline.remote.stages.len()];
    let place = |(index, spec): (usize, &StageSpec)| {
        stages_of[spec.device] += 1;
        let path = if index < count { 0..count } else { count..count + 1 };
        let (device, local, reads) = (spec.device, stages_of[spec.device] - 1, file_reads(index, spec));
        Place { device, local, path, reads, leaving: Transfers::default(), report: Arc::default() }
    };
    pipeline.all().enumerate().map(place).collect()
}

/// Returns the timeline and the list of a stage's reads from the model's file, if there are any.
fn file_reads(index: usize, spec: &StageSpec) -> Option<FileReads> {
    let device = DeviceId(u16::MAX - u16::try_from(index).unwrap_or(u16::MAX));
    let timeline = Timeline::new(TimelineId { device, queue: QueueKind::Upload });
    (!spec.from_file.is_empty()).then(|| FileReads { timeline, copies: Copies::default() })
}

/// The places of all stages, and the mailboxes and timelines of all devices.
struct Wiring<'a> {
    options: &'a PipelineOptions,
    /// Place of each stage. The prefill stage is the last.
    places: Vec<Place>,
    reach: Vec<Reach>,
    /// Copies in flight on each device.
    copies: Vec<Copies>,
}

impl<'a> Wiring<'a> {
    /// Returns the wiring, and the mailbox of each device.
    fn new(
        pipeline: &PipelineSpec,
        options: &'a PipelineOptions,
        passages: &Passages,
        hosts: &Hosts,
    ) -> (Self, Vec<DeviceMailbox>) {
        let places = places(pipeline);
        let decoding: Vec<usize> = pipeline.stages.iter().map(|stage| stage.device).collect();
        let (mut reach, mut mailboxes) = (Vec::new(), Vec::new());
        for (index, device) in pipeline.devices.iter().enumerate() {
            let routes = routes_of(&options.routes, &decoding, index);
            let lanes = Lanes::of_device(options.credits, options.slots, options.verify_transfers, routes);
            let lanes = lanes.with_passages(passages.on(index), passages.starts_on(index));
            let (address, mailbox) = mailbox(lanes);
            let timelines = QueueKind::ALL.map(|queue| device.timeline_for_others(queue));
            reach.push(Reach { label: device.adapter().label(), address, timelines });
            mailboxes.push(mailbox);
        }
        let copies = reach.iter().map(|_| Copies::default()).collect();
        reach.extend(hosts.reach.iter().cloned());
        (Self { options, places, reach, copies }, mailboxes)
    }

    fn label(&self, place: &Place) -> String {
        self.reach[place.device].label.clone()
    }

    /// Returns the id of a stage's device.
    fn id(&self, place: &Place) -> DeviceId {
        self.reach[place.device].timelines[0].id().device
    }

    /// Returns the edges before and after each stage, with their rings, and the proxies of other hosts.
    fn edges(
        &self,
        hosts: Hosts,
        remote: Remote,
        layout: &Layout,
        logits: &Logits,
    ) -> Result<(Vec<[Option<Edge>; 2]>, Proxies)> {
        let reports: Vec<_> = self.places.iter().map(|place| Arc::clone(&place.report)).collect();
        let own = self.copies.len();
        let elsewhere = |stage: usize| self.places[stage].device.checked_sub(own);
        let mut proxies = hosts.proxies(remote, layout, logits, (&reports, elsewhere(reports.len() - 1)));
        let mut edges: Vec<[Option<Edge>; 2]> = self.places.iter().map(|_| [None, None]).collect();
        for (index, routes) in self.options.routes.iter().enumerate() {
            if let (Some(from), Some(to)) = (elsewhere(index), elsewhere(index + 1)) {
                proxies.relay(index, from, to);
                continue;
            }
            let (ring, notice) = (self.ring(index, routes)?, Notice::default());
            let (at_sender, at_receiver) = Sharing::of(routes);
            let edge = |neighbour: usize, queues: &[QueueKind], shared: Sharing| {
                let place = &self.places[neighbour];
                let Reach { label, address, timelines } = self.reach[place.device].clone();
                let timelines = queues.iter().map(|queue| Arc::clone(&timelines[queue.index()])).collect();
                let (notice, routes, ring) = (notice.clone(), routes.clone(), Arc::clone(&ring));
                let (stage, ring_id, imported) = (place.local, None, Vec::new());
                Edge { routes, ring, ring_id, label, address, stage, timelines, notice, shared, imported }
            };
            let mut next = edge(index + 1, FROM_NEXT, at_sender);
            let mut previous = edge(index, FROM_PREVIOUS, at_receiver);
            match (elsewhere(index), elsewhere(index + 1)) {
                (None, None) => {
                    (edges[index][1], edges[index + 1][0]) = (Some(next), Some(previous));
                }
                (None, Some(far)) => {
                    next.address = proxies.edge(index, far, (previous, true), layout)?;
                    edges[index][1] = Some(next);
                }
                (Some(far), None) => {
                    previous.address = proxies.edge(index, far, (next, false), layout)?;
                    edges[index + 1][0] = Some(previous);
                }
                (Some(_), Some(_)) => {}
            }
        }
        Ok((edges, proxies))
    }

    /// Allocates the host memory of the rings of an edge.
    fn ring(&self, edge: usize, routes: &Routes) -> Result<Arc<HostRegion>> {
        let cores = self.options.ring_cores.get(edge).map_or(&[][..], Vec::as_slice);
        // A region has at least one byte.
        let region = HostRegion::near(routes.staging_bytes().max(1) as usize, cores);
        region.map(Arc::new).map_err(|e| Error::spec(format!("staging for {routes:?}: {e}")))
    }

    /// Returns the ends of each path.
    fn ends(&self, devices: &[Box<dyn Device>]) -> Vec<PathEnds> {
        let is_last = |(index, place): &(usize, &Place)| index + 1 == place.path.end;
        let ends = |(_, last): (usize, &Place)| {
            let first = &self.places[last.path.start];
            PathEnds {
                first: (first.device, first.local),
                last: match devices.get(last.device) {
                    Some(device) => device.timeline(QueueKind::Download),
                    None => Arc::clone(&self.reach[last.device].timelines[QueueKind::Download.index()]),
                },
                notice: Notice::default(),
                progress: 0,
                token_return: last.leaving.clone(),
            }
        };
        self.places.iter().enumerate().filter(is_last).map(ends).collect()
    }

    /// Returns the watch over the work of all devices, and over the reads from the model's file.
    fn watch<'s>(&self, devices: &[Box<dyn Device>], stages: impl Iterator<Item = &'s StageSpec>) -> Watch {
        let reads = || self.places.iter().filter_map(|place| place.reads.as_ref());
        let watched = devices.iter().zip(&self.copies).map(|(device, copies)| WatchedDevice {
            copies: copies.clone(),
            own: QueueKind::ALL.map(|queue| device.timeline(queue)),
        });
        let watched = watched.chain(reads().map(FileReads::watched)).collect();
        let awaited = self.reach.iter().flat_map(|reach| &reach.timelines);
        let awaited = awaited.chain(reads().map(|reads| &reads.timeline)).cloned();
        let stages = stages.zip(&self.places).map(|(spec, place)| WatchedStage {
            device: place.device,
            label: self.label(place),
            longest: spec.longest,
            limit: spec.compute_timeout,
        });
        Watch::new(watched, awaited, stages.collect(), self.options.stall_timeout)
    }

    /// Returns the actor of the device at `index`, without stages.
    fn actor(
        &self,
        index: usize,
        (device, mailbox): (Box<dyn Device>, DeviceMailbox),
        decode_rows: u32,
        run: &RunAddress,
        sink: &TraceSink,
    ) -> ActorSpec {
        let Reach { label, address, .. } = self.reach[index].clone();
        ActorSpec {
            label,
            device,
            stages: Vec::new(),
            slots: self.options.slots,
            decode_rows,
            mailbox,
            address,
            run: run.clone(),
            sink: sink.clone(),
            copies: self.copies[index].clone(),
            verified: self.options.verify_transfers,
            kept: None,
        }
    }
}
