//! Placement of stages on devices, and of the hosts that read streamed weights from the model's file. Each such host
//! is a device with a single queue, which signals the timeline of the reads of one stage.

use crate::capacity::{Lanes, routes_of};
use crate::core::{FileParts, StageShape};
use crate::sim::device::{SimDevice, timeline};
use crate::sim::spec::{SimPass, SimSpec, SimStage};
use ragtag_hal::QueueKind;
use ragtag_transfer::Routes;
use std::collections::BTreeSet;

/// Devices, stages and reading hosts of a simulation.
pub(super) struct Topology<'a> {
    spec: &'a SimSpec,
    stages: Vec<&'a SimStage>,
    /// Routes of each edge.
    routes: Vec<Routes>,
    /// Index of the device that runs each stage. The prefill stage is the last.
    pub(super) hosts: Vec<usize>,
    /// Indices of the stages on each device.
    pub(super) hosted: Vec<Vec<usize>>,
    /// Index of the reading host of each stage. They follow the devices.
    pub(super) readers: Vec<Option<usize>>,
    /// For each device, the device itself and all devices that wait for its points.
    pub(super) around: Vec<Vec<usize>>,
}

impl<'a> Topology<'a> {
    /// Creates the topology of a pipeline, which must have stages.
    pub(super) fn new(spec: &'a SimSpec) -> Self {
        let (hosts, stages) = (hosts(spec), spec.all().collect::<Vec<_>>());
        let devices = hosts.iter().max().map_or(0, |last| last + 1);
        let of = |device: usize| (0..hosts.len()).filter(|&stage| hosts[stage] == device).collect::<Vec<_>>();
        let hosted: Vec<_> = (0..devices).map(of).collect();
        let routes = spec.stages[..spec.stages.len() - 1].iter().map(|stage| stage.routes.clone()).collect();
        let readers = readers(&stages, devices);
        let around = around(&hosted, &hosts, &readers, spec.prefill.is_some());
        Self { spec, stages, routes, hosts, hosted, readers, around }
    }

    /// Returns the label of a stage's device.
    pub(super) fn label(&self, stage: usize) -> String {
        self.stages[stage].device.clone()
    }

    /// Returns the host of each device.
    pub(super) fn networked(&self) -> Vec<u32> {
        self.hosted.iter().map(|stages| self.spec.network.host(stages[0])).collect()
    }

    /// Returns the passages of keys and values.
    pub(super) fn passes(&self) -> &'a [SimPass] {
        self.spec.prefill.as_ref().map_or(&[], |prefill| &prefill.passes)
    }

    /// Returns the devices, followed by the reading hosts.
    pub(super) fn devices(&self) -> Vec<SimDevice> {
        let reads = (0..self.readers.len()).filter(|&stage| self.readers[stage].is_some());
        let stages = self.hosted.iter().cloned().chain(reads.map(|stage| vec![stage]));
        stages.map(|stages| SimDevice::new(&stages, self.spec)).collect()
    }

    /// Returns whether a stage is the prefill stage.
    fn is_prefill(&self, stage: usize) -> bool {
        stage >= self.spec.stages.len()
    }

    /// Returns the parameters of a stage's core.
    pub(super) fn shape(&self, at: usize) -> StageShape {
        let (spec, stage) = (self.spec, self.stages[at]);
        let is_prefill = self.is_prefill(at);
        let before = at.checked_sub(1).filter(|_| !is_prefill);
        StageShape {
            slots: stage.slots,
            row_bytes: spec.row_bytes,
            incoming: before.map(|before| self.routes[before].clone()),
            outgoing: self.routes.get(at).cloned(),
            next_slots: spec.stages.get(at + 1).map_or(0, |next| next.slots),
            verified: spec.verified,
            parts: stage.parts.iter().map(|part| part.arena).collect(),
            from_file: self.readers[at].map(|reader| file_parts(reader, stage)),
            passes: self.passes().iter().filter(|_| is_prefill).map(|pass| pass.parts.clone()).collect(),
        }
    }

    /// Returns the capacities of a device's mailbox.
    pub(super) fn lanes(&self, device: usize) -> Lanes {
        let (spec, hosted) = (self.spec, &self.hosted[device]);
        let slots = self.stages.iter().map(|stage| stage.slots).max().unwrap_or(0);
        let has_prefill = hosted.iter().any(|stage| self.is_prefill(*stage));
        let ends = |pass: &&SimPass| has_prefill || self.hosts[pass.stage] == device;
        let ends = self.passes().iter().filter(ends).count();
        let routes = routes_of(&self.routes, &self.hosts[..spec.stages.len()], device);
        let lanes = Lanes::of_device(spec.run.credits, slots, spec.verified, routes);
        let mut lanes = lanes.with_passages(ends, has_prefill);
        // A simulated stage sees its device's progress at once, so it needs only one of the two notices:
        // the one for the ring.
        let stages = hosted.iter().filter(|stage| !self.is_prefill(**stage)).count();
        lanes.waking -= QueueKind::ALL.len() - 1 + stages;
        lanes
    }
}

/// Returns the index of the device of each stage. Stages with the same label share a device.
fn hosts(spec: &SimSpec) -> Vec<usize> {
    let mut labels = Vec::new();
    let mut host = |stage: &SimStage| {
        let known = labels.iter().position(|label| *label == stage.device);
        known.unwrap_or_else(|| {
            labels.push(stage.device.clone());
            labels.len() - 1
        })
    };
    spec.all().map(&mut host).collect()
}

/// Returns the index of the reading host of each stage, if it has one. `first` is the first index.
fn readers(stages: &[&SimStage], first: usize) -> Vec<Option<usize>> {
    let mut next = first;
    let reader = |stage: &&SimStage| {
        let reads = stage.parts.iter().any(|part| part.read_ns.is_some());
        reads.then(|| {
            next += 1;
            next - 1
        })
    };
    stages.iter().map(reader).collect()
}

/// Returns the parts of a stage whose weights the host `reader` reads.
fn file_parts(reader: usize, stage: &SimStage) -> FileParts {
    let parts = stage.parts.iter().enumerate().filter(|(_, part)| part.read_ns.is_some());
    FileParts { timeline: timeline(reader, QueueKind::Upload), parts: parts.map(|(at, _)| at).collect() }
}

/// Returns, for each device and then for each reading host, the devices and hosts whose work may wait for its
/// points. They run the same stages or neighbouring ones. With a prefill stage, these are all.
fn around(
    hosted: &[Vec<usize>],
    hosts: &[usize],
    readers: &[Option<usize>],
    has_prefill: bool,
) -> Vec<Vec<usize>> {
    let neighbours = |&stage: &usize| match has_prefill {
        true => 0..hosts.len(),
        false => stage.saturating_sub(1)..hosts.len().min(stage + 2),
    };
    let of_device = |stages: &Vec<usize>| {
        let devices = stages.iter().flat_map(neighbours).map(|stage| hosts[stage]);
        let around: BTreeSet<_> = devices.chain(stages.iter().filter_map(|&stage| readers[stage])).collect();
        around.into_iter().collect::<Vec<_>>()
    };
    let of_reader = |(host, reader): (&usize, &Option<usize>)| Some(vec![*host, (*reader)?]);
    hosted.iter().map(of_device).chain(hosts.iter().zip(readers).filter_map(of_reader)).collect()
}
